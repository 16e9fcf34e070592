"""Goal: a proposed ISR is sent again until the controller has answered it.

Method: the task that sends proposals, with a controller that leaves the partition out of its first answers, or does not
answer; virtual time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from moldau.values import BrokerId, LeaderEpoch, Offset
from moldau_broker.log.values import TopicPartition
from moldau_broker.replication.alter_partition import AlterPartitionQueue
from moldau_broker.replication.replica import (
    NO_EFFECTS,
    IsrProposal,
    PartitionState,
    Replica,
    ReplicaEffects,
)
from moldau_broker.server.replicas.isr import IsrAlterations, IsrStatistics
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

KEY, TOPIC_ID = TopicPartition("t", 3), UUID(int=7)
BACKOFF_MS = 50.0
UNKNOWN_CODE = 9_999
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
        replica = SimpleNamespace(
            alter_answered=alter_answered, alter_unanswered=lambda proposal: None, proposal=PROPOSAL
        )
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


def test_proposals_that_all_came_too_late_hold_up_no_others() -> None:
    """Newer metadata resolve a proposal before its turn; the next one is sent all the same."""
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 1_000 * trio.current_time())

    async def main(world: World) -> list[float]:
        controller: Any = Controller(silent=0)
        replica = SimpleNamespace(alter_answered=lambda *_: NO_EFFECTS, proposal=None)
        replicas: Any = SimpleNamespace(
            partitions={KEY: SimpleNamespace(topic_id=TOPIC_ID, replica=replica)},
            alterations=AlterPartitionQueue(partitions_max=10, backoff_ms=BACKOFF_MS),
            eligible={},
            perform=lambda *_: None,
        )
        replicas.alterations.submit(KEY, replace(PROPOSAL, partition_epoch=8))
        alterations = IsrAlterations(clock, BrokerId(1), controller, lambda: 5)
        with trio.move_on_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(alterations.run, replicas)
                await trio.sleep(1)
                assert controller.asked == []
                replica.proposal = PROPOSAL
                replicas.alterations.submit(KEY, PROPOSAL)
                alterations.notify()
        return controller.asked

    assert len(run_world(main, 1)) == 1


@pytest.mark.parametrize("deleted", [False, True])
def test_an_answer_is_taken_once_and_by_its_partition_alone(deleted: bool) -> None:
    """Answers of other partitions, a second one, and one that comes too late end neither the task nor the broker."""
    answered: list[IsrProposal] = []

    def alter_answered(proposal: IsrProposal, *_: object) -> ReplicaEffects:
        answered.append(proposal)
        return NO_EFFECTS

    async def main(world: World) -> None:
        replica = SimpleNamespace(alter_answered=alter_answered, proposal=PROPOSAL)
        replicas: Any = SimpleNamespace(
            partitions={KEY: SimpleNamespace(topic_id=TOPIC_ID, replica=replica)},
            alterations=AlterPartitionQueue(partitions_max=10, backoff_ms=BACKOFF_MS),
            eligible={},
            perform=lambda *_: None,
        )

        async def request(*_: object, **__: object) -> AlterPartitionResponse:
            await trio.lowlevel.checkpoint()
            if deleted:
                replicas.partitions.clear()
            indexes = (KEY.partition + 1, KEY.partition, KEY.partition)
            answers = [AlterPartitionResponsePartitionData(partition_index=index) for index in indexes]
            return AlterPartitionResponse(
                topics=[
                    AlterPartitionResponseTopicData(topic_id=topic_id, partitions=answers)
                    for topic_id in (UUID(int=8), TOPIC_ID)
                ]
            )

        replicas.alterations.submit(KEY, PROPOSAL)
        controller: Any = SimpleNamespace(request=request)
        with trio.move_on_after(10):
            await IsrAlterations(world.node("broker").environment.clock, BrokerId(1), controller, lambda: 5).run(
                replicas
            )

    run_world(main, 1)
    assert answered == ([] if deleted else [PROPOSAL])


@pytest.mark.parametrize(
    "first",
    ["no answer", "an error of the whole request", "an unknown error", "an answer without the partition"],
)
def test_a_proposal_without_an_outcome_is_never_dropped(first: str) -> None:
    """The controller may have admitted the replica, so acknowledged records need it until metadata say otherwise.

    The answer to a repetition tells nothing of the first attempt (KIP-497): the leader would advance the high watermark
    without a replica that can be elected.
    """
    one, two, end = BrokerId(1), BrokerId(2), Offset(1)
    leader = Replica(one, high_watermark=end, log_end_offset=end, lag_time_max_ms=1e9, min_insync_replicas=1)
    epoch = LeaderEpoch(1)
    alone = PartitionState(
        leader=one, leader_epoch=epoch, partition_epoch=1, replicas=(one, two), isr=(one,), recovering=False
    )
    leader.apply(alone, end, 0)
    eligible = {one: 10, two: 20}
    proposal = leader.followed(two, 20, end, Offset(0), 0, eligible).proposal
    assert proposal is not None
    asked: list[float] = []

    async def request(request: AlterPartitionRequest, *_: object, **__: object) -> AlterPartitionResponse:
        await trio.lowlevel.checkpoint()
        asked.append(trio.current_time())
        if len(asked) == 1 and first == "no answer":
            raise ControllerUnavailableError
        if len(asked) == 1 and first == "an error of the whole request":
            return AlterPartitionResponse(error_code=UNKNOWN_CODE)
        if len(asked) == 1 and first == "an answer without the partition":
            return AlterPartitionResponse()
        unknown = len(asked) == 1  # of a controller that is newer than this broker
        answer = AlterPartitionResponsePartitionData(
            partition_index=KEY.partition, error_code=UNKNOWN_CODE if unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
        )
        return AlterPartitionResponse(topics=[AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])])

    async def main(world: World) -> None:
        queue = AlterPartitionQueue(partitions_max=10, backoff_ms=BACKOFF_MS)

        def perform(_: object, effects: ReplicaEffects) -> None:
            if effects.proposal is not None:
                queue.submit(KEY, effects.proposal)

        replicas: Any = SimpleNamespace(
            partitions={KEY: SimpleNamespace(topic_id=TOPIC_ID, replica=leader)},
            alterations=queue,
            eligible=eligible,
            perform=perform,
        )
        queue.submit(KEY, proposal)
        controller: Any = SimpleNamespace(request=request)
        clock = world.node("broker").environment.clock
        with trio.move_on_after(1):
            await IsrAlterations(clock, BrokerId(1), controller, lambda: 5).run(replicas)

    run_world(main, 1)
    assert len(asked) > 2
    assert leader.proposal is proposal
    leader.log_end_moved(Offset(2), 0, eligible)
    assert (leader.maximal_isr, leader.high_watermark) == ((1, 2), 1)


ACCEPTED, REFUSED, UNANSWERED, FAILED = "accepted", "refused", "unanswered", "failed as a whole"


def shrink() -> IsrProposal:
    return proposed_by_leader(recovering=False, now_ms=9_000)


def report_recovery() -> IsrProposal:
    return proposed_by_leader(recovering=True, now_ms=1)


def proposed_by_leader(*, recovering: bool, now_ms: float) -> IsrProposal:
    one, two = BrokerId(1), BrokerId(2)
    leader = Replica(
        one, high_watermark=Offset(0), log_end_offset=Offset(1), lag_time_max_ms=8_000, min_insync_replicas=1
    )
    isr = (one,) if recovering else (one, two)
    state = PartitionState(
        leader=one, leader_epoch=LeaderEpoch(1), partition_epoch=1, replicas=(one, two), isr=isr, recovering=recovering
    )
    leader.apply(state, Offset(1), 0)
    proposal = leader.tick(now_ms, {one: 5, two: 6}).proposal
    assert proposal is not None
    return proposal


@pytest.mark.parametrize(
    ("proposal", "shrinks", "expands"), [(PROPOSAL, 0, 1), (shrink(), 1, 0), (report_recovery(), 0, 0)]
)
def test_each_outcome_of_a_proposal_is_counted_once(proposal: IsrProposal, shrinks: int, expands: int) -> None:
    """Operators see the counts as IsrShrinksPerSec, IsrExpandsPerSec and FailedIsrUpdatesPerSec.

    A leader that reports its recovery proposes the ISR that it has. A bug counted that as a removal.
    """

    async def counted(world: World, outcomes: tuple[str, ...]) -> IsrStatistics:
        queue = AlterPartitionQueue(partitions_max=10, backoff_ms=BACKOFF_MS)
        left = list(outcomes)

        async def request(*_: object, **__: object) -> AlterPartitionResponse:
            await trio.lowlevel.checkpoint()
            if not left:
                await trio.sleep_forever()
            outcome = left.pop(0)
            if outcome == UNANSWERED:
                raise ControllerUnavailableError
            if outcome == FAILED:
                return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
            code = ErrorCode.NONE if outcome == ACCEPTED else ErrorCode.INELIGIBLE_REPLICA
            answer = AlterPartitionResponsePartitionData(partition_index=KEY.partition, error_code=code)
            topic = AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])
            return AlterPartitionResponse(topics=[topic])

        replica = SimpleNamespace(
            proposal=proposal,
            alter_answered=lambda *_: ReplicaEffects(proposal=proposal),  # it proposes the same once more
            alter_unanswered=lambda _: None,
        )
        replicas: Any = SimpleNamespace(
            partitions={KEY: SimpleNamespace(topic_id=TOPIC_ID, replica=replica)},
            alterations=queue,
            eligible={},
            perform=lambda _, effects: queue.submit(KEY, effects.proposal),
        )
        queue.submit(KEY, proposal)
        controller: Any = SimpleNamespace(request=request)
        alterations = IsrAlterations(world.node("broker").environment.clock, BrokerId(1), controller, lambda: 5)
        with trio.move_on_after(10):
            await alterations.run(replicas)
        assert not left
        return alterations.statistics()

    async def main(world: World) -> None:
        for outcomes in product((ACCEPTED, REFUSED, UNANSWERED, FAILED), repeat=3):
            accepted = outcomes.count(ACCEPTED)
            assert await counted(world, outcomes) == IsrStatistics(
                shrinks=shrinks * accepted, expands=expands * accepted, failed=len(outcomes) - accepted
            ), outcomes

    run_world(main, 1)
