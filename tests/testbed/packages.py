"""The Debian packages that the self-contained backend and the image builder call.

Root on Debian gets what is missing installed; anybody else is told in one
sentence. A newer or older program that is already there is left as it is.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.testbed.commands import run
from tests.testbed.console import step
from tests.testbed.errors import ClusterError

# Program (or file) that proves the package is there -> package.
NODE: Mapping[str, str] = MappingProxyType(
    {
        "containerd": "containerd",
        "ctr": "containerd",
        "runc": "runc",
        "/usr/lib/cni/ptp": "containernetworking-plugins",
        "nft": "nftables",
        "ip": "iproute2",
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "mount": "mount",
    }
)
COMPILER: Mapping[str, str] = MappingProxyType({"gcc": "gcc", "/usr/include/stdio.h": "libc6-dev"})
IMAGE_BUILDER: Mapping[str, str] = MappingProxyType(
    {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "unshare": "util-linux"}
)

# Debian keeps some of these where an ordinary user's PATH does not look.
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def present(proof: str) -> bool:
    """Return whether the program is on the search path, or the file exists."""
    if proof.startswith("/"):
        return Path(proof).exists()
    return shutil.which(proof, path=SEARCH_PATH) is not None


def missing(needed: Mapping[str, str], *, has: Callable[[str], bool] = present) -> tuple[str, ...]:
    """Return the packages, sorted and each once, of which something is absent."""
    return tuple(sorted({package for proof, package in needed.items() if not has(proof)}))


def is_debian(os_release: Path = Path("/etc/os-release")) -> bool:
    """Return whether this is Debian or something built from it with apt."""
    try:
        lines = os_release.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    family = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split()
    return "debian" in family


def ensure(needed: Mapping[str, str], *, purpose: str) -> None:
    """Install what is missing of `needed`.

    Raises ClusterError naming the packages when this is not root on Debian, or when apt fails.
    """
    absent = missing(needed)
    if not absent:
        return
    if os.geteuid() != 0 or not is_debian():
        raise ClusterError(
            f"{purpose} needs these Debian packages (or their like): {' '.join(absent)}; install them first"
        )
    _install(absent)


def _install(packages: Iterable[str]) -> None:
    names = list(packages)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"installing Debian packages: {' '.join(names)}", usually="20 s"):
        run(["apt-get", "update", "-qq"], doing="refreshing the list of Debian packages", environment=environment)
        run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names],
            doing=f"installing {' '.join(names)}",
            environment=environment,
        )
