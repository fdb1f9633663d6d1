"""The self-contained cluster behind the interface that all three kinds of cluster have."""

from pathlib import Path

from tests.testbed import binaries
from tests.testbed.images.archive import ImageArchive
from tests.testbed.selfcontained import lifecycle
from tests.testbed.selfcontained.instance import Instance


class SelfContainedCluster:
    """The cluster of one state directory."""

    def __init__(self, state: Path) -> None:
        """Name the state directory; nothing is read or made yet."""
        self.instance = Instance(state)

    def up(self) -> None:
        """See lifecycle.up."""
        lifecycle.up(self.instance)

    def down(self) -> bool:
        """See lifecycle.down."""
        return lifecycle.down(self.instance)

    def status(self) -> str:
        """See lifecycle.status."""
        return lifecycle.status(self.instance)

    def stop(self, component: str) -> None:
        """Kill one of the cluster's own programs, say etcd; `up` starts it again. See lifecycle.stop."""
        lifecycle.stop(self.instance, component)

    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.instance.kubeconfig

    def audit_log(self) -> Path | None:
        """Return the API server's own log of requests."""
        return self.instance.audit_log

    def tool(self, name: str) -> Path:
        """Return the program built beside the cluster, never the one on PATH."""
        return binaries.ensure().path(name)

    def load(self, image: ImageArchive) -> None:
        """See lifecycle.load_archive."""
        lifecycle.load_archive(self.instance, image=image.image, archive=image.archive, key=image.key)
