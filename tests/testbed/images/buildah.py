"""Building images with buildah, for machines that have no docker daemon.

buildah and mmdebstrap run in mount and PID namespaces of their own and die with
their caller, so neither leaves a mount or a process behind, not even after
`kill -9`. The store lies in the cache and belongs to the testbed alone.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.testbed import packages
from tests.testbed.commands import run
from tests.testbed.console import step
from tests.testbed.paths import cache_dir

SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv")
# Documentation and translations are half of a small Debian. Of the manual only
# the pages go: packages put links into its folders and fail without them.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*.gz", "/usr/share/locale/*", "/usr/share/man/*.gz")
# The machine's CA bundle, and where pip sees it inside a build: packages that are
# being installed must stay free to write to the usual place.
HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_CERTIFICATES = "/run/testbed-ca.crt"
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")


def _buildah(*arguments: str | Path, doing: str) -> str:
    store = cache_dir() / "images" / "buildah"
    storage: list[str | Path] = ["--root", store / "root", "--runroot", store / "run", "--storage-driver", "vfs"]
    return run([*_APART, "buildah", *storage, *arguments], doing=doing, end_with_caller=True)


def apt_sources(index_targets: str, *, suite: str) -> str:
    """Return apt source lines for `suite` from the mirrors that this machine uses for Debian.

    `index_targets` is the output of `apt-get indextargets` with one line per
    index: URI, suite, component, origin, separated by blanks. A machine of
    another release lends its mirrors, not its suites.
    """
    mirrors: dict[str, set[str]] = {}
    for line in index_targets.splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[3].startswith("Debian") and fields[2] == "main":
            uri, release = fields[0], fields[1]
            _, dash, part = release.partition("-")
            mirrors.setdefault(uri, set()).add(f"{suite}{dash}{part}")
    lines = [f"deb {uri} {release} main" for uri, releases in sorted(mirrors.items()) for release in sorted(releases)]
    return "".join(f"{line}\n" for line in lines)


def _machine_sources() -> str:
    fields = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    command = ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]
    sources = apt_sources(run(command, doing="reading this machine's apt sources"), suite=SUITE)
    if not sources:
        run(["apt-get", "update", "-qq"], doing="refreshing the list of Debian packages")
        sources = apt_sources(run(command, doing="reading this machine's apt sources"), suite=SUITE)
    return sources


def base_image() -> str:
    """Return the name of the base image in buildah's store; make it on first use."""
    packages.ensure(packages.IMAGE_BUILDER, purpose="building images")
    sources = _machine_sources()
    recipe = "\n".join((SUITE, *BASE_PACKAGES, *LEFT_OUT, sources))
    name = f"localhost/outboxrelay/base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    present = _buildah("images", "--format", "{{.Name}}:{{.Tag}}", doing="listing images").split()
    if name not in present:
        _make_base(name, sources)
    return name


def _make_base(name: str, sources: str) -> None:
    directory = cache_dir() / "images" / "base"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "sources.list").write_text(sources, encoding="ascii")
    (directory / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\n", encoding="ascii")
    with step(f"making the base image from Debian {SUITE}, once per machine", usually="1 min"):
        run(
            [
                *_APART,
                "mmdebstrap",
                "--quiet",
                "--variant=apt",
                f"--include={','.join(BASE_PACKAGES)}",
                *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT),
                SUITE,
                directory / "rootfs.tar",
                directory / "sources.list",
            ],
            doing="making the base image's file system with mmdebstrap",
            end_with_caller=True,
        )
        _buildah("bud", "--tag", name, directory, doing="making the base image")
    shutil.rmtree(directory)


def _pip_configuration(directory: Path) -> Path:
    """Write how pip finds its index inside a build, as it does outside; it is mounted, so no image contains it."""
    settings = {"cert": BUILD_CERTIFICATES, "timeout": "120"}
    for option in ("index-url", "extra-index-url", "trusted-host"):
        value = os.environ.get(f"PIP_{option.upper().replace('-', '_')}")
        if value:
            settings[option] = value
    path = directory / "pip.conf"
    path.touch(mode=0o600)
    path.write_text(
        "[global]\n" + "".join(f"{option} = {value}\n" for option, value in settings.items()), encoding="utf-8"
    )
    return path


def build(
    *, dockerfile: Path, context: Path, image: str, arguments: Mapping[str, str], target: Path, scratch: Path
) -> None:
    """Build `image` and write it to `target`; `scratch` is a directory for files of this build.

    Raises ClusterError with the build's last lines if it fails.
    """
    # Containers that a killed build left; nobody else uses this store.
    _buildah("rm", "--all", doing="clearing unfinished builds")
    _buildah(
        "bud",
        "--isolation=chroot",
        "--pull-never",
        *(f"--build-arg={name}={value}" for name, value in sorted(arguments.items())),
        f"--volume={HOST_CERTIFICATES}:{BUILD_CERTIFICATES}:ro",
        f"--volume={_pip_configuration(scratch)}:/etc/pip.conf:ro",
        "--tag",
        f"localhost/{image}",
        "--file",
        dockerfile,
        context,
        doing=f"building {image}",
    )
    _buildah("push", "--quiet", f"localhost/{image}", f"docker-archive:{target}:{image}", doing=f"writing {image}")
    _buildah("rmi", f"localhost/{image}", doing=f"removing {image} from the build store")
