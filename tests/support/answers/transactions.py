"""Transactions of both protocols: with partitions that the client adds, and with an epoch for each transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_transactions import ListTransactionsRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from support.answers.classic_groups import find
from support.answers.records import batch, fetch, list_offsets, produce
from support.answers.topics import made

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.protocol.schema import Request
    from support.answers.session import AnswerSession


def begin(transactional_id: str | None, timeout_ms: int = 10_000, **fields: Any) -> InitProducerIdRequest:
    """Returns an InitProducerId."""
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, **fields)


class Producer:
    """The requests of one transactional producer."""

    def __init__(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """As InitProducerId answered."""
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch

    def _named(self, **other: Any) -> dict[str, Any]:
        mine = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }
        return mine | other

    def records(self, topic: str, partition: int = 0, sequence: int = 0, **fields: Any) -> Request:
        """Returns a Produce of one record."""
        values = {"is_transactional": True, "producer_epoch": self.epoch, **fields}
        data = batch(producer_id=self.producer_id, base_sequence=sequence, **values)
        return produce(topic, (partition, data), transactional_id=self.transactional_id)

    def add(self, *topics: tuple[str, list[int]], **other: Any) -> AddPartitionsToTxnRequest:
        """Returns an AddPartitionsToTxn of a client."""
        named = {f"v3_and_below_{key}": value for key, value in self._named(**other).items()}
        added = [AddPartitionsToTxnTopic(name=name, partitions=partitions) for name, partitions in topics]
        return AddPartitionsToTxnRequest(v3_and_below_topics=added, **named)

    def add_as_broker(self, *names: str, verify: bool, **other: Any) -> AddPartitionsToTxnRequest:
        """Returns an AddPartitionsToTxn of a broker."""
        added = [AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names]
        transaction = AddPartitionsToTxnTransaction(verify_only=verify, topics=added, **self._named(**other))
        return AddPartitionsToTxnRequest(transactions=[transaction])

    def add_offsets(self, group: str, **other: Any) -> AddOffsetsToTxnRequest:
        """Returns an AddOffsetsToTxn."""
        return AddOffsetsToTxnRequest(group_id=group, **self._named(**other))

    def offsets(
        self, group: str, topic: str, offset: int = 5, *, partition: int = 0, **other: Any
    ) -> TxnOffsetCommitRequest:
        """Returns a TxnOffsetCommit of one offset."""
        part = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata="m"
        )
        topics = [TxnOffsetCommitRequestTopic(name=topic, partitions=[part])]
        return TxnOffsetCommitRequest(group_id=group, topics=topics, **self._named(**other))

    def end(self, *, commit: bool, **other: Any) -> EndTxnRequest:
        """Returns an EndTxn."""
        return EndTxnRequest(committed=commit, **self._named(**other))

    def took(self, answer: Any) -> None:
        """Goes on with id and epoch of an answer."""
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch


async def transactions(session: AnswerSession) -> None:
    """Begins, writes, adds offsets, commits and aborts."""
    name, topic_id = await made(session, "written", 2)
    await find(session, session.name("group"), 0)
    await find(session, session.name("transaction"), 1)
    producer = await _begun(session)
    await _partitions(session, producer, name)
    await _ended(session, producer)
    await _open(session, producer, name, topic_id)
    await _offsets(session, producer, name)
    await _committed(session, producer, name)
    await _epoch_for_each(session, name)


async def _begun(session: AnswerSession) -> Producer:
    transaction = session.name("transaction")
    first = await session.ask("begin", begin(transaction))
    producer = Producer(transaction, first.producer_id, first.producer_epoch)
    for version in range(6):
        await session.ask(f"begin with version {version}", begin(session.name(f"of-version-{version}")), version)
    mine = producer.producer_id
    cases = {
        "without an id": begin(""),
        "with timeout 0": begin(session.name("timed"), 0),
        "with a long timeout": begin(session.name("timed"), 10**9),
        "with timeout -5": begin(session.name("timed"), -5),
        "with an id, without an epoch": begin(transaction, producer_id=mine),
        "with an epoch, without an id": begin(transaction, producer_epoch=3),
        "with another id": begin(transaction, producer_id=mine + 1_000, producer_epoch=0),
        "with another epoch": begin(transaction, producer_id=mine, producer_epoch=9),
        "no transaction, with an id": begin(None, producer_id=5, producer_epoch=0),
        "no transaction, with timeout 0": begin(None, 0),
    }
    await session.ask_all("begin", cases, 5)
    known = begin(transaction, producer_id=mine, producer_epoch=producer.epoch)
    await session.ask("begin again with the epoch", known)
    await session.ask("begin again with the old epoch", known)
    producer.took(await session.ask("begin again", begin(transaction)))
    return producer


async def _partitions(session: AnswerSession, producer: Producer, name: str) -> None:
    unknown = session.name("unknown")
    written = (name, [0])
    cases = {
        "of another producer": producer.add(written, producer_id=producer.producer_id + 9_999),
        "of a later epoch": producer.add(written, producer_epoch=producer.epoch + 5),
        "of an earlier epoch": producer.add(written, producer_epoch=producer.epoch - 1),
        "of another transaction": producer.add(written, transactional_id=session.name("none")),
        "without an id": producer.add(written, transactional_id=""),
        "with an unknown topic": producer.add(written, (unknown, [0])),
        "with an unknown partition": producer.add((name, [9])),
        "with a bad name": producer.add(("a/b", [0])),
        "with the offsets of groups": producer.add(written, ("__consumer_offsets", [0])),
    }
    for version in range(4):
        await session.ask_all(f"add partitions, version {version}", cases, version)


async def _ended(session: AnswerSession, producer: Producer) -> None:
    for version in range(5):
        for commit in (True, False):
            step = f"{'commit' if commit else 'abort'} of nothing, version {version}"
            await session.ask(step, producer.end(commit=commit), version)
    cases = {
        "of another producer": producer.end(commit=True, producer_id=producer.producer_id + 9_999),
        "of a later epoch": producer.end(commit=True, producer_epoch=producer.epoch + 5),
        "of an earlier epoch": producer.end(commit=True, producer_epoch=producer.epoch - 1),
        "of another transaction": producer.end(commit=True, transactional_id=session.name("none")),
        "without an id": producer.end(commit=True, transactional_id=""),
    }
    await session.ask_all("end", cases, 4)


async def _open(session: AnswerSession, producer: Producer, name: str, topic_id: UUID) -> None:
    mine = producer.transactional_id
    await session.ask("add a partition", producer.add((name, [0])), 3)
    await session.ask("write", producer.records(name), 11)
    await session.ask("write to a partition that was not added", producer.records(name, 1), 11)
    outside = producer.records(name, 0, 1, is_transactional=False)
    await session.ask("write outside of the transaction", outside, 11)
    await session.ask("stable offset of an open transaction", list_offsets(name, (0, -1, -1), isolation=1))
    await session.ask("fetch of an open transaction", fetch(name, topic_id, (0, -1, 0, -1), isolation_level=1))
    described = DescribeTransactionsRequest(transactional_ids=[mine, session.name("none"), ""])
    await session.ask("describe an open transaction", described)
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        "ongoing": {"state_filters": ["Ongoing"]},
        "of unknown states": {"state_filters": ["nope", "Ongoing"]},
        "with a pattern": {"transactional_id_pattern": f"{mine}.*"},
        "with a bad pattern": {"transactional_id_pattern": "(("},
        "of a producer": {"producer_id_filters": [producer.producer_id]},
    }
    for step, fields in filters.items():
        answer = await session.ask(f"list {step}", ListTransactionsRequest(**fields))
        states = [each.transaction_state for each in answer.transaction_states if each.transactional_id == mine]
        unknown = list(answer.unknown_state_filters)
        session.answers[f"list {step}"] = {"error_code": answer.error_code, "states": states, "unknown": unknown}


async def _offsets(session: AnswerSession, producer: Producer, name: str) -> None:
    group = session.name("group")
    added = {
        "of a group": producer.add_offsets(group),
        "of another producer": producer.add_offsets(group, producer_id=producer.producer_id + 9_999),
        "of a later epoch": producer.add_offsets(group, producer_epoch=producer.epoch + 3),
        "of another transaction": producer.add_offsets(group, transactional_id=session.name("none")),
        "of no group": producer.add_offsets(""),
    }
    await session.ask_all("add offsets", added, 3)
    cases = {
        "of a group": producer.offsets(group, name),
        "of an earlier epoch": producer.offsets(group, name, producer_epoch=producer.epoch - 1),
        "of a later epoch": producer.offsets(group, name, producer_epoch=producer.epoch + 1),
        "of another producer": producer.offsets(group, name, producer_id=producer.producer_id + 9_999),
        "of an unknown topic": producer.offsets(group, session.name("unknown")),
        "of an unknown partition": producer.offsets(group, name, partition=9),
        "of -3": producer.offsets(group, name, -3),
        "of no group": producer.offsets("", name),
    }
    for version in (0, 2, 3, 4):
        await session.ask_all(f"commit offsets, version {version}", cases, version)
    members = {
        "of a member": producer.offsets(group, name, generation_id=4, member_id="a"),
        "of a member without a generation": producer.offsets(group, name, member_id="a"),
        "of an instance": producer.offsets(group, name, group_instance_id="a"),
    }
    await session.ask_all("commit offsets", members, 4)
    await _stored(session, "of an open transaction", name)


async def _stored(session: AnswerSession, step: str, name: str) -> None:
    topics = [OffsetFetchRequestTopic(name=name, partition_indexes=[0, 1])]
    for stable in (False, True):
        request = OffsetFetchRequest(group_id=session.name("group"), topics=topics, require_stable=stable)
        await session.ask(f"{'stable' if stable else 'newest'} offsets {step}", request, 7)


async def _committed(session: AnswerSession, producer: Producer, name: str) -> None:
    await session.ask("commit", producer.end(commit=True), 4)
    await session.ask("commit again", producer.end(commit=True), 4)
    await session.ask("abort after the commit", producer.end(commit=False), 4)
    await session.ask("stable offset after the commit", list_offsets(name, (0, -1, -1), isolation=1))
    await _stored(session, "after the commit", name)
    await _described(session, "describe a committed transaction", producer.transactional_id)


async def _described(session: AnswerSession, step: str, transactional_id: str) -> None:
    """Describes a transaction whose markers are written."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    while True:
        [found] = (await session.ask(step, request)).transaction_states
        if not found.transaction_state.startswith("Prepare"):
            return
        session.answers.pop(step)


async def _epoch_for_each(session: AnswerSession, name: str) -> None:
    transaction, group = session.name("newer"), session.name("group")
    found = await session.ask("newer: begin", begin(transaction))
    producer = Producer(transaction, found.producer_id, found.producer_epoch)
    await session.ask("newer: commit of nothing", producer.end(commit=True), 5)
    producer.took(await session.ask("newer: abort of nothing", producer.end(commit=False), 5))
    await session.ask("newer: write", producer.records(name), 12)
    await session.ask("newer: write again", producer.records(name), 12)
    await session.ask("newer: offsets", producer.offsets(group, name), 5)
    late = producer.offsets(group, name, producer_epoch=producer.epoch + 9)
    await session.ask("newer: offsets of a later epoch", late, 5)
    ended = await session.ask("newer: commit", producer.end(commit=True), 5)
    await session.ask("newer: commit again", producer.end(commit=True), 5)
    await session.ask("newer: abort after the commit", producer.end(commit=False), 5)
    await session.ask("newer: write after the end", producer.records(name, 0, 1), 12)
    producer.took(ended)
    await session.ask("newer: commit of nothing, with the new epoch", producer.end(commit=True), 5)
    await session.ask("newer: first write of a transaction, not at 0", producer.records(name, 1, 5), 12)
    aborted = await session.ask("newer: abort", producer.end(commit=False), 5)
    await _described(session, "newer: describe", transaction)
    producer.took(aborted)
    unknown = session.name("unknown")
    for version in (4, 5):
        cases = {
            "verified": producer.add_as_broker(name, unknown, verify=True),
            "added": producer.add_as_broker(name, unknown, verify=False),
            "of another producer": producer.add_as_broker(name, verify=False, producer_id=producer.producer_id + 9_999),
            "of another transaction": producer.add_as_broker(name, verify=False, transactional_id=session.name("none")),
        }
        await session.ask_all(f"partitions from a broker, version {version}", cases, version)
    await session.ask("producers", DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0, 1])]))
