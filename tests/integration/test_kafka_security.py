"""Kafka with TLS and logins: each way works, what is wrong is named and heals, and secrets change in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outboxrelay.report import RelayReport
from tests.integration.harness.checker import check
from tests.integration.harness.consumer import await_messages, read_all
from tests.integration.harness.load import Load
from tests.integration.harness.proxy import Proxy
from tests.integration.harness.relay import Pair, RelayProcess, relay_config
from tests.integration.harness.security import USER, Proof, servers
from tests.integration.test_secrets_in_output import check_output, everything_said
from tests.testbed.services.certificates import Authority
from tests.testbed.services.eventually import eventually, pass_time
from tests.testbed.services.postgres import Database
from tests.testbed.services.secured import SecuredKafka
from tests.testbed.services.tokens import TokenEndpoint

PASSWORD = "S3CR3T-CANARY, \\ \"x'"
CLIENT_SECRET = "S3CR3T-CANARY.client"
WRONG = "S3CR3T-CANARY-wrong"
CANARY = "S3CR3T-CANARY"

Build = Callable[..., Pair]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def tokens(authority: Authority) -> Iterator[TokenEndpoint]:
    with TokenEndpoint(authority=authority, clients={USER: CLIENT_SECRET}) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def secured(authority: Authority, tokens: TokenEndpoint) -> Iterator[SecuredKafka]:
    with SecuredKafka(authority=authority, plain={USER: CLIENT_SECRET}, tokens=tokens) as kafka:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            kafka.set_password(USER, PASSWORD, mechanism=mechanism)
        yield kafka


@pytest.fixture
def proof(tmp_path: Path) -> Proof:
    return Proof(tmp_path / "secrets")


@pytest.fixture
def build(secured: SecuredKafka, database: Database, tmp_path: Path) -> Iterator[Build]:
    """Makes pairs with a `kafka` section of the test's choosing; the topic is granted to the user."""
    made: list[Pair] = []

    def make(
        *,
        at: tuple[str, ...],
        granted: str | None = USER,
        name: str = "pair",
        tuning: dict[str, Any] | None = None,
        **kafka: Any,
    ) -> Pair:
        topic = secured.create_topic(partitions=3)
        if granted:
            secured.allow(granted, topic)
        config = relay_config(
            database=database.relay_role(),
            bootstrap_servers=at[0],
            topic=topic.name,
            directory=tmp_path / name,
            tuning=tuning if tuning is not None else {"batch_rows": 50, "reconnect_max_seconds": 1.0},
            log_level="debug",
            kafka={"bootstrap_servers": at, "topic": topic.name, **kafka},
        )
        made.append(Pair(database=database, topic=topic, config=config, directory=tmp_path / name))
        return made[-1]

    yield make
    for pair in made:
        pair.end()


def oauth(tokens: TokenEndpoint, authority: Authority, proof: Proof) -> dict[str, Any]:
    ca = proof.write("oauth-ca.crt", authority.pem)
    return {"token_endpoint_url": tokens.url, "scope": "kafka orders", "ca_file": ca}


WAYS = ("TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "SCRAM without TLS", "OAUTHBEARER")


@pytest.fixture
def way(
    secured: SecuredKafka, authority: Authority, tokens: TokenEndpoint, proof: Proof
) -> Callable[[str], dict[str, Any]]:
    """Arguments of `build` for each way."""

    def of(name: str) -> dict[str, Any]:
        trust = proof.trust(authority)
        match name:
            case "TLS":
                return {"at": servers(secured, tls=True), "tls": trust}
            case "mTLS":
                mine = proof.certificate(authority.issue_client(USER))
                return {"at": servers(secured, tls=True, mutual=True), "tls": trust | mine}
            case "SCRAM without TLS":
                sasl = proof.login("SCRAM-SHA-512", PASSWORD)
                return {"at": servers(secured, tls=False, sasl=True), "sasl": sasl}
            case "OAUTHBEARER":
                sasl = proof.login(name, CLIENT_SECRET, **oauth(tokens, authority, proof))
            case _:
                sasl = proof.login(name, CLIENT_SECRET if name == "PLAIN" else PASSWORD)
        return {"at": servers(secured, tls=True, sasl=True), "tls": trust, "sasl": sasl}

    return of


@pytest.mark.parametrize("name", WAYS)
def test_se_05_each_way_to_log_in_works(
    name: str, way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka, tokens: TokenEndpoint
) -> None:
    """The topic is granted to this user alone: whoever came in as somebody else could not write."""
    pair = build(**way(name), compression="zstd", settings={"socket.keepalive.enable": True, "linger.ms": 1})
    pair.insert(*[(f"k{number % 5}", f'{{"n": {number}}}') for number in range(100)])
    relay = pair.relay()
    pair.await_empty()
    await_messages(secured, pair.topic, 100)
    assert relay.report().broker.ok
    if name == "OAUTHBEARER":
        assert "kafka orders" in tokens.scopes
    said = everything_said(relay) + check_output(pair.config, pair.directory)
    assert "ready to relay" in said
    assert CANARY not in said


def fault(relay: RelayProcess) -> RelayReport:
    """What the relay says as soon as it says something."""
    return relay.await_report(lambda report: report.broker.reason != "Starting", what="a reason", seconds=30)


def heals(pair: Pair, relay: RelayProcess) -> None:
    """All rows go out by the same process."""
    pid = relay.pid
    pair.await_empty()
    relay.await_report(lambda report: report.broker.ok, what="broker reported as well")
    assert relay.pid == pid


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_kf_03_a_wrong_secret_is_named_and_the_right_one_is_taken_up(
    name: str, way: Callable[[str], dict[str, Any]], build: Build, proof: Proof
) -> None:
    """cases.md KF-03 and SE-04: wrong password, no restart; SE-04: neither password in anything that is said."""
    pair = build(**way(name))
    proof.write("kafka-password", WRONG)
    pair.insert(("k", "{}"))
    relay = pair.relay()
    report = fault(relay)
    assert (report.broker.ok, report.broker.reason) == (False, "BrokerAuthenticationFailed")
    assert pair.topic.name in report.broker.message
    assert report.parked_total == 0
    printed = check_output(pair.config, pair.directory)
    assert "BrokerAuthenticationFailed" in printed
    proof.write("kafka-password", PASSWORD if name.startswith("SCRAM") else CLIENT_SECRET)
    heals(pair, relay)
    assert CANARY not in everything_said(relay) + printed


def test_kf_03_a_refused_login_is_not_tried_in_a_hurry(
    way: Callable[[str], dict[str, Any]], build: Build, proof: Proof, secured: SecuredKafka
) -> None:
    """cases.md KF-03, slow retries: at the steady state one attempt in five seconds, since users get locked out."""
    given, seconds = way("SCRAM-SHA-512"), 15
    proof.write("kafka-password", WRONG)
    with Proxy(target=int(secured.sasl_servers.rpartition(":")[2])) as proxy:
        pair = build(**given | {"at": (f"127.0.0.1:{proxy.port}",)}, tuning={})
        relay = pair.relay()
        eventually(lambda: proxy.connections >= 8, seconds=120, what="the back-off to be at its end")
        before = proxy.connections
        pass_time(seconds)
        assert proxy.connections - before <= seconds // 5 + 1
        assert relay.report().broker.reason == "BrokerAuthenticationFailed"


def test_kf_03_an_expired_client_certificate_is_named_and_a_new_one_is_taken_up(
    way: Callable[[str], dict[str, Any]], build: Build, proof: Proof, authority: Authority
) -> None:
    """cases.md KF-03."""
    pair = build(**way("mTLS"))
    proof.certificate(authority.issue_client(USER, expired=True))
    pair.insert(("k", "{}"))
    relay = pair.relay()
    report = fault(relay)
    assert report.broker.reason == "BrokerTlsFailed"
    assert "client certificate" in report.broker.message
    proof.certificate(authority.issue_client(USER))
    heals(pair, relay)


def test_kf_03_a_topic_that_may_be_seen_only_is_named(
    way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka
) -> None:
    """cases.md KF-03: right password, no write ACL, before the first row; no row is to blame."""
    pair = build(**way("SCRAM-SHA-512"), granted=None)
    secured.allow(USER, pair.topic, write=False)
    pair.insert(("k", "{}"))
    relay = pair.relay()
    report = fault(relay)
    assert report.broker.reason == "TopicAuthorizationFailed"
    assert pair.topic.name in report.broker.message
    assert (report.parked_total, pair.pending()) == (0, 1)
    assert relay.get("/readyz").status == 503
    secured.allow(USER, pair.topic)
    heals(pair, relay)


def test_kf_03_a_grant_that_is_missing_is_named_and_waited_for(
    way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka
) -> None:
    """cases.md KF-03: right password, no right to write; then granted, taken back under load, and granted again."""
    pair = build(**way("SCRAM-SHA-256"), granted=None)
    pair.insert(("k", "{}"))
    relay = pair.relay()
    assert fault(relay).broker.reason in ("TopicAuthorizationFailed", "TopicMissing")
    secured.allow(USER, pair.topic)
    heals(pair, relay)
    secured.deny(USER, pair.topic)
    pair.insert(("k", '{"n": 2}'))
    report = relay.await_report(lambda report: not report.broker.ok, what="the missing right", seconds=30)
    assert report.broker.reason in ("TopicAuthorizationFailed", "TopicMissing")
    assert report.parked_total == 0
    secured.allow(USER, pair.topic)
    heals(pair, relay)


def test_kf_08_a_topic_that_is_denied_stops_no_other(
    way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka
) -> None:
    """cases.md KF-08: three routes to three topics, one of them denied."""
    given = way("SCRAM-SHA-512")
    pairs = {name: build(**given, granted=None if name == "bad" else USER, name=name) for name in ("a", "bad", "b")}
    relays = {}
    for name, pair in pairs.items():
        pair.database.execute(
            "insert into outbox (aggregatetype, aggregateid, type, payload) values (%s, 'k', 'T', '{}')", [name]
        )
        document = pair.config.model_dump(mode="python", by_alias=True) | {"match": {"include": (name,)}}
        relays[name] = pair.relay(config=pair.config.model_validate(document))
    for name in ("a", "b"):
        await_messages(secured, pairs[name].topic, 1)
    relays["bad"].await_report(lambda report: not report.broker.ok, what="the denied topic reported", seconds=30)
    assert relays["bad"].get("/readyz").status == 503
    assert relays["a"].report().broker.ok


@pytest.mark.parametrize(
    ("listener", "trusted", "reason"),
    [
        ("TLS", "ours", None),
        ("TLS", "another", "BrokerTlsFailed"),
        ("TLS", "the system's", "BrokerTlsFailed"),
        ("TLS", None, "BrokerUnreachable"),
        ("plaintext", "ours", "BrokerTlsFailed"),
        ("other name", "ours", "BrokerTlsFailed"),
        ("mTLS", "ours", "BrokerTlsFailed"),
    ],
)
def test_se_05_tls_towards_kafka_fails_closed(
    listener: str,
    trusted: str | None,
    reason: str | None,
    build: Build,
    secured: SecuredKafka,
    authority: Authority,
    proof: Proof,
) -> None:
    """cases.md SE-05: TLS where there is none, a stranger's certificate, another name, no client certificate."""
    at = {
        "TLS": servers(secured, tls=True),
        "plaintext": servers(secured, tls=False),
        "mTLS": servers(secured, tls=True, mutual=True),
        "other name": (secured.tls_servers.replace("127.0.0.1", "localhost"),),
    }[listener]
    sections: dict[str | None, dict[str, Any]] = {
        "ours": {"tls": proof.trust(authority)},
        "another": {"tls": Proof(proof.directory / "other").trust(Authority())},
        "the system's": {"tls": {}},
        None: {},
    }
    tls = sections[trusted]
    pair = build(at=at, **tls)
    pair.insert(("k", "{}"))
    report = fault(pair.relay())
    assert report.broker.ok == (reason is None)
    if reason is not None:
        assert report.broker.reason == reason
        assert pair.pending() == 1


@contextmanager
def carried(pair: Pair, secured: SecuredKafka) -> Iterator[RelayProcess]:
    """Rows are written and carried during the block; in the end none is lost or reordered, none sent twice in vain."""
    relay = pair.relay()
    relay.await_ready()
    pid = relay.pid
    with Load(pair.database, rows_per_second=200) as load:
        goes_on(relay)
        yield relay
        goes_on(relay)
    pair.await_empty()
    assert relay.pid == pid
    verdict = check(committed=load.committed(), delivered=read_all(secured, pair.topic))
    assert not verdict.problems(), f"{verdict}: {verdict.problems()}"


def goes_on(relay: RelayProcess, *, seconds: float = 60) -> None:
    """Rows are sent from now on."""
    sent = relay.report().sent_rows
    relay.await_report(lambda report: report.sent_rows >= sent + 60, what="60 more rows sent", seconds=seconds)


def connects_anew(relay: RelayProcess, times: int = 1) -> None:
    """The relay has taken up what the files hold."""
    relay.await_report(
        lambda _: relay.log_text().count("have changed; connecting anew") >= times, what="a new login", seconds=60
    )


def test_a_login_is_rotated_in_place(
    way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka, proof: Proof
) -> None:
    """Another user and password, and the old user loses its rights: no restart, no repeat, nothing lost."""
    secured.set_password("successor", PASSWORD + "2")
    pair = build(**way("SCRAM-SHA-512"))
    secured.allow("successor", pair.topic)
    with carried(pair, secured) as relay:
        proof.login("SCRAM-SHA-512", PASSWORD + "2", user="successor")
        connects_anew(relay)
        secured.deny(USER, pair.topic)
        goes_on(relay)
    assert CANARY not in everything_said(relay)


def test_a_client_certificate_is_rotated_in_place(
    way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka, proof: Proof, authority: Authority
) -> None:
    """Another certificate, and the old one loses its rights."""
    pair = build(**way("mTLS"))
    secured.allow("successor", pair.topic)
    with carried(pair, secured) as relay:
        proof.certificate(authority.issue_client("successor"))
        connects_anew(relay)
        secured.deny(USER, pair.topic)
        goes_on(relay)


def test_the_secret_of_a_token_is_rotated_in_place(
    way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka, proof: Proof, tokens: TokenEndpoint
) -> None:
    """The token endpoint knows only the new secret when the relay asks next."""
    pair = build(**way("OAUTHBEARER"))
    try:
        with carried(pair, secured) as relay:
            tokens.clients[USER] = CLIENT_SECRET + "2"
            proof.write("kafka-password", CLIENT_SECRET + "2")
            connects_anew(relay)
            goes_on(relay)
    finally:
        tokens.clients[USER] = CLIENT_SECRET


def test_a_ca_is_rotated_in_place_and_an_old_one_trusted_no_more(database: Database, tmp_path: Path) -> None:
    """cases.md SE-05, CA Secret rotated: both CAs, then the broker's new certificate, then the new CA alone."""
    old, new = Authority(), Authority()
    proof = Proof(tmp_path / "secrets")
    with SecuredKafka(authority=old) as kafka:
        topic = kafka.create_topic(partitions=3)
        config = relay_config(
            database=database.relay_role(),
            bootstrap_servers=kafka.tls_servers,
            topic=topic.name,
            directory=tmp_path,
            tuning={"batch_rows": 50, "reconnect_max_seconds": 1.0},
            kafka={"bootstrap_servers": (kafka.tls_servers,), "topic": topic.name, "tls": proof.trust(old)},
        )
        pair = Pair(database=database, topic=topic, config=config, directory=tmp_path)
        try:
            relay = pair.relay()
            relay.await_ready()
            with Load(database, rows_per_second=200) as load:
                proof.trust(old, new)
                connects_anew(relay)
                kafka.stop()
                kafka.replace_certificate(new.issue("127.0.0.1"))
                kafka.start()
                goes_on(relay, seconds=120)
                proof.trust(new)
                connects_anew(relay, times=2)
                goes_on(relay)
                proof.trust(old)
                report = relay.await_report(lambda report: not report.broker.ok, what="the wrong CA", seconds=60)
                assert report.broker.reason == "BrokerTlsFailed"
                proof.trust(new)
                goes_on(relay)
            pair.await_empty()
            verdict = check(committed=load.committed(), delivered=read_all(kafka, topic))
            committed = {row.row_id for row in load.committed()}
            # The broker went away in the middle: what was in flight then may come twice.
            problems = verdict.problems(repeatable=committed, most_repeats=50)
            assert not problems, f"{verdict}: {problems}"
        finally:
            pair.end()


def test_kf_03_a_batch_that_waits_for_a_login_is_sent_with_the_new_one(
    way: Callable[[str], dict[str, Any]], build: Build, secured: SecuredKafka, proof: Proof
) -> None:
    """cases.md KF-03: the password changes in Kafka, connections end, and the Secret follows later."""
    secured.set_password("hasty", PASSWORD)
    given = way("SCRAM-SHA-512")
    given["sasl"] = proof.login("SCRAM-SHA-512", PASSWORD, user="hasty")
    pair = build(**given, granted="hasty")
    relay = pair.relay()
    relay.await_ready()
    pair.insert(("k", "{}"))
    pair.await_empty()
    secured.set_password("hasty", PASSWORD + "2")
    secured.stop()
    pair.insert(*[(f"k{number % 5}", f'{{"n": {number}}}') for number in range(100)])
    secured.start()
    relay.await_report(
        lambda report: report.broker.reason == "BrokerAuthenticationFailed", what="the refused login", seconds=60
    )
    assert pair.pending() == 100
    proof.write("kafka-password", PASSWORD + "2")
    heals(pair, relay)
    assert {message.payload for message in read_all(secured, pair.topic)} >= {
        b'{"n": %d}' % number for number in range(100)
    }


def test_a_secret_that_went_is_named(way: Callable[[str], dict[str, Any]], build: Build, proof: Proof) -> None:
    pair = build(**way("SCRAM-SHA-512"))
    (proof.directory / "kafka-password").unlink()
    pair.insert(("k", "{}"))
    relay = pair.relay()
    report = fault(relay)
    assert report.broker.reason == "BrokerCredentialsMissing"
    assert "kafka-password" in report.broker.message
    proof.write("kafka-password", PASSWORD)
    heals(pair, relay)


def test_the_endpoint_is_verified_and_its_tokens_too(
    way: Callable[[str], dict[str, Any]], build: Build, authority: Authority, proof: Proof, secured: SecuredKafka
) -> None:
    """A token endpoint under another CA gets no secret; a broker takes no token that its own does not sign."""
    given = way("OAUTHBEARER")
    proof.write("oauth-ca.crt", Authority().pem)
    pair = build(**given)
    report = fault(pair.relay())
    assert report.broker.reason == "BrokerAuthenticationFailed"
    assert "caSecretRef" in report.broker.message
    with TokenEndpoint(authority=authority, clients={USER: CLIENT_SECRET}) as stranger:
        sasl = proof.login("OAUTHBEARER", CLIENT_SECRET, **oauth(stranger, authority, proof))
        other = build(**given | {"sasl": sasl}, name="stranger")
        assert fault(other.relay()).broker.reason == "BrokerAuthenticationFailed"
