"""Runs a member that subscribes by a regular expression while topics that match it are created.

The broker resolves the expression (KIP-848). The member reads nothing; it speaks the protocol itself, because clients
hide which side resolves. At the end, when faults are over, one more topic is created: the member must own all
partitions of all matching topics.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau_jepsen.workloads.questions import TIMEOUT_MS, Questions

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.questions import Nodes

GROUP = "regex-members"
PREFIX = "matched-"
LAST = f"{PREFIX}last"
"""A topic that is created when all faults are over, and the member has long been at rest."""
BEAT_S = 0.4
DEFAULT_REPLICAS = -1
"""Lets the cluster choose: its default is three replicas, if it has as many brokers."""
TOPICS_MAX = 3
TOPIC_EVERY_S = 4.0
_METADATA_VERSION = 12
_FIND_VERSION = 4
_HEARTBEAT_VERSION = 1


class RegexMember:
    """The only member of its group; its next membership has the same member id."""

    def __init__(self, nodes: Nodes, environment: Environment) -> None:
        """Asks nothing before `run`."""
        self._nodes = nodes
        self._environment = environment
        self._questions = Questions(environment, nodes, "regex-member", keeps_connections=True)
        self._stopping = trio.Event()
        self._member_id = f"{environment.random.getrandbits(128):032x}"
        self._epoch = 0
        self._owned: frozenset[tuple[UUID, int]] = frozenset()
        self._coordinator: int | None = None
        self.stuck: str | None = None
        """The topics that the member lacked at the end, if any."""

    def stop(self) -> None:
        """Creates no more topics; the member ends once it owns what it must own."""
        self._stopping.set()

    async def run(self, seconds: float) -> None:
        """Works until ``stop``, and then at most ``seconds`` until the member owns everything that matches."""
        if importlib.util.find_spec("re2") is None:
            return  # brokers refuse regular expressions
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._create_topics)
                nursery.start_soon(self._beat_forever)
                await self._stopping.wait()
                with trio.move_on_after(seconds) as scope:
                    is_complete = False
                    while not is_complete:
                        await self._create(LAST)
                        await trio.sleep(BEAT_S)
                        is_complete = await self._is_complete()
                if scope.cancelled_caught:
                    self.stuck = (
                        f"the member of group {GROUP} owns {len(self._owned)} partitions in epoch {self._epoch}, and "
                        f"not all of the topics {PREFIX}.*, {seconds:g} s after they were created"
                    )
                nursery.cancel_scope.cancel()
        finally:
            self._questions.close()

    async def _is_complete(self) -> bool:
        answer = await self._questions.ask(
            self._any_broker(), MetadataResponse, MetadataRequest(topics=None), _METADATA_VERSION
        )
        if answer is None:
            return False
        wanted = frozenset(
            (topic.topic_id, partition.partition_index)
            for topic in answer.topics
            if topic.name is not None and topic.name.startswith(PREFIX)
            for partition in topic.partitions
        )
        is_created = any(topic.name == LAST and topic.partitions for topic in answer.topics)
        return is_created and wanted == self._owned

    async def _create_topics(self) -> None:
        draw = self._environment.random
        for number in range(TOPICS_MAX):
            await trio.sleep(draw.expovariate(1 / TOPIC_EVERY_S))
            if self._stopping.is_set():
                return
            await self._create(f"{PREFIX}{number}")

    async def _create(self, name: str) -> None:
        """Asks for a topic; metadata show the outcome."""
        # One replica could be placed on a broker that is about to stay outside of the core which is healed first.
        topic = CreatableTopic(name=name, num_partitions=2, replication_factor=DEFAULT_REPLICAS)
        request = CreateTopicsRequest(timeout_ms=TIMEOUT_MS, topics=[topic])
        await self._questions.ask(self._any_broker(), CreateTopicsResponse, request)

    def _any_broker(self) -> int:
        return self._environment.random.choice(self._nodes.broker_ids)

    async def _beat_forever(self) -> None:
        while True:
            if self._coordinator is None:
                self._coordinator = await self._found()
            else:
                await self._beat(self._coordinator)
            await trio.sleep(BEAT_S)

    async def _found(self) -> int | None:
        answer = await self._questions.ask(
            self._any_broker(),
            FindCoordinatorResponse,
            FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]),
            _FIND_VERSION,
        )
        if answer is None or answer.coordinators[0].error_code != ErrorCode.NONE:
            return None
        return answer.coordinators[0].node_id

    async def _beat(self, coordinator: int) -> None:
        if self._epoch == 0:
            self._owned = frozenset()
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=5_000,
            subscribed_topic_names=[],
            subscribed_topic_regex=f"{PREFIX}.*",
            topic_partitions=[
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=[number])
                for topic_id, number in sorted(self._owned)
            ],
        )
        answer = await self._questions.ask(coordinator, ConsumerGroupHeartbeatResponse, request, _HEARTBEAT_VERSION)
        if answer is None:
            self._coordinator = None
            return
        if answer.error_code in (
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            self._epoch = 0
        elif answer.error_code != ErrorCode.NONE:
            self._coordinator = None
        else:
            self._epoch = answer.member_epoch
            if answer.assignment is not None:
                self._owned = frozenset(
                    (topic.topic_id, number)
                    for topic in answer.assignment.topic_partitions
                    for number in topic.partitions
                )
