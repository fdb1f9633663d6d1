"""`wake: Notify` with real relays: a row ends their rest, and whatever keeps it from doing so costs no row.

Rests are made so long that only a wake-up, or polling at the usual pace, can deliver a row within a test. A relay rests
for certain once it has gone through more rounds than its quick polls take.
"""

from __future__ import annotations

from outboxrelay.config import RelayConfig
from outboxrelay.stores import ddl
from tests.integration.harness.deaf import Deafness
from tests.integration.harness.proxy import Proxy
from tests.integration.harness.relay import Pair, RelayProcess

FOR_EVER_MS = 3_600_000
QUICK_ROUNDS = 10
"""More than an idle relay makes before its long rest, in which there are two a second."""


def notified(pair: Pair, *, trigger: bool = True, **tuning: int) -> RelayConfig:
    """The pair's configuration with `wake: Notify`; its table announces rows if `trigger`."""
    config = pair.configured(**tuning)
    config = config.model_copy(update={"table": config.table.model_copy(update={"wake": "Notify"})})
    if trigger:
        make_trigger(pair, config)
    return config


def make_trigger(pair: Pair, config: RelayConfig) -> None:
    for statement in ddl.wake_trigger(config):
        pair.database.execute(statement)


def await_rest(relay: RelayProcess) -> None:
    """Until the relay, which listens, has long been through its quick polls."""
    before = relay.report().cycles
    relay.await_report(lambda report: report.cycles > before + QUICK_ROUNDS, what="a rest", seconds=60)


def await_state(relay: RelayProcess, reason: str) -> str:
    report = relay.await_report(
        lambda report: report.wake is not None and report.wake.reason == reason, what=f"wake {reason}", seconds=90
    )
    assert report.wake is not None
    assert report.wake.ok == (reason == "Listening")
    return report.wake.message


def through(proxy: Proxy, config: RelayConfig) -> RelayConfig:
    """The configuration of a relay that reaches the database through a proxy, in plaintext."""
    plaintext = config.database.tls.model_copy(update={"mode": "disable", "ca_file": None})
    return config.model_copy(
        update={"database": config.database.model_copy(update={"port": proxy.port, "tls": plaintext})}
    )


def test_a_row_wakes_a_relay_that_would_not_poll_for_an_hour(pair: Pair) -> None:
    relay = pair.relay(config=notified(pair, announced_poll_ms=FOR_EVER_MS))
    await_state(relay, "Listening")
    for number in range(3):
        await_rest(relay)
        pair.insert((f"key-{number}", "{}"))
        pair.await_empty()
    assert relay.report().sent_rows == 3


def test_rows_of_each_relay_wake_it(pair: Pair) -> None:
    """Every relay of the table hears of every row; the one whose lane it is sends it."""
    config = notified(pair, announced_poll_ms=FOR_EVER_MS)
    relays = [pair.relay(config=config) for _ in range(2)]
    for relay in relays:
        relay.await_report(lambda report: report.members == 2, what="two members")
        relay.await_report(lambda report: len(report.lanes_owned) == 8, what="half the lanes")
    for relay in relays:
        await_state(relay, "Listening")
        await_rest(relay)
    pair.insert(*[(f"key-{number}", "{}") for number in range(40)])
    pair.await_empty()
    assert all(relay.report().sent_rows for relay in relays)


def test_the_loss_of_the_session_loses_no_row_and_no_wake_up(pair: Pair) -> None:
    relay = pair.relay(config=notified(pair, announced_poll_ms=FOR_EVER_MS))
    await_state(relay, "Listening")
    await_rest(relay)
    (backend,) = relay.backends(pair.database)
    pair.database.execute("select pg_terminate_backend(%s, 5000)", (backend,))
    pair.insert(("while it is away", "{}"))
    pair.await_empty()
    await_state(relay, "Listening")
    await_rest(relay)
    pair.insert(("afterwards", "{}"))
    pair.await_empty()


def test_where_notifications_are_swallowed_the_relay_polls_says_so_and_comes_back(pair: Pair) -> None:
    deafness = Deafness()
    with Proxy(target=pair.config.database.port, answers=deafness.between) as proxy:
        relay = pair.relay(config=through(proxy, notified(pair, announced_poll_ms=FOR_EVER_MS)))
        message = await_state(relay, "NotHeard")
        assert "asks every 50 ms instead" in message
        assert "connect to PostgreSQL directly" in message
        assert message in relay.log_text()
        assert relay.report().database.ok
        for number in range(3):
            await_rest(relay)
            pair.insert((f"key-{number}", "{}"))
            pair.await_empty()
        assert deafness.swallowed
        deafness.on = False
        await_state(relay, "Listening")
        await_rest(relay)
        pair.insert(("heard", "{}"))
        pair.await_empty()
        relay.kill()


def test_notifications_that_are_swallowed_later_only_cost_time(pair: Pair) -> None:
    """Nobody can notice that; the net of polling is what it has by default."""
    deafness = Deafness()
    deafness.on = False
    with Proxy(target=pair.config.database.port, answers=deafness.between) as proxy:
        relay = pair.relay(config=through(proxy, notified(pair)))
        await_state(relay, "Listening")
        deafness.on = True
        await_rest(relay)
        pair.insert(("k", "{}"))
        pair.await_empty()
        assert deafness.swallowed
        relay.kill()


def test_without_the_trigger_the_relay_polls_and_with_it_it_is_woken(pair: Pair) -> None:
    config = notified(pair, trigger=False, announced_poll_ms=FOR_EVER_MS)
    relay = pair.relay(config=config)
    message = await_state(relay, "TriggerMissing")
    assert "outboxrelay sql" in message
    await_rest(relay)
    pair.insert(("k", "{}"))
    pair.await_empty()
    make_trigger(pair, config)
    await_state(relay, "Listening")
    await_rest(relay)
    pair.insert(("k", "{}"))
    pair.await_empty()
