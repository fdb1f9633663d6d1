"""The operator's settings: the only place that reads environment variables."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from outboxrelay_operator.desired.network_policy import NetworkRules

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]

_NAMESPACE = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


Port = Annotated[int, Field(ge=1, le=65535)]


class _Network(BaseModel):
    """`NetworkRules` as the chart writes them, but for the namespace."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)

    prometheus_namespaces: tuple[str, ...] = ()
    dns_ports: tuple[Port, ...] = (53, 5353)
    extra_egress_ports: tuple[Port, ...] = ()


class SettingsError(ValueError):
    """A setting cannot be used; the message names the variable, its value and what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this operator was installed."""

    namespaces: tuple[str, ...]
    """Namespaces to serve; empty: the whole cluster."""

    relay_image: str
    relay_image_pull_policy: PullPolicy
    log_format: LogFormat
    log_level: LogLevel
    listen_port: int
    """Port of /livez, /readyz and /metrics; 0 takes a free one."""

    pod_name: str
    pod_namespace: str
    """Where the Lease lives."""

    lease_name: str
    """One for each installation: two releases in one namespace must not wait for each other."""

    secret_access: bool
    """False: no Secret is ever read, and relays measure instead of the operator."""

    lease_seconds: int
    """How long another pod respects a leader that is silent, before it leads itself."""

    max_concurrent_rollouts: int
    """How many OutboxRelays may roll at once because the operator changed."""

    max_connections_per_server: int
    """Sessions of this operator to one PostgreSQL server."""

    max_relay_connections_per_server: int | None
    """Sessions of all relays to one PostgreSQL server, beyond which autoscaling adds none; None: what it admits."""

    network: NetworkRules | None
    """None: no NetworkPolicy is made for relays."""

    measure_interval_seconds: float
    resync_seconds: float


def read(environment: Mapping[str, str]) -> Settings:
    """The settings of an environment.

    Raises:
        SettingsError: naming the variable.
    """
    namespaces = tuple(
        dict.fromkeys(part.strip() for part in environment.get("OUTBOXRELAY_NAMESPACES", "").split(",") if part.strip())
    )
    for namespace in namespaces:
        if not _NAMESPACE.match(namespace):
            raise SettingsError(f"OUTBOXRELAY_NAMESPACES: {namespace!r} is not the name of a namespace")
    return Settings(
        namespaces=namespaces,
        relay_image=environment.get("OUTBOXRELAY_RELAY_IMAGE") or "outboxrelay/relay:0.1.0",
        relay_image_pull_policy=_choice(
            environment, "OUTBOXRELAY_RELAY_IMAGE_PULL_POLICY", get_args(PullPolicy), "IfNotPresent"
        ),
        log_format=_choice(environment, "OUTBOXRELAY_LOG_FORMAT", get_args(LogFormat), "json"),
        log_level=_choice(environment, "OUTBOXRELAY_LOG_LEVEL", get_args(LogLevel), "info"),
        listen_port=int(_number(environment, "OUTBOXRELAY_LISTEN_PORT", 8080, low=0, high=65535)),
        pod_name=environment.get("POD_NAME") or socket.gethostname(),
        pod_namespace=_pod_namespace(environment),
        lease_name=environment.get("OUTBOXRELAY_LEASE_NAME") or "outboxrelay-operator",
        secret_access=_choice(environment, "OUTBOXRELAY_SECRET_ACCESS", ("true", "false"), "true") == "true",
        lease_seconds=int(_number(environment, "OUTBOXRELAY_LEASE_SECONDS", 15, low=3, high=300)),
        max_concurrent_rollouts=int(
            _number(environment, "OUTBOXRELAY_MAX_CONCURRENT_ROLLOUTS", 10, low=1, high=10_000)
        ),
        max_connections_per_server=int(
            _number(environment, "OUTBOXRELAY_MAX_CONNECTIONS_PER_SERVER", 2, low=1, high=20)
        ),
        max_relay_connections_per_server=int(
            _number(environment, "OUTBOXRELAY_MAX_RELAY_CONNECTIONS_PER_SERVER", 0, low=0, high=100_000)
        )
        or None,
        network=_network(environment, "OUTBOXRELAY_NETWORK_POLICY"),
        measure_interval_seconds=_number(environment, "OUTBOXRELAY_MEASURE_INTERVAL_SECONDS", 5, low=1, high=300),
        resync_seconds=_number(environment, "OUTBOXRELAY_RESYNC_SECONDS", 300, low=10, high=86_400),
    )


def _network(environment: Mapping[str, str], name: str) -> NetworkRules | None:
    text = environment.get(name)
    if not text:
        return None
    try:
        rules = _Network.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'document'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise SettingsError(f"{name}: {problems}") from None
    return NetworkRules(operator_namespace=_pod_namespace(environment), **rules.model_dump())


def _pod_namespace(environment: Mapping[str, str]) -> str:
    return environment.get("POD_NAMESPACE") or "default"


def _choice(environment: Mapping[str, str], name: str, options: tuple[str, ...], default: str) -> Any:
    value = environment.get(name) or default
    if value not in options:
        raise SettingsError(f"{name}: {value!r} is none of {', '.join(options)}")
    return value


def _number(environment: Mapping[str, str], name: str, default: float, *, low: float, high: float) -> float:
    text = environment.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        raise SettingsError(f"{name}: {text!r} is not a number") from None
    if not low <= value <= high:
        raise SettingsError(f"{name}: {text} is not between {low:g} and {high:g}")
    return value
