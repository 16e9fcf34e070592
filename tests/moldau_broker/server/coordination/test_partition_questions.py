"""Goal: questions to a coordinator share requests, one at a time for each broker, and each gets its own answer.

Method: the questions of several tasks against a coordinator in memory, on virtual time.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from moldau_broker.server.coordination import partition_questions
from moldau_broker.server.coordination.partition_questions import PartitionQuestions


def transaction(name: str, *partitions: int) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=1,
        producer_epoch=0,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
    )


class Coordinators:
    """Answer after a second, partition by partition with its number as the code."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[str]]] = []
        self.error: Exception | None = None
        self.code = ErrorCode.NONE
        self.in_flight: dict[int, int] = {}

    async def send(self, broker_id, request):
        self.asked.append((broker_id, [one.transactional_id for one in request.transactions]))
        assert not self.in_flight.get(broker_id), "one request at a time"
        self.in_flight[broker_id] = 1
        try:
            await trio.sleep(1)
        finally:
            self.in_flight[broker_id] = 0
        if self.error is not None:
            raise self.error
        return AddPartitionsToTxnResponse(
            error_code=self.code,
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=index)
                                for index in topic.partitions
                                if index < 100
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in request.transactions
                if not self.code
            ],
        )


def run(scenario) -> None:
    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))


def test_waiting_questions_leave_together() -> None:
    async def scenario() -> None:
        coordinators = Coordinators()
        questions = PartitionQuestions(coordinators.send)
        answers: dict[str, dict] = {}

        async def ask(broker_id: int, name: str, *partitions: int) -> None:
            answers[name] = await questions.ask(broker_id, transaction(name, *partitions))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 1, "a", 0)
            await trio.sleep(0.1)
            for name, partition in (("b", 0), ("c", 3), ("d", 100)):
                nursery.start_soon(ask, 1, name, partition)
            nursery.start_soon(ask, 2, "e", 6)
        assert next(names for broker_id, names in coordinators.asked if broker_id == 1) == ["a"]
        assert sorted(coordinators.asked[-1][1]) == ["b", "c", "d"]
        assert len(coordinators.asked) == 3
        assert answers["b"] == {("t", 0): ErrorCode.NONE}
        assert answers["c"] == {("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert answers["d"] == {("t", 100): ErrorCode.NETWORK_EXCEPTION}, "it was not answered"
        assert answers["e"] == {("t", 6): ErrorCode.NOT_LEADER_OR_FOLLOWER}

    run(scenario)


def test_a_transactional_id_is_named_once_in_a_request() -> None:
    async def scenario() -> None:
        coordinators = Coordinators()
        questions = PartitionQuestions(coordinators.send)
        async with trio.open_nursery() as nursery:
            for partition in range(3):
                nursery.start_soon(questions.ask, 1, transaction("same", partition))
        assert coordinators.asked == [(1, ["same"])] * 3

    run(scenario)


@pytest.mark.parametrize("error", [OSError("gone"), trio.TooSlowError("late"), KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)])
def test_a_missing_answer_fails_all_questions(error: Exception) -> None:
    async def scenario() -> None:
        coordinators = Coordinators()
        coordinators.error = error
        questions = PartitionQuestions(coordinators.send)
        assert await questions.ask(1, transaction("a", 0, 1)) == {
            ("t", 0): ErrorCode.NETWORK_EXCEPTION,
            ("t", 1): ErrorCode.NETWORK_EXCEPTION,
        }
        coordinators.error, coordinators.code = None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await questions.ask(1, transaction("a", 0)) == {("t", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED}

    run(scenario)


def test_a_failed_request_ends_the_questions_in_it_only() -> None:
    """One that waits for the next request may find the coordinator again."""

    async def scenario() -> None:
        coordinators = Coordinators()
        coordinators.error = OSError("gone")
        questions = PartitionQuestions(coordinators.send)
        answers: dict[int, dict] = {}

        async def ask(partition: int) -> None:
            answers[partition] = await questions.ask(1, transaction("same", partition))

        async with trio.open_nursery() as nursery:
            for partition in (0, 3):
                nursery.start_soon(ask, partition)
            await trio.sleep(1.5)
            coordinators.error = None
        assert sorted(answers.items()) in (
            [(0, {("t", 0): ErrorCode.NETWORK_EXCEPTION}), (3, {("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})],
            [(0, {("t", 0): ErrorCode.NONE}), (3, {("t", 3): ErrorCode.NETWORK_EXCEPTION})],
        )

    run(scenario)


def test_a_cancelled_sender_leaves_the_others_their_turn() -> None:
    async def scenario() -> None:
        coordinators = Coordinators()
        questions = PartitionQuestions(coordinators.send)
        done: list[str] = []

        async def ask(name: str) -> None:
            await questions.ask(1, transaction(name, 0))
            done.append(name)

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.5):
                async with trio.open_nursery() as first:
                    first.start_soon(ask, "first")
                    await trio.sleep(0.1)
                    nursery.start_soon(ask, "second")
                    await trio.sleep(5)
        assert done == ["second"]
        assert coordinators.asked == [(1, ["first"]), (1, ["second"])]

    run(scenario)


def test_waiting_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_questions, "WAITING_MAX", 2)

    async def scenario() -> None:
        questions = PartitionQuestions(Coordinators().send)
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(questions.ask, 1, transaction(name, 0))
            await trio.sleep(0.1)
            assert await questions.ask(1, transaction("c", 0)) == {("t", 0): ErrorCode.NETWORK_EXCEPTION}

    run(scenario)
