"""The images of this repository: the one table that says what is built from what."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.images.archive import ImageArchive
from tests.testbed.images.build import build_image
from tests.testbed.paths import REPOSITORY
from tests.testbed.services.images import IMAGES, write_build_context


@dataclass(frozen=True)
class Recipe:
    """How one image comes about."""

    image: str
    context: Callable[[], AbstractContextManager[Path]]
    """Gives the build context for the time of the build."""
    dockerfile: str
    """Path of the Dockerfile below the context."""
    usually: str
    """How long a build takes, for the person who waits."""

    def build(self) -> ImageArchive:
        """Return the image, built if need be; see build_image."""
        with self.context() as context:
            return build_image(
                dockerfile=context / self.dockerfile, context=context, image=self.image, usually=self.usually
            )


def _repository() -> AbstractContextManager[Path]:
    return nullcontext(REPOSITORY)


def _service(folder: str) -> Callable[[], AbstractContextManager[Path]]:
    @contextmanager
    def written() -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="outboxrelay-image-") as directory:
            write_build_context(folder, Path(directory))
            yield Path(directory)

    return written


RECIPES = (
    Recipe(
        image="outboxrelay/operator:dev", context=_repository, dockerfile="operator/Dockerfile", usually="1 to 2 min"
    ),
    Recipe(
        image="outboxrelay/relay:dev", context=_repository, dockerfile="relay-image/Dockerfile", usually="1 to 2 min"
    ),
    *(
        Recipe(image=image, context=_service(folder), dockerfile="Dockerfile", usually="1 to 2 min")
        for folder, image in IMAGES.items()
    ),
)
