"""Watches replication in a local cluster: writes with acks=all, and follows leaders, replicas and processes.

It writes one small record every ``WRITE_EVERY_S`` to a topic of its own, and only while a page shows the timeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import trio

from moldau.admin import AdminError, NewTopic
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console.core.timeline import PartitionView, Timeline
from moldau_cli.console.records import writing_config
from moldau_jepsen.launcher import LauncherError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau import Producer
    from moldau.producer import Delivery
    from moldau_cli.console.identities import Identity
    from moldau_cli.output import Json

_PROCESSES, _QUORUM = "processes", "quorum"
TOPIC: Final = "moldau-console-probe"
TOPIC_CONFIGS: Final = {"retention.ms": "600000", "segment.ms": "300000", "segment.bytes": "1048576"}
WRITE_EVERY_S: Final = 0.1
LOOK_EVERY_S: Final = 0.15
UNACKNOWLEDGED_MAX: Final = 100
DELIVERY_TIMEOUT_MS: Final = 30_000
ANSWER_S: Final = 1.0
UNWATCHED_S: Final = 5.0
RETRY_S: Final = 1.0


def _now_ms() -> float:
    return trio.current_time() * 1000


class Nodes(Protocol):
    """The nodes of a cluster, by their processes."""

    @property
    def kinds(self) -> Mapping[int, str]:
        """``broker`` or ``controller`` of each node."""

    async def states(self) -> Mapping[int, str]:
        """Returns the state of each node: running, cut, paused or stopped."""

    async def last_words(self, node_id: int) -> str:
        """Returns the last line in the log of a node that has ended by itself; empty if the user ended it."""


class ReplicationProbe:
    """Writes and watches while ``watch`` is called at least every ``UNWATCHED_S``."""

    def __init__(self, identity: Identity, nodes: Nodes) -> None:
        self._identity = identity
        self._nodes = nodes
        self.timeline = Timeline(nodes.kinds)
        self._watched = trio.Event()
        self._running = trio.CancelScope()
        self._troubles: dict[str, str] = {}  # by what is looked at: each look speaks of its own alone
        self._waiting = 0

    def watch(self) -> dict[str, Json]:
        """Returns the timeline, and keeps the probe running for a while."""
        self._running.deadline = trio.current_time() + UNWATCHED_S
        self._watched.set()
        return {**self.timeline.document(_now_ms()), "trouble": "; ".join(self._troubles.values()), "topic": TOPIC}

    def did(self, sentence: str, began_ms: float | None = None) -> None:
        """Notes what the user did to a node, at the time at which it began (default: now)."""
        self.timeline.fault(_now_ms() if began_ms is None else began_ms, sentence)

    async def run(self) -> None:
        """Runs the probe whenever it is watched, until cancelled."""
        while True:
            await self._watched.wait()
            self._running = trio.CancelScope(deadline=trio.current_time() + UNWATCHED_S)
            with self._running:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._look_at_processes)
                    nursery.start_soon(self._look_at_quorum)
                    nursery.start_soon(self._write_and_follow)
            # A page that is opened later must not show a leader of the past: its buttons would strike another node.
            self.timeline, self._troubles = Timeline(self._nodes.kinds), {}
            self._watched = trio.Event()

    async def _look_at_processes(self) -> None:
        while True:
            try:
                states = await self._nodes.states()
                ended = [node for node, state in states.items() if state == "stopped" and self.timeline.is_up(node)]
                words = {node: await self._nodes.last_words(node) for node in ended}
                self.timeline.saw_processes(_now_ms(), states, words)
                self._troubles.pop(_PROCESSES, None)
            except LauncherError as error:
                self._troubles[_PROCESSES] = str(error)
            await trio.sleep(LOOK_EVERY_S)

    async def _look_at_quorum(self) -> None:
        while True:
            try:
                with trio.move_on_after(ANSWER_S):
                    quorum = await self._identity.quorum_admin.describe_quorum()
                    self.timeline.saw_quorum(_now_ms(), quorum.leader_id, quorum.leader_epoch)
                    self._troubles.pop(_QUORUM, None)
            except KafkaError as error:
                self._troubles[_QUORUM] = f"quorum: {error.message}"
            await trio.sleep(2 * LOOK_EVERY_S)

    async def _write_and_follow(self) -> None:
        while True:
            if await self._topic_exists():
                break
            await trio.sleep(RETRY_S)
        config = writing_config(self._identity.settings, DELIVERY_TIMEOUT_MS)
        async with (
            self._new_producer(config) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._follow_partition)
            self._waiting = 0
            while True:
                if self._waiting < UNACKNOWLEDGED_MAX:
                    await self._write(producer, nursery)
                await trio.sleep(WRITE_EVERY_S)

    def _new_producer(self, config: dict[str, str]) -> Producer:
        from moldau import Producer

        return Producer(config, environment=self._identity.environment)

    async def _write(self, producer: Producer, nursery: trio.Nursery) -> None:
        sent_ms = _now_ms()
        try:
            delivery = await producer.send(TOPIC, b"probe", partition=0)
        except KafkaError as error:
            self.timeline.failed(_now_ms(), error.message)
            return
        self.timeline.sent()
        self._waiting += 1
        nursery.start_soon(self._await_outcome, delivery, sent_ms)

    async def _await_outcome(self, delivery: Delivery, sent_ms: float) -> None:
        try:
            await delivery
        except KafkaError as error:
            self.timeline.failed(_now_ms(), error.message)
        else:
            broker = delivery.acknowledged_by
            self.timeline.acknowledged(_now_ms(), sent_ms, -1 if broker is None else broker[0])
        finally:
            self._waiting -= 1

    async def _topic_exists(self) -> bool:
        brokers = sum(kind == "broker" for kind in self._nodes.kinds.values())
        replicas = min(3, brokers)
        configs = {**TOPIC_CONFIGS, "min.insync.replicas": str(max(1, replicas - 1))}
        wanted = NewTopic(name=TOPIC, partitions=1, replication_factor=replicas, configs=configs)
        try:
            await self._identity.admin.create_topics([wanted])
        except AdminError as error:
            if all(one.code is ErrorCode.TOPIC_ALREADY_EXISTS for one in error.failures.values()):
                return True
            self._troubles[TOPIC] = f"topic {TOPIC}: {'; '.join(one.message for one in error.failures.values())}"
            return False
        except KafkaError as error:
            self._troubles[TOPIC] = f"topic {TOPIC}: {error.message}"
            return False
        return True

    async def _follow_partition(self) -> None:
        while True:
            try:
                with trio.fail_after(ANSWER_S):
                    described = (await self._identity.admin.describe_topics([TOPIC]))[TOPIC].partitions[0]
                    self._troubles.pop(TOPIC, None)
                    view = PartitionView(
                        leader=described.leader,
                        leader_epoch=described.leader_epoch,
                        replicas=described.replicas,
                        isr=described.isr,
                    )
                    self.timeline.saw_partition(_now_ms(), view)
            except KafkaError as error:
                self._troubles[TOPIC] = f"topic {TOPIC}: {error.message}"
            except trio.TooSlowError:
                self._troubles[TOPIC] = f"topic {TOPIC}: no broker describes it within {ANSWER_S:g} s"
            await trio.sleep(LOOK_EVERY_S)
