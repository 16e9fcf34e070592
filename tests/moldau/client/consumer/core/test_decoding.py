"""Goal: deserializers set no position back that has moved elsewhere meanwhile: by a seek, or to another cluster.

Method: the decoding alone, with positions that leave their cluster, or move by a seek, while a schema is looked up.
"""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from moldau.cluster.metadata import TopicPartition
from moldau.consumer.core.positions import Phase, Positions
from moldau.consumer.core.values import ConsumedBatch
from moldau.consumer.decoding import Decoding
from moldau.consumer.offsets import ConsumerOffsets
from moldau.records import Record
from moldau.serialization.core.values import RecordDeserializationError, RegistryError, SchemaNeeded

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Lookups:
    """Looks schemas up in vain, while ``meanwhile`` happens."""

    def __init__(self, meanwhile):
        self._meanwhile = meanwhile

    async def resolve(self, needed):
        await trio.lowlevel.checkpoint()
        self._meanwhile()
        raise RegistryError("no answer")


class Decoder:
    """Refuses the value ``bad``, and needs a schema for all others but ``good``."""

    def decode(self, partition, record):
        if record.value == b"good":
            return None, record.value
        if record.value != b"bad":
            raise SchemaNeeded(None, "value")
        fields = {"field": "value", "timestamp": 0, "key": None, "value": b"", "headers": ()}
        raise RecordDeserializationError("bad", topic_partition=partition, offset=record.offset, **fields)


def batch(first, *values):
    return ConsumedBatch(
        topic="t",
        partition=0,
        records=[Record(first + at, 0, None, value, ()) for at, value in enumerate(values)],
        next_offset=first + len(values),
        leader_epoch=3,
        high_watermark=99,
    )


def decoding_of(meanwhile=lambda: None):
    positions = Positions()
    positions.assign([T0])
    positions.by_partition[T0].seek(12)
    return positions, Decoding(positions, Decoder(), Lookups(lambda: meanwhile(positions)))


@pytest.mark.parametrize("leaves", [False, True])
def test_a_lookup_sets_no_position_back_in_another_cluster(leaves):
    positions, decoding = decoding_of(Positions.leave_cluster if leaves else lambda _: None)
    with pytest.raises(RegistryError):
        trio.run(decoding.decode, [batch(10, b"good", b"unknown")])
    position = positions.by_partition[T0]
    assert (position.phase, position.offset) == ((Phase.LOOK_UP, -1) if leaves else (Phase.VALIDATE, 10))


@pytest.mark.parametrize("leaves", [False, True])
def test_a_bad_record_is_reported_in_its_own_cluster(leaves):
    """The position in the other cluster happens to be the same number."""
    positions, decoding = decoding_of()
    assert [each.records[0].offset for each in trio.run(decoding.decode, [batch(10, b"good", b"bad")])] == [10]
    if leaves:
        positions.leave_cluster()
        positions.by_partition[T0].seek(11)
        decoding.raise_pending()
    with contextlib.nullcontext() if leaves else pytest.raises(RecordDeserializationError):
        decoding.raise_pending()


@pytest.mark.parametrize("is_new", [False, True])
def test_a_seek_during_a_lookup_holds(is_new):
    """The application may also have assigned the partition again."""

    def moved(positions):
        if is_new:
            positions.assign([])
            positions.assign([T0])
        positions.by_partition[T0].seek(70)

    positions, decoding = decoding_of(moved)
    with pytest.raises(RegistryError):
        trio.run(decoding.decode, [batch(10, b"good", b"unknown")])
    assert positions.by_partition[T0].offset == 70


def test_a_lookup_that_fails_sets_every_partition_back():
    """A position that was set back to a bad record goes back to the first one."""
    positions, decoding = decoding_of(lambda _: None)
    positions.assign([T0, T1])
    positions.by_partition[T1].seek(12)
    others = replace(batch(10, b"unknown"), partition=1)
    with pytest.raises(RegistryError):
        trio.run(decoding.decode, [batch(10, b"good", b"bad"), others])
    assert [each.offset for each in positions.by_partition.values()] == [10, 10]


@pytest.mark.parametrize("is_bad", [False, True])
def test_no_commit_passes_a_record_that_waits_for_its_schema(is_bad):
    """Another task commits, or closes the consumer, and the look-up fails: the group would never read the records."""
    committed = []

    def commit(positions):
        committed.append(ConsumerOffsets(positions, 1000, reads_committed=False).consumed())

    positions, decoding = decoding_of(commit)
    positions.assign([T0, T1])
    positions.by_partition[T1].seek(22)
    first = batch(10, b"good", b"bad") if is_bad else batch(10, b"good", b"good")
    with pytest.raises(RegistryError):
        trio.run(decoding.decode, [first, replace(batch(20, b"good", b"unknown"), partition=1)])
    assert [{each.partition: found.offset for each, found in one.items()} for one in committed] == [{0: 10, 1: 20}]
    commit(positions)
    assert {each.partition: found.offset for each, found in committed[-1].items()} == {0: 10, 1: 20}


def test_dropped_chunks_hide_no_record_that_waits():
    """The partition is paused meanwhile, and its buffer is needed for others: neither a commit nor a poll passes it."""
    committed = []

    def drop(positions):
        positions.by_partition[T0].chunks.append(SimpleNamespace(last_epoch=3))
        positions.by_partition[T0].drop_chunks()
        committed.extend(ConsumerOffsets(positions, 1000, reads_committed=False).consumed().values())

    positions, decoding = decoding_of(drop)
    with pytest.raises(RegistryError):
        trio.run(decoding.decode, [batch(10, b"good", b"unknown")])
    assert ([each.offset for each in committed], positions.by_partition[T0].offset) == ([10], 10)


def test_what_was_deserialized_counts_as_consumed():
    positions, decoding = decoding_of()
    trio.run(decoding.decode, [batch(10, b"good", b"good")])
    (found,) = ConsumerOffsets(positions, 1000, reads_committed=False).consumed().values()
    assert found.offset == 12


@pytest.mark.parametrize("is_new", [False, True])
def test_a_seek_during_a_lookup_is_committed(is_new):
    """The application has moved on, or has got the partition again."""
    committed = []

    def moved(positions):
        if is_new:
            positions.assign([])
            positions.assign([T0])
        positions.by_partition[T0].seek(70)
        committed.extend(ConsumerOffsets(positions, 1000, reads_committed=False).consumed().values())

    _, decoding = decoding_of(moved)
    with pytest.raises(RegistryError):
        trio.run(decoding.decode, [batch(10, b"good", b"unknown")])
    assert [each.offset for each in committed] == [70]


def test_a_bad_record_bounds_the_offset_to_commit():
    """The application commits the offset behind what it got, and decides about the bad record later."""
    positions, decoding = decoding_of()
    (found,) = trio.run(decoding.decode, [batch(10, b"good", b"bad", b"good")])
    assert (found.next_offset, positions.by_partition[T0].offset) == (11, 11)


@pytest.mark.parametrize("offset", [10, 12])
def test_a_bad_record_that_was_left_is_not_reported(offset):
    """The application has set the position before it or behind it meanwhile."""
    positions, decoding = decoding_of()
    trio.run(decoding.decode, [batch(10, b"good", b"bad")])
    positions.by_partition[T0].seek(offset)
    decoding.raise_pending()


def test_a_bad_record_of_a_paused_partition_is_not_reported():
    """The poll raised its error in place of the records of other partitions, though the application had set it aside.

    The record is fetched again when the partition is not paused any more.
    """
    positions, decoding = decoding_of()
    trio.run(decoding.decode, [batch(10, b"good", b"bad")])
    positions.by_partition[T0].is_paused = True
    decoding.raise_pending()
    positions.by_partition[T0].is_paused = False
    with pytest.raises(RecordDeserializationError):
        trio.run(decoding.decode, [batch(11, b"bad")])
