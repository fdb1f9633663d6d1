"""A plain client of the API server, for tests.

Tests speak to the server in its own terms (dicts in, dicts out, the server's own refusal as text), so that they
judge it and not a client library's view of it. Only the log-in comes from the library: contexts, certificates,
tokens and exec plugins of a kubeconfig.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import kubernetes.config

Object = dict[str, Any]

_CLIENTS: Any = kubernetes.config
"""The library has types in parts only."""

MERGE_PATCH = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"

# Kind -> path of its API and plural.
_KINDS: dict[str, tuple[str, str]] = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Pod": ("/api/v1", "pods"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "Namespace": ("/api/v1", "namespaces"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "OutboxRelay": ("/apis/outboxrelay.io/v1alpha1", "outboxrelays"),
    "PodMonitor": ("/apis/monitoring.coreos.com/v1", "podmonitors"),
    "ScaledObject": ("/apis/keda.sh/v1alpha1", "scaledobjects"),
    "TriggerAuthentication": ("/apis/keda.sh/v1alpha1", "triggerauthentications"),
    "PrometheusRule": ("/apis/monitoring.coreos.com/v1", "prometheusrules"),
}
_CLUSTER_SCOPED = frozenset({"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"})


class ApiError(Exception):
    """The server refused; `message` is its own text and `code` the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Api:
    """Requests with the credentials of one kubeconfig."""

    def __init__(self, kubeconfig: Path, *, user: str | None = None) -> None:
        """`user` is impersonated: its rights apply, not those of the kubeconfig."""
        self._kubeconfig = kubeconfig
        self._client: Any = _CLIENTS.new_client_from_config(config_file=str(kubeconfig))
        self._identity = {} if user is None else {"Impersonate-User": user}

    def acting_as(self, user: str) -> Api:
        """The same server with the rights of `user`; a service account is system:serviceaccount:<namespace>:<name>."""
        return Api(self._kubeconfig, user=user)

    def close(self) -> None:
        """End the connections."""
        self._client.rest_client.pool_manager.clear()

    def text(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> str:
        """Send one request and return the text of the answer.

        Raises:
            ApiError: for every answer outside 2xx.
        """
        headers = {"Accept": "application/json, */*", "Content-Type": content_type} | self._identity
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        response = self._client.rest_client.pool_manager.request(
            method, url, headers=headers, body=None if body is None else json.dumps(body), timeout=60
        )
        text: str = response.data.decode(errors="replace")
        if not 200 <= response.status <= 299:
            raise ApiError(response.status, _message(text))
        return text

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Like `text`, for answers that are objects."""
        answer: Object = json.loads(self.text(method, path, body=body, query=query, content_type=content_type))
        return answer

    def get(self, kind: str, name: str, *, namespace: str | None = None, subresource: str = "") -> Object:
        """Read one object."""
        return self.request("GET", path_of(kind, name, namespace=namespace, subresource=subresource))

    def find(self, kind: str, name: str, *, namespace: str | None = None) -> Object | None:
        """Read one object, or None if there is none."""
        try:
            return self.get(kind, name, namespace=namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, *, namespace: str | None = None, labels: str = "", fields: str = "") -> list[Object]:
        """Read the objects that match the selectors."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        answer = self.request("GET", path_of(kind, namespace=namespace), query={k: v for k, v in query.items() if v})
        items: list[Object] = answer["items"]
        return items

    def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """Create an object; a field that the server does not know is an error."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        namespace = body["metadata"].get("namespace")
        return self.request("POST", path_of(body["kind"], namespace=namespace), body=body, query=query)

    def apply(self, body: Object, *, manager: str = "tests", subresource: str = "") -> Object:
        """Server-side apply, taking fields over from other managers."""
        metadata = body["metadata"]
        return self.request(
            "PATCH",
            path_of(body["kind"], metadata["name"], namespace=metadata.get("namespace"), subresource=subresource),
            body=body,
            query={"fieldManager": manager, "force": "true", "fieldValidation": "Strict"},
            content_type=APPLY,
        )

    def merge(
        self, kind: str, name: str, patch: Object, *, namespace: str | None = None, subresource: str = ""
    ) -> Object:
        """Merge-patch an object; a field that the server does not know is an error."""
        return self.request(
            "PATCH",
            path_of(kind, name, namespace=namespace, subresource=subresource),
            body=patch,
            query={"fieldValidation": "Strict"},
            content_type=MERGE_PATCH,
        )

    def delete(self, kind: str, name: str, *, namespace: str | None = None, grace_seconds: int | None = None) -> None:
        """Delete an object and, in the background, what it owns; one that is gone already is fine."""
        query = {} if grace_seconds is None else {"gracePeriodSeconds": str(grace_seconds)}
        try:
            self.request("DELETE", path_of(kind, name, namespace=namespace), query=query)
        except ApiError as error:
            if error.code != 404:
                raise

    def pod_log(self, name: str, *, namespace: str, previous: bool = False) -> str:
        """Everything that the pod's container wrote, or its predecessor in the same pod."""
        path = path_of("Pod", name, namespace=namespace, subresource="log")
        return self.text("GET", path, query={"previous": "true"} if previous else None)


def path_of(kind: str, name: str = "", *, namespace: str | None = None, subresource: str = "") -> str:
    """The path of an object, or of the collection when no name is given."""
    base, plural = _KINDS[kind]
    if kind not in _CLUSTER_SCOPED and namespace is not None:
        base = f"{base}/namespaces/{namespace}"
    return "/".join(part for part in (base, plural, name, subresource) if part)


def _message(text: str) -> str:
    try:
        status = json.loads(text)
    except json.JSONDecodeError:
        return text
    return str(status.get("message", text)) if isinstance(status, dict) else text
