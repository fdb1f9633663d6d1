"""The cluster's certificate authority, certificates and tokens, made anew for every cluster.

Private keys and tokens are written with mode 0600 and appear in no argument
and in no message. They are worthless elsewhere: the API server that accepts
them is reachable from this machine only and dies with the cluster.
"""

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.testbed.selfcontained.instance import CLUSTER_DOMAIN, NODE_NAME, Network

LIFETIME = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(hours=1)

# Who may log in by token -> groups. The names are those that Kubernetes' own RBAC defaults bind.
USERS: dict[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
    "system:kube-proxy": (),
    f"system:node:{NODE_NAME}": ("system:nodes",),
    "outboxrelay-testbed:dns": (),
}


@dataclass(frozen=True)
class Authority:
    """A certificate and its key, able to sign."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str, organization: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _unsigned(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, *, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def new_authority(now: datetime.datetime) -> Authority:
    """Return a new certificate authority, valid from shortly before `now`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("outboxrelay-testbed-ca")
    certificate = (
        _unsigned(name, key, name, now=now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate=certificate, key=key)


def _issue(
    authority: Authority,
    subject: x509.Name,
    *,
    usage: x509.ObjectIdentifier,
    alternatives: Sequence[x509.GeneralName],
    now: datetime.datetime,
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _unsigned(subject, key, authority.certificate.subject, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    signed = builder.sign(authority.key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM), _pem(key)


def server_names(network: Network) -> list[x509.GeneralName]:
    """Return every name by which the API server and the kubelet are called."""
    hosts = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    hosts.append(f"kubernetes.default.svc.{CLUSTER_DOMAIN}")
    hosts.append(NODE_NAME)
    addresses = [ipaddress.IPv4Address("127.0.0.1"), network.api_service_address, network.node_address]
    return [*(x509.DNSName(host) for host in hosts), *(x509.IPAddress(address) for address in addresses)]


def new_tokens() -> dict[str, str]:
    """Return a fresh token for every user."""
    return {user: secrets.token_hex(24) for user in USERS}


def token_file(tokens: dict[str, str]) -> str:
    """Return the text for kube-apiserver's --token-auth-file: token, user, uid, groups."""
    return "".join(f'{token},{user},{user},"{",".join(USERS[user])}"\n' for user, token in tokens.items())


def create(directory: Path, network: Network, *, tokens: dict[str, str]) -> None:
    """Write all certificates, keys and the token file into `directory`."""
    now = datetime.datetime.now(datetime.UTC)
    authority = new_authority(now)
    write_secret(directory / "ca.crt", authority.certificate.public_bytes(serialization.Encoding.PEM))
    issued = {
        "server": _issue(
            authority,
            _name("kube-apiserver"),
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            alternatives=server_names(network),
            now=now,
        ),
        "kubelet-client": _issue(
            authority,
            _name("kube-apiserver-kubelet-client", "system:masters"),
            usage=ExtendedKeyUsageOID.CLIENT_AUTH,
            alternatives=[],
            now=now,
        ),
    }
    for name, (certificate, key) in issued.items():
        write_secret(directory / f"{name}.crt", certificate)
        write_secret(directory / f"{name}.key", key)
    signing = ec.generate_private_key(ec.SECP256R1())
    public = signing.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_secret(directory / "service-accounts.key", _pem(signing))
    write_secret(directory / "service-accounts.pub", public)
    write_secret(directory / "tokens.csv", token_file(tokens).encode())
