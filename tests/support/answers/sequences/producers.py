"""Idempotent producers: repeated batches, gaps, epochs, and logs that lose records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from support.answers.records import batch, deletion, produce
from support.answers.topics import deleted, made
from support.answers.transactions import begin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.answers.session import AnswerSession

LAST: Final = 2**31 - 1
"""The last sequence."""
LAST_EPOCH: Final = 2**15 - 1


class Batches:
    """Batches of one producer to one partition. Of an answer the code and the offset are kept."""

    def __init__(self, session: AnswerSession, topic: str, producer_id: int, epoch: int = 0) -> None:
        """The partition is 0."""
        self._session = session
        self._topic = topic
        self._producer_id = producer_id
        self._epoch = epoch

    async def send(self, step: str, sequence: int, count: int = 1, *, acks: int = -1, **fields: Any) -> None:
        """Sends a batch, with the producer's id and epoch if ``fields`` names no others."""
        named = {"producer_id": self._producer_id, "producer_epoch": self._epoch, **fields}
        request = produce(self._topic, (0, batch(count, base_sequence=sequence, **named)), acks=acks)
        answer = await self._session.ask(step, request, 12)
        if isinstance(answer, str):
            return
        [part] = answer.responses[0].partition_responses
        self._session.answers[step] = [self._session.comparable(part.error_code, "error_code"), part.base_offset]

    async def send_all(self, prefix: str, batches: Sequence[tuple[str, int, int]], **fields: Any) -> None:
        """Sends batches one by one; each has a name, a sequence, and a number of records."""
        for step, sequence, count in batches:
            await self.send(f"{prefix}: {step}", sequence, count, **fields)

    async def describe(self, step: str) -> None:
        """Asks what the log keeps of its producers."""
        topics = [TopicRequest(name=self._topic, partition_indexes=[0])]
        await self._session.ask(step, DescribeProducersRequest(topics=topics))


async def _producer_id(session: AnswerSession, step: str) -> int:
    answer = await session.ask(step, begin(None))
    producer_id: int = answer.producer_id
    return producer_id


async def producers(session: AnswerSession) -> None:
    """Writes as a producer that sends again, loses batches, and begins again."""
    await _repeated(session)
    await _epochs(session)
    await _malformed(session)
    await _forgotten(session)
    await _topic_made_again(session)


async def _repeated(session: AnswerSession) -> None:
    name, _ = await made(session, "repeated")
    mine = Batches(session, name, await _producer_id(session, "an id for repetitions"))
    await mine.send_all("write", [(f"batch {number}", 2 * number, 2) for number in range(7)])
    await mine.send_all("write again", [(f"batch {number}", 2 * number, 2) for number in reversed(range(7))])
    cases = [
        ("half of the newest", 12, 1),
        ("the second half of the newest", 13, 1),
        ("the newest and one more", 12, 3),
        ("two batches as one", 10, 4),
        ("one in front of the next", 15, 1),
        ("the first of all, as one", 0, 1),
        ("from 0, with more records", 0, 20),
        ("the next", 14, 1),
        ("far ahead", 1_000_000, 1),
        ("the last sequence", LAST, 1),
    ]
    await mine.send_all("write", cases)
    await mine.send("the newest again, with acks=1", 14, acks=1)
    await mine.send("a gap, with acks=1", 20, acks=1)
    await mine.describe("the producer that repeats")
    other = Batches(session, name, await _producer_id(session, "another id"))
    await other.send_all("another producer", [("from 0", 0, 1), ("again", 0, 1), ("the next", 1, 1)])
    await mine.send("the first again, after another producer", 14, 1)
    two = [batch(producer_id=mine._producer_id, producer_epoch=0, base_sequence=number) for number in (15, 16)]
    await session.ask("two partitions, of which one has a gap", produce(name, (0, two[1]), (9, two[0])), 12)


async def _epochs(session: AnswerSession) -> None:
    name, _ = await made(session, "epochs")
    producer_id = await _producer_id(session, "an id for epochs")
    mine = Batches(session, name, producer_id)
    await mine.send_all("epoch 0", [("from 0", 0, 1), ("the next", 1, 1)])
    for step, epoch, sequence in (
        ("epoch 5 from 2", 5, 2),
        ("epoch 5 from 0", 5, 0),
        ("epoch 5 from 0 again", 5, 0),
        ("epoch 0, again", 0, 1),
        ("epoch 4 from 0", 4, 0),
        ("epoch 5, the next", 5, 1),
        ("epoch -1", -1, 2),
        ("the last epoch from 1", LAST_EPOCH, 1),
        ("the last epoch from 0", LAST_EPOCH, 0),
        ("the last epoch, the next", LAST_EPOCH, 1),
    ):
        await mine.send(step, sequence, producer_epoch=epoch)
    await mine.describe("the producer of epochs")
    for step, fields in {
        "the epoch": {"producer_epoch": 0},
        "the last epoch": {"producer_epoch": LAST_EPOCH},
        "epoch -1": {"producer_epoch": -1},
    }.items():
        answer = await session.ask(f"begin again with {step}", begin(None, producer_id=producer_id, **fields), 5)
        session.answers[f"begin again with {step}"] = [
            session.comparable(answer.error_code, "error_code"),
            answer.producer_epoch,
            answer.producer_id == producer_id,
        ]


async def _malformed(session: AnswerSession) -> None:
    name, _ = await made(session, "malformed")
    mine = Batches(session, name, await _producer_id(session, "an id for bad batches"))
    await mine.send("well-formed", 0)
    for step, sequence, fields in (
        ("no sequence", -1, {}),
        ("sequence -2", -2, {}),
        ("no producer, but a sequence", 0, {"producer_id": -1, "producer_epoch": -1}),
        ("no producer, but an epoch", -1, {"producer_id": -1}),
        ("producer -2", 0, {"producer_id": -2}),
        ("producer 2^63-1", 0, {"producer_id": 2**63 - 1}),
        ("epoch -2", 1, {"producer_epoch": -2}),
        ("a control batch of the producer", 1, {"is_control": True}),
        ("a transactional batch of the producer", 1, {"is_transactional": True}),
    ):
        await mine.send(step, sequence, **fields)


async def _forgotten(session: AnswerSession) -> None:
    name, _ = await made(session, "shortened")
    producer_id = await _producer_id(session, "an id for a log that is shortened")
    mine = Batches(session, name, producer_id)
    await mine.send_all("before the deletion", [("from 0", 0, 2), ("the next", 2, 2)])
    await session.ask("delete some records", deletion(name, 0, 2))
    await mine.send_all("records deleted", [("the deleted batch again", 0, 2), ("the kept one again", 2, 2)])
    await session.ask("delete all records", deletion(name, 0, -1))
    await mine.send_all("all deleted", [("the last again", 2, 2), ("a gap", 6, 1), ("the next", 4, 1)])
    await mine.describe("the producer of a shortened log")
    await session.ask("delete all records again", deletion(name, 0, -1))
    await mine.send("epoch 1 from 5, all deleted", 5, producer_epoch=1)
    await mine.send("epoch 1 from 0, all deleted", 0, producer_epoch=1)
    unknown = Batches(session, name, producer_id + 70_000)
    await unknown.send_all("unknown in a shortened log", [("from 7", 7, 1), ("from 0", 0, 1), ("the next", 1, 1)])


async def _topic_made_again(session: AnswerSession) -> None:
    name, first_id = await made(session, "made-again")
    producer_id = await _producer_id(session, "an id for a topic made again")
    mine = Batches(session, name, producer_id)
    await mine.send_all("before the topic is deleted", [("from 0", 0, 1), ("the next", 1, 1)])
    await deleted(session, "delete the topic", name)
    await mine.send("to the deleted topic", 2)
    await made(session, "made-again")
    data = batch(producer_id=producer_id, producer_epoch=0, base_sequence=2)
    await session.ask("to the id of the deleted topic", produce(first_id, (0, data)), 13)
    await mine.send_all("to the topic made again", [("from 0", 0, 1), ("again", 0, 1), ("the next", 1, 1)])
