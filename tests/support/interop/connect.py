"""Workers of Kafka Connect, brought by Maven: their processes, their REST interface, and the files that they copy."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from benchmarks.maven import bring_jars

from moldau_jepsen.launcher.ports import take_free_ports
from support.interop.clients import wait_until
from support.interop.maven import CACHE
from support.interop.mirrormaker import java

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION, NEWEST = "4.1.0", "4.3.1"
ARTIFACTS = ("connect-runtime", "connect-transforms", "connect-file")
LOG = "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.apache.logging.log4j.level=INFO")
"""Workers start in half the time: they do not run long enough to need the better compiler."""
REST_S = 90.0
"""Connect answers a call with an error after this time at the latest, as its own limit is 90 seconds."""
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
DISTRIBUTED = {
    "group.id": "connect",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": 3,
    "offset.storage.replication.factor": 3,
    "status.storage.replication.factor": 3,
    "offset.storage.partitions": 3,
    "status.storage.partitions": 2,
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 1_000,
    "rebalance.timeout.ms": 10_000,
    "scheduled.rebalance.max.delay.ms": 3_000,
}
COMMON = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": 500,
    "plugin.discovery": "service_load",
}


def connect_jars(version: str = VERSION) -> tuple[Path | None, str]:
    """Returns the folder with the jars, or None and the reason why there are none."""
    home = CACHE / f"kafka-connect-{version}"
    wanted = [f"org.apache.kafka:{artifact}:{version}" for artifact in ARTIFACTS]
    failure = bring_jars(home, [*wanted, LOG])
    return (None, f"Kafka Connect {version} cannot be run: {failure}") if failure else (home, "")


class Worker:
    """A running worker, in distributed mode unless connectors are given as ``standalone``."""

    def __init__(
        self,
        jars: Path,
        home: Path,
        name: str,
        bootstrap: str,
        settings: Mapping[str, object] | None = None,
        standalone: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        """``home`` receives ``{name}.properties`` and ``{name}.log``; ``settings`` override the usual ones."""
        (port,) = take_free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.log_file = home / f"{name}.log"
        mode = DISTRIBUTED if standalone is None else {"offset.storage.file.filename": home / f"{name}.offsets"}
        words = [_properties(home / f"{name}.properties", {
            "bootstrap.servers": bootstrap, "listeners": self.url, **COMMON, **mode, **(settings or {}),
        })]  # fmt: skip
        for connector, config in (standalone or {}).items():
            words.append(_properties(home / f"{name}.{connector}.properties", {"name": connector, **config}))
        main = "ConnectDistributed" if standalone is None else "ConnectStandalone"
        with self.log_file.open("wb") as log:
            command = java(jars, *JVM, f"org.apache.kafka.connect.cli.{main}", *words)
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        wait_until(lambda: self.call("GET", "/connectors")[0] == 200, "the worker serves", REST_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kills the process with SIGKILL and waits for its end."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Lets the worker end in order, which stores its positions."""
        self.process.terminate()
        assert self.process.wait(REST_S) == 143, self.log()[-3_000:]

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Returns the status and the JSON value of an answer; status 0 means that there is no connection."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json", "Accept": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=REST_S + 10) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError as error:
            assert self.process.poll() is None, self.log()[-3_000:]
            return 0, str(error)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Calls until the answer is a success; a worker refuses calls with 409 during a rebalance."""
        last: list[tuple[int, Any]] = []

        def succeeds() -> bool:
            last[:] = [self.call(method, path, body)]
            assert last[0][0] in (0, 409) or last[0][0] < 300, (method, path, last)
            return 200 <= last[0][0] < 300

        wait_until(succeeds, f"{method} {path} succeeds: {last}", REST_S)
        return last[0][1]

    def states(self, connector: str) -> list[str]:
        """Returns the states of a connector and its tasks; empty before it is known."""
        code, status = self.call("GET", f"/connectors/{connector}/status")
        if code != 200:
            return []
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    def await_states(self, connector: str, *wanted: str) -> None:
        """Waits until a connector and its tasks have these states; none may fail meanwhile."""

        def has_them() -> bool:
            found = self.states(connector)
            assert "FAILED" in wanted or "FAILED" not in found, self.call("GET", f"/connectors/{connector}/status")
            return found == list(wanted)

        wait_until(has_them, f"{connector} is {wanted}", REST_S)


def _properties(path: Path, settings: Mapping[str, object]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path)


def source(file: Path, topic: str, **more: object) -> dict[str, object]:
    """Returns the configuration of a connector that copies the lines of a file into a topic."""
    return {"connector.class": SOURCE, "tasks.max": "1", "file": str(file), "topic": topic, **more}


def sink(file: Path, topics: str, **more: object) -> dict[str, object]:
    """Returns the configuration of a connector that copies the records of topics into a file."""
    return {"connector.class": SINK, "tasks.max": "1", "file": str(file), "topics": topics, **more}
