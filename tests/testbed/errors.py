"""The one error that the testbed raises on purpose.

Callers show its text and stop: it names what was attempted and what to do. It
must never carry a token or a key, since it ends up in a CI log.
"""


class ClusterError(RuntimeError):
    """The testbed could not do what was asked; the message says what to do."""
