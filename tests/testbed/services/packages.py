"""The programs that the local services need: found, installed on Debian as root, or named in one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.testbed.locking import exclusive
from tests.testbed.paths import cache_dir

_DEBIAN_PACKAGES = {
    "postgres": "postgresql",
    "initdb": "postgresql",
    "pg_basebackup": "postgresql",
    "java": "openjdk-17-jre-headless",
    "mvn": "maven",
    "node": "nodejs",
    "rsvg-convert": "librsvg2-bin",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "promtool": "prometheus",
}
_POSTGRESQL_PROGRAMS = {"postgres", "initdb", "pg_basebackup", "pg_dump", "pg_restore", "psql"}


class MissingProgramError(RuntimeError):
    """A program is not there and cannot be installed; the message names it and its Debian package."""


def program(name: str) -> Path:
    """Find a program, installing its Debian package if that is possible.

    Raises:
        MissingProgramError: if it is neither there nor installable.
    """
    found = _find(name)
    if found is not None:
        return found
    package = _DEBIAN_PACKAGES.get(name, name)
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        # Tests run side by side, and apt-get refuses to.
        with exclusive(cache_dir() / "packages.lock", purpose=f"installing {package}"):
            if _find(name) is None:
                _install(package)
        found = _find(name)
        if found is not None:
            return found
    raise MissingProgramError(f"the program {name} is needed for the local services: install the package {package}")


def _find(name: str) -> Path | None:
    on_path = shutil.which(name)
    if name not in _POSTGRESQL_PROGRAMS:
        return Path(on_path) if on_path else None
    # Debian keeps the servers of each major version apart, and off the PATH.
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"),
        key=lambda path: [int(number) for number in re.findall(r"\d+", path.parts[4])],
    )
    preferred = [path for path in versions if path.parts[4] == "15"] or versions[-1:]
    if preferred:
        return preferred[0]
    # initdb looks for its neighbours beside the file itself, so follow links.
    return Path(on_path).resolve() if on_path else None


def _install(package: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Debian's postgresql package would start a server of its own; nothing here wants one.
    policy = Path("/usr/sbin/policy-rc.d")
    added = not policy.exists()
    if added:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for command in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", package],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode:
                raise MissingProgramError(f"cannot install {package}: {' '.join(command)} failed: {done.stderr[-500:]}")
    finally:
        if added:
            policy.unlink()
