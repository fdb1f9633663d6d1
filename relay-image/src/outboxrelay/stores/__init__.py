"""Where outbox rows come from: one adapter per kind of database."""
