"""Names of what belongs to an OutboxRelay: legal, short enough, and different for different pairs."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from outboxrelay_operator.names import instance_label, pair_name, shared_name

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
labels = st.from_regex(rf"\A{LABEL}\Z")
subdomains = st.from_regex(rf"\A{LABEL}(\.{LABEL})*\Z").filter(lambda name: len(name) <= 253)


@given(relay=subdomains, database=labels, topic=labels)
def test_a_pair_name_is_a_dns_label_with_room_for_a_pods_suffix(relay: str, database: str, topic: str) -> None:
    name = pair_name(relay=relay, database=database, topic=topic)
    assert re.fullmatch(LABEL, name)
    assert len(name) <= 52


@given(relay=subdomains)
def test_labels_and_config_maps_have_legal_names(relay: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", instance_label(relay))
    assert re.fullmatch(rf"{LABEL}(\.{LABEL})*", shared_name(relay))
    assert len(shared_name(relay)) <= 253


def test_256_pairs_of_the_longest_names_have_256_names() -> None:
    relay = ".".join(["r" * 63] * 3 + ["r" * 61])
    assert len(relay) == 253
    names = {
        pair_name(relay=relay, database="d" * 60 + f"{d:03}", topic="t" * 60 + f"{t:03}")
        for d in range(16)
        for t in range(16)
    }
    assert len(names) == 256


def test_where_the_parts_meet_matters() -> None:
    assert pair_name(relay="a", database="b-c", topic="d") != pair_name(relay="a-b", database="c", topic="d")
    assert pair_name(relay="a.b", database="c", topic="d") != pair_name(relay="a-b", database="c", topic="d")


def test_long_names_that_share_a_head_differ() -> None:
    assert instance_label("r" * 100) != instance_label("r" * 101)
    assert shared_name("r" * 252) != shared_name("r" * 253)


def test_names_are_frozen() -> None:
    """A changed name would orphan the Deployments of every installation."""
    assert pair_name(relay="shop", database="orders", topic="rest") == "shop-orders-rest-a5c6c5"
    assert (
        pair_name(relay="s" * 60, database="orders", topic="rest")
        == "ssssssssssssssssssss-ssssssss-orders-rest-ae75846cab"
    )
    assert shared_name("shop") == "shop-relays"
    assert instance_label("shop") == "shop"
