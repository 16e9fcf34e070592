"""Goal: the sender pays for the checks of its records: other clients are served meanwhile, in bounded memory.

Method: one broker on virtual time. Computing takes no virtual time, so the test counts the bytes of records that one
pass of the event loop reads, and the bytes of memory that Python has allocated.
"""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import ProduceRequestView
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import BATCH_HEADER_BYTES, Compression, compress, encode_batch, renew_crc
from moldau.records.decompression import LongStep
from moldau_broker.log.config import LogConfig
from moldau_broker.log.partition import validator
from moldau_broker.log.partition.validator import PIECE_BYTES
from moldau_broker.server.data_path.produce import ProduceService
from moldau_broker.server.data_path.record_checks import (
    CHECKS_MAX,
    INLINE_COST,
    SLICE_COST,
    CheckLanes,
    InlineBudget,
    RequestChecks,
)
from support.cluster.broker_cluster import batch, run_cluster, values_of
from support.proof import proof_beyond

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024 * 1024
CODECS = [codec for codec in Compression if codec is not Compression.NONE]


def large(codec: Compression, mebibytes: int = 4, **fields) -> bytes:
    """A valid batch that is small on the wire."""
    return encode_batch([(1_000, b"k", bytes(1024), ())] * (1000 * mebibytes), compression=codec, **fields)


def falsified(codec: Compression, count: int) -> bytes:
    """A batch of three records whose header claims ``count``."""
    data = bytearray(batch(b"1", b"2", b"3", compression=codec))
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    renew_crc(data, 0)
    return bytes(data)


def garbage(codec: Compression) -> bytes:
    """A batch with a correct CRC whose content is no records."""
    data = bytearray(batch(b"1", compression=codec))
    data[BATCH_HEADER_BYTES:] = compress(codec, b"garbage" * 100)
    struct.pack_into(">i", data, 8, len(data) - 12)
    renew_crc(data, 0)
    return bytes(data)


def request(*batches: bytes, topic: str = "t", **fields) -> ProduceRequest:
    """One request with one batch for each partition, from the first on."""
    partitions = [PartitionProduceData(index=index, records=records) for index, records in enumerate(batches)]
    return ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=partitions)], **fields
    )


def codes(answer) -> list[ErrorCode]:
    return [ErrorCode(found.error_code) for found in answer.responses[0].partition_responses]


class Passes(trio.abc.Instrument):
    """Counts the bytes of records that each pass of the event loop reads."""

    def __init__(self, monkeypatch) -> None:
        self.walked = [0]
        passes = self
        original = validator.RecordWalker

        class Walker:
            def __init__(self, *args) -> None:
                self._walker = original(*args)

            def feed(self, piece) -> None:
                passes.walked[-1] += len(piece)
                self._walker.feed(piece)

            def __getattr__(self, name):
                return getattr(self._walker, name)

        monkeypatch.setattr(validator, "RecordWalker", Walker)

    def before_io_wait(self, timeout: float) -> None:
        """Marks the end of a pass: all ready tasks have run."""
        if self.walked[-1]:
            self.walked.append(0)


@pytest.mark.parametrize("codec", list(Compression))
def test_only_batches_with_false_headers_are_refused(codec) -> None:
    """A false count moved the log end by up to 2^31; other partitions of the request are unaffected."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=4)
        for topic_partition in range(4):
            await cluster.leader("t", topic_partition)
        good = batch(b"good", compression=codec)
        answer = await client.request(
            request(falsified(codec, 2**31 - 1), good, garbage(codec), falsified(codec, 2)), 12
        )
        invalid = ErrorCode.INVALID_RECORD
        assert codes(answer) == [invalid, ErrorCode.NONE, invalid, invalid]
        for partition, end in enumerate((0, 1, 0, 0)):
            assert (await client.offset("t", partition=partition)).offset == end
            assert cluster.replica(1, "t", partition).log.log_end_offset == end

    run_cluster(scenario)


@pytest.mark.parametrize("codec", CODECS)
def test_a_long_check_lets_others_have_their_turn(codec, monkeypatch) -> None:
    """No pass of the event loop reads more than the slices and drains that may fall into it."""
    passes = Passes(monkeypatch)

    async def scenario(cluster):
        small, big = cluster.client(1), [cluster.client(1) for _ in range(8)]
        await small.create_topic("t", partitions=2)
        await cluster.leader("t", 0)
        done: list[str] = []

        async def send_big(client) -> None:
            assert codes(await client.request(request(large(codec)), 12)) == [ErrorCode.NONE]
            done.append("big")

        async def send_small() -> None:
            for _ in range(5):
                answer = await small.produce("t", batch(b"x", compression=codec), partition=1)
                assert answer.error_code == ErrorCode.NONE
                done.append("small")

        trio.lowlevel.add_instrument(passes)
        async with trio.open_nursery() as senders:
            for client in big:
                senders.start_soon(send_big, client)
            senders.start_soon(send_small)
        assert done.count("big") == 8
        assert sum(passes.walked) >= 8 * 4000 * 1024
        assert max(passes.walked) <= CHECKS_MAX * (SLICE_COST + PIECE_BYTES) + INLINE_COST
        assert cluster.running[1].context.checks.slots.value == CHECKS_MAX
        assert not cluster.running[1].context.checks.whole.locked()

    run_cluster(scenario)


@pytest.mark.parametrize("codec", CODECS)
def test_requests_keep_their_order_behind_a_long_check(codec) -> None:
    """Otherwise a producer's sequences would be out of order, and answers would not match their requests."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        producer = {"producer_id": 7, "producer_epoch": 0}
        batches, sequence = [], 0
        for number in range(5):
            data = large(codec, 2, base_sequence=sequence, **producer)
            small = batch(b"s%d" % number, compression=codec, base_sequence=sequence + 2000, **producer)
            plain = batch(b"p%d" % number, base_sequence=sequence + 2001, **producer)
            batches += [data, small, plain]
            sequence += 2002
        connection = await client.connection()
        pending = [connection.submit(request(data), 12) for data in batches]
        answers = [(await waiting.wait(60_000)).responses[0].partition_responses[0] for waiting in pending]
        assert [answer.error_code for answer in answers] == [ErrorCode.NONE] * 15
        offsets = [answer.base_offset for answer in answers]
        assert offsets == sorted(offsets)
        assert cluster.replica(1, "t").log.log_end_offset == sequence

    run_cluster(scenario)


@pytest.mark.parametrize("codec", CODECS)
def test_one_request_unpacks_no_more_than_its_bound(codec) -> None:
    """Batches beyond the bound are refused; the next request has a bound of its own."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=4, cleanup_policy="compact")
        for partition in range(4):
            await cluster.leader("t", partition)
        answer = await client.request(request(*[large(codec, 2)] * 4), 12)
        none, refused = ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE
        assert codes(answer) == [none, none, refused, refused]
        assert "request.max.uncompressed.bytes" in answer.responses[0].partition_responses[2].error_message
        assert codes(await client.request(request(large(codec, 2)), 12)) == [none]
        answer = await client.request(request(large(codec, 4)), 12)
        assert codes(answer) == [refused]
        assert "max.message.uncompressed.bytes" in answer.responses[0].partition_responses[0].error_message

    run_cluster(
        scenario, **{"message.max.uncompressed.bytes": str(3 * MIB), "request.max.uncompressed.bytes": str(5 * MIB)}
    )


@pytest.mark.parametrize("codec", proof_beyond(2, CODECS))
def test_many_bombs_at_once_stay_within_their_memory(codec) -> None:
    """Twenty requests that unpack to 8 MiB each: a few of them are in memory at a time, and those that stream not even
    as a whole.
    """

    async def scenario(cluster):
        clients = [cluster.client(1) for _ in range(20)]
        await clients[0].create_topic("t")
        await cluster.leader("t")
        data = large(codec, 8)
        found: list[ErrorCode] = []

        async def send(client) -> None:
            found.extend(codes(await client.request(request(data), 12)))

        for client in clients:
            await client.connection()
        tracemalloc.start()
        try:
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(send, client)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found == [ErrorCode.NONE] * 20
        assert peak < 12 * MIB + 20 * 4 * len(data)

    run_cluster(scenario)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_a_connection_that_dies_leaves_nothing_of_its_check(codec, monkeypatch) -> None:
    passes = Passes(monkeypatch)

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        checks = cluster.running[1].context.checks
        leaving = [cluster.client(1) for _ in range(6)]
        for one in leaving:
            (await one.connection()).submit(request(large(codec, 8)), 12)
        await cluster.until(lambda: passes.walked[-1] > 0)
        for one in leaving:
            one.close()
        await cluster.until(lambda: checks.slots.value == CHECKS_MAX)
        assert not checks.whole.locked()
        answer = await client.produce("t", batch(b"x", compression=codec))
        assert answer.error_code == ErrorCode.NONE
        assert answer.base_offset in range(0, 6 * 8000 + 1, 8000)

    run_cluster(scenario)


@pytest.mark.parametrize("wanted", ["gzip", "zstd", "uncompressed"])
def test_a_topics_own_codec_is_reached_in_slices(wanted, monkeypatch) -> None:
    passes = Passes(monkeypatch)

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", compression_type=wanted, max_message_bytes=str(8 * MIB))
        await cluster.leader("t")
        trio.lowlevel.add_instrument(passes)
        for codec in (Compression.NONE, Compression.LZ4):
            assert codes(await client.request(request(large(codec)), 12)) == [ErrorCode.NONE]
        assert max(passes.walked) <= SLICE_COST + INLINE_COST
        data = cluster.replica(1, "t").log.segments[0].file.read(0, 1 << 30)
        values = values_of(data)
        assert len(values) == 8000
        assert set(values) == {bytes(1024)}

    run_cluster(scenario)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_search_by_time_lets_others_have_their_turn(codec, monkeypatch) -> None:
    """A large batch is decompressed outside the event loop; the answers of a connection keep their order."""
    offloaded: list[object] = []

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", max_message_bytes=str(8 * MIB))
        await cluster.leader("t")
        rows = [(1_000 + number, b"k", bytes(1024), ()) for number in range(2000)]
        for _ in range(2):
            answer = await client.request(request(encode_batch(rows, compression=codec)), 12)
            assert codes(answer) == [ErrorCode.NONE]
        disk = cluster.running[1].context.environment.disk
        original = disk.offload

        async def offload(work):
            offloaded.append(work)
            return await original(work)

        monkeypatch.setattr(type(disk), "offload", lambda self, work: offload(work))
        wanted = [1_000, 2_000, 2_999, 3_000, 0, -1, -2]
        found: dict[int, tuple[int, int]] = {}

        async def ask(timestamp: int) -> None:
            answer = await client.offset("t", timestamp)
            assert answer.error_code == ErrorCode.NONE
            found[timestamp] = (answer.offset, answer.timestamp)

        async with trio.open_nursery() as nursery:
            for timestamp in wanted:
                nursery.start_soon(ask, timestamp)
        assert found == {
            1_000: (0, 1_000),
            2_000: (1000, 2_000),
            2_999: (1999, 2_999),
            3_000: (-1, -1),
            0: (0, 1_000),
            -1: (4000, -1),
            -2: (0, -1),
        }
        assert bool(offloaded) == (codec is not Compression.NONE)
        assert not cluster.running[1].context.checks.whole.locked()

    run_cluster(scenario)


def test_batches_checked_in_slices_share_one_bound() -> None:
    """Each batch may decompress what those before it have left of ``request.max.uncompressed.bytes``."""
    bounds: list[int] = []

    def batch_of(size: int) -> Any:
        def steps(*, bytes_left: int, whole_bytes_max: int) -> Iterator[None]:
            bounds.append(bytes_left)
            yield

        return SimpleNamespace(size=size, cost=size, unpacked_bytes=size, steps=steps)

    checks = RequestChecks({number: batch_of(size) for number, size in enumerate((300, 500, 1))}, 1_000)
    budget = InlineBudget()
    assert checks.run_now(budget)
    assert budget.left == INLINE_COST - 801, "the requests that arrived together share it"
    trio.run(checks.run, CheckLanes(), trio.to_thread.run_sync)
    assert bounds == [1_000, 700, 200] * 2


@pytest.mark.parametrize("failing", ["offload", "later", None])
def test_a_check_that_fails_leaves_room_for_others(failing: str | None) -> None:
    """One large batch is in memory at a time; the next ones would wait for ever for its end."""
    step: Any = object.__new__(LongStep)

    def steps(**_: object) -> Iterator[Any]:
        yield step
        yield step
        if failing == "later":
            raise MemoryError

    async def offload(_: object) -> None:
        await trio.lowlevel.checkpoint()
        if failing == "offload":
            raise OSError

    async def main() -> None:
        lanes = CheckLanes()
        large: Any = SimpleNamespace(size=1, cost=1, unpacked_bytes=1, steps=steps)
        for _ in range(2 * CHECKS_MAX):
            with pytest.raises((OSError, MemoryError)) if failing else nullcontext():
                await RequestChecks({0: large}, 1_000).run(lanes, offload)
            assert not lanes.whole.locked()
            assert lanes.slots.value == CHECKS_MAX

    step.run = lambda: None
    trio.run(main)


def test_checks_belong_to_their_batches_behind_any_others() -> None:
    """Absent partitions, batches without a codec and those too short to have one are counted, and not checked."""
    packed, plain = memoryview(batch(b"v", compression=Compression.GZIP)), memoryview(batch(b"v"))
    led = SimpleNamespace(
        log=SimpleNamespace(storage=SimpleNamespace(config=LogConfig())), is_leader=True, is_internal=False
    )
    replicas: Any = SimpleNamespace(by_raw_name={(b"t", 0): led})
    unused: Any = None
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    service = ProduceService(
        clock, replicas, unused, unused, checks=unused, offload=unused, unpacked_bytes_max=lambda: 9, verifies=unused
    )
    for kinds in product(((0, packed), (0, plain), (0, packed[:9]), (1, packed)), repeat=3):
        for first in range(4):
            topics = [(b"t", list(kinds[:first])), (b"t", list(kinds[first:]))]
            checks = service.checks_of(ProduceRequestView(None, -1, 1, topics), 12)
            wanted = [number for number, kind in enumerate(kinds) if kind == (0, packed)]
            assert list({} if checks is None else checks.validations) == wanted, kinds
