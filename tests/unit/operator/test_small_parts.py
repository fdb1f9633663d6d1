"""Events, settings, display, health, secrets and Deployment states."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from outboxrelay_operator.conditions import SCALED_DOWN, SCALED_UP, SLO_MET_AGAIN, SLO_MISSED, Reason
from outboxrelay_operator.credentials import pods_to_tell, waiting_for_secrets
from outboxrelay_operator.deployments import DeploymentState
from outboxrelay_operator.display import combined, duration, rate, significant, timestamp, unix
from outboxrelay_operator.events import transitions
from outboxrelay_operator.health import Check, failing
from outboxrelay_operator.kube import Kind
from outboxrelay_operator.observed import Object, SecretState
from outboxrelay_operator.policies import judge
from outboxrelay_operator.secret_reader import SecretReader
from outboxrelay_operator.settings import SettingsError, read
from tests.unit.operator.builders import NOW, OWNER, SECRETS, facts, failure, pod, report, side
from tests.unit.operator.fake_kube import FakeKube


class TestEvents:
    """Fixed texts, on transitions only."""

    @staticmethod
    def status(state: str, reason: str) -> Object:
        return {"conditions": [{"type": "Ready", "status": state, "reason": reason, "message": "names and numbers"}]}

    def event(self, before: Object, after: Object) -> Object | None:
        events = transitions(OWNER, before=before, after=after, now=NOW, pod="operator-0")
        assert len(events) <= 1
        return events[0] if events else None

    def test_a_transition_is_posted_with_a_fixed_text(self) -> None:
        event = self.event(self.status("True", "Flowing"), self.status("False", "TopicMissing"))
        assert event is not None
        assert (event["type"], event["reason"]) == ("Warning", "TopicMissing")
        assert event["message"] == "The Kafka topic does not exist. Create it or correct topic."
        assert event["involvedObject"]["uid"] == OWNER.uid

    def test_the_name_of_an_event_is_legal_wherever_a_long_name_is_cut(self) -> None:
        for sign in "-.":
            name = "a" * 229 + sign + "b" * 20
            owner = replace(OWNER, key=replace(OWNER.key, name=name))
            after = self.status("False", "TopicMissing")
            [event] = transitions(owner, before={}, after=after, now=NOW, pod="operator-0")
            assert re.fullmatch(
                r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", event["metadata"]["name"]
            )

    def test_good_news_is_normal(self) -> None:
        event = self.event(self.status("False", "TopicMissing"), self.status("True", "Flowing"))
        assert event is not None
        assert event["type"] == "Normal"

    def test_sameness_is_not_posted(self) -> None:
        assert self.event(self.status("True", "Flowing"), self.status("True", "Flowing")) is None
        assert self.event({}, self.status("False", "Starting")) is None

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            ((1, 1), (2, 3), [SCALED_UP]),
            ((4, 1), (2, 1), [SCALED_DOWN]),
            ((4, 1), (2, 3), [SCALED_UP, SCALED_DOWN]),
            ((2, 2), (2, 2), []),
        ],
    )
    def test_a_decision_of_autoscaling_is_posted_once_however_many_pairs_it_concerns(
        self, before: tuple[int, int], after: tuple[int, int], expected: list[Reason]
    ) -> None:
        def scaled(counts: tuple[int, int]) -> Object:
            return {
                "pairs": [
                    {"name": f"p{n}", "desiredReplicas": count, "scaling": {"reason": "Load"}}
                    for n, count in enumerate(counts)
                ]
            }

        events = transitions(OWNER, before=scaled(before), after=scaled(after), now=NOW, pod="operator-0")
        assert [(event["reason"], event["message"]) for event in events] == [
            (reason.word, reason.text) for reason in expected
        ]

    @pytest.mark.parametrize(
        ("before", "replicas", "after", "told"),
        [
            (0, 1, 1, True),
            (1, 1, 1, False),
            (3, 1, 0, False),
            (3, 1, None, False),
            (None, 0, 1, True),
            (None, 0, 0, False),
            (None, 1, 5, False),
        ],
    )
    def test_a_letter_is_posted(self, before: int | None, replicas: int, after: int | None, told: bool) -> None:
        """A relay that starts anew counts from 0; what one that was silent counts may be old."""

        def lettered(count: int | None, replicas: int = 1) -> Object:
            letters = {} if count is None else {"deadLettered": count}
            return {"pairs": [{"name": "p", "replicas": replicas} | letters]}

        event = self.event(lettered(before, replicas), lettered(after))
        assert (event is not None) == told
        assert event is None or (event["type"], event["reason"]) == ("Warning", "DeadLettered")

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            (("True", False), ("False", True), [SLO_MISSED]),
            (("Unknown", False), ("False", True), [SLO_MISSED]),
            (None, ("False", True), [SLO_MISSED]),
            (("False", True), ("True", False), [SLO_MET_AGAIN]),
            (("Unknown", True), ("True", False), [SLO_MET_AGAIN]),
            (("Unknown", True), ("False", True), []),
            (("Unknown", False), ("True", False), []),
            (None, ("True", False), []),
            (("True", False), ("True", False), []),
            (("False", True), ("Unknown", True), []),
            (("False", True), None, []),
        ],
    )
    def test_a_flip_of_the_slo_is_posted(
        self, before: tuple[str, bool] | None, after: tuple[str, bool] | None, expected: list[Reason]
    ) -> None:
        def slo(told: tuple[str, bool] | None) -> Object:
            if told is None:
                return {"conditions": []}
            status, missed = told
            return {
                "conditions": [{"type": "SloMet", "status": status, "reason": "R"}],
                "pairs": [{"name": "p"} | ({"sloMissed": ["BacklogTooHigh"]} if missed else {})],
            }

        events = transitions(OWNER, before=slo(before), after=slo(after), now=NOW, pod="operator-0")
        assert [(event["reason"], event["message"]) for event in events] == [
            (reason.word, reason.text) for reason in expected
        ]

    @pytest.mark.parametrize(
        ("before", "after", "told"),
        [
            ("Connected", "NotHeard", True),
            ("NotHeard", "TriggerMissing", True),
            (None, "TriggerMissing", True),
            ("NotHeard", "NotHeard", False),
            ("NotHeard", "Connected", False),
        ],
    )
    def test_that_relays_have_to_poll_is_posted(self, before: str | None, after: str, told: bool) -> None:
        def reaching(reason: str | None) -> Object:
            condition = {"type": "DatabaseReachable", "status": "True", "reason": reason}
            return {"conditions": [] if reason is None else [condition]}

        event = self.event(reaching(before), reaching(after))
        assert (event is not None) == told
        assert event is None or (event["type"], event["reason"]) == ("Warning", after)

    def test_what_a_person_scales_or_what_is_new_is_no_decision(self) -> None:
        def pairs(*entries: Object) -> Object:
            return {"pairs": list(entries)}

        one, three = {"name": "p", "desiredReplicas": 1}, {"name": "p", "desiredReplicas": 3}
        for before, after in ((pairs(one), pairs(three)), (pairs(), pairs(one | {"scaling": {}}))):
            assert transitions(OWNER, before=before, after=after, now=NOW, pod="operator-0") == []


class TestSettings:
    """Environment variables."""

    def test_defaults(self) -> None:
        settings = read({})
        assert settings.namespaces == ()
        assert (settings.log_format, settings.listen_port, settings.resync_seconds) == ("json", 8080, 300)

    def test_namespaces_are_a_list(self) -> None:
        assert read({"OUTBOXRELAY_NAMESPACES": " a, b,a ,"}).namespaces == ("a", "b")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("OUTBOXRELAY_NAMESPACES", "a,B_"),
            ("OUTBOXRELAY_LOG_FORMAT", "xml"),
            ("OUTBOXRELAY_LOG_LEVEL", "loud"),
            ("OUTBOXRELAY_LISTEN_PORT", "http"),
            ("OUTBOXRELAY_LISTEN_PORT", "70000"),
            ("OUTBOXRELAY_RELAY_IMAGE_PULL_POLICY", "Sometimes"),
            ("OUTBOXRELAY_MEASURE_INTERVAL_SECONDS", "0"),
            ("OUTBOXRELAY_RESYNC_SECONDS", "1"),
        ],
    )
    def test_what_cannot_be_used_is_named(self, name: str, value: str) -> None:
        with pytest.raises(SettingsError, match=name):
            read({name: value})


class TestDisplay:
    """Numbers for people."""

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0.9, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d"), (4e7, "462d")],
    )
    def test_durations(self, seconds: float, text: str) -> None:
        assert duration(seconds) == text

    @pytest.mark.parametrize(("value", "text"), [(0, "0/s"), (0.25, "0.2/s"), (9.96, "10.0/s"), (1234.6, "1235/s")])
    def test_rates(self, value: float, text: str) -> None:
        assert rate(value) == text

    def test_times_are_read_as_they_were_written(self) -> None:
        assert timestamp(NOW + 0.9) == "2027-01-15T08:00:00Z"
        assert unix(timestamp(NOW)) == NOW

    def test_digits(self) -> None:
        assert (significant(123_456), significant(0.0012345)) == (123_000, 0.00123)

    def test_marks(self) -> None:
        assert combined([], exact=True, complete=True, total="0") == "-"
        assert combined([], exact=True, complete=False, total="0") == "?"
        assert combined([1], exact=False, complete=False, total="7") == ">=~7"


class TestHealth:
    """What counts as dead."""

    def test_only_what_is_too_old_fails(self) -> None:
        checks = (Check("queue", lambda: 61.0, 60.0), Check("watch", lambda: 59.0, 60.0))
        assert failing(checks) == ["queue: 61 s ago"]


class TestSecretReader:
    """Existence, keys and version; values only for those who log in, and never shown."""

    @staticmethod
    def secret(**values: str) -> Object:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        return {"metadata": {"namespace": "ns", "name": "s"}, "data": data}

    async def test_a_state_is_asked_for_again_when_it_is_too_old(self) -> None:
        kube, now = FakeKube(), [0.0]
        reader = SecretReader(kube, clock=lambda: now[0])
        assert await reader.state("ns", "s", max_age=10) is None
        kube.put(Kind.SECRET, self.secret(username="u", password="S3CR3T-CANARY"))
        assert await reader.state("ns", "s", max_age=10) is None
        now[0] = 10.0
        state = await reader.state("ns", "s", max_age=10)
        assert state is not None
        assert state.keys == {"username", "password"}
        assert "S3CR3T" not in repr(vars(reader))

    async def test_values_to_log_in_with_are_read_once_and_are_as_new_as_the_state(self) -> None:
        kube, now = FakeKube(), [0.0]
        reader = SecretReader(kube, clock=lambda: now[0])
        kube.put(Kind.SECRET, self.secret(password="S3CR3T-CANARY"))
        for _ in range(3):
            assert await reader.values("ns", "s", newest=False) == {"password": b"S3CR3T-CANARY"}
        assert kube.asked == ["s"]
        assert "S3CR3T" not in repr(vars(reader))
        kube.put(Kind.SECRET, self.secret(password="newer"))
        now[0] = 10.0
        await reader.state("ns", "s", max_age=10)
        assert await reader.values("ns", "s", newest=False) == {"password": b"newer"}
        assert kube.asked == ["s", "s"]

    async def test_values_of_a_secret_that_is_only_looked_at_are_not_kept(self) -> None:
        kube = FakeKube()
        reader = SecretReader(kube, clock=lambda: 0.0)
        kube.put(Kind.SECRET, self.secret(password="first"))
        await reader.state("ns", "s", max_age=10)
        kube.put(Kind.SECRET, self.secret(password="second"))
        assert await reader.values("ns", "s", newest=False) == {"password": b"second"}

    async def test_many_who_ask_at_once_cost_one_request(self) -> None:
        kube, times = FakeKube(), itertools.count()
        reader = SecretReader(kube, clock=lambda: float(next(times)))
        kube.put(Kind.SECRET, self.secret(password="p"))
        answering = asyncio.Event()
        kube.answering = answering
        asking = [asyncio.create_task(reader.state("ns", "s", max_age=100)) for _ in range(5)]
        await asyncio.sleep(0)
        answering.set()
        assert len({state.version for state in await asyncio.gather(*asking) if state is not None}) == 1
        assert kube.asked == ["s"]

    async def test_what_was_asked_for_before_is_not_the_newest(self) -> None:
        kube, times = FakeKube(), itertools.count()
        reader = SecretReader(kube, clock=lambda: float(next(times)))
        late = self.secret(password="old")
        kube.put(Kind.SECRET, late)
        kube.answers[Kind.SECRET, "ns", "s"] = deepcopy(late)
        kube.put(Kind.SECRET, self.secret(password="new"))
        kube.answering = asyncio.Event()
        first = asyncio.create_task(reader.values("ns", "s", newest=True))
        await asyncio.sleep(0)
        second = asyncio.create_task(reader.values("ns", "s", newest=True))
        await asyncio.sleep(0)
        kube.answering.set()
        assert (await first, await second) == ({"password": b"old"}, {"password": b"new"})

    async def test_a_key_that_is_no_base64_counts_as_missing(self) -> None:
        kube = FakeKube()
        kube.put(Kind.SECRET, self.secret(a="b") | {"data": {"a": "!"}})
        state = await SecretReader(kube, clock=lambda: 0.0).state("ns", "s", max_age=0)
        assert state is not None
        assert state.keys == frozenset()


class TestTellingKubelets:
    """A Secret is announced when it changed, and to relays that say that theirs does not work."""

    refused = pod(ready=False, report=report(database=side(False, "AuthenticationFailed")))

    def judged(self, *pods: Any, **changes: Any) -> Any:
        pair = facts(pods=pods, **changes)
        return [(pair, judge(pair))]

    newer: ClassVar = SECRETS | {"orders-db": SecretState(version="2", keys=frozenset())}

    def told(self, *pods: Any, secrets: Any = SECRETS, changed: frozenset[str] = frozenset()) -> list[Any]:
        return list(pods_to_tell(self.judged(*pods), secrets, changed=changed))

    def test_ol_06_a_refused_relay_is_told_once_for_each_version(self) -> None:
        """cases.md OL-06."""
        [(told, versions)] = self.told(self.refused)
        assert (told.name, versions) == ("relay-0", "1")
        knows = pod(secrets_annotation="1", report=self.refused.report)
        assert self.told(knows) == []
        assert [versions for _, versions in self.told(knows, secrets=self.newer)] == ["2"]

    def test_a_relay_that_kafka_refuses_is_told(self) -> None:
        for reason in ("BrokerAuthenticationFailed", "BrokerTlsFailed", "BrokerCredentialsMissing"):
            assert self.told(pod(report=report(broker=side(False, reason))))
        assert not self.told(pod(report=report(broker=side(False, "BrokerUnreachable"))))

    def test_ol_06_everybody_is_told_of_a_secret_that_changed_and_is_theirs(self) -> None:
        """cases.md OL-06."""
        both = pod(), pod(name="relay-1", report=None, secrets_annotation="1")
        told = self.told(*both, secrets=self.newer, changed=frozenset({"orders-db"}))
        assert [(state.name, versions) for state, versions in told] == [("relay-0", "2"), ("relay-1", "2")]
        assert self.told(*both, secrets=self.newer, changed=frozenset({"payments-db"})) == []

    def test_a_relay_that_works_or_is_silent_is_left_alone(self) -> None:
        assert self.told(pod(), pod(report=None)) == []

    def test_secrets_are_looked_at_often_while_one_does_not_work(self) -> None:
        assert waiting_for_secrets(self.judged(self.refused))
        assert waiting_for_secrets(self.judged(pod(), measurement=failure("TlsFailed")))
        assert not waiting_for_secrets(self.judged(pod()))


class TestDeploymentState:
    """What is not in a status is 0."""

    def test_a_new_deployment(self) -> None:
        state = DeploymentState.of({"metadata": {"generation": 1}, "spec": {"replicas": 2}})
        assert (state.wanted, state.replicas, state.ready, state.rolled_out) == (2, 0, 0, False)

    def test_zero_pods_are_rolled_out(self) -> None:
        body = {"metadata": {"generation": 3}, "spec": {"replicas": 0}, "status": {"observedGeneration": 3}}
        assert DeploymentState.of(body).rolled_out

    def test_an_older_generation_is_not_rolled_out(self) -> None:
        body = {"metadata": {"generation": 4}, "spec": {"replicas": 0}, "status": {"observedGeneration": 3}}
        assert not DeploymentState.of(body).rolled_out

    def test_problems(self) -> None:
        conditions = [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
        ]
        state = DeploymentState.of({"metadata": {}, "spec": {}, "status": {"conditions": conditions}})
        assert (state.stuck, state.create_problem) == (True, "exceeded quota")
