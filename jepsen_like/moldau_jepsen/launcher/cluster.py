"""Starts, opens, inspects, disturbs and stops a local cluster.

``cluster.json`` is rewritten (atomically) after every change of a process, so that the next command finds the current
state. No process keeps the file open between commands. A command that changes the cluster holds a lock on
``cluster.lock``, which excludes other such commands.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.values import join_address
from moldau_jepsen.launcher import process, undo
from moldau_jepsen.launcher.control import CONTROL, ControlWriter
from moldau_jepsen.launcher.directories import draft_of, made_whole, refuse_moved, refuse_used
from moldau_jepsen.launcher.ports import choose_ports, port_in_use
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.secured import SecuredFiles, administrator, secured_properties, write_files
from moldau_jepsen.launcher.spec import (
    FILE_NAME,
    ClusterSpec,
    LauncherError,
    LauncherUsageError,
    Node,
    bootstrap_of,
    from_json,
    no_such_node,
    node_properties,
    plan_nodes,
    to_json,
)
from moldau_jepsen.launcher.waker import Waker

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from moldau.protocol.messages.metadata import MetadataResponsePartition
    from moldau.runtime.config.sasl import LoginSettings
    from moldau_jepsen.launcher.control import Control
    from moldau_jepsen.launcher.spec import Door
    from moldau_jepsen.launcher.undo import PowerLoss

# The time limits are long, because a busy machine needs many times what an idle one needs.
READY_TIMEOUT_MS = 120_000
STOP_TIMEOUT_MS = 330_000  # A broker gives up its controlled shutdown after five minutes, as in Kafka.
SIGNAL_TIMEOUT_MS = 60_000  # A process that is killed during a sync ends only after the sync.
PROBE_TIMEOUT_MS = 1_000
POLL_S = 0.03
LOGIN_LOOK_S = 5.0
"""A broker that serves for so long, and refuses the administrator's login, will not take it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The current state of a node."""

    node_id: int
    role: str
    address: str
    pid: int
    state: ProcessState
    fenced: bool | None  # None for controllers, and when no broker answers
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """The metadata quorum as a controller reports it; offsets are exclusive ends.

    ``heard_ms`` has for each voter when the leader last heard from it, in Unix milliseconds; -1 if it does not say.
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[tuple[int, int], ...]  # (node id, log end offset)
    heard_ms: tuple[tuple[int, int], ...] = ()


class LocalCluster:
    """The nodes of one directory.

    It is not for use by several threads at once, except that starts take turns: each starts only nodes that do not run.
    """

    def __init__(self, directory: Path, nodes: Sequence[Node], *, tied_to_parent: bool = True) -> None:
        """Is called by ``start_cluster`` and ``open_cluster`` only."""
        self.directory = directory
        self.nodes = list(nodes)
        self._tied_to_parent = tied_to_parent
        self._waker = Waker()
        self._starting = threading.Lock()
        self._keys: tuple[ssl.SSLContext, LoginSettings] | None = None

    @property
    def client_config(self) -> Path | None:
        """Returns the file with the administrator's login; None for a cluster that is not secured."""
        return SecuredFiles(self.directory).client if any(node.secured for node in self.nodes) else None

    @property
    def bootstrap(self) -> str:
        """``host:port,...`` of all brokers, for ``bootstrap.servers``."""
        return bootstrap_of(self.nodes)

    @property
    def brokers(self) -> list[Node]:
        """Returns the brokers, ordered by id."""
        return [node for node in self.nodes if node.role == "broker"]

    @property
    def controllers(self) -> list[Node]:
        """Returns the controllers, ordered by id."""
        return [node for node in self.nodes if node.role == "controller"]

    def node(self, node_id: int) -> Node:
        """Returns the node with an id.

        Raises:
            LauncherUsageError: There is no such node; the message names the existing ones.
        """
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise no_such_node(node_id, (node.node_id for node in self.nodes))

    def state(self, node_id: int) -> ProcessState:
        """Returns whether the node's process runs, is paused, or is gone."""
        node = self.node(node_id)
        process.reap(node.pid)
        return process.state_of(node.pid, node.started)

    # -- faults -----------------------------------------------------------------------------------------------------

    def kill(self, node_id: int) -> None:
        """Sends SIGKILL; returns when the process is gone.

        Raises:
            LauncherError: The node does not run.
        """
        node = self.node(node_id)
        if not process.send_signal(node, signal.SIGKILL):
            raise LauncherError(f"node {node_id} does not run")
        self._await_state(node, ProcessState.STOPPED, SIGNAL_TIMEOUT_MS, "end after SIGKILL")

    def pause(self, node_id: int) -> None:
        """Sends SIGSTOP; returns when the process stands still."""
        node = self.node(node_id)
        if self._tied_to_parent:
            self._waker.watch(node.pid)
        if not process.send_signal(node, signal.SIGSTOP):
            raise LauncherError(f"node {node_id} does not run")
        self._await_state(node, ProcessState.PAUSED, SIGNAL_TIMEOUT_MS, "pause after SIGSTOP")

    def resume(self, node_id: int) -> None:
        """Sends SIGCONT; returns when the process runs again.

        Raises:
            LauncherError: The node is not paused.
        """
        node = self.node(node_id)
        state = self.state(node_id)
        if state is ProcessState.STOPPED:
            ended = "its watchdog ends a node that is paused for longer than node.watchdog.ms"
            raise LauncherError(f"node {node_id} is not paused but stopped; {ended}; restart it")
        if state is not ProcessState.PAUSED:
            raise LauncherError(f"node {node_id} is not paused")
        process.send_signal(node, signal.SIGCONT)
        self._await_state(node, ProcessState.RUNNING, SIGNAL_TIMEOUT_MS, "run after SIGCONT")

    def lose_power(self, node_id: int, seed: int) -> PowerLoss:
        """Kills the node if it runs, and removes the unsynced data that ``seed`` chooses from its disk.

        Raises:
            LauncherUsageError: The cluster was started without ``hostile`` machines.
        """
        node = self._hostile(node_id)
        if self.state(node_id) is not ProcessState.STOPPED:
            self.kill(node_id)
        return undo.lose_power([Path(node.directory)], Path(node.hostile), seed)

    def control(self, node_id: int, change: Callable[[Control], Control]) -> None:
        """Changes how the node's disk and clocks behave, at once and for later processes of the node.

        Raises:
            LauncherUsageError: The cluster was started without ``hostile`` machines.
        """
        writer = ControlWriter(Path(self._hostile(node_id).hostile) / CONTROL)
        try:
            writer.write(change(writer.read()))
        finally:
            writer.close()

    def _hostile(self, node_id: int) -> Node:
        node = self.node(node_id)
        if not node.hostile:
            raise LauncherUsageError(f"node {node_id} runs on its machine's own disk and clocks; start it hostile")
        return node

    def stop_node(self, node_id: int, *, timeout_ms: float = STOP_TIMEOUT_MS) -> bool:
        """Sends SIGTERM (controlled shutdown), and SIGKILL after ``timeout_ms``. Returns whether SIGTERM sufficed."""
        node = self.node(node_id)
        process.send_signal(node, signal.SIGTERM)
        process.send_signal(node, signal.SIGCONT)
        if process.wait_state(node, ProcessState.STOPPED, timeout_ms):
            return True
        self.kill(node_id)
        return False

    def launch(self, node_id: int) -> None:
        """Starts a node that does not run and returns at once, before it serves."""
        node = self.node(node_id)
        with self._starting:
            if self.state(node_id) is not ProcessState.STOPPED:
                raise LauncherError(f"node {node_id} runs already; stop, kill or restart it")
            self._spawn([node])

    def start_node(self, node_id: int, *, ready_timeout_ms: float = READY_TIMEOUT_MS) -> None:
        """Starts a node that does not run, on its old port and data, and waits until it serves."""
        self.launch(node_id)
        self.wait_ready([self.node(node_id)], timeout_ms=ready_timeout_ms)

    def restart(self, node_id: int, *, ready_timeout_ms: float = READY_TIMEOUT_MS) -> None:
        """Stops the node in order if it runs, starts it again, and waits until it serves."""
        if self.state(node_id) is not ProcessState.STOPPED:
            self.stop_node(node_id)
        self.start_node(node_id, ready_timeout_ms=ready_timeout_ms)

    # -- the whole cluster --------------------------------------------------------------------------------------------

    def start_all(
        self, *, ready_timeout_ms: float = READY_TIMEOUT_MS, check_cancelled: Callable[[], None] | None = None
    ) -> None:
        """Starts every node that does not run and waits until all brokers are unfenced; see ``wait_ready``."""
        with self._starting:
            self._spawn([node for node in self.nodes if self.state(node.node_id) is ProcessState.STOPPED])
        self.wait_ready(self.nodes, timeout_ms=ready_timeout_ms, check_cancelled=check_cancelled)

    def stop_all(self, *, timeout_ms: float = STOP_TIMEOUT_MS) -> list[int]:
        """Stops brokers, then controllers, in order. Returns the ids that had to be killed after ``timeout_ms``."""
        killed = []
        for role in ("broker", "controller"):
            group = [node for node in self.nodes if node.role == role]
            for node in group:
                process.send_signal(node, signal.SIGTERM)
                process.send_signal(node, signal.SIGCONT)
            deadline = time.monotonic() + timeout_ms / 1000
            for node in group:
                left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
                if not process.wait_state(node, ProcessState.STOPPED, left_ms):
                    self.kill(node.node_id)
                    killed.append(node.node_id)
        return killed

    def shut_down(self) -> None:
        """Kills all processes at once: for the end of a test whose data is not needed any more.

        That includes processes that others, such as a console, have started since, and those that a full disk has kept
        out of ``cluster.json``.
        """
        self._kill_all()
        self._reread()
        self._kill_all()

    def wait_ready(
        self,
        nodes: Sequence[Node],
        *,
        timeout_ms: float = READY_TIMEOUT_MS,
        check_cancelled: Callable[[], None] | None = None,
    ) -> None:
        """Waits until each broker among ``nodes`` answers and reports every running broker, itself too, as unfenced.

        ``check_cancelled`` is called again and again, and may raise to end the wait.

        Raises:
            LauncherError: One of ``nodes`` ended meanwhile (the message has the last line of its log), a broker refuses
                the administrator's login, or time ran out.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        look_at = time.monotonic() + LOGIN_LOOK_S
        waiting = [node for node in nodes if node.role == "broker"]
        while True:
            if check_cancelled is not None:
                check_cancelled()
            for node in nodes:
                process.reap(node.pid)
                if process.state_of(node.pid, node.started) is ProcessState.STOPPED:
                    reported = process.log_tail(node) or "it wrote nothing"
                    raise LauncherError(f"{node.role} {node.node_id} ended while starting: {reported} (log {node.log})")
            waiting = [node for node in waiting if not self._sees_all(node)]
            if not waiting:
                return
            if self.client_config is not None and time.monotonic() >= look_at:
                self._refuse_old_login(waiting[0], self.client_config)
                look_at += LOGIN_LOOK_S
            if time.monotonic() >= deadline:
                names = ", ".join(str(node.node_id) for node in waiting)
                raise LauncherError(
                    f"broker {names} not ready after {timeout_ms / 1000:g} s: {process.log_tail(waiting[0])} "
                    f"(log {waiting[0].log})"
                )
            time.sleep(POLL_S)

    # -- questions ----------------------------------------------------------------------------------------------------

    def status(self) -> list[NodeStatus]:
        """Returns the state of every node; the brokers' answers say which of them are fenced."""
        unfenced = self._unfenced_brokers()
        result = []
        for node in self.nodes:
            state = self.state(node.node_id)
            fenced = None if node.role != "broker" or unfenced is None else node.node_id not in unfenced
            result.append(
                NodeStatus(
                    node_id=node.node_id,
                    role=node.role,
                    address=node.address,
                    pid=node.pid,
                    state=state,
                    fenced=fenced,
                    rss_bytes=0 if state is ProcessState.STOPPED else process.resident_bytes(node.pid),
                )
            )
        return result

    def quorum(self) -> QuorumStatus | None:
        """Returns the answer of the first controller that knows a leader; None if no controller does."""
        from moldau_jepsen.launcher import probe

        for node in self._running("controller"):
            answer = probe.fetch_quorum(self._door(node), PROBE_TIMEOUT_MS)
            if answer is None or answer.error_code != 0 or not answer.topics:
                continue
            partition = answer.topics[0].partitions[0]
            if partition.error_code != 0 or partition.leader_id < 0:
                continue
            return QuorumStatus(
                leader_id=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                high_watermark=partition.high_watermark,
                voters=tuple((voter.replica_id, voter.log_end_offset) for voter in partition.current_voters),
                heard_ms=tuple((voter.replica_id, voter.last_fetch_timestamp) for voter in partition.current_voters),
            )
        return None

    def partition_leader(self, topic: str, partition: int, *, ask: int | None = None) -> int | None:
        """Returns the leader's id as a running broker (``ask``, or any) reports it; None if there is no leader."""
        from moldau_jepsen.launcher import probe

        for node in self._running("broker"):
            if ask is not None and node.node_id != ask:
                continue
            answer = probe.fetch_metadata(self._door(node), [topic], PROBE_TIMEOUT_MS)
            if answer is None:
                continue
            for entry in answer.topics:
                for part in entry.partitions:
                    if part.partition_index == partition and part.error_code == 0:
                        return part.leader_id if part.leader_id >= 0 else None
        return None

    def is_whole(self) -> bool:
        """Returns whether every broker answers and reports all replicas of all partitions in sync.

        Each broker is asked at its own listener, because a broker that is cut off may have outdated metadata.
        """
        for node in self.brokers:
            partitions = self._partitions(node)
            if partitions is None or any(len(one.isr_nodes) < len(one.replica_nodes) for one in partitions):
                return False
        return True

    def can_do_without(self, node_id: int) -> bool:
        """Returns whether another running broker reports an in-sync replica elsewhere for every partition."""
        for node in self._running("broker"):
            partitions = None if node.node_id == node_id else self._partitions(node)
            if partitions is not None:
                return all(any(replica != node_id for replica in one.isr_nodes) for one in partitions)
        return False

    def _partitions(self, node: Node) -> list[MetadataResponsePartition] | None:
        from moldau_jepsen.launcher import probe

        answer = probe.fetch_metadata(self._door(node), None, PROBE_TIMEOUT_MS)
        if answer is None or any(topic.error_code for topic in answer.topics):
            return None
        return [partition for topic in answer.topics for partition in topic.partitions]

    def wipe(self, node_id: int) -> None:
        """Replaces the disk of a node that does not run by an empty one."""
        node = self.node(node_id)
        if self.state(node_id) is not ProcessState.STOPPED:
            raise LauncherError(f"node {node_id} runs; stop it before its disk is replaced")
        for path in Path(node.directory).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if node.hostile:
            undo.forget(Path(node.hostile))

    def _running(self, role: str) -> list[Node]:
        return [node for node in self.nodes if node.role == role and self.state(node.node_id) is ProcessState.RUNNING]

    def _unfenced_brokers(self) -> list[int] | None:
        from moldau_jepsen.launcher import probe

        for node in self._running("broker"):
            answer = probe.fetch_metadata(self._door(node), [], PROBE_TIMEOUT_MS)
            if answer is not None:
                return sorted(broker.node_id for broker in answer.brokers)
        return None

    def _sees_all(self, node: Node) -> bool:
        from moldau_jepsen.launcher import probe

        answer = probe.fetch_metadata(self._door(node), [], PROBE_TIMEOUT_MS)
        if answer is None:
            return False
        seen = {broker.node_id for broker in answer.brokers}
        return all(other.node_id in seen for other in self._running("broker"))

    def _refuse_old_login(self, node: Node, client_config: Path) -> None:
        from moldau_jepsen.launcher import probe

        if reason := probe.refused_login(self._door(node), PROBE_TIMEOUT_MS):
            raise LauncherError(
                f"broker {node.node_id} runs, and refuses the login of {client_config}: write the administrator's "
                f"present password into that file ({reason})"
            )

    def _door(self, node: Node) -> Door:
        if self.client_config is None:
            return node.door
        if self._keys is None:
            self._keys = administrator(self.client_config)
        tls, login = self._keys
        return node.door._replace(tls=tls, login=login)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _spawn(self, nodes: Sequence[Node]) -> None:
        refuse_moved(self.directory, nodes)
        for node in nodes:
            if not node.namespace and port_in_use(node.port):
                raise LauncherUsageError(f"port {node.port} of {node.role} {node.node_id} is in use by another process")
        self.save()  # a start that is killed leaves a directory that the next one knows
        try:
            process.spawn_all(nodes, tied_to_parent=self._tied_to_parent)
        finally:
            self.save()

    def _kill_all(self) -> None:
        for node in self.nodes:
            process.send_signal(node, signal.SIGKILL)
        for node in self.nodes:
            self._await_state(node, ProcessState.STOPPED, SIGNAL_TIMEOUT_MS, "end after SIGKILL")

    def _await_state(self, node: Node, wanted: ProcessState, timeout_ms: float, what: str) -> None:
        if not process.wait_state(node, wanted, timeout_ms):
            raise LauncherError(
                f"node {node.node_id} (process {node.pid}) did not {what} within {timeout_ms / 1000:g} s"
            )

    def _reread(self) -> None:
        """Takes the processes that ``cluster.json`` names; each change of a process is written to it at once."""
        path = self.directory / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            return  # the file is gone, or was never written: only this object knows processes
        for found in from_json(text, str(path)):
            node = self.node(found.node_id)
            node.pid, node.started = found.pid, found.started

    def save(self) -> None:
        """Writes ``cluster.json``."""
        target = self.directory / FILE_NAME
        draft = draft_of(target)
        draft.write_text(to_json(self.nodes, str(self.client_config or "")), encoding="utf-8")
        os.replace(draft, target)


def refuse_wrong(spec: ClusterSpec) -> None:
    """Checks the parts of ``spec`` that do not depend on the directory.

    Raises:
        LauncherUsageError: ``start_cluster`` would refuse ``spec``.
    """
    root = Path("/")
    _checked_properties(plan_nodes(spec, root, spec.ports or tuple(range(1, spec.nodes + 1))), spec, root)


def start_cluster(
    directory: Path, spec: ClusterSpec, *, ready_timeout_ms: float = READY_TIMEOUT_MS, tied_to_parent: bool = True
) -> LocalCluster:
    """Makes a cluster in ``directory`` (created if missing; must be empty) and waits until all brokers are unfenced.

    With ``tied_to_parent`` the nodes end when the calling process ends, however it ends.

    Raises:
        LauncherUsageError: The directory holds other files, or a port is in use.
        LauncherError: A node did not start; no process is left running.
    """
    directory = directory.absolute()
    refuse_used(directory)
    nodes = plan_nodes(spec, directory, spec.ports or choose_ports(spec.nodes, spec.base_port))
    if spec.secure and not spec.places:  # whose free ports are not known
        for node, port in zip(nodes, choose_ports(spec.nodes, None), strict=True):
            node.metrics = join_address(node.host, port)
    texts = _checked_properties(nodes, spec, directory)
    cluster = LocalCluster(directory, nodes, tied_to_parent=tied_to_parent)
    with made_whole(directory, nodes):
        for node in nodes:
            Path(node.directory).mkdir(parents=True)
            if node.hostile:
                Path(node.hostile).mkdir()
                ControlWriter(Path(node.hostile) / CONTROL).close()
        if spec.secure:
            files = SecuredFiles(directory)
            write_files(nodes, files)
            texts = _properties(nodes, spec, files, files.reference)
        for node in nodes:
            Path(node.config).write_text(texts[node.node_id], encoding="utf-8")
        cluster.save()
    try:
        cluster.start_all(ready_timeout_ms=ready_timeout_ms)
    except BaseException:
        cluster.shut_down()
        raise
    return cluster


def _properties(
    nodes: Sequence[Node], spec: ClusterSpec, files: SecuredFiles, secret: Callable[[str], str]
) -> dict[int, str]:
    def settings(node: Node) -> dict[str, str]:
        return {**(secured_properties(node, files, secret) if spec.secure else {}), **spec.settings}

    return {node.node_id: node_properties(node, nodes, settings(node)) for node in nodes}


def _checked_properties(nodes: Sequence[Node], spec: ClusterSpec, directory: Path) -> dict[int, str]:
    """Returns the texts of the nodes' configuration files, by id.

    Raises:
        LauncherUsageError: A node would refuse its configuration.
    """
    from moldau.runtime.config import ConfigError, parse_server_config

    texts = _properties(nodes, spec, SecuredFiles(directory), lambda name: f"not-drawn-{name}")
    try:
        for node in nodes:
            parse_server_config(texts[node.node_id], node.config, os.environ)
    except ConfigError as error:
        raise LauncherUsageError("; ".join(error.problems)) from error
    return texts


def open_cluster(directory: Path, *, tied_to_parent: bool = False) -> LocalCluster:
    """Opens the cluster whose ``cluster.json`` is in ``directory``.

    Raises:
        LauncherUsageError: There is no such file, or it cannot be read.
    """
    directory = directory.absolute()
    path = directory / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LauncherUsageError(f"no cluster in {directory} ({FILE_NAME} is missing)") from None
    except OSError as error:
        raise LauncherUsageError(f"cannot read {path}: {error.strerror}") from error
    return LocalCluster(directory, from_json(text, str(path)), tied_to_parent=tied_to_parent)
