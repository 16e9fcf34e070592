"""A job of Apache Flink, from Maven's jars, which copies a topic exactly once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.maven import bring_jars

from support.interop.clients import wait_for
from support.interop.connect import JVM, LOG
from support.interop.maven import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION, CONNECTOR = "2.2.1", "5.0.0-2.2"
ARTIFACTS = ("flink-streaming-java", "flink-clients", "flink-connector-base", "flink-runtime")
SOURCE = Path(__file__).with_name("FlinkPipe.java")
OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.util", "java.time")]
"""Flink's serializers read private fields of these packages."""
OFTEN, NEVER = "500ms", "1h"
"""The time between two checkpoints, each of which commits transactions."""


def flink_jars() -> tuple[Path | None, str]:
    """Returns the folder with the jars and the compiled job, or None and the reason why there are none."""
    home = CACHE / f"flink-{VERSION}"
    wanted = [f"org.apache.flink:{artifact}:{VERSION}" for artifact in ARTIFACTS]
    failure = bring_jars(home, [*wanted, f"org.apache.flink:flink-connector-kafka:{CONNECTOR}", LOG])
    return (None, f"Flink {VERSION} cannot be run: {failure}") if failure else (home, "")


class Pipe:
    """A running job; ``restored`` is the savepoint with which it begins."""

    def __init__(
        self, jars: Path, home: Path, bootstrap: str, interval: str, naming: str, restored: str | None = None
    ) -> None:
        self._log_file = home / "pipe.log"
        if not (home / "FlinkPipe.class").exists():
            subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(home), str(SOURCE)], check=True, timeout=120)
        words = [bootstrap, str(home), interval, naming, *([] if restored is None else [restored])]
        with self._log_file.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(
                ["java", "-Xmx400m", *JVM, *OPENED, "-cp", f"{jars}/*:{home}", "FlinkPipe", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kills the process with SIGKILL and waits for its end."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def log(self) -> str:
        return self._log_file.read_bytes()[self._begin :].decode(errors="replace")

    def saved(self, order: str) -> str:
        """Has the job store its state, by ``savepoint`` or ``stop``; returns the place of the savepoint."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return wait_for(lambda: next(self._savepoints(), None), f"Flink has stored its state: {order}")

    def _savepoints(self) -> Iterator[str]:
        log = self.log()
        assert self.process.poll() in (None, 0), log[-3_000:]
        return (line.split()[1] for line in log.splitlines() if line.startswith("saved "))
