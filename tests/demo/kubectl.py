"""kubectl and helm as the demo uses them: the same commands that a person would type."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CommandError(RuntimeError):
    """A command failed; the message holds it and what it said."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Where the two programs are, and the cluster that they talk to."""

    kubectl_program: Path
    helm_program: Path
    kubeconfig: Path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl and return what it printed.

        Raises:
            CommandError: if it fails or takes longer than `timeout` seconds.
        """
        return self._run(self.kubectl_program, arguments, stdin=stdin, timeout=timeout)

    def helm(self, *arguments: str, timeout: float = 120) -> str:
        """Run helm and return what it printed; raises as `kubectl` does."""
        return self._run(self.helm_program, arguments, stdin=None, timeout=timeout)

    def get_json(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get ... -o json`."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def raw_json(self, path: str, *, timeout: float = 60) -> dict[str, Any]:
        """`kubectl get --raw PATH`, for what the API server passes on to pods and kubelets."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "--raw", path, timeout=timeout))
        return found

    def apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """`kubectl apply` of manifests, as one list."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self.kubectl("apply", "--server-side", "-f", "-", stdin=document)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kubectl without waiting for its end."""
        return subprocess.Popen(
            [str(self.kubectl_program), *arguments],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _run(self, program: Path, arguments: tuple[str, ...], *, stdin: str | None, timeout: float) -> str:
        shown = f"{program.name} {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [str(program), *arguments],
                env=self._environment(),
                input=stdin if stdin is not None else "",
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CommandError(f"`{shown}` did not end within {timeout:.0f} s") from None
        if done.returncode != 0:
            raise CommandError(f"`{shown}` failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
