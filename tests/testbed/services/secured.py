"""A Kafka cluster with a listener for each way to log in, and rights that must be granted.

The plaintext listener of `LocalKafka` stays: whoever comes by it may do everything, and the tests do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.testbed.services.certificates import Authority, ServerCertificate
from tests.testbed.services.kafka import LocalKafka, Topic
from tests.testbed.services.processes import free_port
from tests.testbed.services.tokens import AUDIENCE, ISSUER, TokenEndpoint

_MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
_LOGIN_MODULES = "org.apache.kafka.common.security"


class SecuredKafka(LocalKafka):
    """One broker.

    Args:
        authority: signs the broker's certificate and those of clients.
        certificate: the broker's certificate; the default is a good one.
        plain: passwords by user for the mechanism PLAIN; fixed for the broker's life.
        tokens: whose tokens are accepted.
    """

    def __init__(
        self,
        *,
        authority: Authority,
        certificate: ServerCertificate | None = None,
        plain: Mapping[str, str] | None = None,
        tokens: TokenEndpoint | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(settings=settings)
        self.authority = authority
        self._certificate = certificate or authority.issue("127.0.0.1")
        self._plain = dict(plain or {})
        self._tokens = tokens
        self._secured_ports = {name: free_port() for name in ("TLS", "MTLS", "SASL", "SASLPLAIN")}

    @property
    def tls_servers(self) -> str:
        """Where TLS is spoken and nobody logs in."""
        return self._servers("TLS")

    @property
    def mtls_servers(self) -> str:
        """Where clients must show a certificate of the same authority."""
        return self._servers("MTLS")

    @property
    def sasl_servers(self) -> str:
        """Where TLS is spoken and clients log in by any SASL mechanism."""
        return self._servers("SASL")

    @property
    def sasl_plaintext_servers(self) -> str:
        """Where clients log in by SCRAM without TLS."""
        return self._servers("SASLPLAIN")

    def set_password(self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512") -> None:
        """Create or change a SCRAM user."""
        info = ScramCredentialInfo(_MECHANISMS[mechanism], 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        with self.admin() as admin:
            admin.alter_user_scram_credentials([change])[user].result(timeout=30)

    def allow(self, user: str, topic: Topic, *, write: bool = True) -> None:
        """Grant what a relay needs on a topic, or all of it but the right to write."""
        needed = [AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS]
        with self.admin() as admin:
            for operation in [*needed, AclOperation.WRITE] if write else needed:
                for done in admin.create_acls([_binding(user, topic, operation)]).values():
                    done.result(timeout=30)

    def deny(self, user: str, topic: Topic) -> None:
        """Take back all that was granted to a user on a topic."""
        granted = AclBindingFilter(
            ResourceType.TOPIC,
            topic.name,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        with self.admin() as admin:
            for done in admin.delete_acls([granted]).values():
                done.result(timeout=30)

    def replace_certificate(self, certificate: ServerCertificate) -> None:
        """Give the broker another certificate; it is read at the next start."""
        for path in self.brokers[0].directory.glob("*/broker.pem"):
            path.write_bytes(certificate.pkcs8_key + certificate.certificate)

    def _servers(self, listener: str) -> str:
        return f"127.0.0.1:{self._secured_ports[listener]}"

    def _security(self, home: Path) -> dict[str, str]:
        self.authority.write(home / "ca.crt")
        (home / "broker.pem").write_bytes(self._certificate.pkcs8_key + self._certificate.certificate)
        listeners = ["PLAINTEXT", *self._secured_ports]
        settings = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,MTLS:SSL,SASL:SASL_SSL,SASLPLAIN:SASL_PLAINTEXT"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(home / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(home / "ca.crt"),
            # Only the common name: User:relay in place of User:CN=relay,O=...
            "ssl.principal.mapping.rules": r"RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.saslplain.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl.plain.sasl.jaas.config": (
                f"{_LOGIN_MODULES}.plain.PlainLoginModule required"
                + "".join(f' user_{user}="{password}"' for user, password in self._plain.items())
                + ";"
            ),
        }
        for listener in ("sasl", "saslplain"):
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = (
                    f"{_LOGIN_MODULES}.scram.ScramLoginModule required;"
                )
        if self._tokens is not None:
            self._tokens.write_keys(home / "keys.json")
            settings |= self._token_settings((home / "keys.json").as_uri())
        advertised = ",".join(f"{name}://{self._address(name)}" for name in listeners)
        return settings | {
            "advertised.listeners": advertised,
            "listeners": f"{advertised},CONTROLLER://{self.controller_address}",
        }

    def _token_settings(self, keys: str) -> dict[str, str]:
        prefix = "listener.name.sasl.oauthbearer"
        self.java_options.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}")
        return {
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{prefix}.sasl.jaas.config": (
                f'{_LOGIN_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            ),
            f"{prefix}.sasl.server.callback.handler.class": (
                f"{_LOGIN_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            # The default of Kafka 4.1.0 reads tokens without looking at who signed them.
            "sasl.oauthbearer.jwt.validator.class": f"{_LOGIN_MODULES}.oauthbearer.BrokerJwtValidator",
            "sasl.oauthbearer.jwks.endpoint.url": keys,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }

    def _address(self, listener: str) -> str:
        return self.bootstrap_servers if listener == "PLAINTEXT" else self._servers(listener)


def _binding(user: str, topic: Topic, operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic.name,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
