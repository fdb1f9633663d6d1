"""The demo's plot, once everything is installed: quiet load, an outage of the broker, a crash of a relay, the count.

Each act shows what happens with real commands and returns what it found as checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.demo import verdict
from tests.demo.install import OPERATOR_NAMESPACE, RELEASE
from tests.demo.killing import container_id, kill_container
from tests.demo.kubectl import CommandError, Tools
from tests.demo.manifests import NAMESPACE
from tests.demo.pods import ready, replaced
from tests.demo.probe import GET, RELAY_LABEL, Probe
from tests.demo.screen import Columns, Screen
from tests.demo.shop.latency import percentile, since
from tests.demo.verdict import Check
from tests.demo.watch import Sample, judge_outage

QUIET_SECONDS = 25.0
OUTAGE_SECONDS = 30.0
DRAIN_SECONDS = 90.0
RECOVERY_SECONDS = 60.0
SHOWN_EVERY_SECONDS = 3.0
AUDIT_SECONDS = 5.0
"""By then the delivery service has compared what it received with what was committed."""
GRACE_SECONDS = 10.0
"""How long a row may still be on its way after outbox and topics look drained, before it counts as lost."""


class Scenario:
    """The acts, in order; the shop keeps writing from `quiet` to `count`."""

    def __init__(self, tools: Tools, screen: Screen) -> None:
        self._tools = tools
        self._screen = screen
        self.probe = Probe(tools)
        self._latency: list[Check] = []

    def run(self) -> list[Check]:
        """Play everything; returns all checks for the final table."""
        self.quiet()
        return [*self.outage(), *self.crash(), *self.count()]

    def await_ready(self, *, seconds: float) -> None:
        """Wait until the resource says that it is Ready.

        Raises:
            CommandError: with the resource's status and the end of the operator's log, if it does not.
        """
        deadline = time.monotonic() + seconds
        while self.probe.sample().ready != "True":
            if time.monotonic() > deadline:
                _, _, status = self._tools.kubectl("describe", "outboxrelay", "shop", "-n", NAMESPACE).partition(
                    "\nStatus:"
                )
                log = self._tools.kubectl("logs", f"deployment/{RELEASE}", "-n", OPERATOR_NAMESPACE, "--tail=5")
                raise CommandError(
                    f"OutboxRelay shop is not Ready after {seconds:.0f} s. Its status:\n{status.strip() or 'none'}\n"
                    f"The operator's last lines:\n{log}"
                )
            time.sleep(0.5)

    def quiet(self) -> None:
        """The shop opens: undisturbed load."""
        self._screen.title("Orders flow")
        self._screen.say(
            "The shop writes with 12 writers: a business row and an outbox row per transaction, some transactions"
            " stay open\nfor half a second, 5 % roll back. The delivery service reads both topics and checks"
            f" every message. {QUIET_SECONDS:.0f} s."
        )
        self._tools.kubectl("scale", "deployment/shop-writer", "-n", NAMESPACE, "--replicas=1")
        self._tools.kubectl("rollout", "status", "deployment/shop-writer", "-n", NAMESPACE, "--timeout=60s", timeout=70)
        self._command(*GET)
        before = self.probe.latencies()
        self._watch(lambda _, elapsed: elapsed >= QUIET_SECONDS, limit_seconds=QUIET_SECONDS + 1)
        self._command(*GET, "-o", "wide")
        histogram = since(self.probe.latencies(), before)
        self._latency.append(Check("latency, undisturbed", verdict.describe_latency(histogram)))

    def outage(self) -> list[Check]:
        """The broker is away for a while; status must tell it, and everything must drain afterwards."""
        self._screen.title(f"The broker stops for {OUTAGE_SECONDS:.0f} s")
        self._screen.say("The shop keeps writing. Backlog and lag rise; no row is given up, and no row is parked.")
        self._command("exec", "deploy/kafka", "-n", NAMESPACE, "--", "broker", "stop")
        began, written = time.monotonic(), self.probe.full_report()["committed"]
        during = self._watch(lambda _, elapsed: elapsed >= OUTAGE_SECONDS, limit_seconds=OUTAGE_SECONDS + 1)
        self._show_conditions()
        written = self.probe.full_report()["committed"] - written
        away = time.monotonic() - began
        self._screen.say("\nThe broker comes back:")
        starting = self._tools.start("exec", "deploy/kafka", "-n", NAMESPACE, "--", "broker", "start")
        after = self._watch(lambda taken, _: taken.settled, limit_seconds=DRAIN_SECONDS)
        output, _ = starting.communicate(timeout=60)
        if starting.returncode != 0:
            raise CommandError(f"the broker did not start again: {output.strip()}")
        return list(judge_outage(during, after, seconds=away, rows_written=written))

    def crash(self) -> list[Check]:
        """A relay pod dies without warning under load; its peer takes over, and the kubelet starts it again."""
        self._screen.title("A relay is killed with SIGKILL, under load")
        pair = self._pair(database="orders", topic="orders")
        pods = self.probe.relay_pods(pair)
        victim = next((pod for pod in pods if ready(pod)), None)
        if victim is None:
            raise CommandError(f"no pod of pair {pair} is ready, so there is none to kill")
        repeated, latencies = self.probe.report()["repeated"], self.probe.latencies()
        began = time.monotonic()
        self._kill(victim)
        self._command("get", "pods", "-n", NAMESPACE, "-l", RELAY_LABEL)

        def recovered(taken: Sample, elapsed: float) -> bool:
            return (
                taken.settled
                and elapsed > AUDIT_SECONDS
                and replaced(victim, self.probe.relay_pods(pair), count=len(pods))
            )

        samples = self._watch(recovered, limit_seconds=RECOVERY_SECONDS)
        took = time.monotonic() - began
        done = recovered(samples[-1], took)
        self._command("get", "pods", "-n", NAMESPACE, "-l", RELAY_LABEL)
        repeats = self.probe.report()["repeated"] - repeated
        slowest = percentile(since(self.probe.latencies(), latencies), 1.0)
        if not done or slowest is None:
            return [Check("relay killed", f"not recovered within {RECOVERY_SECONDS:.0f} s", ok=False)]
        value = f"ready in {took:.0f} s, slowest row {verdict.duration(slowest)}, {repeats:,} repeated"
        return [Check("relay killed", value, ok=True)]

    def _kill(self, pod: dict[str, Any]) -> None:
        name, container = pod["metadata"]["name"], container_id(pod)
        killed = kill_container(container) if container is not None else []
        if killed:
            self._screen.say(
                f"kill -9 of all {len(killed)} processes of pod {name}"
                if len(killed) > 1
                else f"kill -9 of the process of pod {name}"
            )
        else:
            self._command("delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force")

    def count(self) -> list[Check]:
        """The shop closes, everything drains, and both sides are compared."""
        self._screen.title("The shop closes, and everything is counted")
        self._command("scale", "deployment/shop-writer", "-n", NAMESPACE, "--replicas=0")
        self._await_end_of("app=shop-writer", seconds=60)
        report = self._drained()
        final = self._watch(lambda taken, _: taken.backlog == 0, limit_seconds=20.0)[-1]
        self.probe.measure_memory()
        return [
            Check(
                "status at the end",
                f"backlog {final.backlog}, Ready {final.ready}",
                ok=final.backlog == report["in_outbox"] and final.ready == "True",
            ),
            *verdict.judge_delivery(report),
            *self._latency,
            Check("latency, overall", verdict.describe_latency(self.probe.latencies())),
            verdict.judge_memory("the operator", self.probe.operator_mib, limit_mib=verdict.OPERATOR_LIMIT_MIB),
            verdict.judge_memory("a relay pod", self.probe.relay_mib, limit_mib=verdict.RELAY_LIMIT_MIB),
        ]

    def _await_end_of(self, selector: str, *, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while pods := self._tools.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name").split():
            if time.monotonic() > deadline:
                raise CommandError(f"{', '.join(pods)} did not end within {seconds:.0f} s")
            time.sleep(0.3)

    def _drained(self) -> dict[str, Any]:
        deadline = time.monotonic() + DRAIN_SECONDS
        empty_since: float | None = None
        while True:
            report, now = self.probe.full_report(), time.monotonic()
            if report["undelivered"] == 0 and report["in_outbox"] == 0 and report["caught_up"]:
                return report
            empty_since = (empty_since or now) if report["in_outbox"] == 0 and report["caught_up"] else None
            if now > deadline or (empty_since is not None and now - empty_since > GRACE_SECONDS):
                return report
            time.sleep(0.5)

    def _watch(self, until: Callable[[Sample, float], bool], *, limit_seconds: float) -> list[Sample]:
        """Show the resource every few seconds until a condition holds; returns a sample for each look, at least one."""
        began = time.monotonic()
        samples: list[Sample] = []
        columns: Columns | None = None
        while True:
            # The sample first: what is shown may then be newer than what is judged, but never older.
            samples.append(self.probe.sample())
            head, rows = self.probe.table()
            elapsed = time.monotonic() - began
            if columns is None:
                columns = Columns(head)
                self._screen.row("", columns.head)
            for row in rows:
                self._screen.row(f"{elapsed:.0f} s  ", columns.line(row))
            if until(samples[-1], elapsed) or elapsed > limit_seconds:
                return samples
            if len(samples) % 3 == 0:
                self.probe.measure_memory()
            time.sleep(max(0.0, began + SHOWN_EVERY_SECONDS * len(samples) - time.monotonic()))

    def _show_conditions(self) -> None:
        template = '{range .status.conditions[*]}{.type}{"\\t"}{.status}{"\\t"}{.reason}{"\\n"}{end}'
        output = self._tools.kubectl("get", "outboxrelay", "shop", "-n", NAMESPACE, "-o", f"jsonpath={template}")
        self._screen.say("\nIts conditions meanwhile:")
        self._screen.output(output.expandtabs(24))

    def _pair(self, *, database: str, topic: str) -> str:
        for pair in self.probe.resource().get("status", {}).get("pairs", ()):
            if pair["database"] == database and pair["topic"] == topic:
                return str(pair["name"])
        raise CommandError(f"the status of OutboxRelay shop lists no pair of database {database} and topic {topic}")

    def _command(self, *arguments: str) -> None:
        self._screen.command(f"kubectl {' '.join(arguments)}", self._tools.kubectl(*arguments))
