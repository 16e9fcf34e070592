"""A cluster whose nodes are processes of different releases.

``python -m support.upgrade.nodes restart DIRECTORY NODE PYTHON`` restarts one node with the release that is installed
for an interpreter: it stands for ``ssh HOST systemctl restart`` after another version was installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau_jepsen.launcher.ports import take_free_ports
from support.upgrade.releases import ROOT, clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.upgrade.releases import Release

CONTROLLERS: Final = (101, 102, 103)
BROKERS: Final = (1, 2, 3)
STOP_S: Final = 90.0


class Nodes:
    """Controllers and brokers below a directory; each has a file, a log, a lock and a process id there."""

    def __init__(self, directory: Path, ports: dict[int, int]) -> None:
        """Is called by ``lay_out``."""
        self.directory = directory
        self.ports = ports

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(f"127.0.0.1:{self.ports[node]}" for node in self.ports if node not in CONTROLLERS)

    def start(self, node: int, release: Release) -> None:
        """Starts a node and returns at once."""
        start(self.directory, node, release.python)

    def restart_command(self, release: Release) -> str:
        """Returns the command for ``moldau cluster roll --restart-command``."""
        return f"{sys.executable} -m support.upgrade.nodes restart {self.directory} {{id}} {release.python}"

    def log(self, node: int) -> str:
        """Returns what the node's processes have written."""
        return (self.directory / f"{node}.log").read_text()

    def versions(self) -> dict[int, Path]:
        """Returns the interpreter that each node's process runs."""
        return {node: Path((self.directory / f"{node}.python").read_text()) for node in self.ports}

    def crash(self, node: int) -> None:
        """Kills a node and starts it again with the release that it had."""
        with held(self.directory, node):
            stop(self.directory, node, signal.SIGKILL)
            start(self.directory, node, self.versions()[node])

    def kill(self) -> None:
        """Kills all nodes."""
        for node in self.ports:
            stop(self.directory, node, signal.SIGKILL)


def lay_out(directory: Path, settings: dict[str, str], brokers: Sequence[int] = BROKERS) -> Nodes:
    """Writes the configuration files of a cluster; keys are such that both releases know them."""
    ids = (*CONTROLLERS, *brokers)
    ports = dict(zip(ids, take_free_ports(len(ids)), strict=True))
    voters = ",".join(f"{node}@127.0.0.1:{ports[node]}" for node in CONTROLLERS)
    for node, port in ports.items():
        controller = node in CONTROLLERS
        listener = "CONTROLLER" if controller else "PLAINTEXT"
        lines = {
            "process.roles": "controller" if controller else "broker",
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listener}://127.0.0.1:{port}",
            "log.dirs": str(directory / f"data-{node}"),
            **settings,
        }
        (directory / f"{node}.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return Nodes(directory, ports)


@contextlib.contextmanager
def held(directory: Path, node: int) -> Iterator[None]:
    """Keeps others from restarting a node: a crash and a rolling restart may want the same one."""
    with (directory / f"{node}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(directory: Path, node: int, python: Path) -> None:
    """Starts a node of the release that is installed for an interpreter."""
    with (directory / f"{node}.log").open("ab") as log:
        process = subprocess.Popen(
            [python, "-m", "moldau_cli", "server", str(directory / f"{node}.properties")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=clean_environment(),
            cwd=directory,
            start_new_session=True,
        )
    (directory / f"{node}.pid").write_text(str(process.pid))
    process.returncode = 0  # Another process may end the node, so this object does not wait for it.
    (directory / f"{node}.python").write_text(str(python))


def stop(directory: Path, node: int, number: int = signal.SIGTERM) -> None:
    """Ends a node's process and waits until it is gone."""
    path = directory / f"{node}.pid"
    if not path.exists():
        return
    pid = int(path.read_text())
    deadline = time.monotonic() + STOP_S
    try:
        os.kill(pid, number)
        while _lives(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
    except ProcessLookupError:
        pass
    path.unlink()


def _lives(pid: int) -> bool:
    """Says whether a process runs; an ended child of this process is reaped."""
    try:
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return False
    except ChildProcessError:
        pass
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def main(arguments: list[str]) -> int:
    """Restarts one node."""
    verb, directory, node, python = arguments
    assert verb == "restart"
    with held(Path(directory), int(node)):
        stop(Path(directory), int(node))
        start(Path(directory), int(node), Path(python))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    sys.exit(main(sys.argv[1:]))
