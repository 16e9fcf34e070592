"""A standalone Spark cluster of this machine: a master and workers, each a JVM of its own."""

from __future__ import annotations

import json
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from moldau_jepsen.chaos.spark.processes import QueryProcesses
from moldau_jepsen.launcher.ports import take_free_ports
from pyspark_moldau.session.java import java_home
from pyspark_moldau.session.programs import own_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 240
ANSWER_S = 10
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def standalone_cluster(folder: Path, *, workers: int) -> Iterator[str]:
    """Runs a master and workers with one core each below ``folder``; yields the URL for ``spark.master``."""
    port, web_port = take_free_ports(2)
    url = f"spark://127.0.0.1:{port}"
    home = Path(pyspark.__file__).parent
    program = str(home / "bin" / "spark-class")
    java = java_home(own_directory())
    variables = {
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    words = ["env", *(f"{name}={value}" for name, value in variables.items()), program]
    place = ["--host", "127.0.0.1"]
    commands = {"master": [*words, MASTER, *place, "--port", str(port), "--webui-port", str(web_port)]}
    for number in range(workers):
        name = f"worker-{number}"
        size = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / name / "work")]
        commands[name] = [*words, WORKER, *place, "--webui-port", "0", *size, url]
    running = [QueryProcesses(folder / name, command) for name, command in commands.items()]
    try:
        for each in running:
            each.start()
        _wait_workers(f"http://127.0.0.1:{web_port}/json/", workers)
        yield url
    finally:
        for each in running:
            each.kill()


def _wait_workers(address: str, workers: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_S) as answer:
                if json.load(answer)["aliveworkers"] == workers:
                    return
        except (OSError, ValueError):
            pass
        assert time.monotonic() < deadline, f"Spark's master at {address} had no {workers} workers in time"
        time.sleep(0.5)
