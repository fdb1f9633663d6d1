"""OutboxRelay's data plane: one process carries rows of one outbox table to one Kafka topic.

The operator imports nothing of this package but `config`, `report` and `dberrors`.
"""
