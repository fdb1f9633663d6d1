"""Where the shop's databases are, as its pods are told: a connection string in the environment, the login in files.

`ORDERS_DATABASE` and `PAYMENTS_DATABASE` hold connection strings without a login; `ORDERS_LOGIN` and
`PAYMENTS_LOGIN` name the directory of a mounted Secret with the files `username` and `password`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

NAMES = ("orders", "payments")


@dataclass(frozen=True, slots=True)
class ShopDatabase:
    """One database of the shop."""

    name: str
    conninfo: str
    login: Path

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str] = os.environ) -> ShopDatabase:
        """The database of this name.

        Raises:
            KeyError: naming the variable that is not set.
        """
        prefix = name.upper()
        return cls(name, environment[f"{prefix}_DATABASE"], Path(environment[f"{prefix}_LOGIN"]))

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in autocommit mode."""
        return psycopg.connect(
            self.conninfo,
            user=(self.login / "username").read_text(),
            password=(self.login / "password").read_text(),
            connect_timeout=5,
            application_name="shop",
            autocommit=True,
        )
