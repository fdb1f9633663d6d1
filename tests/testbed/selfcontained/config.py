"""The components' configuration files, as text. Pure: no file is read or written here.

JSON is used wherever the component reads YAML, of which it is a subset.
Settings that a user's cluster would have at their defaults stay at their
defaults, above all the kubelet's sync frequency: tests must see what users see.
"""

import json
from pathlib import Path
from typing import Any

from tests.testbed.selfcontained.instance import (
    API_PORT,
    CLUSTER_DOMAIN,
    CONTEXT,
    CONTROLLER_MANAGER_PORT,
    DNS_READY_PORT,
    KUBELET_PORT,
    NODE_NAME,
    PROXY_HEALTH_PORT,
    SCHEDULER_PORT,
    Instance,
    Network,
)

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_PLUGINS = "/usr/lib/cni"


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def kubeconfig(network: Network, *, user: str, token: str, authority_base64: str) -> str:
    """Return a kubeconfig that logs in with `token`."""
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": CONTEXT,
                    "cluster": {"server": network.api_url, "certificate-authority-data": authority_base64},
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
            "current-context": CONTEXT,
        }
    )


def kubelet(instance: Instance, network: Network) -> str:
    """Return the kubelet's configuration.

    Eviction and image collection are put off as far as they go: a full disk of
    the developer's machine is no reason to evict a test's pod.
    """
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": str(network.node_address),
            "port": KUBELET_PORT,
            "readOnlyPort": 0,
            "tlsCertFile": str(instance.pki / "server.crt"),
            "tlsPrivateKeyFile": str(instance.pki / "server.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(instance.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDomain": CLUSTER_DOMAIN,
            "clusterDNS": [str(network.node_address)],
            "resolvConf": str(instance.config / "resolv.conf"),
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{instance.cgroup}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "volumePluginDir": str(instance.state / "volume-plugins"),
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
                "imagefs.inodesFree": "1%",
            },
            "imageGCHighThresholdPercent": 100,
        }
    )


def kube_proxy(instance: Instance, network: Network) -> str:
    """Return kube-proxy's configuration; it leaves the host-wide connection tracking limits alone."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": str(network.pods),
            "hostnameOverride": NODE_NAME,
            "oomScoreAdj": 0,
            "clientConnection": {"kubeconfig": str(instance.config / "kube-proxy.kubeconfig")},
            "healthzBindAddress": f"{network.node_address}:{PROXY_HEALTH_PORT}",
            "metricsBindAddress": "127.0.0.1:10249",
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def containerd(instance: Instance, *, pause_image: str) -> str:
    """Return containerd's configuration.

    `restrict_oom_score_adj` keeps sandboxes from asking for an OOM score that
    root without CAP_SYS_RESOURCE may not set; AppArmor stays off because a
    loaded profile would outlive the cluster.
    """
    disabled = ["aufs", "btrfs", "devmapper", "zfs"]
    return f"""\
version = 2
root = {json.dumps(str(instance.state / "containerd"))}
state = "/run/containerd"
oom_score = 0
disabled_plugins = {json.dumps([f"io.containerd.snapshotter.v1.{name}" for name in disabled])}

[grpc]
  address = {json.dumps(CONTAINERD_SOCKET)}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {json.dumps(pause_image)}
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = {json.dumps(CNI_PLUGINS)}
  conf_dir = {json.dumps(str(instance.config / "cni"))}

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def cni(network: Network) -> str:
    """Return the pod network's configuration list.

    Each pod gets a point-to-point link, so all traffic is routed and a
    Service's translation is undone on the way back without the kernel's bridge
    filter, which not every machine has. There is no masquerading: pods reach
    each other and the node, and nothing else.
    """
    return _json(
        {
            "cniVersion": "0.4.0",
            "name": "outboxrelay-testbed",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni-addresses",
                        "ranges": [[{"subnet": str(network.pods)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
            ],
        }
    )


def corefile(instance: Instance, network: Network) -> str:
    """Return CoreDNS's configuration: names of the cluster, and NXDOMAIN at once for any other."""
    return f"""\
{CLUSTER_DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {network.node_address}
    errors
    ready {network.node_address}:{DNS_READY_PORT}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {instance.config / "coredns.kubeconfig"} {CONTEXT}
        pods insecure
        ttl 30
    }}
}}
.:53 {{
    bind {network.node_address}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def dns_access() -> str:
    """Return the RBAC objects that let CoreDNS watch what it answers about."""
    name = "outboxrelay-testbed:dns"
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    }
    return _json({"apiVersion": "v1", "kind": "List", "items": [role, binding]})


def audit_policy() -> str:
    """Return the API server's audit policy: who asked for what, of pods' service accounts only.

    The rest would be most of the log: the components ask all the time, as service accounts of kube-system too.
    """
    return _json(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
                {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
                {"level": "None"},
            ],
        }
    )


def arguments(instance: Instance, network: Network) -> dict[str, list[str]]:
    """Return each component's arguments, in the order in which they are started."""
    pki, config = instance.pki, instance.config
    node = str(network.node_address)
    serving = [f"--tls-cert-file={pki / 'server.crt'}", f"--tls-private-key-file={pki / 'server.key'}"]
    return {
        "etcd": [
            f"--data-dir={instance.state / 'etcd'}",
            "--unsafe-no-fsync",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--logger=zap",
        ],
        "kube-apiserver": [
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={node}",
            f"--advertise-address={node}",
            f"--secure-port={API_PORT}",
            *serving,
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--token-auth-file={pki / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            # The second is on in OpenShift and wherever owners are to be protected; it costs operators one more right.
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            f"--audit-policy-file={config / 'audit-policy.json'}",
            f"--audit-log-path={instance.audit_log}",
            "--audit-log-maxsize=100",
            "--audit-log-maxbackup=1",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={network.services}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
        ],
        "kube-controller-manager": [
            f"--kubeconfig={config / 'kube-controller-manager.kubeconfig'}",
            f"--bind-address={node}",
            f"--secure-port={CONTROLLER_MANAGER_PORT}",
            *serving,
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
        ],
        "kube-scheduler": [
            f"--kubeconfig={config / 'kube-scheduler.kubeconfig'}",
            f"--bind-address={node}",
            f"--secure-port={SCHEDULER_PORT}",
            *serving,
            "--leader-elect=false",
        ],
        "containerd": [f"--config={config / 'containerd.toml'}"],
        "kubelet": [
            f"--config={config / 'kubelet.json'}",
            f"--kubeconfig={config / 'kubelet.kubeconfig'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={node}",
        ],
        "kube-proxy": [f"--config={config / 'kube-proxy.json'}"],
        "coredns": [f"-conf={config / 'Corefile'}"],
    }


def files(instance: Instance, network: Network, *, pause_image: str) -> dict[Path, str]:
    """Return every configuration file that holds no secret."""
    return {
        instance.config / "kubelet.json": kubelet(instance, network),
        instance.config / "kube-proxy.json": kube_proxy(instance, network),
        instance.config / "containerd.toml": containerd(instance, pause_image=pause_image),
        instance.config / "cni" / "10-outboxrelay.conflist": cni(network),
        instance.config / "Corefile": corefile(instance, network),
        instance.config / "dns-access.json": dns_access(),
        instance.config / "audit-policy.json": audit_policy(),
        instance.config / "resolv.conf": "",
    }
