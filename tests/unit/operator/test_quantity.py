"""Quantities as numbers."""

from __future__ import annotations

from decimal import Decimal

import pytest

from outboxrelay_operator.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1024Mi", Decimal(2**30)),
        ("1Gi", Decimal(2**30)),
        ("50m", Decimal("0.05")),
        (".05", Decimal("0.05")),
        ("1e3", Decimal(1000)),
        ("1k", Decimal(1000)),
        (2, Decimal(2)),
        ("100n", Decimal("1e-7")),
    ],
)
def test_equal_quantities_are_equal_numbers(text: str | int, number: Decimal) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "Mi", "1 Gi", "1.2.3", "1gi", ".", "1e100", "1e1000000", "1e-1000000"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)
