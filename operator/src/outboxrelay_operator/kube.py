"""The Kubernetes API as the operator uses it: the only module that imports the Kubernetes client.

URLs are built by hand for the few kinds there are: objects stay plain dicts, no discovery is done, and partial
bodies are possible, which the client's typed calls refuse.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

import aiohttp
import kubernetes.aio.client
import kubernetes.aio.config

from outboxrelay_operator.api import GROUP, KIND, PLURAL, VERSION
from outboxrelay_operator.names import MANAGED_BY

Object = dict[str, Any]
Objects = list[Object]
"""Classes with a method `list` need another word for it."""

PAGE = 500
_TIMEOUT_SECONDS = 15.0
_OVERLOADED = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_ATTEMPTS = 3
_LONGEST_PAUSE = 10
"""An API server that has too much to do says how many seconds to keep away: so long waits who asked, up to this."""

_WORD = 63
"""Longer texts are no words: no label or name of a Deployment is."""

_JSON = "application/json"
_METADATA_ALONE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Kind(Enum):
    """The kinds that the operator reads or writes: path of the API, plural, kind."""

    OUTBOX_RELAY = (f"/apis/{GROUP}/{VERSION}", PLURAL, KIND)
    DEPLOYMENT = ("/apis/apps/v1", "deployments", "Deployment")
    DISRUPTION_BUDGET = ("/apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
    NETWORK_POLICY = ("/apis/networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
    CONFIG_MAP = ("/api/v1", "configmaps", "ConfigMap")
    SERVICE_ACCOUNT = ("/api/v1", "serviceaccounts", "ServiceAccount")
    SECRET = ("/api/v1", "secrets", "Secret")
    POD = ("/api/v1", "pods", "Pod")
    EVENT = ("/api/v1", "events", "Event")
    LEASE = ("/apis/coordination.k8s.io/v1", "leases", "Lease")

    @property
    def plural(self) -> str:
        return self.value[1]

    @property
    def word(self) -> str:
        """As in the `kind` of an object."""
        return self.value[2]

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of a collection or an object."""
        parts = [self.value[0]]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/".join([parts[0], *(quote(part, safe="") for part in parts[1:])])


KINDS = {kind.word: kind for kind in Kind}
"""By the word in `kind` of an object."""


_OWNER_NOT_KNOWN: Final = "cannot find RESTMapping"
"""The admission plugin OwnerReferencesPermissionEnforcement learns of a new CRD only every ten seconds."""


class KubeError(Exception):
    """The API server refused a request or could not be reached.

    `status` is the HTTP status, 0 when there was no answer; `reason` is the API's CamelCase reason.
    """

    def __init__(self, step: str, *, status: int, reason: str, message: str) -> None:
        super().__init__(f"while {step}: {message or reason} (HTTP {status})")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def refused(self) -> bool:
        """Whether the request itself was at fault, so that repeating it soon is pointless."""
        return 400 <= self.status < 500 and self.status not in (408, 409, 429) and _OWNER_NOT_KNOWN not in self.message


class Kube(Protocol):
    """What the rest of the operator may do with the API server. Every method raises `KubeError`."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object; None if there is none."""

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", cached: bool = False
    ) -> list[Object]:
        """All objects of a namespace, or of the cluster, that a label selector selects.

        `cached` lets the API server answer from its watch cache, a moment late but without asking etcd. Pods come
        without their spec, and nothing with managedFields.
        """

    async def list_metadata(self, kind: Kind, namespace: str | None, *, selector: str = "") -> Objects:
        """The metadata alone of all objects of a namespace, or of the cluster, that a label selector selects."""

    async def schema(self) -> Object | None:
        """The OpenAPI v3 document of the OutboxRelays' group and version, which any client may read; None: none."""

    async def apply(self, body: Object, *, force: bool, subresource: str | None = None) -> Object:
        """Server-side apply; `force` takes over fields that another manager owns. Returns the object."""

    async def merge_patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object | None:
        """JSON merge patch; None if there is no such object."""

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object in its metadata.namespace."""

    async def replace(self, kind: Kind, body: Object) -> Object:
        """Replace an object; refused with status 409 if its resourceVersion is not the newest."""

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete an object if it still has this uid; its dependents go in the background."""


Observer = Callable[[str, str, int, float], None]
"""Told after each request: verb, kind, HTTP status (0: no answer) and seconds."""


class HttpKube:
    """`Kube` over the asynchronous client, which brings authentication, TLS and token refresh."""

    def __init__(
        self,
        client: kubernetes.aio.client.ApiClient,
        *,
        observe: Observer,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client: Any = client  # partly without annotations
        self._observe = observe
        self._clock = clock
        self._sleep = sleep
        self.last_answer = clock()
        """When the API server last answered anything, by `clock`."""

    async def close(self) -> None:
        await self._client.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return await self._request("GET", kind, namespace, name, absent_is_none=True)

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", cached: bool = False
    ) -> list[Object]:
        return await self._pages(
            kind, namespace, selector=selector, query={"resourceVersion": "0"} if cached else {"limit": str(PAGE)}
        )

    async def list_metadata(self, kind: Kind, namespace: str | None, *, selector: str = "") -> Objects:
        query = {"limit": str(PAGE)}
        items = await self._pages(kind, namespace, selector=selector, query=query, accept=_METADATA_ALONE)
        return [item["metadata"] for item in items]

    async def _pages(
        self, kind: Kind, namespace: str | None, *, selector: str, query: dict[str, str], accept: str = _JSON
    ) -> Objects:
        items: Objects = []
        if selector:
            query["labelSelector"] = selector
        while True:
            page = await self._must("GET", kind, namespace, None, query=query, accept=accept, verb="list")
            items += page.get("items") or []
            query["continue"] = page.get("metadata", {}).get("continue") or ""
            if not query["continue"]:
                return items

    async def schema(self) -> Object | None:
        path = f"/openapi/v3{Kind.OUTBOX_RELAY.value[0]}"
        return await self._ask(
            "GET",
            path,
            step="trying to read the schema of OutboxRelays",
            verb="get",
            about="openapi",
            absent_is_none=True,
        )

    async def apply(self, body: Object, *, force: bool, subresource: str | None = None) -> Object:
        meta = body["metadata"]
        return await self._must(
            "PATCH",
            KINDS[body["kind"]],
            meta["namespace"],
            meta["name"],
            subresource=subresource,
            query={"fieldManager": MANAGED_BY, "force": "true" if force else "false"},
            body=body,
            content_type="application/apply-patch+yaml",
            verb="apply",
        )

    async def merge_patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object | None:
        return await self._request(
            "PATCH",
            kind,
            namespace,
            name,
            query={"fieldManager": MANAGED_BY},
            body=body,
            content_type="application/merge-patch+json",
            absent_is_none=True,
        )

    async def create(self, kind: Kind, body: Object) -> Object:
        return await self._must("POST", kind, body["metadata"]["namespace"], None, body=body, verb="create")

    async def replace(self, kind: Kind, body: Object) -> Object:
        meta = body["metadata"]
        return await self._must("PUT", kind, meta["namespace"], meta["name"], body=body, verb="update")

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._request("DELETE", kind, namespace, name, body=body, absent_is_none=True)

    async def _must(
        self, method: str, kind: Kind, namespace: str | None, name: str | None, *, verb: str, **options: Any
    ) -> Object:
        answer = await self._request(method, kind, namespace, name, verb=verb, **options)
        return {} if answer is None else answer

    async def _request(
        self,
        method: str,
        kind: Kind,
        namespace: str | None,
        name: str | None,
        *,
        subresource: str | None = None,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        absent_is_none: bool = False,
        verb: str | None = None,
    ) -> Object | None:
        verb = verb or method.lower()
        where = "/".join(part for part in (namespace, name) if part)
        step = f"trying to {verb} {kind.plural}{f'/{subresource}' if subresource else ''} {where or 'of the cluster'}"
        return await self._ask(
            method,
            kind.path(namespace, name, subresource),
            step=step,
            verb=verb,
            about=kind.plural,
            query=query,
            body=body,
            content_type=content_type,
            accept=accept,
            absent_is_none=absent_is_none,
        )

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        step: str,
        verb: str,
        about: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        absent_is_none: bool = False,
    ) -> Object | None:
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": MANAGED_BY}
        for _ in range(_ATTEMPTS):
            began, status = self._clock(), 0
            try:
                await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
                url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
                response = await self._client.call_api(
                    method, url, header_params=headers, body=body, _request_timeout=_TIMEOUT_SECONDS
                )
                status = response.status
                data = await response.read()
                self.last_answer = self._clock()
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                text = f"no answer from the API server: {type(error).__name__}"
                raise KubeError(step, status=0, reason="Unreachable", message=text) from error
            finally:
                self._observe(verb, about, status, self._clock() - began)
            # Who leads must know soon: that is asked for every other second anyhow.
            pause = 0 if about == Kind.LEASE.plural else _pause(status, response.headers.get("Retry-After", ""))
            if pause:
                await self._sleep(pause)
            # A write is for whoever asked to decide upon anew: another process may lead by then.
            if not pause or method != "GET":
                break
        if status == 404 and absent_is_none:
            return None
        if status >= 400:
            raise _refusal(step, status, data)
        answer = _parsed(data, hook=_pod if about == "pods" else _lean)
        # A list without items would be taken for nothing that is there.
        if answer is None or (about != "openapi" and "metadata" not in answer):
            text = "the answer is none of Kubernetes: something between here and the API server has answered"
            raise KubeError(step, status=0, reason="NotKubernetes", message=text)
        return answer


def _pause(status: int, retry_after: str) -> int:
    """For how many seconds whoever asked should ask nothing more."""
    return min(int(retry_after), _LONGEST_PAUSE) if status in _OVERLOADED and retry_after.isdecimal() else 0


def lean(body: Mapping[str, Any]) -> Object:
    """An object that somebody else parsed, as it is kept."""
    return _lean((name, _lean_part(part)) for name, part in body.items())


def _lean_part(part: Any) -> Any:
    if isinstance(part, Mapping):
        return lean(part)
    return [_lean_part(item) for item in part] if isinstance(part, list) else part


def _lean(pairs: Iterable[tuple[str, Any]]) -> Object:
    """A part of an object as it is kept: of a thousand objects most words are the same, so each is kept once.

    Half of an object is managedFields, which nobody reads: they go as soon as they are parsed.
    """
    return {
        sys.intern(name): sys.intern(value) if type(value) is str and len(value) <= _WORD else value
        for name, value in pairs
        if name != "managedFields"
    }


def _pod(pairs: Sequence[tuple[str, Any]]) -> Object:
    """Of a pod the spec goes as well: all pods are listed again and again."""
    return {} if any(name == "containers" for name, _ in pairs) else _lean(pairs)


def _parsed(data: bytes, *, hook: Callable[[Sequence[tuple[str, Any]]], Object]) -> Object | None:
    """None if it is no JSON object."""
    try:
        parsed = json.loads(data, object_pairs_hook=hook)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _refusal(step: str, status: int, data: bytes) -> KubeError:
    try:
        answer = json.loads(data)
        reason, message = str(answer.get("reason") or ""), str(answer.get("message") or "")
    except (ValueError, AttributeError):
        reason, message = "", data[:200].decode(errors="replace")
    return KubeError(step, status=status, reason=reason or f"Http{status}", message=message)


async def connect(*, observe: Observer) -> HttpKube:
    """Connect as the pod's service account, else as the kubeconfig file says.

    Raises:
        KubeError: there is neither.
    """
    loader: Any = kubernetes.aio.config  # partly without annotations
    configuration = kubernetes.aio.client.Configuration()
    try:
        loader.load_incluster_config(client_configuration=configuration)
    except loader.ConfigException:
        try:
            await loader.load_kube_config(client_configuration=configuration, persist_config=False)
        except loader.ConfigException as error:
            step = "looking for a service account or a kubeconfig file"
            raise KubeError(step, status=0, reason="NoCredentials", message=str(error)) from error
    # Else every request looks for a netrc file, on a thread of its own; the informer does not ask proxies either.
    configuration.client_session_kwargs = {"trust_env": False}
    return HttpKube(kubernetes.aio.client.ApiClient(configuration), observe=observe)
