"""What the type of a column comes down to: the same for the relay, which reads it, and the operator, which measures."""

from __future__ import annotations

from typing import Final

BASE_TYPE: Final = """(
    WITH RECURSIVE domains AS (
        SELECT oid, typbasetype, greatest(a.atttypmod, typtypmod) AS typmod FROM pg_type WHERE oid = a.atttypid
        UNION ALL
        SELECT t.oid, t.typbasetype, greatest(domains.typmod, t.typtypmod)
        FROM domains JOIN pg_type t ON t.oid = domains.typbasetype
    )
    SELECT oid, typmod FROM domains WHERE typbasetype = 0
)"""
"""For a column of pg_attribute `a`, to be joined laterally: of a domain, which may be one over another, the type below
them all, and the modifier with the length that one of them gives it.
"""
