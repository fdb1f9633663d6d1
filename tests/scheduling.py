"""Which of the processes of a run has which tests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling

_ON_THE_CLUSTER: Final = frozenset({"apiserver", "e2e"})
_BESIDE_IT: Final = "test_testbed_leaves_nothing.py"
"""Has clusters of its own, and leaves the shared one out of what it compares."""


class TierScheduling(LoadScopeScheduling):
    """A file stays whole, and so do the tiers on the cluster.

    The largest piece comes first, which is the cluster's.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        shared = _ON_THE_CLUSTER & set(path.parts) and path.name != _BESIDE_IT
        return "cluster" if shared else str(path)
