"""The Deployment of one pair's relays.

It satisfies the `restricted` Pod Security level and works under any user id. A change of the configuration rolls
the pods, by its digest in the template; a change of a Secret does not, since secrets are files that the relay
reads again at every connect.
"""

from __future__ import annotations

from dataclasses import dataclass

from outboxrelay.config import digest
from outboxrelay_operator.api.pod import Pod, ResourceAmounts
from outboxrelay_operator.desired.applied import digest_of, marked
from outboxrelay_operator.desired.config_map import config_key
from outboxrelay_operator.desired.metadata import Object, metadata
from outboxrelay_operator.desired.relay_config import (
    CONFIG_DIRECTORY,
    CONFIG_FILE,
    STATUS_PORT,
)
from outboxrelay_operator.desired.secret_files import secret_files
from outboxrelay_operator.names import (
    CONFIG_DIGEST_ANNOTATION,
    NAME_LABEL,
    PAIR_LABEL,
    TEMPLATE_DIGEST_ANNOTATION,
    labels,
    shared_name,
)
from outboxrelay_operator.pairs import Owner, Pair

_DEFAULT_RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}


@dataclass(frozen=True, slots=True)
class RelayImage:
    """The image that relays run unless the resource names another."""

    name: str
    pull_policy: str


def deployment(owner: Owner, pair: Pair, *, config: str, replicas: int, pod: Pod, image: RelayImage) -> Object:
    """`config` is the text of the pair's configuration, as it stands in the config map."""
    meta = metadata(owner, pair.name)
    meta["labels"] = meta["labels"] | {PAIR_LABEL: pair.name}
    body: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": replicas,
            # While it is true, what is applied reaches no pod.
            "paused": False,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": 120,
            # Lane locks make an overlap harmless, so a new pod may start before an old one stops.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": {NAME_LABEL: "outboxrelay", PAIR_LABEL: pair.name}},
            "template": {
                "metadata": {
                    "labels": labels(owner.key.name) | {PAIR_LABEL: pair.name},
                    "annotations": {CONFIG_DIGEST_ANNOTATION: digest(config)},
                },
                "spec": {
                    "serviceAccountName": shared_name(owner.key.name),
                    "automountServiceAccountToken": False,
                    # Neutral values are stated where another one would keep the relay from its work.
                    "hostNetwork": False,
                    "hostPID": False,
                    "hostIPC": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [_container(pair, config=config, pod=pod, image=image)],
                    "volumes": _volumes(owner, pair, config=config),
                },
            },
        },
    }
    # By it the pods of the newest template are told from those that it replaces.
    template = body["spec"]["template"]
    if pod.image_pull_secrets is not None:
        template["spec"]["imagePullSecrets"] = [{"name": secret.name} for secret in pod.image_pull_secrets]
    template["metadata"]["annotations"][TEMPLATE_DIGEST_ANNOTATION] = digest_of(template)
    return marked(body)


def mounted_config_key(live: Object) -> str | None:
    """The key of the config map that new pods of a Deployment, as it is in the cluster, start with."""
    for volume in live["spec"]["template"]["spec"].get("volumes") or ():
        if volume["name"] == "config":
            for item in (volume.get("configMap") or {}).get("items") or ():
                return str(item["key"])
    return None


def _container(pair: Pair, *, config: str, pod: Pod, image: RelayImage) -> Object:
    mounts = [
        {"name": "config", "mountPath": str(CONFIG_DIRECTORY), "readOnly": True},
        *({"name": files.volume, "mountPath": str(files.directory), "readOnly": True} for files in secret_files(pair)),
    ]
    return {
        "name": "relay",
        "image": pod.image or image.name,
        "imagePullPolicy": image.pull_policy,
        "command": [],
        "args": ["run", "--config", str(CONFIG_FILE)],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            # What the relay must find in the file; else it would run with a configuration that is not ours.
            {"name": "OUTBOXRELAY_CONFIG_DIGEST", "value": digest(config)},
        ],
        "ports": [{"name": "http", "containerPort": STATUS_PORT, "protocol": "TCP"}],
        "livenessProbe": _probe("/livez", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=2),
        # The last words of a relay that could not start are shown in the resource's condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(pod),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
    }


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _resources(pod: Pod) -> Object:
    if pod.resources is None:
        return _DEFAULT_RESOURCES
    sections = {"requests": _amounts(pod.resources.requests), "limits": _amounts(pod.resources.limits)}
    return {name: amounts for name, amounts in sections.items() if amounts}


def _amounts(amounts: ResourceAmounts | None) -> Object:
    return {} if amounts is None else amounts.model_dump(exclude_none=True)


def _volumes(owner: Owner, pair: Pair, *, config: str) -> list[Object]:
    return [
        {
            "name": "config",
            "configMap": {
                "name": shared_name(owner.key.name),
                "items": [{"key": config_key(pair.name, config), "path": CONFIG_FILE.name}],
            },
        },
        *(
            {
                "name": files.volume,
                "secret": {
                    "secretName": files.secret,
                    "items": [{"key": key, "path": name} for key, name in files.items],
                },
            }
            for files in secret_files(pair)
        ),
    ]
