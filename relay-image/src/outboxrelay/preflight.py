"""`outboxrelay check`: proves that both ends are fit for a pair, before or while its relay runs.

Reads only: takes no lane, sends no message, removes no row.
"""

from __future__ import annotations

from outboxrelay.config import RelayConfig
from outboxrelay.findings import Findings
from outboxrelay.publishers.preflight import examine_topic
from outboxrelay.stores.preflight import examine_database


def run(config: RelayConfig) -> Findings:
    """Look at the database, then at the brokers; neither keeps the other from being looked at."""
    return Findings.of([*examine_database(config), *examine_topic(config)])
