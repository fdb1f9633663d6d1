"""`python -m tests.bench.fleet.relays`: answers /status for every pod, as a relay that is well and has nothing to do.

A process of its own and no web framework: what it costs is taken from the operator's share of the cores.
"""

from __future__ import annotations

import asyncio
import time

from outboxrelay.report import RelayReport, SideState
from outboxrelay_operator.desired.relay_config import STATUS_PORT

_LANES = 16


def _report() -> bytes:
    now = time.time()
    side = SideState(ok=True, reason="Connected", since=0.0)
    body = (
        RelayReport(
            pod="",
            pair="",
            owner="",
            started_at=now - 3600,
            now=now,
            cycles=1,
            sent_rows=0,
            sent_bytes=0,
            rate_per_second=0.0,
            lanes=_LANES,
            lanes_owned=tuple(range(_LANES)),
            members=1,
            database=side,
            broker=side,
            partitions=12,
            parked_total=0,
            parked=(),
            row_faults=0,
            config_digest="",
        )
        .model_dump_json()
        .encode()
    )
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class _Relay(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self._request += data
        if self._request.endswith(b"\r\n\r\n"):
            self._request = b""
            self._transport.write(_report())


async def _serve() -> None:
    # Every address of the network namespace: pods have each its own.
    server = await asyncio.get_running_loop().create_server(_Relay, "0.0.0.0", STATUS_PORT, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
