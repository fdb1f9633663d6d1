"""Images: what they are built from, and when they are built again.

Aspects: sources read from Dockerfiles; every source and argument counts, nothing else does; mirrors of other releases;
the archive of the pause program; a user's load command.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.testbed.errors import ClusterError
from tests.testbed.existing import load_command
from tests.testbed.images.archive import ImageArchive, write_single_file_image
from tests.testbed.images.buildah import apt_sources
from tests.testbed.images.catalog import RECIPES
from tests.testbed.images.context import content_key, copied_sources
from tests.testbed.selfcontained.node_images import replaced

DOCKERFILE = """\
# COPY commented out
ARG BASE_IMAGE=python:3
FROM ${BASE_IMAGE} AS build
COPY constraints.txt ./
COPY --chown=1:1 a b/c \\
     dest/
RUN echo one \\
 && echo COPY x y
# between
ADD ["with space", "there"]
FROM ${BASE_IMAGE}
COPY --from=build /opt /opt
copy lower /
"""


def test_sources_are_read_from_copy_and_add() -> None:
    assert copied_sources(DOCKERFILE) == ("constraints.txt", "a", "b/c", "with space", "lower")


@pytest.mark.parametrize("line", ["COPY <<EOF /x\ncontent\nEOF", "RUN --mount=type=bind,source=x,target=/x make"])
def test_forms_whose_sources_would_go_unnoticed_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="the testbed"):
        copied_sources(f"FROM scratch\n{line}\n")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A build context with one copied folder and one file that is not copied."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.py").write_text("one")
    (tmp_path / "unrelated").write_text("one")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY src /\n")
    return tmp_path


def _key(context: Path, **arguments: str) -> str:
    return content_key(context / "Dockerfile", context, arguments=arguments)


def test_the_key_follows_everything_that_is_copied(context: Path) -> None:
    keys = [_key(context), _key(context, BASE_IMAGE="x")]
    (context / "src/main.py").write_text("two")
    keys.append(_key(context))
    (context / "src/main.py").chmod(0o755)
    keys.append(_key(context))
    (context / "src/more.py").touch()
    keys.append(_key(context))
    (context / "src/more.py").rename(context / "src/less.py")
    keys.append(_key(context))
    (context / "Dockerfile").write_text("FROM scratch\nCOPY src /opt\n")
    keys.append(_key(context))
    assert len(set(keys)) == len(keys)


def test_the_key_ignores_everything_else(context: Path) -> None:
    before = _key(context)
    (context / "unrelated").write_text("two")
    (context / "src/__pycache__").mkdir()
    (context / "src/__pycache__/main.cpython-311.pyc").touch()
    os.utime(context / "src/main.py", (1, 1))
    assert _key(context) == before


def test_a_missing_source_is_named(context: Path) -> None:
    (context / "Dockerfile").write_text("FROM scratch\nCOPY absent /\n")
    with pytest.raises(FileNotFoundError, match="copies absent"):
        _key(context)


def test_this_repositorys_dockerfiles_can_be_read() -> None:
    for recipe in RECIPES:
        with recipe.context() as context:
            assert content_key(context / recipe.dockerfile, context, arguments={}) != ""
            assert copied_sources((context / recipe.dockerfile).read_text()) != ()


def test_the_mirrors_of_another_release_are_used_for_the_bases_suite() -> None:
    targets = """\
http://mirror/debian/ trixie main Debian
http://mirror/debian/ trixie-updates main Debian
http://mirror/security/ trixie-security main Debian
http://mirror/debian/ trixie contrib Debian
http://vendor/apt cloud main Vendor
"""
    assert apt_sources(targets, suite="bookworm").splitlines() == [
        "deb http://mirror/debian/ bookworm main",
        "deb http://mirror/debian/ bookworm-updates main",
        "deb http://mirror/security/ bookworm-security main",
    ]


def test_the_archive_of_one_program(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    write_single_file_image(tmp_path / "x.tar", image="outboxrelay/pause:1", file=program, architecture="amd64")
    with tarfile.open(tmp_path / "x.tar") as tar:
        (manifest,) = json.loads(_member(tar, "manifest.json"))
        configuration = _member(tar, manifest["Config"])
        layer = _member(tar, manifest["Layers"][0])
    assert manifest["RepoTags"] == ["outboxrelay/pause:1"]
    assert manifest["Config"] == f"{hashlib.sha256(configuration).hexdigest()}.json"
    assert json.loads(configuration)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def test_of_the_nodes_images_only_replaced_ones_go() -> None:
    listing = """\
REF                          TYPE                DIGEST     SIZE    PLATFORMS   LABELS
docker/relay:dev             application/vnd.x   sha256:n2  1.0 MiB linux/amd64 -
other/relay:dev              application/vnd.x   sha256:n2  1.0 MiB linux/amd64 -
sha256:c1                    application/vnd.x   sha256:n1  1.0 MiB linux/amd64 -
sha256:c2                    application/vnd.x   sha256:n2  1.0 MiB linux/amd64 -
"""
    assert replaced(listing) == ("sha256:c1",)
    assert replaced("REF TYPE DIGEST\n") == ()


def test_a_users_load_command_gets_archive_and_name() -> None:
    image = ImageArchive(image="outboxrelay/relay:dev", archive=Path("/a dir/x.tar"), key="k")
    assert load_command("k3d image import {archive} -c dev", image) == [
        "k3d",
        "image",
        "import",
        "/a dir/x.tar",
        "-c",
        "dev",
    ]
    assert load_command("true {image}", image) == ["true", "outboxrelay/relay:dev"]
    with pytest.raises(ClusterError, match="must contain"):
        load_command("make load", image)
