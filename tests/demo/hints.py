"""What the demo suggests at its end; each of these was tried."""

from __future__ import annotations

from pathlib import Path

from tests.demo.install import CHART, OPERATOR_NAMESPACE, RELEASE
from tests.demo.manifests import NAMESPACE

_HINTS = f"""
  export KUBECONFIG={{kubeconfig}} PATH={{directory}}:$PATH

1 Let the orders flow again, and watch (Ctrl-C ends the watching):
    kubectl scale deployment/shop-writer -n {NAMESPACE} --replicas=1
    kubectl get outboxrelays -n {NAMESPACE} --watch
2 More pods per pair; they take over a share of the keys from those that are there:
    kubectl scale obr/shop -n {NAMESPACE} --replicas=3
    kubectl get pods -n {NAMESPACE} -l app.kubernetes.io/component=relay
3 Suspend the relay while the shop writes, look at the backlog of each pair, and go on:
    kubectl patch obr shop -n {NAMESPACE} --type=merge -p '{{{{"spec":{{{{"suspend":true}}}}}}}}'
    kubectl describe obr shop -n {NAMESPACE}
    kubectl patch obr shop -n {NAMESPACE} --type=merge -p '{{{{"spec":{{{{"suspend":false}}}}}}}}'
4 Delete what the operator owns, and see it come back:
    kubectl delete deployment -n {NAMESPACE} -l app.kubernetes.io/component=relay
    kubectl get obr,deployments -n {NAMESPACE}
5 Close the shop, let the backlog go, and ask the delivery service whether anything was lost, repeated or reordered:
    kubectl scale deployment/shop-writer -n {NAMESPACE} --replicas=0
    kubectl wait obr/shop -n {NAMESPACE} --for=jsonpath='{{{{.status.display.backlog}}}}'=0 --timeout=2m
    kubectl get --raw /api/v1/namespaces/{NAMESPACE}/services/delivery:http/proxy/report/full
6 A table of your own, in a database beside the shop's: let the operator serve a namespace of yours, too,
    kubectl create namespace mine
    helm upgrade {RELEASE} {{chart}} \\
      -n {OPERATOR_NAMESPACE} --reuse-values --set 'watchNamespaces={{{{{NAMESPACE},mine}}}}'
    kubectl exec -n {NAMESPACE} deploy/orders-db -- createdb -U postgres mine
  and go on with "First rows" in README.md: namespace mine; host orders-db.{NAMESPACE}, dbname mine, a role mine (relay
  is the shop's), no line `tls` (still encrypted, by mode require); broker kafka.{NAMESPACE}:9092. psql and Kafka's
  scripts are here:
    kubectl exec -i -n {NAMESPACE} deploy/orders-db -- psql -U postgres mine
    kubectl exec -n {NAMESPACE} deploy/kafka -- kafka-topics.sh --bootstrap-server kafka:9092 --list

`make demo-down` removes the demo with its operator, `kubectl delete namespace mine` what you made in 6 (with nobody to
serve it, its status stays as it was), `make cluster-down` the cluster.
"""


def hints(*, kubectl: Path, kubeconfig: Path) -> str:
    """The text, with the paths of the cluster at hand."""
    return _HINTS.format(kubeconfig=kubeconfig, directory=kubectl.parent, chart=CHART).strip("\n")
