"""Names and addresses of a cluster.

Aspects: names fit the kernel's limits and differ between state directories; addresses avoid the host's networks.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from tests.testbed.errors import ClusterError
from tests.testbed.selfcontained.instance import Instance, Settings, free_network, load_settings, network

IFNAMSIZ = 16


def test_names_fit_and_differ() -> None:
    one, other = Instance(Path("/a" * 100)), Instance(Path("/b"))
    assert len(one.host_link) < IFNAMSIZ
    assert {one.host_link, one.cgroup}.isdisjoint({other.host_link, other.cgroup})


def test_the_lock_lies_beside_what_is_deleted() -> None:
    instance = Instance(Path("/cache/cluster"))
    assert not instance.lock.is_relative_to(instance.state)


@pytest.mark.parametrize("index", range(15))
def test_an_address_plan_does_not_overlap_itself(index: int) -> None:
    plan = network(index)
    assert not plan.pods.overlaps(plan.services)
    assert not plan.pods.overlaps(plan.link)
    assert plan.host_address != plan.node_address
    assert {plan.host_address, plan.node_address} <= set(plan.link.hosts())


def test_the_first_plan_is_taken_on_a_quiet_host() -> None:
    assert free_network([ipaddress.IPv4Network("192.168.1.0/24")]) == network(0)


@pytest.mark.parametrize(
    "taken", ["10.244.3.0/24", "10.240.0.0/12", "10.244.128.0/24", "10.128.0.0/9", "10.244.255.252/30", "10.240.0.0/13"]
)
def test_plans_that_overlap_the_host_are_passed_over(taken: str) -> None:
    known = ipaddress.IPv4Network(taken)
    plan = free_network([known])
    assert plan != network(0)
    assert not any(part.overlaps(known) for part in (plan.pods, plan.services, plan.link))


def test_a_host_without_room_is_told_so() -> None:
    with pytest.raises(ClusterError, match="no free addresses for a cluster"):
        free_network([ipaddress.IPv4Network("10.0.0.0/8")])


def test_settings_survive_writing() -> None:
    settings = Settings(network=network(3), version="abc")
    assert load_settings(settings.dump()) == settings


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pods": "10.0.0.0/8"}', '{"pods": 1, "services": [], "link": null}'])
def test_broken_settings_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        load_settings(text)
