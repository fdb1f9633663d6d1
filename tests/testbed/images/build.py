"""One image from one Dockerfile, built only if something that goes into it changed.

The archives lie in the cache, one per image, named by the key of their content.
An archive appears by one rename, so a killed build is simply repeated.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.testbed.console import step
from tests.testbed.errors import ClusterError
from tests.testbed.images import buildah, docker
from tests.testbed.images.archive import ImageArchive
from tests.testbed.images.context import content_key
from tests.testbed.locking import exclusive
from tests.testbed.paths import cache_dir


def _stem(image: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", image)


def find_archive(image: str) -> ImageArchive:
    """Return the newest archive of an image that was built here.

    Raises ClusterError if there is none.
    """
    directory = cache_dir() / "images" / _stem(image)
    found = sorted(directory.glob("*.tar"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ClusterError(f"no image {image} was built on this machine; run `make images` first")
    return ImageArchive(image=image, archive=found[-1], key=found[-1].stem)


def build_image(
    *, dockerfile: Path, context: Path, image: str, arguments: Mapping[str, str] | None = None, usually: str = "1 min"
) -> ImageArchive:
    """Return the archive of `image`, building it if its inputs changed.

    `BASE_IMAGE` is added to the build arguments: the testbed's own base, or
    docker's slim Python where a docker daemon answers.
    Raises ClusterError if the Dockerfile copies what is not there or the build fails.
    """
    with exclusive(cache_dir() / "images.lock", purpose="building images"):
        with_docker = docker.answers()
        base = docker.BASE_IMAGE if with_docker else buildah.base_image()
        given = {"BASE_IMAGE": base, **(arguments or {})}
        try:
            key = content_key(dockerfile, context, arguments=given)
        except (FileNotFoundError, ValueError) as reason:
            raise ClusterError(f"building {image}: {reason}") from reason
        directory = cache_dir() / "images" / _stem(image)
        target = directory / f"{key}.tar"
        if not target.exists():
            directory.mkdir(parents=True, exist_ok=True)
            with step(f"building {image}", usually=usually), tempfile.TemporaryDirectory(dir=directory) as scratch:
                unfinished = Path(scratch, "image.tar")
                if with_docker:
                    docker.build(
                        dockerfile=dockerfile, context=context, image=image, arguments=given, target=unfinished
                    )
                else:
                    buildah.build(
                        dockerfile=dockerfile,
                        context=context,
                        image=image,
                        arguments=given,
                        target=unfinished,
                        scratch=Path(scratch),
                    )
                unfinished.rename(target)
        for other in directory.glob("*.tar"):
            if other != target:
                other.unlink()
    return ImageArchive(image=image, archive=target, key=key)
