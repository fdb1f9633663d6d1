"""What one test changes in the process must not be seen by the next.

Both programs set up logging for a whole process, as programs do. A test that runs one of them in its own process
would otherwise leave the level at "error" behind, and a later test would wait in vain for a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_logging() -> Iterator[None]:
    """Levels of all loggers and handlers of the root are again what they were."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {logger: logger.level for logger in _loggers()}
    try:
        yield
    finally:
        for handler in [each for each in root.handlers if each not in handlers]:
            root.removeHandler(handler)
        for handler in [each for each in handlers if each not in root.handlers]:
            root.addHandler(handler)
        for logger in _loggers():
            logger.setLevel(levels.get(logger, logging.NOTSET))


def _loggers() -> list[logging.Logger]:
    known = list(logging.Logger.manager.loggerDict.values())
    return [logging.getLogger(), *(logger for logger in known if isinstance(logger, logging.Logger))]
