"""librdkafka's own performance tool, ``rdkafka_performance``, against any peer: the client without Python.

It is an example in librdkafka's source, which packages leave out. Where ``RDKAFKA_PERFORMANCE`` or the PATH has it, its
rows are measured. To build it, unpack the source of an installed librdkafka and run, in its folder ``examples``:

    touch ../config.h
    gcc -O2 -I.. -I../src -o rdkafka_performance rdkafka_performance.c -lrdkafka -lpthread
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time

VARIABLE = "RDKAFKA_PERFORMANCE"
TIMEOUT_S = 120.0
RECORD_BYTES = 100


class ToolError(Exception):
    """The tool is absent, failed, or did not transfer all records; the text says which."""


def find_tool() -> str:
    """Path of the tool.

    Raises:
        ToolError: it is not there.
    """
    found = os.environ.get(VARIABLE) or shutil.which("rdkafka_performance")
    if not found or not os.access(found, os.X_OK):
        raise ToolError(f"no rdkafka_performance: neither {VARIABLE} nor the PATH names it")
    return found


def produce(tool: str, bootstrap: str, topic: str, records: int, acks: int) -> float:
    """Sends records to all partitions as fast as it goes; returns records per second."""
    arguments = ("-P", "-t", topic, "-s", str(RECORD_BYTES), "-c", str(records), "-a", str(acks), "-X", "linger.ms=5")
    return produced_rate(_output(_start(tool, bootstrap, *arguments)), records)


def consume(tool: str, bootstrap: str, topic: str, partitions: int, records: int, consumers: int) -> float:
    """Lets several consumers read the same records at the same time; returns records per second of all together."""
    numbers = [argument for number in range(partitions) for argument in ("-p", str(number))]
    arguments = ("-C", "-t", topic, *numbers, "-o", "beginning", "-c", str(records))
    begin = time.perf_counter()
    running = [_start(tool, bootstrap, *arguments) for _ in range(consumers)]
    try:
        outputs = [_output(each) for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()
    elapsed = time.perf_counter() - begin
    return sum(consumed_count(output, records) for output in outputs) / elapsed


def produced_rate(output: str, records: int) -> float:
    """The rate in the last summary of a producer.

    >>> line = "% 9 messages produced (900 bytes), 9 delivered (offset 8, 0 failed) in 2ms: 4500 msgs/s and 0.45 MB/s"
    >>> produced_rate(line, 9)
    4500.0
    """
    found = re.findall(r"(\d+) delivered \(offset -?\d+, (\d+) failed\) in \d+ms: (\d+) msgs/s", output)
    if not found or int(found[-1][0]) < records or int(found[-1][1]):
        raise ToolError(f"{records} records were not sent: {output.strip()[-300:]}")
    return float(found[-1][2])


def consumed_count(output: str, records: int) -> int:
    """How many records the last summary of a consumer counts.

    >>> consumed_count("% 9 messages (900 bytes) consumed in 2ms: 4500 msgs/s (0.45 MB/s)", 9)
    9
    """
    found = re.findall(r"% (\d+) messages \(\d+ bytes\) consumed in", output)
    if not found or int(found[-1]) < records:
        raise ToolError(f"{records} records were not read: {output.strip()[-300:]}")
    return int(found[-1])


def _start(tool: str, bootstrap: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [tool, "-b", bootstrap, "-q", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _output(running: subprocess.Popen[str]) -> str:
    try:
        output, _ = running.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        running.kill()
        raise ToolError(f"the tool did not end within {TIMEOUT_S:g} s") from error
    if running.returncode:
        raise ToolError(f"the tool ended with code {running.returncode}: {output.strip()[-300:]}")
    return output
