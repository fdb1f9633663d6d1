"""The pause program: the pods' sandbox image, and PID 1 of the cluster's namespaces.

It is compiled here because no image can be pulled. Its name carries the hash
of its source, so a new source is a new image.
"""

import hashlib
from pathlib import Path

from tests.testbed import packages
from tests.testbed.commands import run
from tests.testbed.images.archive import ImageArchive, machine_architecture, write_single_file_image
from tests.testbed.locking import exclusive
from tests.testbed.paths import TESTBED, cache_dir

SOURCE = TESTBED / "images" / "pause.c"


def _key() -> str:
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]


def _directory() -> Path:
    return cache_dir() / "images" / f"pause-{_key()}"


def image_name() -> str:
    """Return the sandbox image's name, tag included."""
    return f"outboxrelay/pause:{_key()}"


def binary() -> Path:
    """Return the compiled program; compile it on first use.

    Raises ClusterError if there is no C compiler and none can be installed.
    """
    program = _directory() / "pause"
    if not program.exists():
        packages.ensure(packages.COMPILER, purpose="compiling the pause program")
        with exclusive(cache_dir() / "images.lock", purpose="building images"):
            _compile(program)
    return program


def _compile(program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    unfinished = program.with_name("pause.unfinished")
    run(["gcc", "-static", "-Os", "-Wall", "-Werror", "-o", unfinished, SOURCE], doing="compiling the pause program")
    unfinished.rename(program)


def archive() -> ImageArchive:
    """Return the sandbox image as an archive; write it on first use."""
    path = _directory() / "pause.tar"
    if not path.exists():
        program = binary()
        unfinished = path.with_name("pause.tar.unfinished")
        write_single_file_image(unfinished, image=image_name(), file=program, architecture=machine_architecture())
        unfinished.rename(path)
    return ImageArchive(image=image_name(), archive=path, key=_key())
