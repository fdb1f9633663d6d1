"""The images on the node: brought there from archives, and removed once a newer build has taken their name.

Without the removal every rebuild of a day of development would stay on disk:
the kubelet collects images only when the disk is nearly full.
"""

import hashlib
from pathlib import Path

from tests.testbed.console import step
from tests.testbed.processes import ProcessId
from tests.testbed.selfcontained.components import run_inside
from tests.testbed.selfcontained.instance import Instance

_CTR = ("ctr", "--namespace", "k8s.io", "images")
_ANONYMOUS = "sha256:"


def replaced(listing: str) -> tuple[str, ...]:
    """Return the references without a name of which no named one is left, from the output of `ctr images list`.

    Each image has one reference by the hash of its configuration besides its names.
    """
    rows = [line.split() for line in listing.splitlines()[1:] if line.strip()]
    named = {row[2] for row in rows if not row[0].startswith(_ANONYMOUS)}
    return tuple(row[0] for row in rows if row[0].startswith(_ANONYMOUS) and row[2] not in named)


def load(instance: Instance, init: ProcessId, *, image: str, archive: Path, key: str) -> None:
    """Bring an image to the node unless it already has this very content.

    Raises ClusterError if containerd refuses the archive.
    """
    mark = instance.loaded_images / hashlib.sha256(image.encode()).hexdigest()
    if mark.exists() and mark.read_text(encoding="ascii") == key:
        return
    with step(f"loading {image} into the cluster", usually="5 to 15 s"):
        run_inside(init, [*_CTR, "import", archive], doing=f"loading {image} into the cluster")
        stale = replaced(run_inside(init, [*_CTR, "list"], doing="listing the node's images"))
        if stale:
            run_inside(init, [*_CTR, "remove", *stale], doing="removing replaced images")
    mark.write_text(key, encoding="ascii")
