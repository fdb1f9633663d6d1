"""Kubernetes, etcd, CoreDNS and Helm, compiled from their Go modules.

No prebuilt binary is fetched: kubernetes/go.mod names the exact sources and
go.sum their hashes. The result lies in the cache, in a directory named by the
hash of everything that went in, and appears there by one rename, so that a
build killed in the middle leaves nothing that looks finished.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.commands import run
from tests.testbed.console import step
from tests.testbed.errors import ClusterError
from tests.testbed.locking import exclusive
from tests.testbed.paths import TESTBED, cache_dir

MODULE = TESTBED / "kubernetes"

# Binary -> Go package. etcd's own package would come out named `server`.
PROGRAMS = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "etcd": "go.etcd.io/etcd/server/v3",
    "coredns": "./coredns",
    "helm": "helm.sh/helm/v3/cmd/helm",
}
_OUTPUT_NAMES = {"etcd": "server"}
_VERSION = re.compile(r"^\s*(?:require\s+)?k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Binaries:
    """A complete set of built programs."""

    directory: Path

    def path(self, program: str) -> Path:
        """Return the file of `program`."""
        return self.directory / program

    @property
    def key(self) -> str:
        """The name that changes whenever a version or a build flag does."""
        return self.directory.name


def kubernetes_version(go_mod: str) -> tuple[str, str, str]:
    """Return version, major and minor of Kubernetes as required in the text of a go.mod.

    Raises ValueError if it requires none.
    """
    found = _VERSION.search(go_mod)
    if found is None:
        raise ValueError("go.mod requires no k8s.io/kubernetes")
    return found.group(1), found.group(2), found.group(3)


def linker_flags(go_mod: str) -> str:
    """Return the -ldflags value; without the version flags kubectl and the kubelet call themselves v0.0.0."""
    version, major, minor = kubernetes_version(go_mod)
    stamp = "k8s.io/component-base/version"
    return f"-s -w -X {stamp}.gitVersion={version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"


def build_key(inputs: Iterable[bytes], *, version: str) -> str:
    """Return the name of the directory for binaries made of `inputs`."""
    digest = hashlib.sha256()
    for part in inputs:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return f"{version}-{digest.hexdigest()[:12]}"


def locate() -> Binaries:
    """Return where the binaries of this checkout belong, built or not."""
    go_mod = (MODULE / "go.mod").read_text(encoding="utf-8")
    inputs = [(MODULE / name).read_bytes() for name in ("go.mod", "go.sum", "coredns/main.go")]
    inputs.append(linker_flags(go_mod).encode())
    inputs.append(os.uname().machine.encode())
    key = build_key(inputs, version=kubernetes_version(go_mod)[0])
    return Binaries(directory=cache_dir() / "bin" / key)


def ensure() -> Binaries:
    """Return the binaries, building them first if this machine has not yet done so.

    Raises ClusterError if there is no Go tool chain or the build fails.
    """
    binaries = locate()
    if binaries.directory.is_dir():
        return binaries
    with exclusive(cache_dir() / "bin.lock", purpose="building Kubernetes"):
        if not binaries.directory.is_dir():
            _build(binaries.directory)
    return binaries


def _build(directory: Path) -> None:
    if shutil.which("go") is None:
        raise ClusterError("building Kubernetes from its Go modules needs Go 1.26 or newer on PATH; install it first")
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    flags = linker_flags((MODULE / "go.mod").read_text(encoding="utf-8"))
    with step(f"building {', '.join(PROGRAMS)} from source, once per version", usually="5 to 12 min on 2 cores"):
        run(
            ["go", "build", "-trimpath", "-ldflags", flags, "-o", f"{unfinished}{os.sep}", *PROGRAMS.values()],
            doing="building Kubernetes",
            environment={**os.environ, "CGO_ENABLED": "0"},
            cwd=MODULE,
            end_with_caller=True,
        )
    for program, output in _OUTPUT_NAMES.items():
        (unfinished / output).rename(unfinished / program)
    unfinished.rename(directory)
