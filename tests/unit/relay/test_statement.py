"""Named placeholders become numbers, and values literals that the server reads back."""

from __future__ import annotations

from psycopg import sql

from outboxrelay.stores.columns import Name
from outboxrelay.stores.statement import Statement, array


def test_names_are_numbered_by_their_first_use() -> None:
    composed = sql.SQL("select {} from t where a = %(a)s::int8 and b = %(b)s and c = %(a)s and d %% 2 = 0").format(
        Name("10% off")
    )
    assert Statement.of(composed) == Statement(
        text=b'select "10% off" from t where a = $1::int8 and b = $2 and c = $1 and d % 2 = 0', names=("a", "b")
    )


def test_array_literals() -> None:
    assert array([]) == b"{}"
    assert array([1, -2]) == b"{1,-2}"
