"""`spec.retention`: what becomes of rows that were sent."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from outboxrelay_operator.api.fields import Identifier, MarkValue, matching
from outboxrelay_operator.api.model import Model, Rule

Duration = Annotated[
    str,
    matching(
        r"^([1-9][0-9]{0,6}[smh]|[1-9][0-9]{0,4}d)$",
        "a whole number of s, m, h or d, such as 7d",
        max_length=8,
    ),
]
"""A whole number of seconds, minutes, hours or days, short enough that PostgreSQL has a time so long ago."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Mark(Model):
    column: Identifier = Field(
        description=(
            "Column that says whether a row was sent: a status (text, enum, integer, boolean), or a time (timestamptz) "
            "that is NULL until then."
        )
    )
    pending: MarkValue | None = Field(
        default=None,
        description=(
            "Value of the column in a row that was not sent. Omitted: NULL. A row with any other value, but for "
            "failed, counts as dealt with."
        ),
    )
    sent: MarkValue | None = Field(
        default=None,
        description="Value that the relay writes when Kafka has the row. Omitted: the present time.",
    )
    failed: MarkValue | None = Field(
        default=None,
        description=(
            "Value that the relay writes when a row cannot be sent as it is. Such a row keeps holding back its "
            "key, and is tried again: use a value that no other rows have. Omitted: the row stays pending."
        ),
    )
    error_column: Identifier | None = Field(
        default=None,
        description="Nullable text column for the reason why a row cannot be sent; set to NULL when it was sent.",
    )
    sent_at_column: Identifier | None = Field(
        default=None,
        description="timestamptz column for the time of sending, beside a status column. Needed by keepFor.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="pending and failed are values of a status column: give sent too",
            cel="has(self.sent) || (!has(self.pending) && !has(self.failed))",
            holds=lambda mark: mark.sent is not None or (mark.pending is None and mark.failed is None),
            field_path=".sent",
        ),
        Rule(
            message="pending, sent and failed must differ",
            cel=(
                "(!has(self.pending) || !has(self.sent) || self.pending != self.sent) && (!has(self.failed) || "
                "((!has(self.pending) || self.failed != self.pending) && "
                "(!has(self.sent) || self.failed != self.sent)))"
            ),
            holds=lambda mark: mark.values_differ,
        ),
        Rule(
            message="column, errorColumn and sentAtColumn must be different columns",
            cel=(
                "(!has(self.errorColumn) || self.errorColumn != self.column) && (!has(self.sentAtColumn) || "
                "(self.sentAtColumn != self.column && (!has(self.errorColumn) || "
                "self.sentAtColumn != self.errorColumn)))"
            ),
            holds=lambda mark: mark.columns_differ,
        ),
        Rule(
            message=(
                "column, pending, sent and failed cannot be changed: rows that were sent would be sent again, or rows "
                "that were not never; create a new OutboxRelay instead"
            ),
            cel=(
                "self.column == oldSelf.column && "
                + " && ".join(
                    f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
                    for name in ("pending", "sent")
                )
                + " && (!has(oldSelf.failed) || (has(self.failed) && self.failed == oldSelf.failed))"
            ),
        ),
    )

    @property
    def columns(self) -> frozenset[str]:
        """The columns that are written."""
        return frozenset(name for name in (self.column, self.error_column, self.sent_at_column) if name is not None)

    @property
    def values_differ(self) -> bool:
        """Whether no two states have one value."""
        given = [value for value in (self.pending, self.sent, self.failed) if value is not None]
        return len(given) == len(set(given))

    @property
    def columns_differ(self) -> bool:
        """Whether no column serves two purposes."""
        given = [name for name in (self.column, self.error_column, self.sent_at_column) if name is not None]
        return len(given) == len(set(given))


class Keep(Model):
    table: Identifier = Field(
        description="Table for rows that were sent, in the schema of the outbox table, with all its columns."
    )


class Retention(Model):
    policy: Literal["Delete", "Mark", "Keep"] = Field(
        default="Delete",
        description=(
            "What becomes of a row when Kafka has it. Delete: it is removed. Mark: it stays, and a column says that it "
            "was sent; for tables that have a status or published_at column. Keep: it moves to a second table, in "
            "which it stays for replay. Mark and Keep cannot be changed later: marked rows would be sent again."
        ),
    )
    keep_for: Duration | None = Field(
        default=None,
        description=(
            "How long rows stay after they were sent, for example 12h or 7d; then the relays remove them, a few at a "
            "time. Omitted: for ever."
        ),
    )
    mark: Mark | None = Field(default=None, description="The columns that policy Mark reads and writes.")
    keep: Keep | None = Field(
        default=None,
        description="Where policy Keep keeps rows. Omitted: in the table of the outbox table's name and _sent.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message=(
                "policy Mark or Keep cannot be changed, also not by omitting it: rows that were sent would be sent "
                "again or removed; create a new OutboxRelay instead"
            ),
            cel="oldSelf.policy == 'Delete' || self.policy == oldSelf.policy",
            field_path=".policy",
        ),
        Rule(
            message="policy Mark needs mark, and only policy Mark has it",
            cel="has(self.mark) == (self.policy == 'Mark')",
            holds=lambda retention: (retention.mark is not None) == (retention.policy == "Mark"),
            field_path=".mark",
        ),
        Rule(
            message="only policy Keep has keep",
            cel="!has(self.keep) || self.policy == 'Keep'",
            holds=lambda retention: retention.keep is None or retention.policy == "Keep",
            field_path=".keep",
        ),
        Rule(
            message="keepFor needs policy Mark or Keep, as Delete keeps nothing",
            cel="!has(self.keepFor) || self.policy != 'Delete'",
            holds=lambda retention: retention.keep_for is None or retention.policy != "Delete",
            field_path=".keepFor",
        ),
        Rule(
            message="keepFor needs mark.sentAtColumn, or a mark.column of times: when was a row sent?",
            cel="!has(self.keepFor) || !has(self.mark) || !has(self.mark.sent) || has(self.mark.sentAtColumn)",
            holds=lambda retention: (
                retention.keep_for is None
                or retention.mark is None
                or retention.mark.sent is None
                or retention.mark.sent_at_column is not None
            ),
            field_path=".keepFor",
        ),
    )

    @property
    def keep_for_seconds(self) -> float | None:
        """`keep_for` in seconds; None is for ever."""
        return None if self.keep_for is None else float(int(self.keep_for[:-1]) * _UNITS[self.keep_for[-1]])
