"""Every CEL rule of the CRD on the real API server, from both sides.

Each case is a pair of neighbours: what the rule refuses, with the message that names the problem, and the
nearest thing that it lets pass. A rule without a case fails `test_every_rule_has_a_case`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.testbed.api import Api, ApiError, Object
from tests.testbed.relays import database, relay, topic


@dataclass(frozen=True)
class Case:
    """`rule` is a phrase of the rule's message, `field` where the server says that the fault is."""

    rule: str
    field: str
    refused: Object
    accepted: Object


def _names(count: int, prefix: str = "d") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def _databases(count: int) -> list[Object]:
    return [database(name) for name in _names(count)]


def _tls(**tls: Any) -> Object:
    return {"databases": [database(tls=tls)]}


def _columns(**columns: Any) -> Object:
    return {"databases": [database(table={"columns": columns})]}


def _resources(requests: Object, limits: Object) -> Object:
    return {"pod": {"resources": {"requests": requests, "limits": limits}}}


def _secret(**reference: str) -> Object:
    return {"databases": [database(credentialsSecretRef=reference)]}


def _mark(**mark: str) -> Object:
    return {"retention": {"policy": "Mark", "mark": {"column": "status"} | mark}}


CA = {"name": "orders-ca"}
CERTIFICATE = {"name": "orders-cert"}
TWO = [database("a"), database("b")]
NO_ROUTE = database("b", table={"columns": {"route": ""}})

OAUTH = {"tokenEndpointUrl": "https://issuer/token"}


def _kafka(mechanism: str | None = None, *, tls: Object | None = None, **sasl: Any) -> Object:
    kafka: Object = {"bootstrapServers": ["kafka:9093"]} | ({} if tls is None else {"tls": tls})
    if mechanism is not None:
        kafka["sasl"] = {"mechanism": mechanism, "credentialsSecretRef": {"name": "kafka"}, **sasl}
    return {"kafka": kafka}


def _hosts(*hosts: str, name: str = "orders", **fields: Any) -> Object:
    entry = database(name, hosts=list(hosts), **fields)
    del entry["host"]
    return entry


NAMES: tuple[tuple[str, Callable[[str], Object]], ...] = (
    ("spec.databases[0].credentialsSecretRef.name", lambda name: _secret(name=name)),
    ("spec.databases[0].tls.caSecretRef.name", lambda name: _tls(caSecretRef={"name": name})),
    ("spec.pod.imagePullSecrets[0].name", lambda name: {"pod": {"imagePullSecrets": [{"name": name}]}}),
)
QUANTITIES: tuple[tuple[str, Callable[[str | int], Object]], ...] = (
    ("limits.memory", lambda amount: _resources({}, {"memory": amount})),
    ("requests.cpu", lambda amount: _resources({"cpu": amount}, {})),
)

CASES = (
    Case(
        "lower-case letters, digits and dashes, such as",
        "spec.databases[0].name",
        {"databases": [database("Orders")]},
        {"databases": [database("orders-2")]},
    ),
    Case(
        "lower-case letters, digits and dashes, such as",
        "spec.topics[0].databases[0]",
        {"topics": [topic(databases=["a b"])]},
        {"topics": [topic(databases=["orders"])]},
    ),
    *(
        Case("without a port, such as orders-db.shop", field, refused, accepted)
        for field, refused, accepted in (
            (
                "spec.databases[0].host",
                {"databases": [database(host="db:5432")]},
                {"databases": [database(host="db", port=5432)]},
            ),
            (
                "spec.databases[0].hosts[1]",
                {"databases": [_hosts("db-1", "db-2,db-3")]},
                {"databases": [_hosts("db-1", "fd00::2", "10.0.0.1")]},
            ),
        )
    ),
    *(
        Case(
            "one host with its port, such as kafka:9092",
            "spec.kafka.bootstrapServers[0]",
            {"kafka": {"bootstrapServers": [refused]}},
            {"kafka": {"bootstrapServers": [accepted]}},
        )
        for refused, accepted in (("kafka", "kafka:9092"), ("a:1,b:1", "a:1"), ("fd00::1:9092", "[fd00::1]:9092"))
    ),
    Case(
        "and ${topic}, such as shop.orders or",
        "spec.topics[0].topic",
        {"topics": [topic(topic="shop orders")]},
        {"topics": [topic(topic="shop.orders_${route}-1")]},
    ),
    Case(
        "dashes and _, such as shop.dead",
        "spec.onError.topic",
        {"onError": {"policy": "DeadLetter", "topic": "shop dead"}},
        {"onError": {"policy": "DeadLetter", "topic": "shop_dead"}},
    ),
    Case(
        "an https URL without user and password",
        "spec.kafka.sasl.oauth.tokenEndpointUrl",
        _kafka("OAUTHBEARER", tls={}, oauth={"tokenEndpointUrl": "http://issuer/token"}),
        _kafka("OAUTHBEARER", tls={}, oauth={"tokenEndpointUrl": "https://issuer/token"}),
    ),
    Case(
        "a whole number of s, m, h or d, such as 7d",
        "spec.retention.keepFor",
        {"retention": {"policy": "Keep", "keepFor": "7 days"}},
        {"retention": {"policy": "Keep", "keepFor": "7d"}},
    ),
    *(
        Case("the name of a Kubernetes object", field, wanted(refused), wanted(accepted))
        for field, wanted in NAMES
        for refused, accepted in (("Orders_DB", "orders-db.v2"), ("-db", "db"))
    ),
    Case(
        "a key of a Secret: letters, digits, dots, dashes and _, such as username",
        "spec.databases[0].credentialsSecretRef.usernameKey",
        _secret(name="x", usernameKey="user name"),
        _secret(name="x", usernameKey="User_name.1"),
    ),
    Case(
        "such as username; or empty",
        "spec.databases[0].credentialsSecretRef.passwordKey",
        _secret(name="x", passwordKey="pass/word"),
        _secret(name="x", passwordKey="pass-word"),
    ),
    Case(
        "a name as PostgreSQL stores it",
        "spec.databases[0].dbname",
        {"databases": [database(dbname="orders\n")]},
        {"databases": [database(dbname='Größe "of" $it')]},
    ),
    Case(
        "without control characters; or empty",
        "spec.databases[0].table.columns.type",
        _columns(type="kind\x7f"),
        _columns(type=""),
    ),
    Case(
        "the name of a header without control characters",
        "spec.databases[0].table.columns.extraHeaders[0].header",
        _columns(extraHeaders=[{"header": "trace\tparent", "column": "h"}]),
        _columns(extraHeaders=[{"header": "trace parent: ü", "column": "h"}]),
    ),
    Case(
        "a value without the character 0",
        "spec.topics[0].match[1]",
        {"topics": [topic(match=["order", "or\0der"])]},
        {"topics": [topic(match=["order", "or\1der", ""])]},
    ),
    Case(
        "a value without the character 0",
        "spec.retention.mark.sent",
        _mark(sent="do\0ne"),
        _mark(sent="do\1ne"),
    ),
    *(
        Case("a quantity that is not negative", f"spec.pod.resources.{path}", wanted(refused), wanted(accepted))
        for path, wanted in QUANTITIES
        for refused, accepted in (("256MB", "256Mi"), ("-1", "1"), (-1, 1), ("", "0.5"), ("1e999", "1e3"))
    ),
    Case(
        "an image, such as",
        "spec.pod.image",
        {"pod": {"image": "relay 0.1"}},
        {"pod": {"image": "registry.example:5000/relay@sha256:0a"}},
    ),
    Case(
        "scopes with spaces between them",
        "spec.kafka.sasl.oauth.scope",
        _kafka("OAUTHBEARER", tls={}, oauth=OAUTH | {"scope": "a\nb"}),
        _kafka("OAUTHBEARER", tls={}, oauth=OAUTH | {"scope": "a b"}),
    ),
    Case(
        "a URI reference, such as",
        "spec.cloudEvents.source",
        {"format": "CloudEvents", "cloudEvents": {"source": "/the shop"}},
        {"format": "CloudEvents", "cloudEvents": {"source": "/the'shop'"}},
    ),
    Case(
        "a media type, such as",
        "spec.cloudEvents.contentType",
        {"format": "CloudEvents", "cloudEvents": {"contentType": "json"}},
        {"format": "CloudEvents", "cloudEvents": {"contentType": "application/json; charset=utf-8"}},
    ),
    Case(
        "policy Mark needs mark",
        "spec.retention.mark",
        {"retention": {"policy": "Mark"}},
        _mark(),
    ),
    Case(
        "only policy Mark has it",
        "spec.retention.mark",
        {"retention": {"mark": {"column": "status"}}},
        {"retention": {}},
    ),
    Case(
        "only policy Keep has keep",
        "spec.retention.keep",
        {"retention": {"keep": {"table": "sent"}}},
        {"retention": {"policy": "Keep", "keep": {"table": "sent"}}},
    ),
    Case(
        "keepFor needs policy Mark or Keep",
        "spec.retention.keepFor",
        {"retention": {"keepFor": "7d"}},
        {"retention": {"policy": "Keep", "keepFor": "7d"}},
    ),
    Case(
        "keepFor needs policy Mark or Keep",
        "spec.retention.keepFor",
        {"retention": {"policy": "Delete", "keepFor": "7d"}},
        {"retention": {"policy": "Mark", "keepFor": "7d", "mark": {"column": "published_at"}}},
    ),
    Case(
        "keepFor needs mark.sentAtColumn",
        "spec.retention.keepFor",
        {"retention": _mark(sent="done")["retention"] | {"keepFor": "7d"}},
        {"retention": _mark(sent="done", sentAtColumn="sent_at")["retention"] | {"keepFor": "7d"}},
    ),
    *(
        Case(
            "must not be columns of table.columns",
            "spec.retention",
            _mark(sent="done", **mark) | _columns(**columns),
            _mark(sent="done", **dict.fromkeys(mark, "other")) | _columns(**columns),
        )
        for mark, columns in (
            ({"column": "id"}, {}),
            ({"column": "aggregatetype"}, {}),
            ({"errorColumn": "payload"}, {}),
            ({"errorColumn": "meta"}, {"headers": "meta"}),
            ({"sentAtColumn": "written"}, {"createdAt": "written"}),
            ({"column": "number"}, {"messageId": "number"}),
            ({"column": "number"}, {"partition": "number"}),
            ({"column": "number"}, {"lane": "number"}),
            ({"errorColumn": "trace"}, {"extraHeaders": [{"header": "traceparent", "column": "trace"}]}),
        )
    ),
    Case("give sent too", "spec.retention.mark.sent", _mark(pending="new"), _mark(pending="new", sent="done")),
    Case("give sent too", "spec.retention.mark.sent", _mark(failed="bad"), _mark(failed="bad", sent="done")),
    Case(
        "pending, sent and failed must differ",
        "spec.retention.mark",
        _mark(pending="new", sent="new"),
        _mark(pending="new", sent="New"),
    ),
    Case(
        "pending, sent and failed must differ",
        "spec.retention.mark",
        _mark(pending="new", sent="done", failed="done"),
        _mark(pending="new", sent="done", failed="bad"),
    ),
    Case(
        "pending, sent and failed must differ",
        "spec.retention.mark",
        _mark(pending="new", sent="done", failed="new"),
        _mark(sent="done", failed="new"),
    ),
    Case(
        "errorColumn and sentAtColumn must be different",
        "spec.retention.mark",
        _mark(sent="done", errorColumn="status"),
        _mark(sent="done", errorColumn="error"),
    ),
    Case(
        "errorColumn and sentAtColumn must be different",
        "spec.retention.mark",
        _mark(sent="done", errorColumn="e", sentAtColumn="e"),
        _mark(sent="done", errorColumn="e", sentAtColumn="s"),
    ),
    Case(
        "must not be the same table",
        "spec.databases",
        {"databases": [database("a", host="h", dbname="d"), _hosts("g", "h", name="b", dbname="d")]},
        {"databases": [database("a", host="h", dbname="d"), _hosts("g", "i", name="b", dbname="d")]},
    ),
    Case(
        "exactly one of host and hosts",
        "spec.databases[0]",
        {"databases": [database(hosts=["a", "b"])]},
        {"databases": [_hosts("a", "b")]},
    ),
    Case(
        "exactly one of host and hosts",
        "spec.databases[0]",
        {"databases": [{name: value for name, value in database().items() if name != "host"}]},
        {"databases": [database()]},
    ),
    Case(
        "an empty passwordKey needs",
        "spec.databases[0].credentialsSecretRef",
        {"databases": [database(credentialsSecretRef={"name": "x", "passwordKey": ""})]},
        {
            "databases": [
                database(
                    credentialsSecretRef={"name": "x", "passwordKey": ""}, tls={"clientCertSecretRef": {"name": "c"}}
                )
            ]
        },
    ),
    Case(
        "mode disable shows no certificate",
        "spec.databases[0].tls.clientCertSecretRef",
        _tls(mode="disable", clientCertSecretRef=CERTIFICATE),
        _tls(mode="require", clientCertSecretRef=CERTIFICATE),
    ),
    Case("PLAIN and OAUTHBEARER need tls", "spec.kafka.sasl", _kafka("PLAIN"), _kafka("PLAIN", tls={})),
    Case(
        "PLAIN and OAUTHBEARER need tls",
        "spec.kafka.sasl",
        _kafka("OAUTHBEARER", oauth=OAUTH),
        _kafka("OAUTHBEARER", oauth=OAUTH, tls={}),
    ),
    Case("oauth must be given", "spec.kafka.sasl.oauth", _kafka("OAUTHBEARER", tls={}), _kafka("SCRAM-SHA-512")),
    Case("oauth must be given", "spec.kafka.sasl.oauth", _kafka("SCRAM-SHA-512", oauth=OAUTH), _kafka("SCRAM-SHA-256")),
    Case(
        "must not be the same table",
        "spec.databases",
        {"databases": [database("a", host="h", dbname="d"), database("b", host="h", dbname="d")]},
        {"databases": [database("a", host="h", dbname="d"), database("b", host="h", dbname="d", table={"name": "o2"})]},
    ),
    Case(
        "need caSecretRef",
        "spec.databases[0].tls.caSecretRef",
        _tls(mode="verify-full"),
        _tls(mode="verify-full", caSecretRef=CA),
    ),
    Case(
        "need caSecretRef",
        "spec.databases[0].tls.caSecretRef",
        _tls(mode="verify-ca"),
        _tls(mode="verify-ca", caSecretRef=CA),
    ),
    Case(
        "caSecretRef is only used by mode",
        "spec.databases[0].tls.mode",
        _tls(mode="require", caSecretRef=CA),
        _tls(caSecretRef=CA),
    ),
    Case(
        "must be different columns",
        "spec.databases[0].table.columns",
        _columns(payload="id"),
        _columns(payload="body"),
    ),
    Case(
        "must be different columns",
        "spec.databases[0].table.columns",
        _columns(headers="extra", messageId="extra"),
        _columns(headers="extra", messageId="uuid", createdAt="at", type="", route=""),
    ),
    Case(
        "must be different columns",
        "spec.databases[0].table.columns",
        _columns(lane="aggregateid"),
        _columns(lane="lane", messageId="uuid"),
    ),
    Case(
        "request must not be above its limit",
        "spec.pod.resources.requests",
        _resources({"memory": "257Mi"}, {"memory": "256Mi"}),
        _resources({"memory": "256Mi"}, {"memory": "268435456"}),
    ),
    Case(
        "request must not be above its limit",
        "spec.pod.resources.requests",
        _resources({"cpu": "1.5"}, {"cpu": "1400m"}),
        _resources({"cpu": 1}, {"cpu": 1}),
    ),
    Case(
        "must not be . or ..",
        "spec.topics[0].topic",
        {"topics": [topic(topic="..")]},
        {"topics": [topic(topic="...")]},
    ),
    Case(
        "replicas must not be above lanes",
        "spec.replicas",
        {"replicas": 5, "lanes": 4},
        {"replicas": 4, "lanes": 4},
    ),
    Case(
        "replicas must not be above lanes",
        "spec.replicas",
        {"replicas": 17},
        {"replicas": 16},
    ),
    Case(
        "autoscaling.maxReplicas must not be above lanes",
        "spec.autoscaling",
        {"autoscaling": {"maxReplicas": 5}, "lanes": 4},
        {"autoscaling": {"maxReplicas": 4}, "lanes": 4},
    ),
    Case(
        "slo must give maxLagSeconds or maxBacklog",
        "spec.slo",
        {"slo": {}},
        {"slo": {"maxLagSeconds": 60}},
    ),
    Case(
        "minReplicas must not be above maxReplicas",
        "spec.autoscaling.minReplicas",
        {"autoscaling": {"minReplicas": 5, "maxReplicas": 4}},
        {"autoscaling": {"minReplicas": 4, "maxReplicas": 4}},
    ),
    Case(
        "must name entries of spec.databases",
        "spec.topics",
        {"databases": TWO, "topics": [topic(databases=["a", "c"])]},
        {"databases": TWO, "topics": [topic(databases=["a", "b"])]},
    ),
    Case(
        "more than 256 pairs",
        "spec.topics",
        {"databases": _databases(64), "topics": [topic(name, match=[name]) for name in _names(5)]},
        {"databases": _databases(64), "topics": [topic(name, match=[name]) for name in _names(4)]},
    ),
    Case(
        "more than 256 pairs",
        "spec.topics",
        {
            "databases": _databases(51),
            "topics": [topic(name, match=[name]) for name in _names(5)]
            + [topic("two", match=["two"], databases=["d0", "d1"])],
        },
        {
            "databases": _databases(51),
            "topics": [topic(name, match=[name]) for name in _names(5)]
            + [topic("one", match=["one"], databases=["d0"])],
        },
    ),
    Case(
        "match needs table.columns.route",
        "spec.topics",
        {"databases": [database("a"), NO_ROUTE], "topics": [topic(match=["order"])]},
        {"databases": [database("a"), NO_ROUTE], "topics": [topic(match=["order"], databases=["a"])]},
    ),
    Case(
        "must not match the same route",
        "spec.topics",
        {"databases": TWO, "topics": [topic("x", match=["p", "q"]), topic("y", match=["q"], databases=["b"])]},
        {
            "databases": TWO,
            "topics": [topic("x", match=["q"], databases=["a"]), topic("y", match=["q"], databases=["b"])],
        },
    ),
    Case(
        "may omit match",
        "spec.topics",
        {"databases": TWO, "topics": [topic("x"), topic("y", databases=["b"])]},
        {"databases": TWO, "topics": [topic("x", databases=["a"]), topic("y", databases=["b"])]},
    ),
    Case(
        "must not name the same Kafka topic",
        "spec.topics",
        {"topics": [topic("x", topic="shop", match=["x"]), topic("y", topic="shop", match=["y"])]},
        {"topics": [topic("x", topic="shop", match=["x"]), topic("y", topic="Shop", match=["y"])]},
    ),
    Case(
        "${route} in a topic needs",
        "spec.topics",
        {"databases": [database("a"), NO_ROUTE], "topics": [topic(topic="x.${route}")]},
        {"databases": [database("a"), NO_ROUTE], "topics": [topic(topic="x.${route}", databases=["a"])]},
    ),
    Case(
        "${topic} in a topic needs",
        "spec.topics",
        {"topics": [topic(topic="${topic}")]},
        {"topics": [topic(topic="${topic}")], **_columns(topic="destination")},
    ),
    Case(
        "timestamps CreatedAt needs",
        "spec.timestamps",
        {"timestamps": "CreatedAt"},
        {"timestamps": "CreatedAt", **_columns(createdAt="at")},
    ),
    Case(
        "cloudEvents is only used by",
        "spec.cloudEvents",
        {"cloudEvents": {"source": "/shop"}},
        {"format": "CloudEvents", "cloudEvents": {"source": "/shop"}},
    ),
    *(
        Case(
            "extraHeaders must not have names of the format's own headers",
            "spec.databases",
            {"format": format_, **_columns(extraHeaders=[{"header": header, "column": "h"}])},
            {"format": other, **_columns(extraHeaders=[{"header": header, "column": "h"}])},
        )
        for format_, header, other in (
            ("Plain", "outbox-id", "Debezium"),
            ("Debezium", "id", "Plain"),
            ("CloudEvents", "content-type", "Plain"),
        )
    ),
    Case(
        "extraHeaders must not have names of the format's own headers",
        "spec.databases",
        _columns(extraHeaders=[{"header": "outbox-error-reason", "column": "h"}]),
        _columns(extraHeaders=[{"header": "outbox-error", "column": "h"}]),
    ),
    Case(
        "format CloudEvents needs table.columns.type",
        "spec.format",
        {"format": "CloudEvents", **_columns(type="")},
        {"format": "CloudEvents", **_columns(type="kind")},
    ),
    Case(
        "policy DeadLetter needs topic",
        "spec.onError.topic",
        {"onError": {"policy": "DeadLetter"}},
        {"onError": {"policy": "DeadLetter", "topic": "dead", "attempts": 5}},
    ),
    Case("policy DeadLetter needs topic", "spec.onError.topic", {"onError": {"topic": "dead"}}, {"onError": {}}),
    Case(
        "onError.topic must not be . or ..",
        "spec.onError.topic",
        {"onError": {"policy": "DeadLetter", "topic": ".."}},
        {"onError": {"policy": "DeadLetter", "topic": "..."}},
    ),
    Case(
        "attempts is only used by",
        "spec.onError.attempts",
        {"onError": {"attempts": 5}},
        {"onError": {"policy": "Halt", "attempts": 5}},
    ),
    Case(
        "retryAfterSeconds must not be above",
        "spec.onError.retryAfterSeconds",
        {"onError": {"retryAfterSeconds": 301}},
        {"onError": {"retryAfterSeconds": 300}},
    ),
    Case(
        "onError.topic must not be one of spec.topics",
        "spec.onError",
        {"topics": [topic(topic="shop")], "onError": {"policy": "DeadLetter", "topic": "shop"}},
        {"topics": [topic(topic="shop")], "onError": {"policy": "DeadLetter", "topic": "shop.dead"}},
    ),
)

LANES = "lanes cannot be changed"
POLICY = "policy Mark or Keep cannot be changed"
MARK = "column, pending, sent and failed cannot be changed"


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{n}-{case.rule[:50]}") for n, case in enumerate(CASES)])
def test_rule(case: Case, crd: Object, api: Api, namespace: str) -> None:
    with pytest.raises(ApiError) as refusal:
        api.create(relay(namespace=namespace, **case.refused), dry_run=True)
    assert refusal.value.code == 422
    assert case.rule in refusal.value.message
    assert f"{case.field}:" in refusal.value.message

    api.create(relay(namespace=namespace, **case.accepted), dry_run=True)


def test_lanes_stay_what_they_were(crd: Object, api: Api, namespace: str) -> None:
    api.create(relay(namespace=namespace, lanes=8))
    with pytest.raises(ApiError) as refusal:
        api.merge("OutboxRelay", "shop", {"spec": {"lanes": 9}}, namespace=namespace)
    assert LANES in refusal.value.message

    changed = api.merge("OutboxRelay", "shop", {"spec": {"lanes": 8, "replicas": 2}}, namespace=namespace)
    assert changed["spec"]["replicas"] == 2


def test_lanes_cannot_be_changed_by_leaving_them_out(crd: Object, api: Api, namespace: str) -> None:
    """Without a value the default comes back, and that would be a change."""
    api.create(relay(namespace=namespace, lanes=8))
    with pytest.raises(ApiError) as refusal:
        api.merge("OutboxRelay", "shop", {"spec": {"lanes": None}}, namespace=namespace)
    assert LANES in refusal.value.message


@pytest.mark.parametrize("change", [None, {"policy": "Delete", "mark": None}, {"policy": "Keep", "mark": None}])
def test_marked_rows_are_not_sent_again_by_another_policy(
    change: Object | None, crd: Object, api: Api, namespace: str
) -> None:
    """A manifest without the block means Delete: each row that was ever marked would be sent again, and removed."""
    api.create(relay(namespace=namespace, **_mark(sent="done")))
    with pytest.raises(ApiError) as refusal:
        api.merge("OutboxRelay", "shop", {"spec": {"retention": change}}, namespace=namespace)
    assert refusal.value.code == 422
    assert POLICY in refusal.value.message

    changed = api.merge("OutboxRelay", "shop", {"spec": {"replicas": 2}}, namespace=namespace)
    assert changed["spec"]["retention"]["policy"] == "Mark"


def test_keep_stays_and_delete_may_become_keep(crd: Object, api: Api, namespace: str) -> None:
    api.create(relay(namespace=namespace))
    changed = api.merge("OutboxRelay", "shop", {"spec": {"retention": {"policy": "Keep"}}}, namespace=namespace)
    assert changed["spec"]["retention"]["policy"] == "Keep"
    with pytest.raises(ApiError) as refusal:
        api.merge("OutboxRelay", "shop", {"spec": {"retention": None}}, namespace=namespace)
    assert POLICY in refusal.value.message


@pytest.mark.parametrize("change", [{"column": "state"}, {"sent": "over"}, {"pending": "new"}, {"failed": None}])
def test_what_marks_a_row_stays(change: Object, crd: Object, api: Api, namespace: str) -> None:
    api.create(relay(namespace=namespace, **_mark(sent="done", failed="bad")))
    with pytest.raises(ApiError) as refusal:
        api.merge("OutboxRelay", "shop", {"spec": {"retention": {"mark": change}}}, namespace=namespace)
    assert MARK in refusal.value.message

    mark = {"mark": {"errorColumn": "error"}}
    changed = api.merge("OutboxRelay", "shop", {"spec": {"retention": mark}}, namespace=namespace)
    assert changed["spec"]["retention"]["mark"]["errorColumn"] == "error"


def test_every_rule_has_a_case(crd: Object) -> None:
    phrases = {case.rule for case in CASES} | {LANES, POLICY, MARK}
    rules = list(_rules(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
    assert rules
    assert [rule["message"] for rule in rules if not any(phrase in rule["message"] for phrase in phrases)] == []


def _rules(schema: object) -> Iterator[Object]:
    """Every x-kubernetes-validations entry in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", [])
        for value in schema.values():
            yield from _rules(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _rules(value)
