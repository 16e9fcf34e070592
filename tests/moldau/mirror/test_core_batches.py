"""Batches of the source become batches of the target: what passes whole, and what is encoded again."""

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from moldau import TopicPartition
from moldau.consumer.core.values import EncodedBatch, EncodedBatches
from moldau.mirror.core.batches import SMALL_RECORDS, Provenance, Run, groups, target_batches
from moldau.mirror.core.formats import Position
from moldau.mirror.core.progress import Progress
from moldau.mirror.core.provenance import HEADER
from moldau.mirror.reading import Part
from moldau.mirror.sending import TargetSender
from moldau.mirror.statistics import SourceStatistics
from moldau.records import (
    BatchBuilder,
    Compression,
    TimestampType,
    decode_records,
    encode_batch,
    parse_batch_header,
    set_base_offset,
    set_max_timestamp,
    set_partition_leader_epoch,
)

IDS = Provenance("id-east", "id-hub")


def batch_of(data, base=100, first=None):
    raw = bytearray(data)
    set_base_offset(raw, 0, base)
    return EncodedBatch(parse_batch_header(raw), memoryview(bytes(raw)), base if first is None else first)


def plain(count=5, **fields):
    return encode_batch([(1_000 + n, b"k%d" % n, b"v%d" % n, (("h", b"x"),)) for n in range(count)], **fields)


def decoded(built):
    return [r for each in built for r in decode_records(each.data, 0, parse_batch_header(each.data))]


def fields(records):
    return [(r.timestamp, r.key, r.value, r.headers) for r in records]


def test_a_whole_batch_passes_as_it_is():
    batch = batch_of(plain(compression=Compression.ZSTD))
    (one,) = target_batches(batch)
    assert one.data is batch.data
    assert (one.runs, one.next_offset) == ((Run(100, 0, 5),), 105)


def test_a_part_of_a_batch_is_encoded_again():
    (one,) = target_batches(batch_of(plain(compression=Compression.LZ4), first=103))
    assert parse_batch_header(one.data).compression is Compression.LZ4
    assert [r.value for r in decoded([one])] == [b"v3", b"v4"]
    assert (one.runs, one.next_offset) == ((Run(103, 0, 2),), 105)


def test_gaps_of_compaction_become_runs():
    builder = BatchBuilder(10_000)
    for delta in (0, 1, 4, 5, 9):
        builder.append(1_000, b"k", b"%d" % delta, (), offset_delta=delta)
    (one,) = target_batches(batch_of(builder.build()))
    assert one.runs == (Run(100, 0, 2), Run(104, 2, 2), Run(109, 4, 1))
    header = parse_batch_header(one.data)
    assert (header.record_count, header.last_offset_delta, one.next_offset) == (5, 4, 110)


def test_times_of_the_broker_become_times_of_records():
    raw = bytearray(plain())
    set_max_timestamp(raw, 0, 77_000, TimestampType.LOG_APPEND_TIME)
    (one,) = target_batches(batch_of(raw))
    assert parse_batch_header(one.data).timestamp_type is TimestampType.CREATE_TIME
    assert {r.timestamp for r in decoded([one])} == {77_000}


def test_a_copy_has_no_delete_horizon():
    """The target would drop tombstones when the source may, and not ``delete.retention.ms`` after it got them."""
    builder = BatchBuilder(10_000, delete_horizon_ms=9_000)
    for n in range(2):
        builder.append(1_000 + n, b"k%d" % n, None, ())
    (one,) = target_batches(batch_of(builder.build()))
    assert parse_batch_header(one.data).delete_horizon_ms is None
    assert [(r.timestamp, r.key, r.value) for r in decoded([one])] == [(1_000, b"k0", None), (1_001, b"k1", None)]


def test_records_get_their_provenance():
    (one,) = target_batches(batch_of(plain(2)), IDS)
    assert [r.headers for r in decoded([one])] == [(("h", b"x"), (HEADER, b"id-east"))] * 2


def test_records_that_have_been_in_the_target_stay_out():
    records = [(1_000, None, b"%d" % n, ((HEADER, b"id-hub" if n % 2 else b"id-west"),)) for n in range(6)]
    (one,) = target_batches(batch_of(encode_batch(records)), IDS)
    assert [r.value for r in decoded([one])] == [b"0", b"2", b"4"]
    assert one.next_offset == 106, "the position passes the records that stay out"
    returned = encode_batch([(1_000, None, b"x", ((HEADER, b"id-hub"),))])
    assert target_batches(batch_of(returned), IDS) == []


@pytest.mark.parametrize("bytes_max", [1, 10, 25, 1000])
def test_large_batches_are_divided(bytes_max):
    batch = batch_of(plain(20))
    built = target_batches(batch, bytes_max=bytes_max)
    assert fields(decoded(built)) == fields(decode_records(batch.data, 0, batch.header))
    assert [each.next_offset for each in built] == sorted({each.next_offset for each in built})
    assert built[-1].next_offset == 120
    assert len(built) == (20 if bytes_max < 10 else len(built))


@pytest.mark.parametrize(("bytes_max", "parts"), [(9, 4), (10, 2), (19, 2), (20, 1)])
def test_parts_are_as_large_as_they_may_be(bytes_max, parts):
    """Keys, values and headers count: each of these four records has five bytes."""
    data = encode_batch([(1, b"k", b"v", (("h", b"xx"),)), (2, None, b"value", ())] * 2)
    built = target_batches(batch_of(data), IDS, bytes_max=bytes_max)
    assert len(built) == parts
    assert len(decoded(built)) == 4


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=30)), min_size=1, max_size=30),
    st.integers(0, 29),
    st.integers(1, 200),
    st.sampled_from(list(Compression)),
    st.booleans(),
)
def test_each_wanted_record_is_copied_once(records, skipped, bytes_max, codec, is_identity):
    """Runs name the source's offset of each copied record, in order; nothing else is copied."""
    visited = ((HEADER, b"id-hub"),)
    data = encode_batch(
        [(n, b"k", value, visited if back else ()) for n, (back, value) in enumerate(records)], compression=codec
    )
    first = 100 + min(skipped, len(records) - 1)
    built = target_batches(batch_of(data, first=first), IDS if is_identity else None, bytes_max=bytes_max)
    offsets = [run.upstream + n for each in built for run in each.runs for n in range(run.count)]
    wanted = [100 + n for n, (back, _) in enumerate(records) if 100 + n >= first and not (back and is_identity)]
    assert offsets == wanted
    assert [r.value for r in decoded(built)] == [records[offset - 100][1] for offset in wanted]
    for each in built:
        assert sum(run.count for run in each.runs) == parse_batch_header(each.data).record_count
        assert [run.index for run in each.runs] == [
            sum(run.count for run in each.runs[:n]) for n in range(len(each.runs))
        ]


def test_single_records_are_joined_in_order():
    """A topic whose producers wrote single records is copied in few batches, with the source's offsets."""
    singles = [batch_of(plain(1), base=100 + n) for n in range(300)]
    gap = [batch_of(plain(2, compression=Compression.LZ4), base=500)]  # other compression, behind aborted records
    large = [batch_of(plain(SMALL_RECORDS + 1, compression=Compression.LZ4), base=502)]
    found = [list(group) for group in groups([*singles, *gap, *large], bytes_max=10_000)]
    assert [each for group in found for each in group] == [*singles, *gap, *large]
    assert [len(group) for group in found] == [131, 131, 38, 1, 1]
    assert all(sum(each.header.size_bytes for each in group) <= 10_000 for group in found)
    (one,) = target_batches(found[0][0], following=found[0][1:])
    assert (one.runs, one.next_offset) == ((Run(100, 0, 131),), 231)
    assert fields(decoded([one])) == [field for each in found[0] for field in fields(decoded([each]))]
    (one,) = target_batches(singles[0], following=[singles[1], batch_of(plain(1), base=110)])
    assert (one.runs, one.next_offset) == ((Run(100, 0, 2), Run(110, 2, 1)), 111)


@pytest.mark.parametrize(("first", "second", "joined"), [(16, 16, True), (17, 1, False), (1, 17, False)])
def test_small_batches_are_joined(first, second, joined):
    assert SMALL_RECORDS == 16
    batches = [batch_of(plain(first), base=100), batch_of(plain(second), base=100 + first)]
    assert len(list(groups(batches, bytes_max=10_000))) == (1 if joined else 2)


def test_batches_of_two_leader_epochs_are_not_joined():
    """The position behind a batch has its epoch; with an older one the source would take it for diverged."""
    batches = []
    for base, epoch in ((100, 3), (101, 3), (102, 5)):
        raw = bytearray(plain(1))
        set_partition_leader_epoch(raw, 0, epoch)
        batches.append(batch_of(raw, base=base))
    assert [[each.header.base_offset for each in group] for group in groups(batches)] == [[100, 101], [102]]


def test_a_position_has_the_epoch_of_its_batch():
    """With that of a later batch in the same answer, the source would not notice that its log has diverged."""
    batches, partition = [], TopicPartition("t", 0)
    for base, epoch in ((100, 3), (101, 5), (102, 6)):
        raw = bytearray(plain(1))
        set_partition_leader_epoch(raw, 0, epoch)
        batches.append(batch_of(raw, base=base))
    progress, sent = Progress(), []
    progress.begin(partition, Position(100))

    async def send_encoded(*_):
        await trio.lowlevel.checkpoint()

    async def partitions_for(*_):
        await trio.lowlevel.checkpoint()
        return [0]

    names = SimpleNamespace(policy=SimpleNamespace(remote_topic=lambda _, topic: topic), alias="e")
    producer = SimpleNamespace(send_encoded=send_encoded, partitions_for=partitions_for)
    sender = TargetSender(producer, progress, names, None, SourceStatistics(alias="e"))
    read = EncodedBatches(
        topic="t",
        partition=0,
        topic_id=UUID(int=7),
        batches=batches,
        next_offset=104,  # a marker follows the last batch
        leader_epoch=6,
        high_watermark=200,
        end_offset=200,
    )
    trio.run(sender.send, Part(progress.generation(partition), read), sent)
    assert [(one.span.after.offset, one.span.after.leader_epoch) for one in sent] == [
        (101, 3),
        (102, 5),
        (103, 6),
        (104, 6),
    ]
