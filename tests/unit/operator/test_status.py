"""The status as a whole: what is unknown is absent, conditions flip once, and 256 pairs fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outboxrelay.report import DATABASE_REASONS, DatabaseReason, Holder, SideState
from outboxrelay_operator.api.status import OutboxRelayStatus
from outboxrelay_operator.conditions import BY_WORD, OTHER_REASONS, POLLING_WORDS, TYPES, Finding
from outboxrelay_operator.facts import PairFacts
from outboxrelay_operator.measurements import Rates
from outboxrelay_operator.observed import Observed
from outboxrelay_operator.plan import make_plan
from outboxrelay_operator.policies import judge
from outboxrelay_operator.scale import Calm
from outboxrelay_operator.status import next_status
from tests.unit.operator.builders import (
    IMAGE,
    NOW,
    SECRETS,
    backlog,
    facts,
    failure,
    last_error,
    live,
    observed,
    pod,
    raw_database,
    raw_spec,
    raw_topic,
    report,
    scale,
    side,
    state,
)


def status(
    *pairs: PairFacts, seen: Observed | None = None, now: float = NOW, through_relays: bool = False
) -> dict[str, Any]:
    judged = [(pair, judge(pair)) for pair in pairs]
    result = next_status(seen or observed(), judged, now=now, through_relays=through_relays)
    OutboxRelayStatus.model_validate(result)
    words = {*BY_WORD, *(reason.word for reason in OTHER_REASONS)}
    assert {item["reason"] for item in result["conditions"]} <= words
    assert [item["type"] for item in result["conditions"]] == [
        kind for kind in TYPES if kind in {item["type"] for item in result["conditions"]}
    ]
    return result


def condition(result: dict[str, Any], type_: str) -> dict[str, Any]:
    [found] = [item for item in result["conditions"] if item["type"] == type_]
    return dict(found)


def short(result: dict[str, Any], type_: str) -> tuple[str, str]:
    found = condition(result, type_)
    return found["status"], found["reason"]


def test_all_is_well() -> None:
    result = status(facts(measurement=backlog(3, lag_seconds=1.9), rates=Rates(arrival=2.0, sent=4.0)))
    assert short(result, "Ready") == ("True", "Flowing")
    assert short(result, "DatabaseReachable") == ("True", "Connected")
    assert short(result, "BrokerReachable") == ("True", "Connected")
    assert short(result, "Measured") == ("True", "AllMeasured")
    assert short(result, "Conflict") == ("False", "NoConflict")
    assert (result["backlog"], result["lagSeconds"], result["pairsReady"]) == (3, 1, "1/1")
    assert result["display"] == {
        "replicas": "1/1",
        "backlog": "3",
        "lag": "1s",
        "rate": "4.0/s",
        "catchUp": "1s",
    }
    assert result["pairs"][0]["catchUpSeconds"] == 1


def test_dv_13_what_is_not_measured_is_absent_and_said() -> None:
    """cases.md DV-13: never 0."""
    result = status(facts(), facts(measurement=failure("TableMissing", "no table"), pods=(pod(report=None),)))
    broken = result["pairs"][1]
    for field in ("backlog", "backlogExact", "lagSeconds", "lagExact", "measuredAt", "catchUpSeconds", "parked"):
        assert field not in broken
    for field in ("backlog", "backlogExact", "lagSeconds", "lagExact", "ratePerSecond", "parked"):
        assert field not in result
    assert condition(result, "Measured")["message"] == "backlog and lag are not known: no table"
    assert short(result, "Measured") == ("False", "TableMissing")
    assert short(result, "DatabaseReachable") == ("True", "Connected")
    assert result["display"] == {
        "replicas": "2/2",
        "backlog": ">=0",
        "lag": ">=0s",
        "rate": "?",
        "catchUp": "?",
    }


def test_a_measurement_that_is_too_old_is_unknown() -> None:
    result = status(facts(measurement=backlog(5, believe_until=NOW - 1)))
    assert "backlog" not in result["pairs"][0]
    assert short(result, "Measured") == ("Unknown", "NotMeasured")
    assert result["display"]["backlog"] == "?"


def test_a_connection_failure_is_about_the_database() -> None:
    result = status(facts(measurement=failure("AuthenticationFailed", "refused"), pods=()))
    assert short(result, "DatabaseReachable") == ("False", "AuthenticationFailed")


def test_an_estimate_is_marked() -> None:
    result = status(facts(measurement=backlog(1_800_000, exact=False, lag_seconds=400.0, lag_exact=False)))
    assert result["backlogExact"] is False
    assert result["display"]["backlog"] == "~1800000"
    assert result["display"]["lag"] == "~6m"


def test_a_lag_that_cannot_be_told_is_absent() -> None:
    result = status(facts(measurement=backlog(3, lag_seconds=None, lag_exact=False)))
    assert "lagSeconds" not in result["pairs"][0]
    assert result["display"]["lag"] == "?"


def test_no_report_means_that_the_broker_is_unknown() -> None:
    assert short(status(facts(pods=(pod(report=None),))), "BrokerReachable") == ("Unknown", "NoReport")


def test_a_missing_topic_is_no_unreachable_broker() -> None:
    result = status(facts(pods=(pod(ready=False, report=report(broker=side(False, "TopicMissing"))),)))
    assert short(result, "BrokerReachable") == ("True", "Connected")
    assert short(result, "Ready") == ("False", "TopicMissing")


def test_dv_13_a_missing_index_is_pointed_out() -> None:
    """cases.md DV-13."""
    result = status(facts(measurement=backlog(index_missing=True)))
    assert short(result, "Measured") == ("True", "IndexMissing")
    assert "public.outbox" in condition(result, "Measured")["message"]


class TestEachConditionSaysItsOwn:
    """One fault is told in one sentence, and the other conditions point to it."""

    PLACE = "database orders on orders-db:5432"
    SECRET = "Secret shop/orders-db does not exist: create it"

    def told(self, result: dict[str, Any], type_: str) -> str:
        return str(condition(result, type_)["message"])

    @pytest.mark.parametrize("reason", sorted({*DATABASE_REASONS} - {"Connected", "Starting", "Conflict"}))
    @pytest.mark.parametrize("relays", ["none", "with the same fault", "with another fault", "well"])
    def test_no_sentence_is_said_twice_and_none_is_lost(self, reason: DatabaseReason, relays: str) -> None:
        sentence = f"{self.PLACE} as user relay: mend it so and so"
        other = "ReadOnly" if reason != "ReadOnly" else "TlsFailed"
        pods = {
            "none": (),
            "with the same fault": (pod(ready=False, report=report(database=side(False, reason, sentence))),),
            "with another fault": (pod(ready=False, report=report(database=side(False, other, "another thing"))),),
            "well": (pod(),),
        }[relays]
        result = status(facts(measurement=failure(reason, sentence), pods=pods, deployment=None))
        saying = [item["type"] for item in result["conditions"] if "mend it so and so" in item["message"]]
        assert len(saying) == 1
        assert (saying == ["Ready"]) == (relays in ("none", "with the same fault"))
        if saying != ["Measured"]:
            assert self.told(result, "Measured").endswith(("see Ready", "see DatabaseReachable"))

    def test_a_login_that_only_the_operator_lacks_is_told_where_it_belongs(self) -> None:
        result = status(facts(measurement=failure("DatabaseUnreachable", f"{self.PLACE}: timed out: see policies")))
        assert short(result, "Ready") == ("True", "Flowing")
        assert self.told(result, "DatabaseReachable") == (
            f"the operator cannot log in: {self.PLACE}: timed out: see policies"
        )
        assert self.told(result, "Measured").endswith(f"pair {facts().pair}, see DatabaseReachable")

    def test_a_secret_that_is_missing_is_told_once(self) -> None:
        blocked = Finding("SecretMissing", self.SECRET)
        missing = failure("CredentialsMissing", f"{self.PLACE}: {self.SECRET}")
        result = status(facts(blocked=blocked, measurement=missing, pods=(), deployment=None))
        assert self.SECRET in self.told(result, "Ready")
        assert self.told(result, "DatabaseReachable") == (
            "the operator cannot log in: database orders (orders on orders-db:5432), see Ready"
        )
        assert short(result, "DatabaseReachable") == ("False", "CredentialsMissing")
        assert self.SECRET not in self.told(result, "Measured")
        other = Finding("SecretMissing", "Secret shop/kafka does not exist: create it")
        result = status(facts(blocked=other, measurement=missing, pods=(), deployment=None))
        assert self.SECRET in self.told(result, "DatabaseReachable")

    def test_a_reason_that_stands_for_anything_does_not_make_two_faults_one(self) -> None:
        refused = side(False, "DatabaseError", "removing acknowledged rows is refused: a trigger fails")
        result = status(
            facts(
                measurement=failure(
                    "DatabaseError", f"{self.PLACE}: measuring took over 3 s: the table needs an index"
                ),
                pods=(pod(ready=False, report=report(database=refused)),),
            )
        )
        assert "a trigger fails" in self.told(result, "Ready")
        assert "the table needs an index" in self.told(result, "Measured")
        one, other = (
            pod(name=name, uid=name, ready=False, report=report(pod=name, broker=side(False, "BrokerError", name)))
            for name in ("no-memory", "no-version")
        )
        result = status(facts(pods=(one, other)))
        assert "no-memory" in self.told(result, "Ready")
        assert self.told(result, "BrokerReachable").endswith(
            f"those of pair {facts().pair}, see Ready; no-version: no-version"
        )

    def test_a_column_that_only_the_lag_needs_is_told_by_measured(self) -> None:
        result = status(facts(measurement=failure("ColumnMissing", "table t: column createdat is missing")))
        assert short(result, "Ready") == ("True", "Flowing")
        assert "column createdat is missing" in self.told(result, "Measured")

    def test_brokers(self) -> None:
        away = report(broker=side(False, "BrokerUnreachable", "no broker answers"))
        result = status(facts(pods=(pod(ready=False, report=away),)))
        assert "no broker answers" in self.told(result, "Ready")
        assert self.told(result, "BrokerReachable").endswith(f"those of pair {facts().pair}, see Ready")
        left = pod(name="relay-1", uid="uid-2", ready=False, report=away.model_copy(update={"lanes_owned": ()}))
        result = status(facts(pods=(pod(), left)))
        assert short(result, "Ready") == ("True", "Flowing")
        assert "no broker answers" in self.told(result, "BrokerReachable")

    def test_what_is_not_known_yet_is_told_of_what_it_is_about(self) -> None:
        result = status(facts(measurement=None))
        assert self.told(result, "DatabaseReachable") != self.told(result, "Measured")


class TestWake:
    """A relay that should be woken and has to poll is told of; rows flow."""

    @pytest.mark.parametrize("reason", sorted(POLLING_WORDS))
    def test_a_relay_that_polls_in_spite_of_notify(self, reason: str) -> None:
        polls = report(wake=side(False, reason, "no trigger announces rows; run it"))
        result = status(facts(pods=(pod(report=polls), pod(name="b", uid="b", report=polls))))
        assert short(result, "Ready") == ("True", "Flowing")
        assert short(result, "DatabaseReachable") == ("True", reason)
        told = "relay relay-0: no trigger announces rows; run it"
        assert condition(result, "DatabaseReachable")["message"] == told

    def test_each_table_is_told_of_once(self) -> None:
        one, same, other = (
            facts(pods=(pod(report=report(pod=name, wake=side(False, "TriggerMissing", message))),))
            for name, message in (("a", "none on t"), ("b", "none on t"), ("c", "none on u"))
        )
        message = condition(status(one, same, other), "DatabaseReachable")["message"]
        assert message == "relay a: none on t; relay c: none on u"

    @pytest.mark.parametrize(
        "wake", [None, side(), side(True, "Listening"), side(False, "Starting"), side(False, "New")]
    )
    def test_others_are_well(self, wake: SideState | None) -> None:
        assert short(status(facts(pods=(pod(report=report(wake=wake)),))), "DatabaseReachable") == ("True", "Connected")

    def test_a_database_that_cannot_be_used_says_enough(self) -> None:
        polls = report(database=side(False, "TableMissing", "no table"), wake=side(False, "TriggerMissing", "none"))
        assert short(status(facts(pods=(pod(report=polls),))), "DatabaseReachable") == ("True", "Connected")


class TestWithoutSecrets:
    """Relays measure where the operator reads no Secrets."""

    def test_it_is_said_that_relays_measure(self) -> None:
        result = status(facts(measurement=backlog(7)), through_relays=True)
        assert result["backlog"] == 7
        assert short(result, "Measured") == ("True", "MeasuredByRelays")
        assert condition(result, "DatabaseReachable")["message"] == "relays reach every database"

    def test_without_a_relay_nothing_is_known_and_the_cause_is_said(self) -> None:
        stopped = facts(suspended=True, desired_replicas=0, pods=(), measurement=None)
        result = status(stopped, through_relays=True)
        assert "backlog" not in result
        assert short(result, "Measured") == ("Unknown", "NotMeasured")
        assert "only a relay that runs can measure" in condition(result, "Measured")["message"]
        assert short(result, "DatabaseReachable") == ("Unknown", "NotMeasured")

    def test_that_no_pair_sleeps_is_said(self) -> None:
        scaled = observed(raw_spec(autoscaling={"minReplicas": 0, "maxReplicas": 2}))
        message = condition(status(facts(), seen=scaled, through_relays=True), "Measured")["message"]
        assert "autoscaling.minReplicas 0 counts as 1" in message
        awake = observed(raw_spec(autoscaling={"minReplicas": 1, "maxReplicas": 2}))
        message = condition(status(facts(), seen=awake, through_relays=True), "Measured")["message"]
        assert "minReplicas" not in message

    def test_what_a_relay_cannot_measure_is_as_before(self) -> None:
        result = status(facts(measurement=failure("TableMissing", "no table")), through_relays=True)
        assert short(result, "Measured") == ("False", "TableMissing")


def test_a_pair_in_conflict_is_not_ours_to_count() -> None:
    lost = facts(blocked=Finding("Conflict", "older"), measurement=None, pods=(), deployment=None)
    result = status(facts(measurement=backlog(7)), lost)
    assert "older" in condition(result, "Ready")["message"]
    assert condition(result, "Conflict")["message"].endswith(f"pair {lost.pair}, see Ready")
    assert result["backlog"] == 7
    assert result["pairs"][1]["desiredReplicas"] == 0
    assert short(result, "Conflict") == ("True", "Conflict")
    assert short(result, "Ready") == ("False", "Conflict")
    assert short(result, "Measured") == ("True", "AllMeasured")


def test_a_conflict_that_only_the_database_knows_is_shown_with_its_numbers() -> None:
    guarded = pod(ready=False, report=report(database=side(False, "Conflict", "another one holds it")))
    result = status(facts(measurement=backlog(7), pods=(guarded,)))
    assert short(result, "Conflict") == ("True", "Conflict")
    assert (result["backlog"], result["pairs"][0]["desiredReplicas"]) == (7, 1)


def test_dv_13_what_one_of_the_relays_does_not_say_is_not_known_of_all() -> None:
    """cases.md DV-13: the rows that are parked, or went to the dead-letter topic, may be those of the silent one."""
    result = status(facts(pods=(pod(), pod(name="relay-1", uid="uid-2", report=None))))
    for field in ("parked", "haltedLanes", "deadLettered"):
        assert field not in result["pairs"][0]
    starting = pod(name="relay-1", uid="uid-2", report=None, ready=False)
    assert status(facts(pods=(pod(), starting)))["pairs"][0]["parked"] == 0


def test_suspended_pairs_are_still_measured() -> None:
    result = status(
        facts(suspended=True, desired_replicas=0, pods=(), deployment=state(replicas=0, ready=0), rates=Rates(sent=0.0))
    )
    assert short(result, "Ready") == ("False", "Suspended")
    assert (result["backlog"], result["ratePerSecond"], result["parked"]) == (0, 0, 0)


def test_an_invalid_spec_says_what_and_knows_nothing() -> None:
    seen = observed(raw_spec(replicas=99))
    result = status(seen=seen)
    assert short(result, "Ready") == ("False", "InvalidSpec")
    assert "spec" in condition(result, "Ready")["message"]
    assert "backlog" not in result
    assert result["display"]["backlog"] == "?"


def test_relays_that_go_on_under_a_spec_that_cannot_be_used_are_still_counted() -> None:
    """An autoscaler reads replicasPerPair: 0 would make it start from nothing."""
    good = observed()
    plan = make_plan(good, lost={}, secrets=SECRETS, image=IMAGE)
    seen = observed(raw_spec(replicas=99))
    seen.deployments = {
        name: live(body | {"spec": body["spec"] | {"replicas": 3}}) for name, body in plan.deployments.items()
    }
    result = status(seen=seen)
    assert (result["replicas"], result["readyReplicas"], result["replicasPerPair"]) == (3, 3, 3)
    assert result["display"]["replicas"] == "3/3"


def test_a_rollout_does_not_make_the_broker_unknown() -> None:
    old = pod(name="old", template_digest="before")
    new = pod(name="new", ready=False, report=None)
    assert short(status(facts(pods=(old, new))), "BrokerReachable") == ("True", "Connected")
    blind = pod(name="new", ready=False, report=report(broker=side(False, "BrokerUnreachable")))
    assert short(status(facts(pods=(old, blind))), "BrokerReachable") == ("False", "BrokerUnreachable")


def test_the_worst_pair_gives_the_reason_and_every_word_is_ranked() -> None:
    unreachable = facts(pods=(pod(ready=False, report=report(broker=side(False, "BrokerUnreachable"))),))
    refused = facts(pods=(pod(ready=False, report=report(database=side(False, "AuthenticationFailed"))),))
    result = status(facts(), unreachable, refused)
    assert short(result, "Ready") == ("False", "AuthenticationFailed")
    assert condition(result, "Ready")["message"].startswith("2 of 3 pairs are not ready: ")
    assert condition(status(unreachable), "Ready")["message"].startswith("1 of 1 pair is not ready: ")
    assert {pair["reason"] for pair in result["pairs"]} <= set(BY_WORD)


def test_ol_08_the_transition_time_moves_on_a_flip_only() -> None:
    """cases.md OL-08."""
    seen = observed()
    seen.status = status(facts(), seen=seen)
    again = status(facts(measurement=backlog(9)), seen=seen, now=NOW + 10)
    assert condition(again, "Ready")["lastTransitionTime"] == condition(seen.status, "Ready")["lastTransitionTime"]
    broken = facts(now=NOW + 10, pods=(pod(report=report(broker=side(False, "BrokerError"))),))
    flipped = status(broken, seen=seen, now=NOW + 10)
    assert condition(flipped, "Ready")["lastTransitionTime"] == "2027-01-15T08:00:10Z"


def test_the_newest_error_of_all_pods_is_kept() -> None:
    older = pod(name="a", report=report(last_error=last_error(reason="BrokerError", at=NOW - 5)))
    newer = pod(name="b", report=report(last_error=last_error(row_id="9", key="k" * 1000, message="m" * 1000)))
    error = status(facts(pods=(older, newer)))["pairs"][0]["lastError"]
    assert (error["reason"], error["rowId"], error["at"]) == ("BrokerUnreachable", "9", "2027-01-15T08:00:00Z")
    assert len(error["key"]) == 256
    assert len(error["message"]) == 300


def test_dead_letters_of_all_pods_are_added_up() -> None:
    pods = tuple(
        pod(name=name, report=report(dead_lettered=counts))
        for name, counts in (("a", {"RowTooLarge": 2, "PayloadIsNull": 1}), ("b", {}))
    )
    result = status(facts(pods=pods))
    assert (result["deadLettered"], result["pairs"][0]["deadLettered"]) == (3, 3)
    assert result["pairs"][0]["haltedLanes"] == 0
    halted = status(facts(pods=(pod(report=report(halted_lanes=(1, 5))),)))
    assert halted["pairs"][0]["haltedLanes"] == 2
    silent = status(facts(pods=(pod(report=None),)))
    assert "deadLettered" not in silent
    assert "deadLettered" not in silent["pairs"][0]
    asleep = status(facts(pods=(), rates=Rates(arrival=0.0, sent=0.0), deployment=state(replicas=0, ready=0)))
    assert asleep["pairs"][0]["parked"] == 0
    assert "deadLettered" not in asleep["pairs"][0]


def test_the_last_error_outlasts_the_relay_while_none_runs() -> None:
    seen = observed()
    seen.status = status(facts(pods=(pod(report=report(last_error=last_error(row_id="9"))),)), seen=seen)
    kept = seen.status["pairs"][0]["lastError"]
    assert kept["rowId"] == "9"
    assert status(facts(pods=()), seen=seen)["pairs"][0]["lastError"] == kept
    assert "lastError" not in status(facts(pods=(pod(),)), seen=seen)["pairs"][0]
    # As a newer operator may have stored it, which was replaced by this one again.
    seen.status["pairs"][0]["lastError"] = {name: value * 1000 for name, value in kept.items() if name != "at"}
    cut = status(facts(pods=()), seen=seen)["pairs"][0]["lastError"]
    assert {name: len(value) for name, value in cut.items()} == {"reason": 64, "message": 300, "rowId": 64}


@pytest.mark.parametrize(
    ("rows", "arrival", "sent", "expected"),
    [(0, 5.0, 5.0, 0), (100, 10.0, 20.0, 10), (100, 20.0, 20.0, None), (100, None, 20.0, None), (100, 1.0, None, None)],
)
def test_time_to_catch_up(rows: int, arrival: float | None, sent: float | None, expected: int | None) -> None:
    result = status(facts(measurement=backlog(rows), rates=Rates(arrival=arrival, sent=sent)))
    assert result["pairs"][0].get("catchUpSeconds") == expected


def test_who_is_stopped_does_not_catch_up_at_the_rate_of_before() -> None:
    stopped = {"suspended": True, "desired_replicas": 0, "pods": (), "rates": Rates(arrival=6.0, sent=101.0)}
    waiting = status(facts(measurement=backlog(42), deployment=state(replicas=0, ready=0), **stopped))
    assert "catchUpSeconds" not in waiting["pairs"][0]
    assert waiting["display"]["catchUp"] == "-"
    empty = status(facts(measurement=backlog(0), deployment=state(replicas=0, ready=0), **stopped))
    assert empty["pairs"][0]["catchUpSeconds"] == 0


def test_why_there_are_so_many_pods() -> None:
    decided = scale(3, reason="Load", message="m" * 500, rate_per_pod=1234.5)
    result = status(facts(scale=decided, calm=(Calm(2, NOW - 70), Calm(1, NOW - 60)), desired_replicas=3))
    assert result["pairs"][0]["scaling"] == {
        "reason": "Load",
        "message": "m" * 157 + "...",
        "changedAt": "2027-01-15T07:59:00Z",
        "ratePerPod": 1230.0,
        "calm": [
            {"replicas": 2, "since": "2027-01-15T07:58:50Z"},
            {"replicas": 1, "since": "2027-01-15T07:59:00Z"},
        ],
    }
    assert "scaling" not in status(facts())["pairs"][0]


def test_pairs_without_rows_are_ready() -> None:
    idle = facts(scale=scale(), desired_replicas=0, pods=(), deployment=state(wanted=0, replicas=0, ready=0))
    result = status(idle, idle)
    assert (short(result, "Ready"), result["pairsReady"]) == (("True", "Idle"), "2/2")
    assert "next one starts a relay" in condition(result, "Ready")["message"]
    both = status(idle, facts())
    assert short(both, "Ready") == ("True", "Flowing")
    assert condition(both, "Ready")["message"] == "rows flow in 1 pair, and none waits in the other 1"


def test_what_holds_vacuum_back_is_named_and_its_age_is_not_news_all_the_time() -> None:
    young = Holder(what="session", pid=7, database="orders", application="", age_seconds=40.0)
    old = Holder(what="prepared transaction", name="n" * 200, database="orders", age_seconds=1999.0)
    pods = pod(name="a", report=report(held_back_by=young)), pod(name="b", report=report(held_back_by=old))
    assert status(facts(pods=pods[:1]))["pairs"][0]["blockedBy"] == {
        "what": "session",
        "pid": 7,
        "database": "orders",
        "ageSeconds": 40,
    }
    blocked = status(facts(pods=pods))["pairs"][0]["blockedBy"]
    assert (blocked["what"], blocked["name"], blocked["ageSeconds"]) == ("prepared transaction", "n" * 61 + "...", 1000)
    assert "blockedBy" not in status(facts())["pairs"][0]


class TestPodsHealthy:
    """What keeps a pod from running is told even while rows flow through others."""

    @pytest.mark.parametrize(
        ("problem", "reason"),
        [
            (("ImagePullBackOff", "no such image"), "ImagePullFailed"),
            (("Unschedulable", "0/3 nodes"), "Unschedulable"),
            (("CrashLoopBackOff", "cannot use configuration"), "PodsFailing"),
        ],
    )
    def test_a_pod_that_cannot_run_and_when_it_is_over(self, problem: tuple[str, str], reason: str) -> None:
        seen = observed()
        sick = pod(name="relay-1", ready=False, report=None, problem=problem)
        seen.status = status(facts(pods=(pod(), sick)), seen=seen)
        told = condition(seen.status, "PodsHealthy")
        assert (short(seen.status, "Ready"), told["status"], told["reason"]) == (("True", "Flowing"), "False", reason)
        assert "pod relay-1" in told["message"]
        assert problem[1] in told["message"]
        assert short(status(facts(pods=(pod(),)), seen=seen), "PodsHealthy") == ("True", "NoTrouble")
        leaving = pod(name="relay-1", terminating=True, problem=problem)
        assert short(status(facts(pods=(pod(), leaving)), seen=seen), "PodsHealthy") == ("True", "NoTrouble")

    def test_a_relay_that_cannot_work_while_others_do(self) -> None:
        """As after a restart that came with a missing grant; where no relay works, Ready tells."""
        denied = report(pod="relay-1", database=side(False, "PermissionDenied", "grant DELETE"), lanes_owned=())
        left = pod(name="relay-1", uid="uid-2", ready=False, report=denied)
        result = status(facts(pods=(pod(), left)))
        assert (short(result, "Ready"), short(result, "PodsHealthy")) == (
            ("True", "Flowing"),
            ("False", "PodsNotReady"),
        )
        assert "relay relay-1: grant DELETE" in condition(result, "PodsHealthy")["message"]
        alone = status(facts(pods=(left,)))
        assert (short(alone, "Ready")[1], short(alone, "PodsHealthy")[1]) == ("PermissionDenied", "NoTrouble")
        waits = report(pod="relay-1", database=side(False, "Starting", ""), lanes_owned=())
        starting = pod(name="relay-1", uid="uid-2", ready=False, report=waits)
        assert short(status(facts(pods=(pod(), starting))), "PodsHealthy") == ("True", "NoTrouble")

    def test_a_pod_that_cannot_be_created_comes_first(self) -> None:
        pods = (pod(), pod(name="relay-1", problem=("CrashLoopBackOff", "x")))
        result = status(facts(pods=pods, deployment=state(create_problem="exceeded quota: none")))
        assert short(result, "PodsHealthy") == ("False", "FailedCreate")
        assert "exceeded quota: none" in condition(result, "PodsHealthy")["message"]
        assert "relay-1" in condition(result, "PodsHealthy")["message"]


def test_a_pair_that_sleeps_says_nothing_of_the_brokers() -> None:
    seen = observed(raw_spec(databases=[raw_database("a"), raw_database("b")]))
    one, other = seen.pairs
    asleep = facts(pair=other, pods=(), desired_replicas=0, deployment=state(wanted=0, replicas=0, ready=0))
    assert short(status(facts(pair=one), asleep, seen=seen), "BrokerReachable") == ("True", "Connected")
    assert short(status(asleep), "BrokerReachable") == ("Unknown", "NoReport")


class TestSlo:
    """spec.slo becomes a condition, which flips once."""

    LIMITS = raw_spec(slo={"maxLagSeconds": 60, "maxBacklog": 1000})

    def told(self, *pairs: PairFacts, seen: Observed | None = None) -> tuple[str, str]:
        return short(status(*pairs, seen=seen or observed(self.LIMITS)), "SloMet")

    @pytest.mark.parametrize(
        ("rows", "lag", "expected"),
        [
            (1000, 60.9, ("True", "WithinLimits")),
            (1001, 0.0, ("False", "BacklogTooHigh")),
            (1, 61.0, ("False", "LagTooHigh")),
            (1, None, ("Unknown", "NotMeasured")),
            (1001, None, ("False", "BacklogTooHigh")),
        ],
    )
    def test_limits(self, rows: int, lag: float | None, expected: tuple[str, str]) -> None:
        assert self.told(facts(measurement=backlog(rows, lag_seconds=lag))) == expected

    def test_the_worst_pair_counts_and_what_is_unknown_is_not_met(self) -> None:
        late, unseen = facts(measurement=backlog(5, lag_seconds=90.0)), facts(measurement=None)
        assert self.told(facts(), late, unseen) == ("False", "LagTooHigh")
        assert self.told(facts(), unseen) == ("Unknown", "NotMeasured")

    def test_a_limit_that_is_not_given_is_none(self) -> None:
        seen = observed(raw_spec(slo={"maxBacklog": 1000}))
        assert self.told(facts(measurement=backlog(5, lag_seconds=1e6)), seen=seen) == ("True", "WithinLimits")

    def test_it_is_met_again_well_below_the_limit(self) -> None:
        seen = observed(self.LIMITS)
        for rows, expected in ((999, "True"), (1001, "False"), (901, "False"), (900, "True"), (1000, "True")):
            seen.status = status(facts(measurement=backlog(rows)), seen=seen)
            assert condition(seen.status, "SloMet")["status"] == expected, rows

    def test_a_pair_that_was_never_above_holds_nobody_back(self) -> None:
        raw = raw_spec(slo={"maxBacklog": 1000}, databases=[raw_database("a"), raw_database("b")])
        seen = observed(raw)
        one, other = seen.pairs
        looks = ((1500, 950, "False"), (950, 950, "False"), (0, 950, "True"), (0, 1500, "False"))
        for mine, theirs, expected in looks:
            seen.status = status(
                facts(pair=one, measurement=backlog(mine)), facts(pair=other, measurement=backlog(theirs)), seen=seen
            )
            assert condition(seen.status, "SloMet")["status"] == expected, (mine, theirs)
            named = condition(seen.status, "SloMet")["message"]
            assert (other.name in named) == (expected == "False" and theirs > 1000), named

    def test_a_gap_is_no_recovery(self) -> None:
        seen = observed(self.LIMITS)
        for measured, expected in ((backlog(1500), "False"), (None, "Unknown"), (backlog(950), "False")):
            seen.status = status(facts(measurement=measured), seen=seen)
            assert condition(seen.status, "SloMet")["status"] == expected

    def test_noise_makes_no_new_message(self) -> None:
        messages = {
            condition(status(facts(measurement=backlog(rows)), seen=observed(self.LIMITS)), "SloMet")["message"]
            for rows in (100_000, 100_010, 100_400)
        }
        assert len(messages) == 1
        assert "100000 rows wait" in messages.pop()

    def test_nothing_is_known_of_no_pair(self) -> None:
        seen = observed(self.LIMITS)
        seen.status = status(facts(measurement=backlog(1500)), seen=seen)
        lost = facts(blocked=Finding("Conflict", "older"), measurement=None, pods=(), deployment=None)
        assert self.told(lost, seen=seen) == ("Unknown", "NotMeasured")

    def test_without_an_slo_there_is_no_condition(self) -> None:
        assert "SloMet" not in {item["type"] for item in status(facts())["conditions"]}


def test_pods_that_wait_for_their_turn_are_told_and_hurt_nothing() -> None:
    waiting = {item["type"]: item for item in status(facts(queued=True))["conditions"]}
    assert (waiting["RolloutQueued"]["status"], waiting["RolloutQueued"]["reason"]) == ("True", "RolloutQueued")
    assert waiting["Ready"]["status"] == "True"
    assert "RolloutQueued" not in {item["type"] for item in status(facts())["conditions"]}


def test_256_broken_pairs_fit_with_bounded_messages() -> None:
    raw = raw_spec(
        databases=[raw_database(f"d{n}") for n in range(16)],
        topics=[raw_topic(f"t{n}", match=[str(n)]) for n in range(16)],
    )
    seen = observed(raw)
    broken = [
        facts(
            pair=pair,
            measurement=failure("TableMissing", "x" * 5000),
            pods=(pod(ready=False, report=report(database=side(False, "TableMissing", "y" * 5000))),),
            scale=scale(message="z" * 5000),
            calm=tuple(Calm(replicas, NOW) for replicas in range(99, 0, -1)),
        )
        for pair in seen.pairs
    ]
    result = status(*broken, seen=seen)
    assert result["pairsReady"] == "0/256"
    assert "and 253 more" in condition(result, "Ready")["message"]
    assert len(json.dumps(result)) < 900_000
