"""Apache Kafka's own programs, brought by Maven: MirrorMaker 2, its client, and a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.interop.maven import kafka_jars_of

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "4.1.0"
ARTIFACTS = ("connect-mirror", "kafka_2.13")
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


def kafka_jars(version: str = VERSION) -> tuple[Path | None, str]:
    """Returns the folder with the jars, or None and the reason why there are none. Jars are kept for the next run."""
    return kafka_jars_of(version, ARTIFACTS)


def java(jars: Path, *words: str, heap: str = "256m") -> list[str]:
    """Returns the command that runs a class of the jars, or a source file that uses them."""
    return ["java", f"-Xmx{heap}", "-cp", f"{jars}/*", *words]
