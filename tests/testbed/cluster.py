"""A cluster as tests and demo see it, wherever it comes from."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.testbed.commands import run
from tests.testbed.images.archive import ImageArchive
from tests.testbed.images.build import find_archive


class Backend(Protocol):
    """One way to a cluster; every method raises ClusterError saying what to do when it cannot."""

    def up(self) -> None:
        """Return with a healthy cluster; idempotent, and quick if there is one."""

    def down(self) -> bool:
        """Remove what `up` made, in whatever state it is; return whether there was anything."""

    def status(self) -> str:
        """Return the cluster's state in one line."""

    def kubeconfig(self) -> Path:
        """Return a kubeconfig that holds this cluster's context only; the file exists after `up`."""

    def audit_log(self) -> Path | None:
        """Return the API server's audit log of pods' service accounts; None if it cannot be read from here."""

    def tool(self, name: str) -> Path:
        """Return the program `kubectl` or `helm` to use with this cluster."""

    def load(self, image: ImageArchive) -> None:
        """Make the image usable by pods; do nothing if the cluster has it already."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    kubeconfig: Path
    """Holds one context; give it to clients as KUBECONFIG."""
    tool: Callable[[str], Path]
    load: Callable[[ImageArchive], None]
    audit_log: Path | None = None
    """What pods' service accounts asked of the API server, if that can be read from here."""

    def load_image(self, name: str) -> None:
        """Make an image that was built here usable by the cluster's pods.

        Raises ClusterError if there is no such image.
        """
        self.load(find_archive(name))

    def environment(self) -> dict[str, str]:
        """Return the environment for programs that talk to this cluster and to no other."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *arguments: str, timeout: float | None = None) -> str:
        """Run kubectl and return what it prints; raises ClusterError with its message if it fails."""
        return self._run("kubectl", *arguments, timeout=timeout)

    def helm(self, *arguments: str, timeout: float | None = None) -> str:
        """Run Helm and return what it prints; raises ClusterError with its message if it fails."""
        return self._run("helm", *arguments, timeout=timeout)

    def _run(self, name: str, *arguments: str, timeout: float | None) -> str:
        words = " ".join(arguments[:3])
        return run(
            [self.tool(name), *arguments], doing=f"{name} {words}", environment=self.environment(), timeout=timeout
        )
