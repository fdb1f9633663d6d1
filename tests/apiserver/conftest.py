"""Fixtures of the tier that talks to a real kube-apiserver."""

from tests.testbed.cluster_fixtures import api, cluster, crd, namespace, new_namespace

__all__ = ["api", "cluster", "crd", "namespace", "new_namespace"]
