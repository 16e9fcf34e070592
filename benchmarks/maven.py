"""Jars from Maven's repository, kept in a folder for the next run: Apache Kafka's programs and Spark's connectors.

The benchmarks and the tests of foreign programs share this module.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TIMEOUT_S = 400
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>moldau</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_COMPLETE = "complete"


def bring_jars(home: Path, coordinates: Iterable[str], *, only: Iterable[str] = ()) -> str:
    """Brings artifacts, given as ``group:artifact:version``, and what they need into a folder, unless they are there.

    ``only`` names the artifacts whose jars are wanted; all by default. Returns an empty text, or why it failed.
    """
    if shutil.which("java") is None:
        return "no java on the PATH"
    if (home / _COMPLETE).exists():
        return ""
    home.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(*each.split(":")) for each in coordinates)
    (home / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    wanted = ",".join(only)
    failure = maven(home, "dependency:copy-dependencies", *([f"-DincludeArtifactIds={wanted}"] if wanted else []))
    if not failure:
        (home / _COMPLETE).touch()
    return failure


def maven(home: Path, *words: str) -> str:
    """Runs a goal of Maven in a folder, which gets what it brings. Returns an empty text, or why it failed."""
    if shutil.which("mvn") is None:
        return "no mvn on the PATH to fetch them with"
    home = home.resolve()  # Maven takes a relative folder from the folder of pom.xml
    command = ["mvn", "-B", "-q", *words, f"-DoutputDirectory={home}"]
    try:
        run = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"Maven did not answer within {TIMEOUT_S} s"
    if run.returncode:
        lines = (run.stdout or run.stderr).splitlines()
        return next((line for line in lines if "ERROR" in line), "Maven failed without an error")[:200]
    return ""
