"""The closed catalogue of condition types and reasons. Alerts and scripts depend on these words: they never change.

Every reason that asks for something to be done has a remedy, and every word has a section in docs/troubleshooting.md.
The order of `REASONS` is the order of severity: the worst pair's reason becomes the reason of the resource's Ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

READY: Final = "Ready"
DATABASE_REACHABLE: Final = "DatabaseReachable"
BROKER_REACHABLE: Final = "BrokerReachable"
MEASURED: Final = "Measured"
CONFLICT: Final = "Conflict"
PODS_HEALTHY: Final = "PodsHealthy"
SLO_MET: Final = "SloMet"
UNROUTED_ROWS: Final = "UnroutedRows"
ROLLOUT_QUEUED: Final = "RolloutQueued"


@dataclass(frozen=True, slots=True)
class Reason:
    """`ready` says whether rows flow; `text` is the fixed text of the Event and holds no name."""

    word: str
    text: str
    ready: bool = False

    @property
    def remedy(self) -> str:
        """What to do, the second sentence of the text; empty if somebody wanted it so, or it passes by itself."""
        return self.text.partition(". ")[2]


REASONS: Final = (
    Reason("InvalidSpec", "The spec cannot be used; nothing was changed. Correct what the Ready condition names."),
    Reason("Conflict", "An older OutboxRelay serves the same table. Delete one of the two, or part them by match."),
    Reason("SecretMissing", "A Secret does not exist. Create it; it is looked for every few seconds."),
    Reason("SecretKeyMissing", "A Secret lacks a key. Add it; it is looked for every few seconds."),
    Reason("SecretUnreadable", "The operator cannot read a Secret. Grant it to get this Secret, or read the message."),
    Reason("CredentialsMissing", "A relay finds no login in its Secret. Check the Secret and its keys."),
    Reason(
        "NameTaken", "An object with a name that is needed belongs to something else. Remove it; the message names it."
    ),
    Reason("ApplyRefused", "The API server refuses an object. Read the message: a quota, a policy or the spec."),
    Reason("AuthenticationFailed", "PostgreSQL refuses the login. Correct the Secret, or the user in PostgreSQL."),
    Reason("TlsFailed", "TLS with PostgreSQL fails. Check tls.mode, the CA and the server's certificate."),
    Reason("DatabaseUnreachable", "PostgreSQL does not answer. Check host, port, network policies and the server."),
    Reason("DatabaseMissing", "The database does not exist. Create it or correct dbname."),
    Reason("ReadOnly", "PostgreSQL is read-only. Point host at the primary."),
    Reason("TableMissing", "The outbox table does not exist. Create it or correct table."),
    Reason("ColumnMissing", "A column does not exist. Add it or correct table.columns."),
    Reason("ColumnUnsupported", "A column has a type that cannot be used. See the documented types."),
    Reason(
        "LaneColumnWrong",
        "The lane column does not hold what lanes asks for. Make it as `outboxrelay sql` prints it, or do without.",
    ),
    Reason("PermissionDenied", "A grant is missing. Grant what `outboxrelay sql` prints."),
    Reason("DatabaseError", "PostgreSQL refuses a statement. Read the message and the server's log."),
    Reason("BrokerCredentialsMissing", "A relay finds no login to Kafka in its Secret. Check the Secret and its keys."),
    Reason(
        "BrokerAuthenticationFailed", "Kafka refuses the login. Correct kafka.sasl, its Secret or the user in Kafka."
    ),
    Reason("BrokerTlsFailed", "TLS with Kafka fails. Check kafka.tls, its CA and the brokers' certificates."),
    Reason("TopicMissing", "The Kafka topic does not exist. Create it or correct topic."),
    Reason("TopicAuthorizationFailed", "Kafka denies writing to the topic. Grant it."),
    Reason("BrokerUnreachable", "Kafka does not answer. Check bootstrapServers, network policies and the brokers."),
    Reason("BrokerError", "Kafka refuses to work. Read the message and the brokers' logs."),
    Reason("FailedCreate", "Kubernetes refuses to create a relay pod. Read the message: a quota or a policy."),
    Reason("ImagePullFailed", "The relay's image cannot be pulled. Check the image and the registry's credentials."),
    Reason("Unschedulable", "No node takes a relay pod. Read the message: resources, taints or volumes."),
    Reason("PodsFailing", "Relay pods crash or cannot start. Read the message and the pods' logs."),
    Reason("PodsNotReady", "A relay pod that is needed is not ready. Read the message, or its events and logs."),
    Reason("LanesUnowned", "Rows of some keys wait: no relay owns their lanes. See who holds the locks in PostgreSQL."),
    Reason("LanesHalted", "Lanes stand still for a row at fault, as onError.policy Halt asks; see lastError. Mend it."),
    Reason("ConnectionBudget", "Rows wait, and the server has no connection for a relay. See scaling in status.pairs."),
    Reason("Suspended", "The relays are stopped by spec.suspend; rows wait in their tables."),
    Reason("ScaledToZero", "The relays are stopped by spec.replicas 0; rows wait in their tables."),
    Reason("Stopping", "Relay pods are being stopped; until then rows may still flow."),
    Reason("Starting", "Relay pods are starting."),
    Reason("RowsParked", "Rows flow, but the broker refuses some rows as they are; see lastError.", ready=True),
    Reason("Idle", "No row waits, and no relay runs: the next row starts one.", ready=True),
    Reason("Flowing", "Rows flow in every pair.", ready=True),
)

CALM: Final = frozenset({"Suspended", "ScaledToZero", "Stopping", "Starting"})
"""Reasons of pairs that are not ready which somebody wanted, or which pass by themselves."""

CONNECTED: Final = "Connected"
NOT_MEASURED: Final = "NotMeasured"
NO_REPORT: Final = "NoReport"
ALL_MEASURED: Final = "AllMeasured"
MEASURED_BY_RELAYS: Final = "MeasuredByRelays"
NOBODY_LOOKS: Final = "NoSecretAccess"
INDEX_MISSING: Final = "IndexMissing"
NO_CONFLICT: Final = "NoConflict"
NO_TROUBLE: Final = "NoTrouble"
ROWS_UNROUTED: Final = "RowsUnrouted"
ALL_ROUTED: Final = "AllRouted"
SLO_KEPT: Final = "WithinLimits"
NOT_HEARD: Final = "NotHeard"
TRIGGER_MISSING: Final = "TriggerMissing"
LAG_TOO_HIGH: Final = "LagTooHigh"
BACKLOG_TOO_HIGH: Final = "BacklogTooHigh"

POLLING_REASONS: Final = (
    Reason(
        NOT_HEARD,
        "A relay polls in spite of wake Notify, since notifications do not arrive. Connect to PostgreSQL directly.",
    ),
    Reason(
        TRIGGER_MISSING,
        "A relay polls in spite of wake Notify, since no trigger announces rows. Run what `outboxrelay sql` prints.",
    ),
)
"""Why a relay polls although it should be woken. Rows flow: DatabaseReachable is True for these reasons."""

OTHER_REASONS: Final = (
    Reason(CONNECTED, "All of them answer."),
    *POLLING_REASONS,
    Reason(ALL_MEASURED, "Backlog and lag of every pair are fresh."),
    Reason(MEASURED_BY_RELAYS, "Backlog and lag of every pair are fresh, as relays measure them."),
    Reason(NOBODY_LOOKS, "The operator reads no Secrets, so nobody looks. Install it with secretAccess to know."),
    Reason(
        INDEX_MISSING,
        "Backlog and lag are measured at a price: a table has no (retention Mark: partial) index on id. Create one.",
    ),
    Reason(NOT_MEASURED, "It is not known yet, or no more. Wait for a minute, then read the operator's log."),
    Reason(NO_REPORT, "No relay says anything about the brokers. Look at Ready and PodsHealthy: none may be running."),
    Reason(NO_CONFLICT, "No other OutboxRelay serves the same rows."),
    Reason(NO_TROUBLE, "No relay pod is kept from running."),
    Reason(SLO_KEPT, "Every pair keeps to spec.slo."),
    Reason(LAG_TOO_HIGH, "A row waits for longer than spec.slo allows. See why in status.pairs, or allow more pods."),
    Reason(BACKLOG_TOO_HIGH, "More rows wait than spec.slo allows. See why in status.pairs, or allow more pods."),
    Reason(ROWS_UNROUTED, "No topic takes some rows, and they stay for ever. Add their route to a match, or a topic."),
    Reason(
        ROLLOUT_QUEUED,
        "Pods keep the template of an older operator until it is their turn. See which others are rolling.",
    ),
    Reason(ALL_ROUTED, "Every row that waits is taken by a topic."),
)
"""Reasons of the conditions beside Ready that are not above."""

SCALED_UP: Final = Reason("ScaledUp", "Autoscaling wants more relay pods for a pair; see scaling in status.pairs.")
SCALED_DOWN: Final = Reason("ScaledDown", "Autoscaling wants fewer relay pods for a pair; see scaling in status.pairs.")
SLO_MISSED: Final = Reason(
    "SloMissed", "A pair waits longer, or has more rows, than spec.slo allows. See the condition SloMet."
)
SLO_MET_AGAIN: Final = Reason("SloMet", "Every pair keeps to spec.slo.")

DEAD_LETTERED: Final = Reason(
    "DeadLettered", "A row was given up and sent to the dead-letter topic; see lastError in status.pairs."
)

EVENT_REASONS: Final = (SCALED_UP, SCALED_DOWN, SLO_MISSED, SLO_MET_AGAIN, DEAD_LETTERED)
"""Of Events that do not tell of a reason of a condition."""

SCALING_REASONS: Final = (
    Reason("Initial", "Nothing is known of the load yet."),
    Reason("Load", "As many pods as the load asks for."),
    Reason("WaitingForCalm", "Fewer pods would do; they stay until that has been so for the whole window."),
    Reason("Idle", "No row waits and none was written for idleAfterSeconds."),
    Reason("Minimum", "The load asks for no more than minReplicas."),
    Reason("Maximum", "The load asks for more pods than maxReplicas or lanes. Raise maxReplicas if lag matters."),
    Reason("Partitions", "The load asks for more pods than the topic has partitions. Add partitions if lag matters."),
    Reason("Unknown", "What waits or is written is not known, so the pods stay. See the condition Measured."),
    Reason("Unproven", "Rows wait, and no pod has shown yet how many it sends a second."),
    Reason("Blind", "The backlog cannot be measured, so one pod runs and tries. See the condition Measured."),
    Reason("Blocked", "No pod reaches both database and brokers, so the pods stay. See the condition Ready."),
    Reason("KeptToMeasure", "One pod stays: only pods see the next row, since the operator reads no Secrets."),
    Reason("ConnectionBudget", "The server has connections for no more relays. Raise its limit, or the operator's."),
    Reason("RowsHeldBack", "Parked rows hold back the rows of their keys; more pods would not help. See lastError."),
)
"""Reasons in status.pairs[].scaling: why a pair has as many pods as it has."""

TYPES: Final = (
    READY,
    DATABASE_REACHABLE,
    BROKER_REACHABLE,
    MEASURED,
    PODS_HEALTHY,
    CONFLICT,
    SLO_MET,
    UNROUTED_ROWS,
    ROLLOUT_QUEUED,
)
"""Types of conditions, in the order of the status."""

CONNECTION_WORDS: Final = frozenset(
    {"AuthenticationFailed", "CredentialsMissing", "DatabaseMissing", "DatabaseUnreachable", "TlsFailed"}
)
"""Reasons of a database that does not let the operator in; the others are found after that."""

CATCH_ALL_WORDS: Final = frozenset({"BrokerError", "DatabaseError"})
"""Reasons that stand for anything else: two faults with one of them may have nothing to do with each other."""

POLLING_WORDS: Final = frozenset(reason.word for reason in POLLING_REASONS)

BROKER_WORDS: Final = frozenset(
    {
        "BrokerAuthenticationFailed",
        "BrokerCredentialsMissing",
        "BrokerError",
        "BrokerTlsFailed",
        "BrokerUnreachable",
    }
)
"""Reasons of a broker that cannot be used at all; the others are about a topic."""

BY_WORD: Final = {reason.word: reason for reason in REASONS}
RANK: Final = {reason.word: rank for rank, reason in enumerate(REASONS)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: a word of the catalogue and a message that names the object and the remedy."""

    reason: str
    message: str

    @property
    def ready(self) -> bool:
        """Whether rows flow."""
        return BY_WORD[self.reason].ready
