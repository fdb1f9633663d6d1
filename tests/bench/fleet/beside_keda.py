"""`python -m tests.bench.fleet.beside_keda`: what scaling to zero and back costs, beside KEDA's PostgreSQL scaler.

The same tables in the same databases, every pair at zero replicas: what waits for the first row costs sessions, memory
and CPU, and takes a while to see it. Each subject has a control plane and a server of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from outboxrelay_operator.names import OWNED_SELECTOR, pair_name
from tests.bench import page
from tests.bench.cpu import cpu_seconds
from tests.bench.fleet import bars, fleet, isolation, keda, kwok
from tests.testbed.api import Api, Object
from tests.testbed.errors import ClusterError
from tests.testbed.services.eventually import eventually, pass_time
from tests.testbed.services.postgres import LocalPostgres
from tests.testbed.services.processes import peak_resident_bytes

_TITLE: Final = "Waiting at zero, beside KEDA"
_PATIENCE_SECONDS: Final = 900.0
_MIB: Final = 2**20
_SLEEPY: Final = {"minReplicas": 0, "maxReplicas": 2, "idleAfterSeconds": 30}
_SESSIONS: Final = "select count(*) from pg_stat_activity where datname like 'app%' and usename <> 'postgres'"

Pair = tuple[int, int]
"""Number of an OutboxRelay of the fleet, and of one of its databases."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A fleet at zero replicas."""

    subject: str
    sessions: int
    """To the one PostgreSQL server, the most that were seen at once."""

    peak: int
    """Bytes of the operator's process."""

    cpu: float
    """Of the operator at rest, share of one core."""

    awake_seconds: tuple[float, ...]
    """Of each row from its commit to a Deployment that is to have a pod."""


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet.beside_keda", description=__doc__)
    parser.add_argument("--crs", type=int, default=100, help="OutboxRelays of two pairs (default %(default)s)")
    parser.add_argument("--rest-seconds", type=float, default=60, help="of nothing changing (default %(default)s)")
    parser.add_argument("--rows", type=int, default=20, help="pairs to wake, one by one (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args(arguments)
    try:
        made = keda.ensure()
        isolation.enter("tests.bench.fleet.beside_keda", arguments)
        machine = page.machine()
        found = list(_measured(options, keda_made=made, kwok_program=kwok.ensure()))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    table = _table(found)
    print(table)
    if options.write:
        command = f"python -m tests.bench.fleet.beside_keda --write --crs {options.crs} --rows {options.rows}"
        page.put(_TITLE, _TEXT.format(command=command, pairs=bars.PAIRS * options.crs, machine=machine, table=table))
    return 0


def _measured(options: argparse.Namespace, *, keda_made: Path, kwok_program: Path) -> Iterator[Waiting]:
    for polling in (30, 5):
        yield _keda(options, keda_made, kwok_program, polling_seconds=polling)
        print(f"KEDA, polling every {polling} s: done", flush=True)
    yield _outboxrelay(options, kwok_program)


def _keda(options: argparse.Namespace, made: Path, kwok_program: Path, *, polling_seconds: int) -> Waiting:
    with (
        bars.surroundings(crs=options.crs, kwok=kwok_program) as (postgres, databases, plane),
        keda.operator(made, plane) as process,
    ):
        api = Api(plane.cluster.kubeconfig)
        bodies = [
            body
            for number, index in _pairs(options.crs)
            for body in keda.workload(number, databases.all[index], index, polling_seconds=polling_seconds)
        ]
        fleet.create(plane.cluster, bodies)
        eventually(
            lambda: len([item for item in api.list("ScaledObject") if _is_ready(item)]) == bars.PAIRS * options.crs,
            seconds=_PATIENCE_SECONDS,
            what="all ScaledObjects to be Ready",
            interval_seconds=2.0,
            detail=process.log_tail,
        )
        # Each is asked at least once, so that what it keeps is there.
        pass_time(2 * polling_seconds)
        return _observe(
            f"KEDA {keda.VERSION}, pollingInterval {polling_seconds}",
            options,
            postgres=postgres,
            databases=databases,
            api=api,
            pid=process.id.pid,
            deployment=lambda number, index: f"{fleet.name_of(number)}-app{index}",
        )


def _is_ready(scaled_object: Object) -> bool:
    conditions = scaled_object.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _outboxrelay(options: argparse.Namespace, kwok_program: Path) -> Waiting:
    with bars.world(crs=options.crs, kwok=kwok_program) as here:
        bodies = [fleet.outbox_relay(number, here.databases.all, autoscaling=_SLEEPY) for number in range(options.crs)]
        fleet.create(here.plane.cluster, bodies)
        eventually(
            lambda: _all_asleep(here.api, bars.PAIRS * options.crs),
            seconds=_PATIENCE_SECONDS,
            what="all pairs to sleep",
            interval_seconds=2.0,
        )
        bars.settle(here)
        return _observe(
            "OutboxRelay",
            options,
            postgres=here.postgres,
            databases=here.databases,
            api=here.api,
            pid=here.operator.pid,
            deployment=lambda number, index: pair_name(
                relay=fleet.name_of(number), database=f"app{index}", topic="events"
            ),
        )


def _all_asleep(api: Api, count: int) -> bool:
    found = api.list("Deployment", labels=OWNED_SELECTOR)
    return len(found) == count and not any(item["spec"]["replicas"] for item in found)


def _observe(
    subject: str,
    options: argparse.Namespace,
    *,
    postgres: LocalPostgres,
    databases: fleet.Databases,
    api: Api,
    pid: int,
    deployment: Callable[[int, int], str],
) -> Waiting:
    used, began, sessions = cpu_seconds(pid), time.monotonic(), 0
    while (now := time.monotonic()) < began + options.rest_seconds:
        sessions = max(sessions, int(postgres.superuser.execute(_SESSIONS)[0][0]))
        pass_time(min(1.0, began + options.rest_seconds - now))
    cpu = (cpu_seconds(pid) - used) / (time.monotonic() - began)
    chosen = random.Random(1).sample(list(_pairs(options.crs)), options.rows)
    awake = tuple(
        _wake(databases, api, pair, deployment=deployment(*pair), pause=random.Random(number).uniform(0, 5))
        for number, pair in enumerate(chosen)
    )
    return Waiting(subject, sessions, peak_resident_bytes(pid), cpu, awake)


def _wake(databases: fleet.Databases, api: Api, pair: Pair, *, deployment: str, pause: float) -> float:
    number, index = pair
    # Rows come at any moment between two questions.
    pass_time(pause)
    databases.all[index].execute(
        f"insert into {fleet.table_of(number)} (aggregatetype, aggregateid, type, payload)"
        " values ('order', 'k', 'Changed', '{}')"
    )
    began = time.monotonic()
    wanted = partial(api.get, "Deployment", deployment, namespace=fleet.namespace_of(number))
    eventually(
        lambda: wanted()["spec"]["replicas"] > 0,
        seconds=_PATIENCE_SECONDS,
        what=f"Deployment {deployment} to be woken",
        interval_seconds=0.05,
    )
    return time.monotonic() - began


def _pairs(crs: int) -> Iterator[Pair]:
    return ((number, index) for number in range(crs) for index in fleet.databases_of(number))


def _table(found: Sequence[Waiting]) -> str:
    columns = ("", "database sessions", "peak memory, MiB", "CPU at rest", "row to pod, median s", "longest s")
    return page.markdown(
        columns,
        [
            (
                each.subject,
                str(each.sessions),
                f"{each.peak / _MIB:.0f}",
                f"{each.cpu:.1%}",
                f"{bars.percentile(each.awake_seconds, 0.5):.1f}",
                f"{max(each.awake_seconds):.1f}",
            )
            for each in found
        ],
    )


_TEXT: Final = """\
`{command}`: {pairs} pairs of table and topic in 20 databases of one PostgreSQL server, all at zero replicas; then a
row each for some of them. KEDA's operator is built from its Go module, and each of its ScaledObjects asks a
`postgresql` trigger for `count(*)`; only the operator runs, which is what wakes a workload. The operator here asks
every 5 s, and tells lag, rates and faults of each pair besides. {machine}.

{table}
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
