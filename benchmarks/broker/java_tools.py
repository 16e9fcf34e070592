"""Kafka's own performance tools, ``kafka-producer-perf-test`` and ``kafka-consumer-perf-test``, against any peer.

They come from Maven with the jars of Apache Kafka. Each runs in a JVM of its own; the rate is the one that it reports,
without the start of the JVM.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 300.0
RECORD_BYTES = 100
JAR = "kafka-tools-*.jar"


class ToolError(Exception):
    """A tool failed, or reported nothing; the text has the end of its output."""


def has_tools(libraries: Path | None) -> bool:
    """Whether the jars hold the tools."""
    return libraries is not None and any(libraries.glob(JAR))


def produce(libraries: Path, bootstrap: str, topic: str, records: int, acks: int) -> float:
    """Sends records as fast as the Java producer can; returns records per second.

    Raises:
        ToolError: it failed.
    """
    properties = (f"bootstrap.servers={bootstrap}", f"acks={'all' if acks == -1 else acks}", "linger.ms=5")
    output = _run(
        libraries,
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        *("--producer-props", *properties),
    )
    return produced_rate(output, records)


def consume(libraries: Path, bootstrap: str, topic: str, records: int) -> float:
    """Reads records from the beginning; returns records per second, without the group's first rebalance.

    Raises:
        ToolError: it failed.
    """
    wanted = ("--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records))
    return consumed_rate(_run(libraries, "ConsumerPerformance", *wanted, "--timeout", "60000"))


def produced_rate(output: str, records: int) -> float:
    """The rate in the last line of the producer's report.

    >>> produced_rate("5 records sent, 9.0 records/sec (x)\\n7 records sent, 3.5 records/sec (0.0 MB/sec), ...", 7)
    3.5
    """
    found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", output, re.MULTILINE)
    if not found or int(found[-1][0]) != records:
        raise ToolError(f"{records} records were not sent: {output.strip()[-300:]}")
    return float(found[-1][1])


def consumed_rate(output: str) -> float:
    """The column ``fetch.nMsg.sec`` of the consumer's table.

    >>> consumed_rate("start.time, end.time, nMsg.sec, fetch.nMsg.sec\\n2026, 2026, 1.0, 2.5\\n")
    2.5
    """
    rows = [line.split(", ") for line in output.splitlines() if ", " in line]
    for header, values in itertools.pairwise(rows):
        if "fetch.nMsg.sec" in header:
            return float(values[header.index("fetch.nMsg.sec")])
    raise ToolError(f"no table in the report: {output.strip()[-300:]}")


def _run(libraries: Path, tool: str, *arguments: str) -> str:
    done = subprocess.run(
        ["java", "-Xmx512m", "-cp", f"{libraries}/*", f"org.apache.kafka.tools.{tool}", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise ToolError(f"{tool} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout
