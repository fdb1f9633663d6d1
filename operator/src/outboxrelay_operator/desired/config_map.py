"""The config map with the configuration of every relay of one OutboxRelay.

A key names the pair and the digest of its configuration, so what a key holds never changes: while a new
configuration rolls out, pods of the old one can still restart.
"""

from __future__ import annotations

from collections.abc import Mapping

from outboxrelay.config import digest
from outboxrelay_operator.desired.applied import marked
from outboxrelay_operator.desired.metadata import Object, metadata
from outboxrelay_operator.names import shared_name
from outboxrelay_operator.pairs import Owner


def config_key(pair_name: str, config: str) -> str:
    """The key of one configuration of a pair; the pair's name, which has no dot, stands before the first dot."""
    return f"{pair_name}.{digest(config)}.json"


def pair_of_key(key: str) -> str:
    """The pair's name in what `config_key` returned."""
    return key.partition(".")[0]


def config_map(owner: Owner, data: Mapping[str, str]) -> Object:
    """`data` are configuration texts by `config_key`."""
    return marked(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(owner, shared_name(owner.key.name)),
            "data": dict(sorted(data.items())),
        }
    )
