"""Kubernetes quantities as numbers, since the API server stores `1024Mi` as `1Gi` and both mean the same."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"^([+-]?[0-9.]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$")
"""Exponents of two digits reach far beyond every resource; larger ones could not be computed with."""

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def parse_quantity(text: str | int | float) -> Decimal:
    """The number that a quantity stands for (k8s.io/apimachinery/pkg/api/resource).

    Raises:
        ValueError: `text` is not a quantity.
    """
    match = _QUANTITY.match(str(text))
    if match is None or match[1].count(".") > 1 or not any(char.isdigit() for char in match[1]):
        raise ValueError(f"not a quantity: {text}")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number * (Decimal(10) ** int(suffix[1:])) if suffix else number
