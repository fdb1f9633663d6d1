"""Builders of OutboxRelay objects for tests: a short valid one, and whatever a test changes in it."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def database(name: str = "orders", **fields: Any) -> Object:
    """An entry of spec.databases."""
    return {
        "name": name,
        "host": f"{name}-db",
        "dbname": name,
        "credentialsSecretRef": {"name": f"{name}-db"},
    } | fields


def topic(name: str = "orders", **fields: Any) -> Object:
    """An entry of spec.topics."""
    return {"name": name, "topic": f"shop.{name}"} | fields


def relay(name: str = "shop", *, namespace: str, **spec: Any) -> Object:
    """An OutboxRelay with one database and one topic, unless `spec` says otherwise."""
    return {
        "apiVersion": "outboxrelay.io/v1alpha1",
        "kind": "OutboxRelay",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "databases": [database()],
            "kafka": {"bootstrapServers": ["kafka:9092"]},
            "topics": [topic()],
        }
        | spec,
    }
