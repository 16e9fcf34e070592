"""Adapts the processes of a run for scripts of controls and for the nemesis; also defines a cluster without nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from moldau.runtime.config import parse_address
from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent
from moldau_jepsen.launcher import LauncherUsageError, probe
from moldau_jepsen.launcher.process import ProcessState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_jepsen.chaos.network.rules import LinkRules
    from moldau_jepsen.launcher import LocalCluster, Node
    from moldau_jepsen.launcher.control import Control
    from moldau_jepsen.launcher.undo import PowerLoss

LED_WITHIN_S = 60.0
ASK_EVERY_S = 0.2
ANSWER_TIMEOUT_MS = 500.0


class ProcessNodes:
    """Addresses of a cluster of processes, as clients reach its nodes."""

    def __init__(self, cluster: LocalCluster) -> None:
        """Nodes keep their addresses as long as the cluster lives."""
        self.broker_ids = [node.node_id for node in cluster.brokers]
        self.controller_ids = [node.node_id for node in cluster.controllers]
        self._addresses = {node.node_id: parse_address(node.address) for node in cluster.nodes}

    def address(self, node_id: int) -> tuple[str, int]:
        """Returns the host and port of a node's listener, or of the proxy before it."""
        return self._addresses[node_id]


class ProcessStage:
    """Acts on processes as a control's script demands, and reports the actions."""

    def __init__(
        self,
        cluster: LocalCluster | NoCluster,
        links: LinkRules | None,
        report: Callable[[FaultEvent], None],
        topics: Sequence[str],
    ) -> None:
        """``report`` gets an event for each stretch in which a node was paused or down, when it ends.

        ``topics`` are those whose leaders a script may wait for.
        """
        self._topics = topics
        self.links = links
        self._cluster = cluster
        self._report = report
        self._started = trio.current_time()
        self._since: dict[int, tuple[str, float]] = {}

    async def pause(self, *nodes: int) -> None:
        """Stops the process with SIGSTOP."""
        await self._begin("pause", self._cluster.pause, nodes)

    async def resume(self, *nodes: int) -> None:
        """Lets the process continue with SIGCONT."""
        await self._end(self._cluster.resume, nodes)

    async def kill(self, *nodes: int) -> None:
        """Kills the process with SIGKILL."""
        await self._begin("kill", self._cluster.kill, nodes)

    async def start(self, *nodes: int) -> None:
        """Starts again what was killed."""
        await self._end(self._cluster.launch, nodes)

    async def wait_led_by(self, *nodes: int) -> None:
        """Waits until one of these brokers says that they lead all partitions, at most ``LED_WITHIN_S``.

        A script that continues after a time-out reports at its end that it had no effect.
        """
        with trio.move_on_after(LED_WITHIN_S):
            while not await trio.to_thread.run_sync(self._is_led_by, nodes):  # noqa: ASYNC110 - no event reports it
                await trio.sleep(ASK_EVERY_S)

    def _is_led_by(self, nodes: Sequence[int]) -> bool:
        for node in self._cluster.brokers:
            if node.node_id in nodes:
                answer = probe.fetch_metadata(node.door, self._topics, ANSWER_TIMEOUT_MS)
                partitions = [] if answer is None else [part for topic in answer.topics for part in topic.partitions]
                if partitions and all(part.leader_id in nodes for part in partitions):
                    return True
        return False

    async def restore(self) -> None:
        """Resumes and starts every node."""
        for node in self._cluster.nodes:
            state = await trio.to_thread.run_sync(self._cluster.state, node.node_id)
            if state is ProcessState.PAUSED:
                await self._end(self._cluster.resume, (node.node_id,))
            elif state is ProcessState.STOPPED:
                await self._end(self._cluster.launch, (node.node_id,))

    def _now_ms(self) -> float:
        return (trio.current_time() - self._started) * 1000

    async def _begin(self, kind: str, call: Callable[[int], None], nodes: Sequence[int]) -> None:
        for node_id in nodes:
            await trio.to_thread.run_sync(call, node_id)
            self._since[node_id] = (kind, self._now_ms())

    async def _end(self, call: Callable[[int], None], nodes: Sequence[int]) -> None:
        for node_id in nodes:
            await trio.to_thread.run_sync(call, node_id)
            kind, begin_ms = self._since.pop(node_id, ("", 0.0))
            if kind:
                self._report(
                    FaultEvent(
                        kind=kind,
                        target="script",
                        nodes=(node_id,),
                        begin_ms=begin_ms,
                        end_ms=self._now_ms(),
                        detail="",
                    )
                )


class NoCluster:
    """A cluster without processes: faults cannot reach those of a foreign cluster."""

    brokers: Sequence[Node] = ()
    controllers: Sequence[Node] = ()
    nodes: Sequence[Node] = ()

    def state(self, node_id: int) -> ProcessState:
        self._refuse(node_id)

    def kill(self, node_id: int) -> None:
        self._refuse(node_id)

    def pause(self, node_id: int) -> None:
        self._refuse(node_id)

    def resume(self, node_id: int) -> None:
        self._refuse(node_id)

    def stop_node(self, node_id: int) -> bool:
        self._refuse(node_id)

    def launch(self, node_id: int) -> None:
        self._refuse(node_id)

    def lose_power(self, node_id: int, seed: int) -> PowerLoss:
        self._refuse(node_id)

    def control(self, node_id: int, change: Callable[[Control], Control]) -> None:
        self._refuse(node_id)

    def wipe(self, node_id: int) -> None:
        self._refuse(node_id)

    def is_whole(self) -> bool:
        self._refuse(0)

    def can_do_without(self, node_id: int) -> bool:
        self._refuse(node_id)

    @staticmethod
    def _refuse(node_id: int) -> NoReturn:
        raise LauncherUsageError(f"node {node_id} is no process of ours")
