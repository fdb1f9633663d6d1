"""Which relays must be told that a Secret changed. Pure.

A kubelet refreshes mounted Secrets about once a minute; a change of an annotation of the pod makes it look at
once. That is done when a Secret changed, and while a relay says that its login or its CA does not work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from outboxrelay_operator.desired.secret_files import secret_files
from outboxrelay_operator.facts import Judged, PairFacts
from outboxrelay_operator.measurements import Failure, PodState
from outboxrelay_operator.observed import SecretState
from outboxrelay_operator.pairs import Pair

CREDENTIAL_WORDS = frozenset(
    {
        "AuthenticationFailed",
        "BrokerAuthenticationFailed",
        "BrokerCredentialsMissing",
        "BrokerTlsFailed",
        "CredentialsMissing",
        "TlsFailed",
    }
)
"""Reasons that a new Secret may end."""

_SECRET_WORDS = ("SecretMissing", "SecretKeyMissing", "SecretUnreadable")

SecretStates = Mapping[str, SecretState | None]


def secret_names(pair: Pair) -> tuple[str, ...]:
    """The Secrets that a pair's relays mount."""
    return tuple(dict.fromkeys(files.secret for files in secret_files(pair)))


def versions(pair: Pair, secrets: SecretStates) -> str:
    """Changes whenever one of the pair's Secrets does."""
    states = [secrets.get(name) for name in secret_names(pair)]
    return "-".join("none" if state is None else state.version for state in states)


def waiting_for_secrets(judged: Sequence[Judged]) -> bool:
    """Whether a Secret is missing, unreadable or does not work, so that it should be looked at often."""
    return any(finding.reason in (*_SECRET_WORDS, *CREDENTIAL_WORDS) or _refused(facts) for facts, finding in judged)


def _refused(facts: PairFacts) -> bool:
    measurement = facts.fresh_measurement
    return isinstance(measurement, Failure) and measurement.reason in CREDENTIAL_WORDS


def pods_to_tell(
    judged: Sequence[Judged], secrets: SecretStates, *, changed: Set[str]
) -> Iterator[tuple[PodState, str]]:
    """Pods whose kubelet should look at the Secrets now, with the versions to tell.

    `changed` names the Secrets that are not what they were in the pass before.
    """
    for facts, _ in judged:
        told = versions(facts.pair, secrets)
        news = not changed.isdisjoint(secret_names(facts.pair))
        for pod in facts.live_pods:
            if pod.secrets_annotation != told and (news or _refused_to(pod, now=facts.now)):
                yield pod, told


def _refused_to(pod: PodState, *, now: float) -> bool:
    """Whether a relay says that a login does not work."""
    report = pod.fresh_report(now)
    return report is not None and not CREDENTIAL_WORDS.isdisjoint((report.database.reason, report.broker.reason))
