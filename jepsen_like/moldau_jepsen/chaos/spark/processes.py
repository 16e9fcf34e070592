"""The processes of the query: its driver, the JVM below it, and the JVM's Python processes.

The driver begins a session of its own, so that its descendants are found also when their parents are dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

PROC: Final = Path("/proc")
WAIT_S: Final = 30.0
PS_S: Final = 60.0
ROUNDS_MAX: Final = 20


class Row(NamedTuple):
    """One process of the machine. ``session`` is 0 where the system does not report it."""

    parent: int
    session: int
    command: str


def process_rows() -> dict[int, Row]:
    """Returns the processes of this machine by their numbers."""
    if (PROC / "self" / "stat").exists():
        found = {}
        for name in os.listdir(PROC):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    fields = (PROC / name / "stat").read_text(errors="replace").rpartition(")")[2].split()
                    command = (PROC / name / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if fields[0] not in "ZX":
                        found[int(name)] = Row(int(fields[1]), int(fields[3]), command)
        return found
    words = ["ps", "-A", "-o", "pid=,ppid=,args="]
    lines = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PS_S).stdout.splitlines()
    rows = (line.split(None, 2) for line in lines)
    return {int(row[0]): Row(int(row[1]), 0, row[2] if len(row) > 2 else "") for row in rows}


def family_of(pid: int) -> dict[int, Row]:
    """Returns a process's descendants, and the processes of the session that it leads, without itself."""
    rows = process_rows()
    found = [each for each, row in rows.items() if row.session == pid and each != pid]
    pending = [pid, *found]
    for parent in pending:
        below = [each for each, row in rows.items() if row.parent == parent and each not in pending]
        pending += below
        found += below
    return {each: rows[each] for each in found}


def kill_all(pids: Sequence[int]) -> None:
    """Kills processes by SIGKILL; those that have ended are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class QueryProcesses:
    """Starts and kills the driver with all that is below it. ``folder`` holds its checkpoint and logs."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        """``command`` is the program with its arguments."""
        self._folder = folder
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def is_running(self) -> bool:
        """Whether the driver is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the driver; what it prints goes to ``driver-N.log``."""
        assert not self.is_running, "one driver runs at a time"
        self.starts += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (self._folder / f"driver-{self.starts}.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> int:
        """Kills the driver and all that is below it; returns the number of processes.

        A process that is being started while the others are killed is found in the next round.
        """
        if self._process is None:
            return 0
        pid, killed = self._process.pid, set[int]()
        for _ in range(ROUNDS_MAX):
            family = list(family_of(pid))
            if self._process.poll() is None:
                family.append(pid)
            if not family:
                break
            kill_all(family)
            killed.update(family)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(WAIT_S)
        self._process = None
        return len(killed)

    def kill_workers(self) -> int:
        """Kills the JVM's Python processes (tasks, and those that plan and commit); returns their number."""
        if self._process is None:
            return 0
        family = family_of(self._process.pid)
        workers = [each for each, row in family.items() if "pyspark" in row.command and "java" not in _program(row)]
        kill_all(workers)
        return len(workers)

    def failures(self) -> int:
        """Returns how often the query failed and was started again inside its driver."""
        logs = self._folder.glob("driver-*.log")
        return sum(log.read_text(errors="replace").count("query-failed") for log in logs)


def _program(row: Row) -> str:
    return Path(row.command.partition(" ")[0]).name


class Checkpoint:
    """Reads how far a query is, in the checkpoint that Spark writes."""

    def __init__(self, folder: Path) -> None:
        """The folder need not exist yet."""
        self._folder = folder

    def batches(self, log: str) -> list[int]:
        """Returns the numbers of the batches in ``offsets`` (planned) or ``commits`` (finished), sorted."""
        folder = self._folder / log
        return sorted(int(file.name) for file in folder.glob("[0-9]*") if file.name.isdecimal())

    def is_under_way(self) -> bool:
        """Returns whether a batch is planned and not finished."""
        planned, finished = self.batches("offsets"), self.batches("commits")
        return bool(planned) and (not finished or planned[-1] > finished[-1])

    def finished_offsets(self, topic: str) -> dict[int, int]:
        """Returns the end offset of each partition of a topic after the last finished batch."""
        finished = self.batches("commits")
        if not finished:
            return {}
        try:
            lines = (self._folder / "offsets" / str(finished[-1])).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:  # Spark removes old batches
            return {}
        document = json.loads(lines[-1])
        return {int(partition): int(offset) for partition, offset in document.get(topic, {}).items()}
