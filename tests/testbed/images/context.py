"""What goes into an image: read from its Dockerfile, and hashed.

An image is built again only if this hash changed, so it must cover everything
that the build copies, and nothing else: a change of a test is no reason to
build the operator anew.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

IGNORED_DIRECTORIES = frozenset({"__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv"})


def instructions(dockerfile: str) -> Iterator[str]:
    """Yield the instructions of a Dockerfile, continued lines joined, comments and blank lines left out."""
    pending = ""
    for line in dockerfile.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        if line.rstrip().endswith("\\"):
            pending += line.rstrip()[:-1] + " "
            continue
        yield (pending + line).strip()
        pending = ""
    if pending:
        yield pending.strip()


def copied_sources(dockerfile: str) -> tuple[str, ...]:
    """Return the paths, relative to the build context, that COPY and ADD take from it, in order.

    Raises ValueError on the forms that this does not read: here-documents and
    files mounted by RUN, since a change of theirs would go unnoticed.
    """
    found: list[str] = []
    for instruction in instructions(dockerfile):
        word, _, rest = instruction.partition(" ")
        if word.upper() == "RUN" and "--mount=type=bind" in rest and "from=" not in rest:
            raise ValueError(f"the testbed cannot tell what this mounts from the build context: {instruction}")
        if word.upper() not in {"COPY", "ADD"}:
            continue
        if "<<" in rest:
            raise ValueError(f"the testbed reads no here-documents in Dockerfiles: {instruction}")
        words = rest.split()
        flags = [part for part in words if part.startswith("--")]
        if any(flag.startswith("--from=") for flag in flags):
            continue
        plain = rest
        for flag in flags:
            plain = plain.replace(flag, "", 1)
        paths = json.loads(plain) if plain.strip().startswith("[") else shlex.split(plain)
        found.extend(paths[:-1])
    return tuple(found)


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for entry in sorted(root.iterdir()):
        if entry.name in IGNORED_DIRECTORIES or entry.suffix == ".pyc":
            continue
        yield from _files(entry)


def content_key(dockerfile: Path, context: Path, *, arguments: Mapping[str, str]) -> str:
    """Return a key of the Dockerfile, the build arguments and every file that is copied.

    Raises FileNotFoundError naming a source that the context does not have.
    """
    text = dockerfile.read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode())
    digest.update(json.dumps(dict(arguments), sort_keys=True).encode())
    for source in copied_sources(text):
        matches = sorted(context.glob(source.strip("/"))) if source.strip("/.") else [context]
        if not matches:
            raise FileNotFoundError(f"{dockerfile} copies {source}, which {context} does not have")
        for match in matches:
            for file in _files(match):
                digest.update(f"{file.relative_to(context)}\0{file.stat().st_mode & 0o111:o}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
