"""References to Secrets: by name, and only in the resource's own namespace. There is no namespace field anywhere."""

from __future__ import annotations

from pydantic import Field

from outboxrelay_operator.api.fields import ObjectName, SecretKey
from outboxrelay_operator.api.model import Model


class CredentialsSecretRef(Model):
    name: ObjectName = Field(description="Name of a Secret in the namespace of this OutboxRelay.")
    username_key: SecretKey = Field(default="username", description="Key in the Secret that holds the user's name.")
    password_key: SecretKey = Field(default="password", description="Key in the Secret that holds the password.")


class CaSecretRef(Model):
    name: ObjectName = Field(description="Name of a Secret in the namespace of this OutboxRelay.")
    key: SecretKey = Field(
        default="ca.crt", description="Key in the Secret that holds the CA's certificates, PEM encoded."
    )


class ClientCertSecretRef(Model):
    name: ObjectName = Field(description="Name of a Secret in the namespace of this OutboxRelay.")
    cert_key: SecretKey = Field(
        default="tls.crt", description="Key in the Secret that holds the certificate with its chain, PEM encoded."
    )
    key_key: SecretKey = Field(
        default="tls.key", description="Key in the Secret that holds the certificate's key, PEM encoded, not encrypted."
    )
