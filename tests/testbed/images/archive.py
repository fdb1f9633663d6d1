"""Image archives: the form in which an image is cached and brought to a cluster.

The format is the one of `docker save`; containerd, docker and kind all read it
(https://github.com/moby/docker-image-spec).
"""

import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.errors import ClusterError


@dataclass(frozen=True)
class ImageArchive:
    """A built image: its name, its file, and a key that changes with its content."""

    image: str
    archive: Path
    key: str


# Names of the kernel (uname -m) -> names used in images, which are Go's.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def machine_architecture() -> str:
    """Return this machine's architecture as images name it.

    Raises ClusterError on one that the testbed knows nothing of.
    """
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise ClusterError(f"the testbed knows no image architecture for this machine ({machine})")
    return ARCHITECTURES[machine]


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = mode
    tar.addfile(member, io.BytesIO(content))


def write_single_file_image(target: Path, *, image: str, file: Path, architecture: str) -> None:
    """Write an image that holds one executable at its root and runs it as nobody."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, file.name, file.read_bytes(), mode=0o755)
    layer_bytes = layer.getvalue()
    diff_id = f"sha256:{hashlib.sha256(layer_bytes).hexdigest()}"
    configuration = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": [f"/{file.name}"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [image], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, mode="w") as tar:
        _add(tar, config_name, configuration)
        _add(tar, "layer.tar", layer_bytes)
        _add(tar, "manifest.json", manifest)
