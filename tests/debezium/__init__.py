"""Debezium's outbox event router beside ours: the tables, the recording of what it emits, and the records."""
