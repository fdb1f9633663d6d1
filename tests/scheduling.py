"""Which of the processes of a run has which tests, and what becomes of those of a process that dies."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_ON_THE_CLUSTER: Final = frozenset({"apiserver", "e2e"})
_BESIDE_IT: Final = "test_testbed_leaves_nothing.py"
"""Has clusters of its own, and leaves the shared one out of what it compares."""

_FEWEST: Final = 2
"""A process begins a test when it knows the one after it, or that there is none."""


class TierScheduling(LoadScopeScheduling):
    """A file stays whole, and so do the tiers on the cluster.

    The largest piece comes first, which is the cluster's.

    When a process dies, the test it died in has failed, and the rest of its tests are run by others. As the library
    has it, its finished pieces are handed out again as well, with nothing in them, until all the others wait for ever,
    and the test that killed it kills the next (pytest-xdist issues 1378 and 1327).
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Hand on what a process leaves undone; the test it died in, or None if it had none."""
        undone: dict[str, dict[str, bool]] = {}
        for scope, tests in self.assigned_work.pop(node).items():
            for test, done in tests.items():
                if not done:
                    undone.setdefault(scope, {})[test] = False
        if not undone:
            return None
        scope, tests = next(iter(undone.items()))
        died_in = next(iter(tests))
        del tests[died_in]
        if not tests:
            del undone[scope]
        self.workqueue.update(undone)
        for other in self.nodes:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            # It takes the place of one that died, and asks when it has found the tests.
            return
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < _FEWEST:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # One that has died, which is not known yet, cannot be told: what is assigned to it is handed on in a moment.
        with suppress(OSError):
            super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        shared = _ON_THE_CLUSTER & set(path.parts) and path.name != _BESIDE_IT
        return "cluster" if shared else str(path)
