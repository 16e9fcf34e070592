"""Goal: an ISR whose request failed takes the place of no newer one, of the same topic or of the next of its name.

Method: the task that sends proposals, with a controller that fails once, during which the topic is created again, or
newer metadata arrive.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from moldau.values import BrokerId, LeaderEpoch
from moldau_broker.log.values import TopicPartition
from moldau_broker.replication.alter_partition import AlterPartitionQueue
from moldau_broker.replication.replica import IsrProposal
from moldau_broker.server.replicas.isr import IsrAlterations
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

KEY = TopicPartition("t", 0)
PROPOSAL = IsrProposal(
    isr=(BrokerId(1), BrokerId(2)),
    broker_epochs=(5, 6),
    leader_epoch=LeaderEpoch(0),
    partition_epoch=0,
    joining=BrokerId(2),
)


def replica_of(topic: int, proposal: IsrProposal | None) -> Any:
    return SimpleNamespace(
        topic_id=UUID(int=topic), replica=SimpleNamespace(proposal=proposal, alter_unanswered=lambda _: None)
    )


def test_the_proposal_of_a_deleted_topic_is_not_sent_again() -> None:
    """The epochs of a new topic begin at 0 again, so the controller would admit a replica without its records."""
    asked: list[AlterPartitionRequest] = []

    async def main(world: World) -> None:
        replicas: Any = SimpleNamespace(
            partitions={KEY: replica_of(1, PROPOSAL)},
            alterations=AlterPartitionQueue(partitions_max=10, backoff_ms=50.0),
        )

        async def request(request: AlterPartitionRequest, *_: object, **__: object) -> AlterPartitionResponse:
            await trio.lowlevel.checkpoint()
            asked.append(request)
            if len(asked) == 1:
                replicas.alterations.withdraw(KEY)
                replicas.partitions[KEY] = replica_of(2, None)
                raise ControllerUnavailableError
            return AlterPartitionResponse()

        replicas.alterations.submit(KEY, PROPOSAL)
        controller: Any = SimpleNamespace(request=request)
        clock = world.node("broker").environment.clock
        with trio.move_on_after(10):
            await IsrAlterations(clock, BrokerId(1), controller, lambda: 5).run(replicas)
        fresh = IsrProposal(
            isr=(BrokerId(1),), broker_epochs=(5,), leader_epoch=LeaderEpoch(0), partition_epoch=1, joining=BrokerId(-1)
        )
        replicas.partitions[KEY].replica.proposal = fresh
        replicas.alterations.submit(KEY, fresh)
        with trio.move_on_after(0.01):
            await IsrAlterations(clock, BrokerId(1), controller, lambda: 5).run(replicas)

    run_world(main, 1)
    assert [[(topic.topic_id.int, len(topic.partitions)) for topic in each.topics] for each in asked] == [
        [(1, 1)],
        [(2, 1)],
    ]
    assert asked[1].topics[0].partitions[0].partition_epoch == 1


def test_a_newer_proposal_outlives_the_failure_of_an_older_one() -> None:
    """Metadata resolve the first one before its request fails. The replica waits for the second, and makes no third."""
    newer = replace(PROPOSAL, isr=(BrokerId(1),), broker_epochs=(5,), partition_epoch=1, joining=BrokerId(-1))
    asked: list[int] = []

    async def main(world: World) -> None:
        replicas: Any = SimpleNamespace(
            partitions={KEY: replica_of(1, PROPOSAL)},
            alterations=AlterPartitionQueue(partitions_max=10, backoff_ms=50.0),
        )

        async def request(request: AlterPartitionRequest, *_: object, **__: object) -> AlterPartitionResponse:
            await trio.lowlevel.checkpoint()
            asked.extend(each.partition_epoch for topic in request.topics for each in topic.partitions)
            if len(asked) == 1:
                replicas.partitions[KEY].replica.proposal = newer
                replicas.alterations.submit(KEY, newer)
                raise ControllerUnavailableError
            await trio.sleep_forever()

        replicas.alterations.submit(KEY, PROPOSAL)
        controller: Any = SimpleNamespace(request=request)
        clock = world.node("broker").environment.clock
        with trio.move_on_after(10):
            await IsrAlterations(clock, BrokerId(1), controller, lambda: 5).run(replicas)

    run_world(main, 1)
    assert asked == [0, 1]
