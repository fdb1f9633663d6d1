"""The operator's process: the only place that knows all parts, handles signals and chooses the exit code.

0 after SIGTERM or SIGINT; 1 when leadership was lost or the settings cannot be used: then Kubernetes starts it
again, and it begins from what the cluster says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from outboxrelay_operator import logs, settings
from outboxrelay_operator.kube import KubeError, connect
from outboxrelay_operator.runtime import Operator

logger = logging.getLogger(__name__)

_RESOLVER_THREADS = 64
"""Resolving a name blocks a thread; a few dead names must not keep the others waiting."""


async def run(chosen: settings.Settings) -> int:
    """Run until a signal comes or something ends that must not; returns the exit code."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolver"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    operator = Operator(
        settings=chosen,
        clock=time.monotonic,
        wall=time.time,
        chance=random.random,
        identity=f"{chosen.pod_name}_{secrets.token_hex(4)}",
    )
    try:
        return await operator.run(connect=connect, stop=stop)
    except (KubeError, OSError) as error:
        logger.critical("%s", error)
        return 1


async def _run_then_exit(chosen: settings.Settings) -> None:
    code = await run(chosen)
    logging.shutdown()
    # Threads that resolve names or watch may wait for the network; nothing is lost by not waiting for them.
    os._exit(code)


def start() -> None:
    """Run as this process until it ends."""
    try:
        chosen = settings.read(os.environ)
    except settings.SettingsError as error:
        sys.stderr.write(f"outboxrelay-operator: {error}\n")
        raise SystemExit(1) from None
    logs.configure(form=chosen.log_format, level=chosen.log_level)
    asyncio.run(_run_then_exit(chosen))
