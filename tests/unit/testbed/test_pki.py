"""Certificates and tokens of a cluster.

Aspects: names in the serving certificate; the chain verifies; files are private; the token file's form.
"""

from __future__ import annotations

import csv
import io
import stat
from pathlib import Path

from cryptography import x509

from tests.testbed.selfcontained import pki
from tests.testbed.selfcontained.health import admin_token
from tests.testbed.selfcontained.instance import NODE_NAME, network

NETWORK = network(0)


def _load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_serving_certificate_has_every_name_and_is_signed_by_the_authority(tmp_path: Path) -> None:
    pki.create(tmp_path, NETWORK, tokens=pki.new_tokens())
    authority, server = _load(tmp_path / "ca.crt"), _load(tmp_path / "server.crt")
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "kubernetes.default.svc", NODE_NAME} <= set(names.get_values_for_type(x509.DNSName))
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", str(NETWORK.api_service_address), str(NETWORK.node_address)}


def test_every_file_is_private_and_every_cluster_has_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        pki.create(tmp_path / name, NETWORK, tokens=pki.new_tokens())
    files = sorted((tmp_path / "one").iterdir())
    assert [oct(stat.S_IMODE(file.stat().st_mode)) for file in files] == ["0o600"] * len(files)
    assert not [file.name for file in files if file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()]


def test_the_token_file_names_users_and_groups(tmp_path: Path) -> None:
    tokens = pki.new_tokens()
    rows = list(csv.reader(io.StringIO(pki.token_file(tokens))))
    assert {row[1]: (row[0], row[3]) for row in rows} == {
        user: (tokens[user], ",".join(groups)) for user, groups in pki.USERS.items()
    }
    (tmp_path / "tokens.csv").write_text(pki.token_file(tokens))
    assert admin_token(tmp_path / "tokens.csv") == tokens["admin"]
