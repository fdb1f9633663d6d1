"""The digest by which the operator knows again what it applied: a field that is no longer wanted cannot be seen by
comparing what is wanted with what is there.
"""

from __future__ import annotations

import json

from outboxrelay.config import digest
from outboxrelay_operator.desired.metadata import Object
from outboxrelay_operator.names import APPLIED_DIGEST_ANNOTATION


def marked(body: Object) -> Object:
    """The object with its digest, once it is complete."""
    body["metadata"]["annotations"] = {APPLIED_DIGEST_ANNOTATION: digest_of(body)}
    return body


def digest_of(part: Object) -> str:
    """A digest of an object or a part of one."""
    return digest(json.dumps(part, sort_keys=True))
