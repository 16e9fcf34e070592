"""Goal: prefetched bytes give each record once, committed ones only, and positions end behind what was handed out.

Method: chunks of encoded batches, taken in the three forms that a consumer offers: records, columns, whole batches.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.core.positions import Phase, Positions
from moldau.consumer.core.taking import take_columns, take_encoded, take_records
from moldau.consumer.core.values import TopicPartition
from moldau.protocol.errors import KafkaError
from moldau.records import ColumnBuilder, CorruptRecordError, decode_records, encode_batch, encode_end_txn_marker

A, B, C = (TopicPartition("t", number) for number in range(3))
TOPIC = UUID(int=9)


def batch(at, values, *, epoch=1, producer=-1, is_transactional=False):
    """Encodes one record for each letter of ``values``."""
    return encode_batch(
        [(1, None, value.encode(), ()) for value in values],
        base_offset=at,
        partition_leader_epoch=epoch,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        is_transactional=is_transactional,
    )


def sent(at, values, producer):
    return batch(at, values, producer=producer, is_transactional=True)


def ended(at, producer, *, commit):
    data = encode_end_txn_marker(
        commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=at
    )
    return bytes(data)


def damaged(data):
    changed = bytearray(data)
    changed[-2] ^= 1
    return bytes(changed)


def by_records(chunk):
    return b"".join(record.value for record in chunk.take(100)).decode()


def by_columns(chunk):
    builder = ColumnBuilder()
    count = chunk.take_columns(builder, 1 << 20)
    assert builder.length == count
    return bytes(builder.finish().values.data).decode() if count else ""


def by_batches(chunk):
    found = []
    chunk.take_encoded(found, 1 << 20)
    return "".join(
        record.value.decode()
        for each in found
        for record in decode_records(each.data, 0, each.header, first_offset=each.first_offset)
    )


FORMS = pytest.mark.parametrize("form", [by_records, by_columns, by_batches])


@FORMS
@pytest.mark.parametrize(
    ("batches", "aborted", "values"),
    [
        ([sent(0, "a", 1), ended(1, 1, commit=False)], [(1, 0)], ""),
        ([sent(0, "a", 1), ended(1, 1, commit=True)], [], "a"),
        ([sent(0, "a", 1), batch(1, "b", producer=1), ended(2, 1, commit=False)], [(1, 0)], "b"),
        ([sent(0, "a", 1), ended(1, 1, commit=False), sent(2, "b", 1), ended(3, 1, commit=True)], [(1, 0)], "b"),
        ([sent(0, "a", 1), ended(1, 1, commit=True), sent(2, "b", 1), ended(3, 1, commit=False)], [(1, 2)], "a"),
        (
            [
                *(sent(0, "ab", 1), sent(2, "cd", 2), sent(4, "e", 3), ended(5, 2, commit=False)),
                *(ended(6, 3, commit=True), sent(7, "f", 1), sent(8, "g", 2)),
                *(ended(9, 1, commit=False), ended(10, 2, commit=True)),
            ],
            [(2, 2), (1, 0)],
            "eg",
        ),
    ],
)
def test_records_of_aborted_transactions_are_skipped(form, batches, aborted, values):
    """A transaction is aborted from its first offset to its marker; the same producer may commit before and after."""
    data = b"".join(batches)
    chunk = FetchedChunk(memoryview(data), 0, aborted=aborted)
    assert form(chunk) == values
    assert chunk.offset == chunk.end_offset
    assert form(chunk) == "", "nothing twice"


@FORMS
@pytest.mark.parametrize(
    ("start", "values", "epoch"), [(0, "abcdef", 6), (1, "bcdef", 6), (3, "def", 6), (5, "f", 6), (6, "", -1)]
)
def test_a_chunk_begins_at_the_position_of_its_fetch(form, start, values, epoch):
    """The broker answers with whole batches, of which some records lie before it."""
    chunk = FetchedChunk(memoryview(batch(0, "abc", epoch=4) + batch(3, "def", epoch=6)), start)
    assert (chunk.offset, chunk.end_offset, chunk.last_epoch, chunk.epoch) == (start, 6, 6, -1)
    assert chunk.is_empty == (not values)
    assert form(chunk) == values
    assert (chunk.offset, chunk.epoch) == (6, epoch)


@FORMS
def test_the_rest_of_a_batch_follows_what_was_taken_of_it(form):
    """The offset is that of the next record after each step, and the epoch that of the last one."""
    chunk = FetchedChunk(memoryview(batch(4, "abc", epoch=4) + batch(7, "de", epoch=6)), 4)
    steps = []
    for count in (1, 2, 1):
        taken = b"".join(record.value for record in chunk.take(count)).decode()
        steps.append((taken, chunk.offset, chunk.epoch))
    assert steps == [("a", 5, 4), ("bc", 7, 4), ("d", 8, 6)]
    assert not chunk.is_empty
    assert form(chunk) == "e"
    assert (chunk.offset, chunk.is_empty) == (9, True)


def test_records_go_on_in_the_middle_of_the_second_batch():
    chunk = FetchedChunk(memoryview(batch(0, "ab") + batch(2, "cdef")), 0)
    assert [b"".join(record.value for record in chunk.take(3)) for _ in range(3)] == [b"abc", b"def", b""]


@FORMS
def test_damage_is_reported_after_earlier_records(form):
    """It is reported again each time: what lies behind it must not be handed out."""
    chunk = FetchedChunk(memoryview(batch(0, "ab") + damaged(batch(2, "cd")) + batch(4, "ef")), 0)
    assert form(chunk) == "ab"
    assert chunk.offset == 2
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            form(chunk)
    assert chunk.offset == 2


def test_bytes_are_not_checked_where_checks_are_off():
    data = bytearray(batch(0, "ab"))
    data[17] ^= 1  # a byte of the checksum itself
    assert by_records(FetchedChunk(memoryview(data), 0, checks_crc=False)) == "ab"
    with pytest.raises(CorruptRecordError):
        by_records(FetchedChunk(memoryview(data), 0))


def test_whole_batches_stop_at_the_bound():
    """The batch that reaches the bound is the last one; the bound itself asks for no other one."""
    batches = [batch(at, "x") for at in range(4)]
    size = len(batches[0])
    found = []
    chunk = FetchedChunk(memoryview(b"".join(batches)), 0)
    assert chunk.take_encoded(found, size) == size
    assert chunk.take_encoded(found, size + 1) == 2 * size
    assert (len(found), chunk.offset) == (3, 3)
    columns, builder = FetchedChunk(memoryview(b"".join(batches)), 0), ColumnBuilder()
    assert columns.take_columns(builder, 1) == 1
    assert columns.take_columns(builder, builder.size_bytes) == 0
    assert columns.take_columns(builder, builder.size_bytes + 1) == 1


# --- taking from several partitions


def fetched(answers, *, topic_id=TOPIC):
    """Positions at offset 0 whose answers hold the given bytes."""
    positions = Positions()
    positions.assign(answers)
    for partition, chunks in answers.items():
        position = positions.assigned(partition)
        position.seek(0)
        for data in chunks:
            chunk = FetchedChunk(memoryview(data), position.fetch_offset, topic_id=topic_id)
            assert position.add_chunk(position.generation, position.fetch_offset, chunk)
        position.high_watermark = 20 + partition.partition
    return positions


TAKERS = pytest.mark.parametrize("take", [take_records, take_columns, take_encoded])


@TAKERS
def test_what_is_taken_moves_the_position(take):
    positions = fetched({A: [batch(0, "ab", epoch=3)], B: [batch(0, "c", epoch=5)]})
    found = take(positions, 1 << 20)
    assert [(each.partition, each.next_offset, each.high_watermark) for each in found] == [(0, 2, 20), (1, 1, 21)]
    if take is not take_columns:
        assert [each.leader_epoch for each in found] == [3, 5]
    if take is take_encoded:
        assert [each.topic_id for each in found] == [TOPIC, TOPIC]
    assert [(each.offset, each.offset_epoch) for each in positions.by_partition.values()] == [(2, 3), (1, 5)]
    assert (positions.chunks_ended, [len(each.chunks) for each in positions.by_partition.values()]) == (2, [0, 0])
    assert take(positions, 1 << 20) == []


@TAKERS
def test_only_partitions_that_may_be_read_give_records(take):
    """One is paused, one has no position yet, one has no records, one has both."""
    partitions = [TopicPartition("t", number) for number in range(4)]
    positions = fetched({each: [batch(0, "a")] if each.partition != 2 else [] for each in partitions})
    positions.assigned(partitions[0]).is_paused = True
    positions.assigned(partitions[1]).phase = Phase.RESET
    assert [each.partition for each in take(positions, 1 << 20)] == [3]
    assert positions.assigned(partitions[0]).offset == 0


@TAKERS
def test_served_partitions_go_last_next_time(take):
    positions = fetched({each: [batch(0, "ab"), batch(2, "cd")] for each in (A, B, C)})
    served = [[each.partition for each in take(positions, 1)] for _ in range(4)]
    assert served[:3] == [[0], [1], [2]]
    assert served[3] == [0]


@TAKERS
def test_nothing_is_taken_below_a_limit_of_one(take):
    positions = fetched({A: [batch(0, "ab")]})
    assert take(positions, 0) == []
    assert positions.assigned(A).offset == 0


def test_records_are_counted_over_all_partitions():
    positions = fetched({A: [batch(0, "ab"), batch(2, "c")], B: [batch(0, "defg")], C: [batch(0, "h")]})
    found = take_records(positions, 5)
    assert [b"".join(record.value for record in each.records) for each in found] == [b"abc", b"de"]
    assert positions.chunks_ended == 2
    assert [each.partition for each in take_records(positions, 9, partitions_max=1)] == [2]


def test_bytes_are_counted_over_all_partitions():
    """The first partition's answers are one result of columns, and one result each of encoded batches."""
    size = len(batch(0, "ab"))
    positions = fetched({each: [batch(0, "ab"), batch(2, "cd")] for each in (A, B)})
    found = take_encoded(positions, size + 1)
    assert [(each.partition, [len(one.data) for one in each.batches]) for each in found] == [(0, [size]), (1, [size])]
    assert take_encoded(positions, size)[0].partition == 0
    (whole,) = take_columns(fetched({A: [batch(0, "ab"), batch(2, "cd")]}), 1 << 20)
    assert (whole.next_offset, bytes(whole.columns.values.data)) == (4, b"abcd")
    bytes_of_two = ColumnBuilder()
    FetchedChunk(memoryview(batch(0, "ab")), 0).take_columns(bytes_of_two, 1 << 20)
    bound = bytes_of_two.size_bytes
    positions = fetched({each: [batch(0, "ab"), batch(2, "cd")] for each in (A, B)})
    assert [(each.partition, each.next_offset) for each in take_columns(positions, bound)] == [(0, 2)]
    assert [(each.partition, each.next_offset) for each in take_columns(positions, bound + 1)] == [(1, 4)]


def test_encoded_results_report_moves_without_records():
    """A mirror or a sink must learn that a position moved behind an aborted transaction."""
    positions = Positions()
    positions.assign([A])
    position = positions.assigned(A)
    position.seek(0)
    data = sent(0, "ab", 1) + ended(2, 1, commit=False)
    position.add_chunk(position.generation, 0, FetchedChunk(memoryview(data), 0, aborted=[(1, 0)]))
    (found,) = take_encoded(positions, 1 << 20)
    assert (found.batches, found.next_offset) == ([], 3)
    assert not position.chunks


@TAKERS
def test_a_damaged_partition_fails_after_the_others(take):
    """Its answers are dropped, so that the next poll fetches them again; the position and its epoch stay."""
    positions = fetched({A: [batch(0, "ab")], B: [batch(0, "c", epoch=5), damaged(batch(1, "d"))], C: [batch(0, "e")]})
    for _ in range(3):
        if not positions.assigned(B).offset:
            take(positions, 1 << 20)
    position = positions.assigned(B)
    generation = position.generation
    assert (position.offset, position.offset_epoch) == (1, 5)
    failures = []
    for _ in range(3):
        try:
            take(positions, 1 << 20)
        except KafkaError as error:
            failures.append(str(error))
    (failure,) = failures
    assert "CORRUPT_MESSAGE" in failure
    assert "t-1 at offset 1" in failure
    assert (position.offset, position.fetch_offset, position.offset_epoch) == (1, 1, 5)
    assert (len(position.chunks), position.generation > generation) == (0, True)


@TAKERS
def test_damage_at_the_position_is_reported_at_once(take):
    positions = fetched({A: [damaged(batch(0, "ab"))], B: [batch(0, "c")]})
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        take(positions, 1 << 20)
    assert [each.partition for each in take(positions, 1 << 20)] == [1]


@TAKERS
def test_damage_does_not_cost_what_was_taken_before(take):
    """The positions of the other partitions have moved already, so their records must be returned."""
    positions = fetched({A: [batch(0, "ab")], B: [damaged(batch(0, "c"))]})
    assert [each.partition for each in take(positions, 1 << 20)] == [0]
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        take(positions, 1 << 20)


@TAKERS
def test_damage_behind_records_is_reported_by_the_next_poll(take):
    """Also where a single partition has both."""
    positions = fetched({A: [batch(0, "ab"), damaged(batch(2, "c"))]})
    assert [each.next_offset for each in take(positions, 1 << 20)] == [2]
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        take(positions, 1 << 20)


@FORMS
def test_a_marker_moves_offset_and_epoch(form):
    """The position behind it is validated with the epoch of the leader that wrote it."""
    marker = encode_end_txn_marker(
        commit=True,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=1,
        partition_leader_epoch=6,
    )
    chunk = FetchedChunk(memoryview(sent(0, "a", 1) + marker), 0)
    assert form(chunk) == "a"
    assert form(chunk) == ""
    assert (chunk.offset, chunk.epoch) == (2, 6)
