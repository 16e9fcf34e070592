"""Jars of Apache Kafka, brought by Maven and kept for the next run."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

TIMEOUT_S = 400
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


@functools.cache
def kafka_jars_of(version: str, artifacts: tuple[str, ...], name: str = "kafka") -> tuple[Path | None, str]:
    """Returns the folder with the jars of artifacts, or None and the reason why there are none."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return None, "Maven or Java is not installed, so Kafka's own programs cannot be run"
    home = Path("~/.cache/moldau-tests").expanduser() / f"{name}-{version}"
    if not (home / "complete").exists():
        failure = _download(maven, home, version, artifacts)
        if failure:
            return None, f"Maven brings no Kafka {version}: {failure}"
    return home, ""


def _download(maven: str, home: Path, version: str, artifacts: tuple[str, ...]) -> str:
    """Returns an empty text, or why it failed."""
    home.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(artifact, version) for artifact in artifacts)
    (home / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    command = [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={home}"]
    try:
        run = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} s"
    if run.returncode:
        return next((line for line in run.stdout.splitlines() if "ERROR" in line), "unknown error")[:200]
    (home / "complete").touch()
    return ""
