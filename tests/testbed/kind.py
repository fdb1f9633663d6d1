"""A cluster made by kind (https://kind.sigs.k8s.io), where docker is at hand."""

from pathlib import Path

from tests.testbed.commands import run
from tests.testbed.console import step
from tests.testbed.images.archive import ImageArchive
from tests.testbed.locking import exclusive
from tests.testbed.paths import cache_dir
from tests.testbed.programs import on_path

NAME = "outboxrelay"


class KindCluster:
    """The kind cluster named `outboxrelay`."""

    def _exists(self) -> bool:
        return NAME in run(["kind", "get", "clusters"], doing="listing kind clusters").split()

    def up(self) -> None:
        """Create the cluster if there is none."""
        with exclusive(cache_dir() / "kind.lock", purpose="bringing the kind cluster up or down"):
            config = self.kubeconfig()
            config.parent.mkdir(parents=True, exist_ok=True)
            if self._exists():
                run(
                    ["kind", "export", "kubeconfig", "--name", NAME, "--kubeconfig", config],
                    doing="reading the kind cluster's kubeconfig",
                )
                return
            with step("creating a kind cluster", usually="1 to 3 min"):
                run(
                    ["kind", "create", "cluster", "--name", NAME, "--kubeconfig", config, "--wait", "120s"],
                    doing="creating a kind cluster",
                )

    def down(self) -> bool:
        """Delete the cluster."""
        with exclusive(cache_dir() / "kind.lock", purpose="bringing the kind cluster up or down"):
            existed = self._exists()
            if existed:
                run(["kind", "delete", "cluster", "--name", NAME], doing="deleting the kind cluster")
            self.kubeconfig().unlink(missing_ok=True)
            return existed

    def status(self) -> str:
        """Return whether the cluster exists."""
        return "exists" if self._exists() else "down"

    def kubeconfig(self) -> Path:
        """Return a kubeconfig of this cluster alone; the user's own is not touched."""
        return cache_dir() / "kind" / "kubeconfig"

    def audit_log(self) -> Path | None:
        """Return None: what the API server logs cannot be read from here."""
        return None

    def tool(self, name: str) -> Path:
        """Return the user's own program."""
        return on_path(name)

    def load(self, image: ImageArchive) -> None:
        """Copy the image to the cluster's node; kind skips the layers that are there."""
        with step(f"loading {image.image} into kind", usually="5 to 15 s"):
            run(["kind", "load", "image-archive", image.archive, "--name", NAME], doing=f"loading {image.image}")
