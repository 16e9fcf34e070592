"""Records: batches produced, fetched, looked up by time and by leader epoch, and deleted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import Compression, encode_batch
from moldau.values import ZERO_UUID
from support.answers.topics import NOWHERE, made

if TYPE_CHECKING:
    from support.answers.session import AnswerSession

NOW_MS = int(time.time() * 1000)
WAIT_MS = 5_000


def batch(count: int = 1, *, time_ms: int | None = None, key: bytes | None = b"k", **fields: Any) -> bytes:
    """Returns a batch of ``count`` records."""
    at = NOW_MS if time_ms is None else time_ms
    return encode_batch([(at, key, b"value %d" % number, ()) for number in range(count)], **fields)


def produce(
    topic: str | UUID, *parts: tuple[int, bytes], acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    """Returns a request with the batch of each partition."""
    data = [PartitionProduceData(index=index, records=records) for index, records in parts]
    named: dict[str, Any] = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=WAIT_MS,
        topic_data=[TopicProduceData(partition_data=data, **named)],
    )


def list_offsets(topic: str, *parts: tuple[int, int, int], isolation: int = 0, replica: int = -1) -> ListOffsetsRequest:
    """Returns a request; each part is partition, current leader epoch, and time."""
    partitions = [
        ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=at)
        for index, epoch, at in parts
    ]
    topics = [ListOffsetsTopic(name=topic, partitions=partitions)]
    return ListOffsetsRequest(replica_id=replica, isolation_level=isolation, timeout_ms=WAIT_MS, topics=topics)


def fetch(
    topic: str, topic_id: UUID, *parts: tuple[int, int, int, int], forgotten: tuple[int, ...] = (), **fields: Any
) -> FetchRequest:
    """Returns a request; each part is partition, current leader epoch, offset, and epoch of the record before it."""
    partitions = [
        FetchPartition(
            partition=index,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=last,
            partition_max_bytes=1 << 20,
        )
        for index, epoch, offset, last in parts
    ]
    topics = [FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)] if parts else []
    left = [ForgottenTopic(topic=topic, topic_id=topic_id, partitions=forgotten)] if forgotten else []
    values: dict[str, Any] = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    return FetchRequest(topics=topics, forgotten_topics_data=left, **values)


def epochs(topic: str, *parts: tuple[int, int, int]) -> OffsetForLeaderEpochRequest:
    """Returns a request; each part is partition, current leader epoch, and the epoch that is looked up."""
    partitions = [
        OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
        for index, current, epoch in parts
    ]
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=partitions)])


def deletion(topic: str, partition: int, offset: int) -> DeleteRecordsRequest:
    """Returns a request to delete the records before an offset."""
    partitions = [DeleteRecordsPartition(partition_index=partition, offset=offset)]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=WAIT_MS)


async def records(session: AnswerSession) -> None:
    """Produces, fetches, looks up and deletes records."""
    name, topic_id = await made(session, "records", 2)
    await _produced(session, name, topic_id)
    await _sequences(session, name)
    await _looked_up(session, name)
    await _fetched(session, name, topic_id)
    await _deleted(session, name)


async def _produced(session: AnswerSession, name: str, topic_id: UUID) -> None:
    compacted, _ = await made(session, "compacted", cleanup_policy="compact")
    timed, _ = await made(session, "timed", message_timestamp_type="LogAppendTime")
    small, _ = await made(session, "small", max_message_bytes="200")
    for version in range(3, 13):
        request = produce(name, (0, batch(2)), (1, batch()), (7, batch()))
        await session.ask(f"produce with version {version}", request, version)
    by_id = {
        "an id": produce(topic_id, (0, batch(2)), (7, batch())),
        "an unknown id": produce(NOWHERE, (0, batch())),
        "no id": produce(ZERO_UUID, (0, batch())),
    }
    await session.ask_all("produce to", by_id, 13)

    def changed(position: int, value: int | None = None) -> bytes:
        data = bytearray(batch())
        data[position] = data[position] ^ 1 if value is None else value
        return bytes(data)

    cases = {
        "to an unknown topic": produce(session.name("unknown"), (0, batch())),
        "to a bad name": produce("a/b", (0, batch())),
        "to the offsets of groups": produce("__consumer_offsets", (0, batch())),
        "with acks=2": produce(name, (0, batch()), acks=2),
        "with acks=1": produce(name, (0, batch()), acks=1),
        "no bytes": produce(name, (0, b"")),
        "a damaged batch": produce(name, (0, changed(-1))),
        "magic 1": produce(name, (0, changed(16, 1))),
        "magic 9": produce(name, (0, changed(16, 9))),
        "two batches": produce(name, (0, batch() + batch())),
        "a cut batch": produce(name, (0, batch()[:-3])),
        "a base offset": produce(name, (0, batch(base_offset=5))),
        "a control batch": produce(name, (0, batch(is_control=True))),
        "without keys to a compacted topic": produce(compacted, (0, batch(3, key=None))),
        "to a topic with its own time": produce(timed, (0, batch(3))),
        "too large a batch": produce(small, (0, batch(30))),
        "a far future": produce(name, (0, batch(2, time_ms=NOW_MS + 10**9))),
        "time -1": produce(name, (0, batch(time_ms=-1))),
        "time -2": produce(name, (0, batch(time_ms=-2))),
        **{f"codec {codec.name}": produce(name, (0, batch(compression=codec))) for codec in Compression},
    }
    await session.ask_all("produce", cases, 12)
    await session.ask(
        "produce without keys to a compacted topic, version 7", produce(compacted, (0, batch(3, key=None))), 7
    )
    await session.ask("produce zstd with version 6", produce(name, (0, batch(compression=Compression.ZSTD))), 6)


async def _sequences(session: AnswerSession, name: str) -> None:
    async def sent(step: str, producer_id: int, epoch: int, sequence: int, count: int = 1, **fields: Any) -> None:
        data = batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)
        await session.ask(f"idempotent: {step}", produce(name, (1, data)), 12)

    first = await session.ask("producer id", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000))
    for step, epoch, sequence, count in (
        ("first", 0, 0, 2),
        ("first again", 0, 0, 2),
        ("a gap", 0, 5, 1),
        ("next", 0, 2, 1),
        ("the batch before again", 0, 0, 2),
        ("part of a batch", 0, 0, 1),
        ("a new epoch, not at 0", 1, 3, 1),
        ("a new epoch", 1, 0, 1),
        ("the old epoch", 0, 3, 1),
        ("a sequence of -1", 1, -1, 1),
    ):
        await sent(step, first.producer_id, epoch, sequence, count)
    await sent("unknown, from 0", 987_655, 3, 0)
    apart, _ = await made(session, "apart")
    late = batch(producer_id=987_654, producer_epoch=3, base_sequence=5)
    await session.ask("idempotent: unknown, not from 0", produce(apart, (0, late)), 12)
    await sent("transactional, without its id", 987_655, 3, 3, is_transactional=True)
    two = [batch(producer_id=987_655, producer_epoch=3, base_sequence=number) for number in (1, 2)]
    await session.ask("idempotent: two batches", produce(name, (1, b"".join(two))), 12)
    unknown = session.name("transaction")
    await session.ask("coordinator", FindCoordinatorRequest(key_type=1, coordinator_keys=[unknown]))
    await session.ask("a transactional id without a transaction", produce(name, (1, batch()), transactional_id=unknown))
    open_ = batch(producer_id=987_655, producer_epoch=3, base_sequence=3, is_transactional=True)
    for version in (11, 12):
        request = produce(name, (1, open_), transactional_id=unknown)
        await session.ask(f"a transaction that was not begun, version {version}", request, version)
    producers = [
        TopicRequest(name=each, partition_indexes=[0, 1, 9]) for each in (name, session.name("unknown"), "a/b")
    ]
    await session.ask("producers", DescribeProducersRequest(topics=producers))


async def _looked_up(session: AnswerSession, name: str) -> None:
    for version in range(1, 12):
        await session.ask(
            f"offsets with version {version}", list_offsets(name, (0, -1, -1), (1, -1, -2), (9, -1, -1)), version
        )
    times = {-3: 7, -4: 8, -5: 9, -6: 11}
    for at, since in times.items():
        for version in (since - 1, since):
            await session.ask(f"offset at {at} with version {version}", list_offsets(name, (0, -1, at)), version)
    cases = {
        "at -7": list_offsets(name, (0, -1, -7)),
        "at 0": list_offsets(name, (0, -1, 0)),
        "later than all": list_offsets(name, (1, -1, NOW_MS + 10**8)),
        "with the leader epoch": list_offsets(name, (0, 0, -1)),
        "with a later epoch": list_offsets(name, (0, 5, -1)),
        "twice": list_offsets(name, (0, -1, -1), (0, -1, -2)),
        "committed": list_offsets(name, (0, -1, -1), isolation=1),
        "of an unknown topic": list_offsets(session.name("unknown"), (0, -1, -1)),
        "of a bad name": list_offsets("a/b", (0, -1, -1)),
        "for a replica": list_offsets(name, (0, -1, -1), replica=1),
        "for a debugger": list_offsets(name, (0, -1, -1), replica=-2),
    }
    await session.ask_all("offset", cases)

    for version in (2, 3, 4):
        await session.ask(f"epochs with version {version}", epochs(name, (0, -1, 0), (1, -1, 5), (9, -1, 0)), version)
    ends = {
        "at the leader epoch": epochs(name, (0, 0, 0)),
        "at a later epoch": epochs(name, (0, 9, 0)),
        "-1": epochs(name, (0, -1, -1)),
        "-7": epochs(name, (0, -1, -7)),
        "of an unknown topic": epochs(session.name("unknown"), (0, -1, 0)),
    }
    await session.ask_all("epoch", ends)


async def _fetched(session: AnswerSession, name: str, topic_id: UUID) -> None:
    for version in range(4, 19):
        await session.ask(
            f"fetch with version {version}", fetch(name, topic_id, (1, -1, 0, -1), (9, -1, 0, -1)), version
        )
    cases = {
        "by an unknown id": fetch(name, NOWHERE, (0, -1, 0, -1)),
        "without an id": fetch(name, ZERO_UUID, (0, -1, 0, -1)),
        "beyond the end": fetch(name, topic_id, (1, -1, 10**6, -1)),
        "from -1": fetch(name, topic_id, (1, -1, -1, -1)),
        "at the leader epoch": fetch(name, topic_id, (1, 0, 0, -1)),
        "at a later epoch": fetch(name, topic_id, (1, 9, 0, -1)),
        "behind epoch 0": fetch(name, topic_id, (1, -1, 1, 0)),
        "behind epoch 9": fetch(name, topic_id, (1, -1, 1, 9)),
        "beyond the end, behind epoch 0": fetch(name, topic_id, (1, 0, 10**6, 0)),
        "no bytes": fetch(name, topic_id, (1, -1, 0, -1), max_bytes=0),
        "with wait -5": fetch(name, topic_id, (1, -1, 0, -1), max_wait_ms=-5),
        "at least -5 bytes": fetch(name, topic_id, (1, -1, 0, -1), min_bytes=-5),
        "nothing": fetch(name, topic_id),
    }
    await session.ask_all("fetch", cases)
    opened = await session.ask(
        "session: opened", fetch(name, topic_id, (0, -1, 10**7, -1), (1, -1, 3, -1), session_epoch=0)
    )
    ids = {"session_id": opened.session_id}
    steps = {
        "next": fetch(name, topic_id, session_epoch=1, **ids),
        "an epoch too far": fetch(name, topic_id, session_epoch=7, **ids),
        "unknown": fetch(name, topic_id, session_epoch=1, session_id=12_345),
        "one partition less": fetch(name, topic_id, session_epoch=2, forgotten=(0,), **ids),
        "closed": fetch(name, topic_id, session_epoch=-1, **ids),
        "after its end": fetch(name, topic_id, session_epoch=3, **ids),
    }
    await session.ask_all("session", steps)


async def _deleted(session: AnswerSession, name: str) -> None:
    cases = {
        "before 3": deletion(name, 0, 3),
        "before 1": deletion(name, 0, 1),
        "before what comes": deletion(name, 0, 10**6),
        "before -5": deletion(name, 0, -5),
        "all": deletion(name, 1, -1),
        "of an unknown partition": deletion(name, 9, 1),
        "of an unknown topic": deletion(session.name("unknown"), 0, 1),
        "of a compacted topic": deletion(session.name("compacted"), 0, 0),
        "of a bad name": deletion("a/b", 0, 0),
        "of groups": deletion("__consumer_offsets", 0, 0),
    }
    await session.ask_all("delete records", cases)
