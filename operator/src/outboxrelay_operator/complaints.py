"""Warnings about what lasts: said once when it begins, and once more when it is over."""

from __future__ import annotations

import logging


class Complaints:
    """Keeps a log readable while a right, a namespace or a server is missing for hours."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: dict[str, str] = {}

    def complain(self, about: str, message: str) -> None:
        """Say what is wrong with `about`, unless that was the last thing said of it."""
        if self._said.get(about) != message:
            self._said[about] = message
            self._logger.warning("%s", message)

    def settle(self, about: str) -> None:
        """`about` is well (again)."""
        if self._said.pop(about, None) is not None:
            self._logger.info("%s: works again", about)
