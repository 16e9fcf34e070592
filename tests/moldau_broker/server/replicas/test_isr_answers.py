"""Goal: a proposed ISR is sent again until the controller has answered it.

Method: the task that sends proposals, with a controller that leaves the partition out of its first answers; virtual
time.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from moldau.values import BrokerId, LeaderEpoch
from moldau_broker.log.values import TopicPartition
from moldau_broker.replication.alter_partition import AlterPartitionQueue
from moldau_broker.replication.replica import NO_EFFECTS, IsrProposal
from moldau_broker.server.replicas.isr import IsrAlterations
from moldau_jepsen.world.world import run_world

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

KEY, TOPIC_ID = TopicPartition("t", 3), UUID(int=7)
BACKOFF_MS = 50.0
PROPOSAL = IsrProposal(
    isr=(BrokerId(1), BrokerId(2)),
    broker_epochs=(5, 6),
    leader_epoch=LeaderEpoch(4),
    partition_epoch=9,
    joining=BrokerId(2),
)


class Controller:
    """Answers without the partition until it was asked ``silent`` times."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.asked: list[float] = []

    async def request(self, request: AlterPartitionRequest, response_class: type, *, timeout_ms: float) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked.append(trio.current_time())
        (topic,) = request.topics
        assert (topic.topic_id, topic.partitions[0].partition_index) == (TOPIC_ID, KEY.partition)
        if len(self.asked) <= self.silent:
            return AlterPartitionResponse()
        answer = AlterPartitionResponsePartitionData(partition_index=KEY.partition)
        return AlterPartitionResponse(topics=[AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])])


def test_a_partition_without_an_answer_is_proposed_again() -> None:
    """The replica waits for the outcome of its proposal and makes no other, so nothing else would change the ISR."""
    answered: list[IsrProposal] = []

    def alter_answered(proposal: IsrProposal, *_: object) -> Any:
        answered.append(proposal)
        return NO_EFFECTS

    async def main(world: World) -> list[float]:
        controller: Any = Controller(silent=2)
        clock = world.node("broker").environment.clock
        replica = SimpleNamespace(alter_answered=alter_answered, proposal=PROPOSAL)
        partition = SimpleNamespace(topic_id=TOPIC_ID, replica=replica)
        replicas: Any = SimpleNamespace(
            partitions={KEY: partition},
            alterations=AlterPartitionQueue(partitions_max=10, backoff_ms=BACKOFF_MS),
            eligible={},
            perform=lambda *_: None,
        )
        replicas.alterations.submit(KEY, PROPOSAL)
        alterations = IsrAlterations(clock, BrokerId(1), controller, lambda: 5)
        with trio.move_on_after(10):
            await alterations.run(replicas)
        return controller.asked

    asked = run_world(main, 1)
    assert answered == [PROPOSAL]
    assert len(asked) == 3
    assert all(later - earlier >= BACKOFF_MS / 1_000 for earlier, later in pairwise(asked))
