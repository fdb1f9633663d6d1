"""What a relay says about itself on /status: the contract between the relay, which writes it, and the operator.

Like `outboxrelay.config` this module needs pydantic alone. A report carries no payload and no secret; keys and
row ids are in it, since they are what a person needs in order to find a parked row.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

DatabaseReason = Literal[
    "Connected",
    "Starting",
    "CredentialsMissing",
    "AuthenticationFailed",
    "DatabaseMissing",
    "DatabaseUnreachable",
    "TlsFailed",
    "TableMissing",
    "ColumnMissing",
    "ColumnUnsupported",
    "LaneColumnWrong",
    "PermissionDenied",
    "ReadOnly",
    "Conflict",
    "DatabaseError",
]
"""State of the database side; `Conflict` means that another resource's relay holds this table and topic."""

BrokerReason = Literal[
    "Connected",
    "Starting",
    "BrokerCredentialsMissing",
    "BrokerAuthenticationFailed",
    "BrokerTlsFailed",
    "BrokerUnreachable",
    "TopicMissing",
    "TopicAuthorizationFailed",
    "BrokerError",
]
"""State of the Kafka side."""

WakeReason = Literal["Listening", "Starting", "NotHeard", "TriggerMissing"]
"""Whether new rows are announced, where the table's `wake` is Notify; with any reason but the first the relay polls."""

RowFaultReason = Literal[
    "RowTooLarge",
    "NullKeyOnCompactedTopic",
    "PayloadIsNull",
    "HeadersInvalid",
    "RowRejected",
    "TopicInvalid",
    "TopicMissing",
    "TopicAuthorizationFailed",
    "PartitionInvalid",
]
"""Why one row cannot be sent although database and broker are well."""

DATABASE_REASONS: tuple[str, ...] = get_args(DatabaseReason)
BROKER_REASONS: tuple[str, ...] = get_args(BrokerReason)


UnixTime = Annotated[float, Field(ge=0, le=253_402_300_799, description="Seconds; at most the year 9999")]


class _Report(BaseModel):
    # A newer relay may report more than an older operator knows.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class SideState(_Report):
    """One end of the relay: `reason` is one of the closed list, `message` is for people."""

    ok: bool
    reason: str
    message: str = ""
    since: UnixTime


class ParkedRow(_Report):
    """A row that holds back its key until it can be sent."""

    row_id: str
    key: str | None
    reason: str
    message: str
    attempts: int
    first_failed_at: UnixTime
    next_attempt_at: UnixTime


class LastError(_Report):
    """The newest failure of any kind, kept after it healed."""

    reason: str
    message: str
    row_id: str | None = None
    key: str | None = None
    at: UnixTime


class Holder(_Report):
    """Who keeps the server from clearing dead rows away, or locks the table."""

    what: str = Field(description="session, prepared transaction, replication slot or lock")
    pid: int | None = Field(default=None, description="Server process; none for a prepared transaction")
    name: str | None = Field(default=None, description="Of a transaction or slot; the mode of a lock")
    database: str | None = None
    application: str | None = Field(default=None, description="application_name of the session")
    state: str | None = Field(default=None, description="Of the session, as in pg_stat_activity")
    age_seconds: float | None = Field(default=None, description="Since the transaction began; none for a slot")


class WaitingRows(_Report):
    """The rows of the pair that waited at one moment."""

    rows: int = Field(ge=0)
    exact: bool = Field(description="False: more than are counted, and `rows` is the planner's estimate")
    oldest_id: int | None = None
    oldest_age_seconds: float | None = Field(default=None, description="Needs table.columns.created_at")
    highest_id: int | None = Field(default=None, description="Of the whole table, the rows of other pairs included")
    clock: UnixTime = Field(description="The database's")
    indexed: bool = Field(description="Whether an index begins with the id")


class Look(_Report):
    """What came of one look at the table, made for an operator that may not ask the database itself."""

    at: UnixTime = Field(description="By the relay's clock, as `now` of the report")
    repeat_seconds: float = Field(ge=0, description="From this look to the next, at the earliest")
    reason: str = Field(default="", description="Why nothing was found out; one of the database's reasons")
    message: str = ""
    waiting: WaitingRows | None = None


class RelayReport(_Report):
    """The whole report; counters start at zero with the process."""

    version: Literal[1] = 1
    pod: str
    pair: str
    owner: str = Field(description="namespace/name of the OutboxRelay resource")
    started_at: UnixTime
    now: UnixTime = Field(description="When this report was made")
    cycles: int = Field(description="Completed cycles, idle and backing-off ones included")
    sent_rows: int = Field(description="Rows acknowledged by the broker and settled in the database")
    sent_bytes: int
    rate_per_second: float = Field(description="Rows settled a second, over about the last ten seconds")
    lanes: int
    lanes_owned: tuple[int, ...]
    members: int = Field(description="Live relay pods of this pair, this one included")
    database: SideState
    broker: SideState
    partitions: int | None = Field(default=None, description="Partitions of the topic, if known")
    parked_total: int = Field(description="Rows parked now")
    parked: tuple[ParkedRow, ...] = Field(description="The oldest parked rows, at most ten")
    row_faults: int = Field(description="Attempts to send a row that failed because of the row itself")
    halted_lanes: tuple[int, ...] = Field(
        default=(), description="Lanes that stand still for the sake of a row at fault, with policy Halt"
    )
    dead_lettered: dict[str, int] = Field(
        default_factory=dict, description="Rows that went to the dead-letter topic and left the table, by reason"
    )
    last_error: LastError | None = None
    held_back_by: Holder | None = Field(
        default=None,
        description="The oldest transaction that keeps dead rows from being vacuumed away, if it is older than half a"
        " minute and the server lets the relay's user see it",
    )
    wake: SideState | None = Field(
        default=None,
        description="Whether new rows are announced, if the table's wake is Notify; while they are not, the relay polls"
        " as without it. None: it polls, as configured",
    )
    look: Look | None = Field(default=None, description="The newest, in the answer to /status?look only")
    config_digest: str
