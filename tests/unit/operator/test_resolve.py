"""A database's host is looked up as the relay pods of the resource's namespace would look it up.

Aspects: search domains and ndots of the operator's own resolv.conf carried over to the other namespace; names with a
final dot; addresses; names that do not exist; servers of the same bare name in two namespaces.
"""

from __future__ import annotations

import asyncio
import socket

import pytest

from outboxrelay_operator.measure.resolve import NoNameServerError, Resolver, ResolverSettings, look_up, names

IN_CLUSTER = ResolverSettings(
    search=("operators.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.test"), ndots=5
)


def test_resolv_conf_is_read() -> None:
    text = (
        "# made by the kubelet\nnameserver 10.96.0.10\nsearch old.example\n"
        "search operators.svc.cluster.local svc.cluster.local. cluster.local example.test\noptions edns0 ndots:5\n"
    )
    assert ResolverSettings.parse(text) == IN_CLUSTER
    assert ResolverSettings.parse("nameserver 127.0.0.1\n") == ResolverSettings(search=(), ndots=1)


@pytest.mark.parametrize(
    ("host", "first"),
    [
        ("orders-db", "orders-db.shop.svc.cluster.local."),
        ("orders-db.billing", "orders-db.billing.shop.svc.cluster.local."),
        ("db.example.com", "db.example.com.shop.svc.cluster.local."),
        ("a.b.c.d.e.f", "a.b.c.d.e.f."),
        ("db.example.com.", "db.example.com."),
    ],
)
def test_the_first_name_tried_is_the_pods_first(host: str, first: str) -> None:
    assert names(host, namespace="shop", own_namespace="operators", settings=IN_CLUSTER)[0] == first


def test_the_operators_own_namespace_is_never_searched() -> None:
    tried = names("orders-db", namespace="shop", own_namespace="operators", settings=IN_CLUSTER)
    assert tried == (
        "orders-db.shop.svc.cluster.local.",
        "orders-db.svc.cluster.local.",
        "orders-db.cluster.local.",
        "orders-db.example.test.",
        "orders-db.",
    )


def test_outside_a_cluster_a_name_is_itself() -> None:
    assert names("localhost", namespace="shop", own_namespace="default", settings=ResolverSettings()) == ("localhost.",)


class Zone:
    """A `Lookup` over a dictionary, which remembers what it was asked."""

    def __init__(self, **entries: str) -> None:
        self.entries = {name.replace("_", "."): address for name, address in entries.items()}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        address = self.entries.get(name.rstrip("."))
        return () if address is None else (address,)


def resolver(zone: Zone) -> Resolver:
    return Resolver(own_namespace="operators", settings=IN_CLUSTER, lookup=zone)


async def test_the_same_name_is_another_server_in_another_namespace() -> None:
    zone = Zone(db_shop_svc_cluster_local="10.0.0.1", db_billing_svc_cluster_local="10.0.0.2")
    assert await resolver(zone).addresses("db", namespace="shop") == ("10.0.0.1",)
    assert await resolver(zone).addresses("db", namespace="billing") == ("10.0.0.2",)


async def test_a_server_of_the_operators_namespace_is_not_found_by_its_bare_name() -> None:
    zone = Zone(db_operators_svc_cluster_local="10.0.0.3")
    assert await resolver(zone).addresses("db", namespace="shop") == ()
    assert await resolver(zone).addresses("db.operators", namespace="shop") == ("10.0.0.3",)


@pytest.mark.parametrize("host", ["orders..db", f"{'x' * 64}.shop"])
async def test_a_name_that_can_be_none_does_not_exist(host: str) -> None:
    """The pattern of the field lets it through, and Python's own encoding refuses it in its own way."""
    assert await Resolver(own_namespace="x", settings=IN_CLUSTER, lookup=look_up).addresses(host, namespace="x") == ()


async def test_a_name_of_which_no_name_server_tells_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """To correct the host, or to create the Service, would be the wrong advice."""
    answers: dict[str, object] = {}

    async def getaddrinfo(_: object, name: str, *__: object, **___: object) -> object:
        answer = answers.get(name, socket.gaierror(socket.EAI_NONAME, "no such name"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    real = Resolver(own_namespace="operators", settings=IN_CLUSTER, lookup=look_up)
    assert await real.addresses("db", namespace="shop") == ()
    answers["db.svc.cluster.local."] = socket.gaierror(socket.EAI_AGAIN, "no server answers")
    with pytest.raises(NoNameServerError):
        await real.addresses("db", namespace="shop")
    answers["db.example.test."] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.4", 0))]
    assert await real.addresses("db", namespace="shop") == ("10.0.0.4",)


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
async def test_an_address_is_not_looked_up(address: str) -> None:
    zone = Zone()
    assert await resolver(zone).addresses(address, namespace="shop") == (address,)
    assert zone.asked == []
