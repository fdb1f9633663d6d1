"""The images of PostgreSQL and Kafka for demo and e2e: names, and the build context of each.

Building is the testbed's business; this module only puts the files of one image into a directory. Every
Dockerfile takes `BASE_IMAGE`, a Debian bookworm with python3.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.testbed.services.kafka import kafka_jars

_HERE = Path(__file__).parent

IMAGES: Mapping[str, str] = MappingProxyType(
    {"postgres": "outboxrelay/testbed-postgres:dev", "kafka": "outboxrelay/testbed-kafka:dev"}
)
"""Folder of the image -> its name in the cluster."""


def write_build_context(image: str, directory: Path) -> None:
    """Fill an empty, existing directory with the Dockerfile of one of `IMAGES` and all that it copies.

    Kafka's jars are fetched by Maven if they are not in the cache.
    """
    shutil.copytree(_HERE / image, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    if image == "kafka":
        shutil.copy2(_HERE.parent / "kafka" / "log4j2.xml", directory)
        shutil.copytree(kafka_jars(), directory / "jars")
