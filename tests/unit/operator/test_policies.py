"""Why rows do, or do not, flow: one case for each reason, and which of several comes first."""

from __future__ import annotations

from typing import Any

import pytest

from outboxrelay.report import BROKER_REASONS, DATABASE_REASONS
from outboxrelay_operator.conditions import BY_WORD, Finding
from outboxrelay_operator.policies import judge
from outboxrelay_operator.standing import Standing
from tests.unit.operator.builders import NOW, facts, failure, parked_row, pod, report, scale, side, state


def reason(**changes: Any) -> str:
    return judge(facts(**changes)).reason


def bad_pod(**changes: Any) -> Any:
    return pod(ready=False, report=report(**changes))


def test_a_relay_that_reaches_both_ends_is_enough() -> None:
    assert reason() == "Flowing"
    refused = report(database=side(False, "AuthenticationFailed"), lanes_owned=())
    assert reason(pods=(pod(name="relay-1", ready=False, report=refused), pod())) == "Flowing"


def test_a_relay_that_holds_lanes_and_cannot_serve_them_keeps_the_pair_from_flowing() -> None:
    stalled = pod(name="relay-1", ready=False, report=report(broker=side(False, "BrokerUnreachable")))
    assert reason(pods=(pod(), stalled)) == "BrokerUnreachable"


@pytest.mark.parametrize("word", [word for word in DATABASE_REASONS if word not in ("Connected", "Starting")])
def test_what_a_relay_says_of_the_database_is_the_reason(word: str) -> None:
    finding = judge(facts(pods=(bad_pod(database=side(False, word, "password of user u"), broker=side()),)))
    assert finding.reason == word
    assert "relay relay-0" in finding.message
    assert "password of user u" in finding.message


@pytest.mark.parametrize("word", [word for word in BROKER_REASONS if word not in ("Connected", "Starting")])
def test_what_a_relay_says_of_the_broker_is_the_reason(word: str) -> None:
    assert reason(pods=(bad_pod(broker=side(False, word)),)) == word


@pytest.mark.parametrize("word", [*DATABASE_REASONS, *BROKER_REASONS])
def test_every_reason_of_a_relay_is_in_the_catalogue(word: str) -> None:
    assert word in BY_WORD or word in ("Connected", "Starting")


def test_an_unknown_reason_of_a_newer_relay_is_still_shown() -> None:
    assert reason(pods=(bad_pod(database=side(False, "NewWord")),)) == "DatabaseError"


def test_without_a_report_the_operators_own_look_decides() -> None:
    silent = pod(ready=False, report=None)
    changes = {"pods": (silent,), "deployment": state(ready=0)}
    assert reason(measurement=failure("TableMissing"), **changes) == "TableMissing"
    assert reason(measurement=failure("TableMissing", believe_until=NOW - 1), **changes) == "Starting"


def test_a_report_that_is_too_old_counts_for_nothing() -> None:
    stale = pod(ready=False, report_believe_until=NOW - 1)
    assert reason(pods=(stale,), deployment=state(ready=0)) == "Starting"


def test_a_ready_pod_counts_although_the_operator_cannot_ask_it() -> None:
    assert reason(pods=(pod(report=None),), measurement=failure("DatabaseUnreachable")) == "Flowing"


def test_a_terminating_pod_counts_for_nothing() -> None:
    assert reason(pods=(pod(terminating=True),), deployment=state(ready=0)) == "Starting"


@pytest.mark.parametrize(
    ("problem", "word"),
    [
        (("ImagePullBackOff", "no such image"), "ImagePullFailed"),
        (("Unschedulable", "0/3 nodes"), "Unschedulable"),
        (("CrashLoopBackOff", "cannot use configuration"), "PodsFailing"),
    ],
)
def test_why_a_pod_cannot_run(problem: tuple[str, str], word: str) -> None:
    finding = judge(facts(pods=(pod(ready=False, report=None, problem=problem),), deployment=state(ready=0)))
    assert finding.reason == word
    assert problem[1] in finding.message


def test_pods_that_cannot_be_created() -> None:
    assert reason(pods=(), deployment=state(replicas=0, ready=0, create_problem="exceeded quota")) == "FailedCreate"


def test_a_rollout_that_makes_no_progress() -> None:
    assert reason(pods=(), deployment=state(ready=0)) == "Starting"
    assert reason(pods=(), deployment=state(ready=0, stuck=True)) == "PodsNotReady"


def test_stopped_on_purpose() -> None:
    for deployment in (None, state(wanted=0, replicas=0, ready=0)):
        assert reason(suspended=True, desired_replicas=0, pods=(), deployment=deployment) == "Suspended"
        assert reason(desired_replicas=0, pods=(), deployment=deployment) == "ScaledToZero"


def test_a_pair_that_autoscaling_stopped_is_ready_only_while_the_next_row_would_be_seen() -> None:
    idle: dict[str, Any] = {"scale": scale(), "desired_replicas": 0, "pods": ()}
    for replicas in (0, 1):
        assert reason(**idle, deployment=state(wanted=0, replicas=replicas, ready=replicas)) == "Idle"
    gone = state(wanted=0, replicas=0, ready=0)
    assert reason(**idle, measurement=failure("TableMissing"), deployment=gone) == "TableMissing"
    assert reason(**idle, measurement=None, deployment=gone) == "Starting"


@pytest.mark.parametrize("suspended", [True, False])
def test_what_still_runs_is_not_called_stopped(suspended: bool) -> None:
    changes: dict[str, Any] = {"suspended": suspended, "desired_replicas": 0}
    assert reason(deployment=state(replicas=1), **changes) == "Stopping"
    assert reason(refused=Finding("ApplyRefused", "no right to patch"), **changes) == "ApplyRefused"


def test_what_blocks_a_pair_comes_before_what_still_runs() -> None:
    assert reason(blocked=Finding("SecretMissing", "no")) == "SecretMissing"
    assert reason(refused=Finding("ApplyRefused", "exceeded quota")) == "ApplyRefused"


def test_halted_lanes_keep_the_pair_from_being_ready() -> None:
    relay = report(halted_lanes=(3, 7), parked_total=1, parked=(parked_row(),))
    finding = judge(facts(pods=(pod(report=relay),)))
    assert (finding.reason, finding.ready) == ("LanesHalted", False)
    assert "2 lanes stand still" in finding.message
    assert "row 17: RowTooLarge" in finding.message


def test_parked_rows_are_shown_but_rows_flow() -> None:
    finding = judge(facts(pods=(pod(report=report(parked_total=2, parked=(parked_row(),))),)))
    assert (finding.reason, finding.ready) == ("RowsParked", True)
    assert "row 17" in finding.message


class TestDuringARollout:
    """A new configuration rolls out beside the relays of the old one."""

    old = pod(name="old", template_digest="before")

    def new(self, **changes: Any) -> Any:
        return pod(name="new", ready=False, **changes)

    def test_the_old_relays_count_while_nothing_is_known_against_the_new(self) -> None:
        starting = side(False, "Starting")
        assert reason(pods=(self.old, self.new(report=None))) == "Flowing"
        assert reason(pods=(self.old, self.new(report=report(database=starting, broker=starting)))) == "Flowing"

    def test_what_the_new_ones_meet_is_the_reason(self) -> None:
        missing = report(broker=side(False, "TopicMissing"))
        assert reason(pods=(self.old, self.new(report=missing))) == "TopicMissing"
        image = ("ErrImagePull", "")
        assert reason(pods=(self.old, self.new(report=None, problem=image))) == "ImagePullFailed"

    def test_what_the_old_ones_met_is_over(self) -> None:
        broken = pod(name="old", template_digest="before", report=report(broker=side(False, "TopicMissing")))
        assert reason(pods=(broken, self.new(report=None)), deployment=state(ready=0)) == "Starting"

    def test_a_rollout_that_is_stuck_is_not_hidden_by_the_old_ones(self) -> None:
        assert reason(pods=(self.old,), deployment=state(stuck=True, rolled_out=False)) == "PodsNotReady"


class TestLanes:
    """A lane that no relay owns holds back the rows of its keys, however well the relays are."""

    def half(self, **changes: Any) -> Any:
        return pod(report=report(lanes_owned=tuple(range(8)), members=2), **changes)

    hung = pod(name="relay-1", ready=False, report=None)

    def test_a_relay_that_gets_no_lane(self) -> None:
        finding = judge(facts(pods=(pod(report=report(lanes_owned=())),), unowned_seconds=10))
        assert finding.reason == "LanesUnowned"
        assert "16 of 16 lanes" in finding.message

    def test_a_relay_that_hangs_with_its_lanes(self) -> None:
        finding = judge(facts(pods=(self.half(), self.hung), unowned_seconds=10))
        assert finding.reason == "PodsNotReady"
        assert "pod relay-1" in finding.message
        assert "8 of 16 lanes" in finding.message

    def test_lanes_on_their_way_are_no_news(self) -> None:
        assert reason(pods=(self.half(), self.hung), unowned_seconds=9) == "Flowing"

    def test_what_others_cover_is_covered(self) -> None:
        rest = pod(name="relay-2", report=report(lanes_owned=tuple(range(8, 16))))
        leaving = pod(name="relay-2", terminating=True, report=rest.report)
        for fellow in (rest, leaving):
            assert reason(pods=(self.half(), fellow), unowned_seconds=99) == "Flowing"
            assert reason(pods=(self.half(), fellow, self.hung), unowned_seconds=99) == "Flowing"

    def test_a_ready_pod_that_cannot_be_asked_may_own_the_rest(self) -> None:
        unheard = pod(name="relay-1", report=None)
        assert reason(pods=(self.half(), unheard), unowned_seconds=99) == "Flowing"

    def test_a_better_reason_comes_first(self) -> None:
        crashing = pod(name="relay-1", ready=False, report=None, problem=("CrashLoopBackOff", ""))
        assert reason(pods=(self.half(), crashing), unowned_seconds=99) == "PodsFailing"
        starting = side(False, "Starting")
        new = pod(ready=False, report=report(database=starting, broker=starting, lanes_owned=()))
        assert reason(pods=(new,), deployment=state(ready=0), unowned_seconds=99) == "Starting"

    def test_the_time_counts_from_report_to_report(self) -> None:
        standing = Standing()

        def held(believe_until: float, *, owned: int = 8) -> float:
            reported = report(lanes_owned=tuple(range(owned)))
            return standing.note(facts(pods=(pod(report=reported, report_believe_until=believe_until),)))

        assert [held(NOW + 20), held(NOW + 20), held(NOW + 25), held(NOW + 30)] == [0, 0, 5, 10]
        assert standing.pending()
        assert held(NOW + 35, owned=16) == 0
        assert not standing.pending()
        assert held(NOW + 40) == 0
