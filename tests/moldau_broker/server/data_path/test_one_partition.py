"""Goal: the short cut for a Produce that names one partition has the outcomes of the general way.

Method: a broker on virtual time with pairs of equal topics. Each frame goes to one topic of a pair with the short cut
and to the other without it; answers, errors and log ends agree.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from moldau.protocol.hot import pure, wire
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import Compression, encode_batch
from moldau.runtime.net.serving.answers import CloseConnection
from moldau_broker.server.replicas.delayed import ProduceOperation
from support.cluster.broker_cluster import batch, frame, run_cluster
from support.cluster.work import handler_of

if TYPE_CHECKING:
    from moldau_broker.server.replicas.partition import Partition

PAIRS: dict[str, dict[str, str]] = {
    "plain": {},
    "compact": {"cleanup.policy": "compact"},
    "zipped": {"compression.type": "gzip"},
    "timed": {"message.timestamp.type": "LogAppendTime"},
    "synced": {"flush.messages": "1"},
    "small": {"max.message.bytes": "200"},
}
"""Settings of the pairs of topics."""


def frames(name: str, topic_id: uuid.UUID, version: int) -> list[bytes]:
    """Usual, refused and unusual requests for one partition of a topic."""

    def one(
        records: bytes | None,
        *,
        acks: int = 1,
        index: int = 0,
        transactional_id: str | None = None,
        name: str = name,
        topic_id: uuid.UUID = topic_id,
    ) -> bytes:
        part = PartitionProduceData(index=index, records=records)
        request = ProduceRequest(acks=acks, timeout_ms=1_000, transactional_id=transactional_id)
        request.topic_data = [TopicProduceData(name=name, topic_id=topic_id, partition_data=[part])]
        return frame(request, version)[4:]

    usual = batch(b"x" * 100, b"y")
    damaged = bytearray(usual)
    damaged[-1] ^= 1
    zipped = batch(b"x" * 100, compression=Compression.GZIP)
    first, next_but_one = (batch(b"z", producer_id=7, producer_epoch=0, base_sequence=sequence) for sequence in (0, 2))
    return [
        *(one(usual, acks=acks, index=index) for acks in (1, -1, 0) for index in (0, 7)),
        *(one(records) for records in (bytes(damaged), zipped, usual + usual, usual[:61], b"", None)),
        *(one(records) for records in (first, first, next_but_one)),
        one(bytes(damaged), acks=0),
        one(usual, acks=2),
        one(usual, transactional_id="t"),
        one(encode_batch([(1_000, b"key", b"value", ())])),
        one(usual, name="absent", topic_id=uuid.UUID(int=9)),
    ]


def outcome(handler: Any, data: bytes, partition: Partition) -> bytes | str:
    """Serves a frame; returns the answer, or the reason why the connection ends."""
    try:
        answer = handler.handle(memoryview(bytearray(data)))
        handler.flush()
    except CloseConnection as close:
        return re.sub(r"failed: \S+-", "failed: its topic-", close.reason)
    if isinstance(answer, ProduceOperation):
        if not answer.finished:
            return "waits"
        answer = answer.answer_now()
    if not isinstance(answer, list | tuple):
        return type(answer).__name__
    # The topics of a pair differ in the last byte of their names, and in their ids.
    whole = b"".join(map(bytes, answer))
    return whole.replace(partition.name_key[0], partition.name_key[0][:-1]).replace(partition.wire_key[0], b"")


@pytest.mark.parametrize("version", [9, 12, 13])
def test_the_short_cut_has_the_general_outcomes(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    short_cut, taken = wire.read_one_produce, 0

    def noted(*arguments: Any) -> Any:
        nonlocal taken
        found = short_cut(*arguments)
        taken += found is not None
        return found

    async def scenario(cluster: Any) -> None:
        for name, settings in PAIRS.items():
            for each in "ab":
                await cluster.client(1).create_topic(f"{name}-{each}", **settings)
                await cluster.leader(f"{name}-{each}")
            partitions = [cluster.running[1].context.replicas.partitions[f"{name}-{each}", 0] for each in "ab"]
            pairs = [frames(each.key.topic, each.topic_id, version) for each in partitions]
            handlers = [handler_of(cluster), handler_of(cluster)]
            for number, (with_it, without) in enumerate(zip(*pairs, strict=True)):
                monkeypatch.setattr(wire, "read_one_produce", noted)
                expected = outcome(handlers[0], with_it, partitions[0])
                monkeypatch.setattr(wire, "read_one_produce", lambda *_: None)
                assert expected == outcome(handlers[1], without, partitions[1]), f"frame {number} to {name}"
            ends = [each.log.log_end_offset for each in partitions]
            failed = [each.traffic.failed_produce for each in partitions]
            assert ends[0] == ends[1] > 0, name
            assert failed[0] == failed[1] > 0, name

    run_cluster(scenario)
    if short_cut is not pure.read_one_produce:
        assert taken > 10 * len(PAIRS)
