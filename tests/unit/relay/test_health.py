"""The HTTP side: probes, metrics and the report over a real socket."""

from __future__ import annotations

import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outboxrelay.health import HealthServer, routes, waiting_routes
from outboxrelay.looking import Looker
from outboxrelay.report import RelayReport, WaitingRows
from tests.unit.relay.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def server(world: World) -> Iterator[HealthServer]:
    made = HealthServer(host="127.0.0.1", port=0, routes=routes(world.board, dead_after_seconds=60))
    made.start()
    yield made
    made.stop()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_rr_01_a_relay_that_completes_cycles_is_alive(world: World, server: HealthServer) -> None:
    world.clock.sleep(59)
    assert get(server, "/livez") == (200, "ok\n")
    world.clock.sleep(2)
    assert get(server, "/livez") == (503, "no cycle was completed for 61 s\n")
    world.board.tick()
    assert get(server, "/livez")[0] == 200


def test_readiness_says_what_is_wrong(world: World, server: HealthServer) -> None:
    assert get(server, "/readyz")[0] == 503
    world.board.database_is(ok=True, reason="Connected")
    world.board.broker_is(ok=False, reason="TopicMissing", message="there is no topic t")
    assert get(server, "/readyz") == (503, "database: Connected \nbroker: TopicMissing there is no topic t\n")
    world.board.broker_is(ok=True, reason="Connected")
    assert get(server, "/readyz?verbose") == (200, "ok\n")


def test_the_report_is_served(world: World, server: HealthServer) -> None:
    status, body = get(server, "/status")
    assert status == 200
    assert RelayReport.model_validate_json(body).pair == "pair"


def test_a_look_is_in_the_report_of_whoever_asks_for_it(world: World) -> None:
    waiting = WaitingRows(rows=3, exact=True, clock=1.0, indexed=True)
    meter = Mock(look=Mock(return_value=waiting))
    looker = Looker(meter, monotonic=time.monotonic, wall=time.time, rng=random.Random(1))
    looker.start()
    server = HealthServer(host="127.0.0.1", port=0, routes=routes(world.board, dead_after_seconds=60, looker=looker))
    server.start()
    try:
        assert RelayReport.model_validate_json(get(server, "/status")[1]).look is None
        assert meter.look.call_count == 0
        look = RelayReport.model_validate_json(get(server, "/status?look")[1]).look
    finally:
        server.stop()
        looker.stop()
    assert look is not None
    assert look.waiting == waiting


def test_metrics_carry_units_and_no_label(world: World, server: HealthServer) -> None:
    world.board.settled(rows=7, size=700)
    world.board.database_is(ok=True, reason="Connected")
    status, body = get(server, "/metrics")
    assert status == 200
    samples = {
        sample.name: sample
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if sample.name.startswith("outboxrelay_")
    }
    assert samples["outboxrelay_sent_rows_total"].value == 7
    assert samples["outboxrelay_sent_bytes_total"].value == 700
    assert samples["outboxrelay_database_up"].value == 1
    assert samples["outboxrelay_broker_up"].value == 0
    assert all(sample.labels == {} for sample in samples.values())
    assert "process_resident_memory_bytes" in body


def test_other_paths_are_not_found(server: HealthServer) -> None:
    assert get(server, "/")[0] == 404


def test_while_the_configuration_is_awaited_the_relay_is_alive_and_not_ready() -> None:
    server = HealthServer(host="127.0.0.1", port=0, routes=waiting_routes("abc123"))
    server.start()
    try:
        assert get(server, "/livez") == (200, "ok\n")
        assert get(server, "/readyz") == (503, "waiting for configuration abc123\n")
        assert get(server, "/status")[0] == 404
    finally:
        server.stop()


def test_the_default_address_serves_ipv4() -> None:
    server = HealthServer(host="", port=0, routes=waiting_routes("x"))
    server.start()
    try:
        assert get(server, "/livez")[0] == 200
    finally:
        server.stop()
