"""kopf as the informer: the only module that imports it. Events pass the predicates and become keys, no more.

kopf runs on a thread and an event loop of its own, since it takes every task of its loop for one of its own and
ends them when it ends. No finalizer, no annotation, no timer: only `on.event` handlers are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

import aiohttp
import kopf

from outboxrelay_operator.api import GROUP, PLURAL, VERSION
from outboxrelay_operator.complaints import Complaints
from outboxrelay_operator.kube import Kind, Object, lean
from outboxrelay_operator.names import MANAGED_BY, OWNED_SELECTOR
from outboxrelay_operator.observed import Sign, sign_of
from outboxrelay_operator.pairs import Key
from outboxrelay_operator.predicates import News

logger = logging.getLogger(__name__)

Notify = Callable[[Key, Kind, Object | None], None]
"""Told which resource has news, of which kind of object, and what that is now; None: it is gone.

Of an OutboxRelay that is the metadata alone, and of a Deployment the spec is left out if it was told of before.
"""

Listed = Callable[[], None]
"""Told of each list, also of one without an object: what went since the list before, no list tells."""

_WATCHED = frozenset({PLURAL, Kind.DEPLOYMENT.plural})

_BACKOFFS = (1, 2, 3, 5)
"""Seconds between attempts of a request that is refused; after the last one kopf gives up."""

_PAUSES = (1.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds until kopf is started again after it gave up, the last one for ever."""

SILENT_WATCH_SECONDS = 70.0
"""A watch that says nothing for so long is begun anew: the API server sends a bookmark about once a minute."""

_IDLE_WORKER_SECONDS = 0.1
"""How long kopf keeps a task for an object of which there is no more news: after a list there is one for each."""

_ENDING_SECONDS = 10.0
"""How long kopf has to end by itself once a part of it has failed; it takes five where something is slow to end."""

_INSIST_SECONDS = 1.0
"""How often what still runs is cancelled after that."""

_GOOD_SECONDS = 60.0
"""kopf gave up within this time: it never got as far as watching."""


class _Sessions:
    """The HTTP sessions that kopf works with, closed by us.

    kopf closes those that it makes itself, unless it is cancelled: what a task still asks after that opens another one,
    of which nobody knows.
    """

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._of: dict[kopf.ConnectionInfo, kopf.AiohttpSession] = {}

    def of(self, login: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        """The session of a login. The same one each time: by that kopf knows a login again that was refused."""
        if login not in self._of:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=login.as_ssl_context()),
                headers=login.as_http_headers(),
                proxy=login.proxy_url,
                trust_env=login.trust_env,
                trace_configs=[_trace_of_lists(self._listed)],
            )
            self._of[login] = kopf.AiohttpSession(
                server=login.server, default_namespace=login.default_namespace, aiohttp_session=session
            )
        return self._of[login]

    async def close(self) -> None:
        for info in self._of.values():
            await info.aiohttp_session.close()


def _trace_of_lists(listed: Listed) -> aiohttp.TraceConfig:
    """Of a list kopf hands on the objects alone, so of an empty one nothing; its session sees the request."""

    async def ended(_session: object, _context: object, answer: aiohttp.TraceRequestEndParams) -> None:
        lists = answer.url.name in _WATCHED and "watch" not in answer.url.query
        if lists and answer.response.status == HTTPStatus.OK:
            listed()

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(ended)
    return trace


def registry(notify: Notify, sessions: _Sessions) -> kopf.OperatorRegistry:
    """The handlers, in a registry that can be made as often as wanted."""
    handlers = kopf.OperatorRegistry()
    news, deployments = News(), _Deployments()

    # A coroutine: kopf would call a function on another thread, and a session belongs to the loop it is made in.
    @kopf.on.login(registry=handlers)
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        return sessions.of(info) if info is not None else None

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def relay_event(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
        key = news.of_relay(type, body)
        if key is not None:
            # The rest is read when it is needed.
            notify(key, Kind.OUTBOX_RELAY, _live(type, {"metadata": body["metadata"]}))

    @kopf.on.event("apps", "v1", "deployments", registry=handlers)
    async def deployment_event(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002
        key = news.of_deployment(type, body)
        if key is not None:
            notify(key, Kind.DEPLOYMENT, deployments.live(type, body))

    return handlers


class _Deployments:
    """A Deployment's spec is most of it: of all events about the same one the first hands it on."""

    def __init__(self) -> None:
        self._handed_on: dict[tuple[str, str], Sign] = {}

    def live(self, event: str | None, body: Mapping[str, Any]) -> Object | None:
        meta = body["metadata"]
        where, sign = (meta["namespace"], meta["name"]), sign_of(body)
        if event == "DELETED":
            self._handed_on.pop(where, None)
        elif self._handed_on.get(where) == sign:
            return _live(event, {"metadata": meta, "status": body.get("status") or {}})
        else:
            self._handed_on[where] = sign
        return _live(event, body)


def _live(event: str | None, body: Mapping[str, Any]) -> Object | None:
    if event == "DELETED":
        return None
    # Parts of the body are views; what is kept must be plain.
    return lean(dict(body))


class _NoDifferences(kopf.DiffBaseStorage):
    """For each event kopf copies the object and compares the copy with one of before; no handler asks for that."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def settings() -> kopf.OperatorSettings:
    """kopf's settings, none left to its defaults where the default would not do."""
    chosen = kopf.OperatorSettings()
    chosen.scanning.disabled = True  # no list of namespaces and CRDs: works with Roles alone
    chosen.posting.enabled = False
    chosen.persistence.diffbase_storage = _NoDifferences()
    chosen.process.ultimate_exiting_timeout = None
    chosen.queueing.idle_timeout = _IDLE_WORKER_SECONDS
    chosen.watching.label_selectors["apps", "v1", "deployments"] = OWNED_SELECTOR
    chosen.watching.chunk_size = 500
    chosen.watching.connect_timeout = 10
    chosen.watching.inactivity_timeout = SILENT_WATCH_SECONDS
    chosen.networking.connect_timeout = 10
    chosen.networking.request_timeout = 30
    chosen.networking.error_backoffs = _BACKOFFS
    return chosen


class Informer:
    """Watches OutboxRelays and owned Deployments of one namespace, or of the cluster, on a thread of its own.

    `notify` and `listed` are called on that thread. When kopf gives up (the namespace, or a right in it, is gone) it is
    started again after a while: other namespaces must not suffer, and this one may come back.
    """

    def __init__(self, *, namespace: str | None, notify: Notify, listed: Listed, clock: Callable[[], float]) -> None:
        self._namespace = namespace
        self._notify = notify
        self._listed = listed
        self._clock = clock
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._complaints = Complaints(logger)
        self._failing_since: float | None = None
        self._began: float | None = None
        self._current: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"informer {namespace or ''}", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether the informer has connected and did not fail since."""
        return self._ready.is_set()

    @property
    def failing_for(self) -> float:
        """For how many seconds the informer has been failing; 0 if it is not."""
        since, began = self._failing_since, self._began
        if since is None or (began is not None and self._clock() - began > _GOOD_SECONDS):
            return 0.0
        return self._clock() - since

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the informer to end; it does so within moments, and does not keep the process."""
        self._stop.set()
        run = self._current
        if run is not None:
            loop, watching = run
            # Between the two lines the loop may close by itself.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(watching.cancel)

    def join(self, seconds: float) -> None:
        """Wait until the informer has ended, but no longer than this."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        where = f"Watching {f'namespace {self._namespace}' if self._namespace else 'the cluster'}"
        pauses = itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1]))
        while not self._stop.is_set():
            began = self._began = self._clock()
            try:
                asyncio.run(self._watch())
            except (Exception, asyncio.CancelledError) as error:
                # kopf may be cancelled from inside, too: only who is told to end, ends.
                if self._stop.is_set():
                    return
                self._began = None
                if self._clock() - began > _GOOD_SECONDS:
                    self._failing_since = None
                    self._complaints.settle(where)
                    pauses = itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1]))
                self._failing_since = self._failing_since or self._clock()
                self._complaints.complain(where, f"{where} failed, and is tried again: {type(error).__name__}: {error}")
            self._began = None
            self._ready.clear()
            self._stop.wait(next(pauses))

    async def _watch(self) -> None:
        # Of several watchers that fail together kopf waits for the first only.
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logger.debug("%s", context["message"]))
        sessions, failed = _Sessions(self._listed), asyncio.Event()
        _tell_of_failures(failed)
        operating = kopf.operator(
            # A new registry knows nothing of what was seen before: everything is news again.
            registry=registry(self._notify, sessions),
            settings=settings(),
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=() if self._namespace is None else (self._namespace,),
            ready_flag=self._ready,
            # Left to itself kopf asks for the user's name, and an arbitrary user id has none.
            identity=cast("Any", MANAGED_BY),
        )
        # It is cancelled at the end. By a stop flag kopf goes on with what it is about for 5 s more, in vain, since its
        # session is closed by then.
        watching = asyncio.create_task(operating)
        self._current = (asyncio.get_running_loop(), watching)
        if self._stop.is_set():
            watching.cancel()
        try:
            await _end_of(watching, failed)
        finally:
            await sessions.close()
        raise RuntimeError("kopf has ended by itself")


def _tell_of_failures(failed: asyncio.Event) -> None:
    """Set `failed` when a part of kopf ends by an error. Its parts have names, and what they begin has none."""

    def ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None and not task.get_name().startswith("Task-"):
            failed.set()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        task.add_done_callback(ended)
        return task

    asyncio.get_running_loop().set_task_factory(make)


async def _end_of(watching: asyncio.Task[Any], failed: asyncio.Event) -> None:
    """Wait until kopf has ended, and raise what it ended by.

    When a watch fails, kopf cancels the others once, and waits for them without any limit. One that loses its
    cancellation on the way through generators waits for a login then, which nobody makes any more.
    """
    first = asyncio.create_task(failed.wait())
    await asyncio.wait({watching, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    patience = _ENDING_SECONDS
    while not (await asyncio.wait({watching}, timeout=patience))[0]:
        patience = _INSIST_SECONDS
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    watching.result()
