"""Spark's own Kafka connector, brought by Maven: the oracle that the source is compared with."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from pyspark import __version__ as pyspark_version

COORDINATES = "org.apache.spark:spark-sql-kafka-0-10_2.13"
LAST_RELEASE = "4.2.0"
"""Tried where there is no connector of PySpark's own version; it runs on the next versions too."""
ARTIFACTS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
TIMEOUT_S = 300
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>connector</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


@functools.cache
def connector_jars() -> tuple[list[Path], str]:
    """Returns the jars, or an empty list and the reason why there are none. Jars are kept for the next run."""
    maven = shutil.which("mvn")
    if maven is None:
        return [], "Maven is not installed, so Spark's Kafka connector cannot be compared with"
    failure = ""
    for version in dict.fromkeys((pyspark_version, LAST_RELEASE)):
        home = Path("~/.cache/moldau-tests").expanduser() / f"spark-kafka-{version}"
        failure = "" if (home / "complete").exists() else _download(maven, version, home)
        if not failure:
            return sorted(home.glob("*.jar")), ""
    return [], f"Maven has no {COORDINATES}: {failure}"


def _download(maven: str, version: str, home: Path) -> str:
    """Returns an empty text, or why it failed."""
    home.mkdir(parents=True, exist_ok=True)
    group, artifact = COORDINATES.split(":")
    (home / "pom.xml").write_text(POM.format(group=group, artifact=artifact, version=version))
    command = [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={home}"]
    command.append("-DincludeArtifactIds=" + ",".join(ARTIFACTS))
    try:
        run = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} s"
    if run.returncode:
        return next((line for line in run.stdout.splitlines() if "ERROR" in line), "unknown error")[:200]
    (home / "complete").touch()
    return ""
