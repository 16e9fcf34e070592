"""Runs the nodes of another system: a cluster whose processes the run starts by commands that it is given.

With these a run strikes the processes of any Kafka-compatible broker. It knows nothing else of the nodes: it starts
each command in a process group of its own, sends signals to that group, and starts the command again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.values import join_address
from moldau_jepsen.chaos.nemesis.stage import ANSWER_TIMEOUT_MS, NoCluster
from moldau_jepsen.chaos.spark.processes import kill_all, process_rows
from moldau_jepsen.launcher import LauncherUsageError, probe, process
from moldau_jepsen.launcher.process import ProcessState, start_mark, state_of
from moldau_jepsen.launcher.spec import Door, LauncherError, Node, no_such_node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from moldau.protocol.messages.metadata import MetadataResponse

READY_S = 180.0
"""How long the nodes may take until one serves; those of Apache Kafka take half a minute on a busy machine."""
STOP_S = 60.0
SIGNAL_S = 20.0
POLL_S = 0.5
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideNode:
    """A node that the run starts."""

    node_id: int
    """The id that the broker has in the metadata, so that leaders can be chosen."""
    command: tuple[str, ...]


def parse_node(text: str) -> OutsideNode:
    """Parses ``ID=COMMAND``, with a command as a shell reads it.

    Raises:
        LauncherUsageError: The text has another form.
    """
    name, equals, command = text.partition("=")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise LauncherUsageError(f"node {name}: {error}: {command}") from error
    if not equals or not words or not name.strip().isdecimal():
        raise LauncherUsageError(f"a node is ID=COMMAND, not {text!r}")
    return OutsideNode(node_id=int(name), command=words)


class OutsideProcesses(NoCluster):
    """The cluster that the commands make. Blocking calls; not for several threads at once."""

    def __init__(self, nodes: Sequence[OutsideNode], bootstrap: tuple[str, int], directory: Path) -> None:
        """Starts nothing. The nodes' output goes to files in ``directory``."""
        self._commands = {node.node_id: node.command for node in nodes}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._bootstrap = Door(*bootstrap)
        self._directory = directory
        self.brokers = [
            Node(
                node_id=node.node_id,
                role="broker",
                port=0,
                directory="",
                config="",
                log=str(directory / f"node-{node.node_id}.log"),
            )
            for node in nodes
        ]
        self.nodes = self.brokers

    async def start(self) -> None:
        """Starts all nodes, and waits until a broker answers.

        Raises:
            LauncherError: A command cannot be run or has ended, or no broker answers in time.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for node_id in self._commands:
            self.launch(node_id)
        try:
            with trio.fail_after(READY_S):
                while not await trio.to_thread.run_sync(self._is_up):  # noqa: ASYNC110 - processes change, not a value
                    await trio.sleep(POLL_S)
        except trio.TooSlowError as error:
            host, port, *_ = self._bootstrap
            text = f"{join_address(host, port)} does not name {len(self._commands)} brokers within {READY_S:g} s"
            raise LauncherError(text) from error

    def _is_up(self) -> bool:
        """Returns whether a broker names as many brokers as there are commands.

        Raises:
            LauncherError: A command has ended, by an error or because it leaves its node in the background.
        """
        for node in self.brokers:
            code = self._children[node.node_id].poll()
            if code is not None:
                last = process.log_tail(node)
                raise LauncherError(
                    f"node {node.node_id}: the command ended with exit code {code}, and must run as long as the node"
                    + (f": {last}" if last else "")
                )
        answer = self._ask([])
        return answer is not None and len(answer.brokers) >= len(self._commands)

    def shut_down(self) -> None:
        """Kills all nodes, and what commands that have ended left in the background."""
        for node_id, child in self._children.items():
            if self.state(node_id) is not ProcessState.STOPPED:
                self.kill(node_id)
            elif left := _left_by(child):
                kill_all(left)
                self._wait_ended(node_id, SIGNAL_S)

    def state(self, node_id: int) -> ProcessState:
        """Returns whether the node's process runs, is paused, or is gone."""
        child = self._child(node_id)
        if child is None or child.poll() is not None:
            return ProcessState.STOPPED
        return state_of(child.pid, start_mark(child.pid))

    def kill(self, node_id: int) -> None:
        """Sends SIGKILL; returns when the process is gone."""
        self._signal(node_id, signal.SIGKILL)
        self._wait_ended(node_id, SIGNAL_S)

    def pause(self, node_id: int) -> None:
        """Sends SIGSTOP."""
        self._signal(node_id, signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """Sends SIGCONT."""
        self._signal(node_id, signal.SIGCONT)

    def stop_node(self, node_id: int) -> bool:
        """Sends SIGTERM, and SIGKILL after a while. Returns whether SIGTERM sufficed."""
        self._signal(node_id, signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):  # a paused node must run to end; another may have ended already
            os.killpg(self._children[node_id].pid, signal.SIGCONT)
        try:
            self._wait_ended(node_id, STOP_S)
        except LauncherError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._children[node_id].pid, signal.SIGKILL)
            self._wait_ended(node_id, SIGNAL_S)
        return self._children[node_id].returncode != -signal.SIGKILL

    def launch(self, node_id: int) -> None:
        """Starts a node that does not run.

        Raises:
            LauncherError: The command cannot be run.
        """
        self._child(node_id)
        with (self._directory / f"node-{node_id}.log").open("ab") as log:
            try:
                self._children[node_id] = subprocess.Popen(
                    self._commands[node_id],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise LauncherError(f"node {node_id}: {error}") from error

    def is_whole(self) -> bool:
        """Returns whether the first bootstrap address reports all replicas of all partitions in sync."""
        answer = self._ask(None)
        return (
            answer is not None
            and len(answer.brokers) == len(self._commands)
            and all(
                len(part.isr_nodes) == len(part.replica_nodes) for topic in answer.topics for part in topic.partitions
            )
        )

    def _ask(self, topics: Sequence[str] | None) -> MetadataResponse | None:
        return probe.fetch_metadata(self._bootstrap, topics, ANSWER_TIMEOUT_MS)

    def _child(self, node_id: int) -> subprocess.Popen[bytes] | None:
        if node_id not in self._commands:
            raise no_such_node(node_id, self._commands)
        return self._children.get(node_id)

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        child = self._child(node_id)
        if child is None or child.poll() is not None:
            raise LauncherError(f"node {node_id} does not run")
        os.killpg(child.pid, number)  # a script and the program that it started

    def _wait_ended(self, node_id: int, seconds: float) -> None:
        """Waits for the command, and for the program that it started: a script ends before that by a signal."""
        child = self._child(node_id)
        assert child is not None
        deadline = time.monotonic() + seconds
        late = f"node {node_id} did not end within {seconds:g} s"
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise LauncherError(late) from error
        while any(row.session == child.pid for row in process_rows().values()):
            if time.monotonic() >= deadline:
                raise LauncherError(late)
            time.sleep(LOOK_S)


def _left_by(child: subprocess.Popen[bytes]) -> list[int]:
    """Returns the processes that a command, which has ended, left in its session."""
    rows = process_rows()
    # Another command with the number of this one would be there itself, as the leader of a session of its own.
    return [] if child.pid in rows else [pid for pid, row in rows.items() if row.session == child.pid]
