"""Jars of Apache Kafka, brought by Maven and kept for the next run."""

from __future__ import annotations

import functools
from pathlib import Path

from benchmarks.maven import bring_jars

CACHE = Path("~/.cache/moldau-tests").expanduser()


@functools.cache
def kafka_jars_of(version: str, artifacts: tuple[str, ...], name: str = "kafka") -> tuple[Path | None, str]:
    """Returns the folder with the jars of artifacts, or None and the reason why there are none."""
    home = CACHE / f"{name}-{version}"
    failure = bring_jars(home, [f"org.apache.kafka:{artifact}:{version}" for artifact in artifacts])
    if failure:
        return None, f"the programs of Kafka {version} cannot be run: {failure}"
    return home, ""
