"""Apache Kafka's own programs, brought by Maven: MirrorMaker 2, its client, and a broker."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

VERSION = "4.1.0"
ARTIFACTS = ("connect-mirror", "kafka_2.13")
TIMEOUT_S = 400
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
TRANSLATE = """import java.time.Duration;
import java.util.Map;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

public class Translate {
    public static void main(String[] given) throws Exception {
        Map<String, Object> properties = Map.of("bootstrap.servers", given[0]);
        System.out.println(RemoteClusterUtils.upstreamClusters(properties));
        RemoteClusterUtils.translateOffsets(properties, given[1], given[2], Duration.ofSeconds(30))
            .forEach((partition, offset) -> System.out.println(partition + " " + offset.offset()));
    }
}
"""
"""Prints the clusters that feed a cluster, and the translated offsets of a group."""


@functools.cache
def kafka_jars() -> tuple[Path | None, str]:
    """Returns the folder with the jars, or None and the reason why there are none. Jars are kept for the next run."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return None, "Maven or Java is not installed, so Kafka's MirrorMaker cannot be run"
    home = Path("~/.cache/moldau-tests").expanduser() / f"kafka-{VERSION}"
    if not (home / "complete").exists():
        failure = _download(maven, home)
        if failure:
            return None, f"Maven brings no Kafka {VERSION}: {failure}"
    return home, ""


def _download(maven: str, home: Path) -> str:
    """Returns an empty text, or why it failed."""
    home.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(DEPENDENCY.format(name, VERSION) for name in ARTIFACTS)
    (home / "pom.xml").write_text(POM.format(dependencies=dependencies))
    command = [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={home}"]
    try:
        run = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} s"
    if run.returncode:
        return next((line for line in run.stdout.splitlines() if "ERROR" in line), "unknown error")[:200]
    (home / "complete").touch()
    return ""


def java(jars: Path, *words: str, heap: str = "256m") -> list[str]:
    """Returns the command that runs a class of the jars, or a source file that uses them."""
    return ["java", f"-Xmx{heap}", "-cp", f"{jars}/*", *words]
