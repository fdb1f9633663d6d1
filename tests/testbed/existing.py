"""A cluster that somebody else runs: used as it is, never created, never removed."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.testbed.choice import CONTEXT
from tests.testbed.commands import run
from tests.testbed.console import step
from tests.testbed.errors import ClusterError
from tests.testbed.images.archive import ImageArchive
from tests.testbed.paths import cache_dir
from tests.testbed.programs import on_path

LOAD_COMMAND = "OUTBOXRELAY_LOAD_COMMAND"


def load_command(template: str, image: ImageArchive) -> list[str]:
    """Return the words of the user's command with `{archive}` and `{image}` filled in.

    Raises ClusterError if it uses neither.
    """
    words = shlex.split(template)
    filled = [word.replace("{archive}", str(image.archive)).replace("{image}", image.image) for word in words]
    if filled == words:
        raise ClusterError(f"{LOAD_COMMAND} must contain {{archive}} or {{image}}")
    return filled


class ExistingCluster:
    """The cluster of the context named by OUTBOXRELAY_CONTEXT in KUBECONFIG."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Take the user's settings; choice.py has checked that they are complete."""
        self._environ = dict(environ)

    def up(self) -> None:
        """Write a kubeconfig of the named context alone and check that its API server answers."""
        context = self._environ[CONTEXT]
        minified = run(
            [self.tool("kubectl"), "config", "view", "--minify", "--flatten", f"--context={context}"],
            doing=f"reading context {context} from {self._environ['KUBECONFIG']}",
            environment=self._environ,
        )
        target = self.kubeconfig()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=0o600)
        target.write_text(minified, encoding="utf-8")
        self._ask(context)

    def _ask(self, context: str) -> None:
        run(
            [self.tool("kubectl"), "get", "--raw", "/readyz"],
            doing=f"asking the API server of context {context}",
            environment={**self._environ, "KUBECONFIG": str(self.kubeconfig())},
            timeout=30,
        )

    def down(self) -> bool:
        """Leave the cluster alone: the testbed did not make it."""
        self.kubeconfig().unlink(missing_ok=True)
        return False

    def status(self) -> str:
        """Return whether the API server answers."""
        if not self.kubeconfig().exists():
            return "not in use"
        self._ask(self._environ[CONTEXT])
        return "answers"

    def kubeconfig(self) -> Path:
        """Return where the kubeconfig of the named context alone is kept."""
        return cache_dir() / "existing" / "kubeconfig"

    def audit_log(self) -> Path | None:
        """Return None: what the API server logs cannot be read from here."""
        return None

    def tool(self, name: str) -> Path:
        """Return the user's own program."""
        return on_path(name)

    def load(self, image: ImageArchive) -> None:
        """Hand the image to the command in OUTBOXRELAY_LOAD_COMMAND; how else is unknown."""
        template = self._environ.get(LOAD_COMMAND)
        if not template:
            raise ClusterError(
                f"how {image.image} gets to this cluster is not known: set {LOAD_COMMAND} to a command with "
                "{archive} (a file as of `docker save`) and {image} in it, "
                "or to `true {image}` if the cluster has it already"
            )
        with step(f"loading {image.image} with {LOAD_COMMAND}"):
            run(load_command(template, image), doing=f"loading {image.image}", environment=self._environ)
