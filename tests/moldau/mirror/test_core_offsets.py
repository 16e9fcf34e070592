"""Offset syncs, translation and checkpoints.

Goal: a translated offset never lies behind a record that the group has not read. Method: generated histories of a
mirrored partition (gaps, repeated records, recreated targets) against a naive list of copies; MirrorMaker's rules as
examples.
"""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau import CommittedOffset, TopicPartition
from moldau.mirror.core.checkpoints import CheckpointBook, offsets_to_sync
from moldau.mirror.core.formats import Checkpoint, OffsetSync
from moldau.mirror.core.offset_syncs import SyncEmitter, SyncStore
from support.proof import examples

P = TopicPartition("orders", 0)
COPY = TopicPartition("east.orders", 0)


def store_of(*pairs):
    store = SyncStore()
    for upstream, downstream in pairs:
        store.add(OffsetSync(P, upstream, downstream))
    return store


def test_translation_is_exact_at_a_pair_and_one_behind_it():
    store = store_of((0, 100), (50, 150))
    assert [store.translate(P, offset) for offset in (0, 1, 49, 50, 51, 99)] == [100, 101, 101, 150, 151, 151]


def test_without_an_earlier_pair_nothing_is_translated():
    assert store_of((50, 0)).translate(P, 49) is None
    assert SyncStore().translate(P, 1) is None


def test_pairs_that_are_contradicted_go():
    store = store_of((0, 100), (50, 150), (90, 190), (40, 300))
    assert [store.translate(P, offset) for offset in (45, 95, 20)] == [301, 301, 101]
    store.add(OffsetSync(P, 60, 5))  # the target's topic was created again
    assert store.translate(P, 45) is None


def test_few_pairs_are_kept_and_near_ones_are_dense():
    store = store_of(*((n, n) for n in range(0, 100_000, 7)))
    assert store.count(P) <= 2 * 18
    for distance in (1, 10, 100, 1_000, 10_000, 50_000):
        offset = 99_995 - distance
        assert offset - store.translate(P, offset) <= 2 * distance + 14


def test_pairs_are_due_as_in_mirrormaker():
    emitter = SyncEmitter(lag_max=10)
    assert emitter.copied(P, 5, 100, 1) == [OffsetSync(P, 5, 100)]
    assert emitter.copied(P, 6, 101, 4) == []
    assert emitter.take_delayed() == [OffsetSync(P, 9, 104)]
    assert emitter.take_delayed() == []
    assert emitter.copied(P, 10, 105, 30) == [OffsetSync(P, 39, 134)]
    assert emitter.copied(P, 45, 135, 1) == [OffsetSync(P, 45, 135)], "a gap"
    assert emitter.copied(P, 46, 20, 1) == [OffsetSync(P, 46, 20)], "the target begins again"
    assert emitter.take_delayed() == []


@pytest.mark.parametrize(("count", "is_due"), [(10, False), (11, True)])
def test_a_pair_is_due_when_a_translation_would_lag_too_far(count, is_due):
    """An offset just behind the last pair's is exact; ``offset.lag.max`` counts the records behind that."""
    emitter = SyncEmitter(lag_max=10)
    emitter.copied(P, 0, 100, 1)
    due = emitter.copied(P, 1, 101, count - 1)
    assert due == []
    assert emitter.copied(P, count, 100 + count, 1) == ([OffsetSync(P, count, 100 + count)] if is_due else [])


def test_a_pair_before_a_break_does_not_follow_it():
    """The source's topic was created again: a pair of the former one would contradict those of its successor."""
    emitter, store = SyncEmitter(lag_max=100), SyncStore()
    due = emitter.copied(P, 1000, 500, 1) + emitter.copied(P, 1001, 501, 5)
    due += emitter.copied(P, 0, 506, 1)
    for sync in [*due, *emitter.take_delayed()]:
        store.add(sync)
    assert store.translate(P, 1) == 507


OTHER = TopicPartition("orders", 1)
STEPS = {"next": (0, 1), "gap": (5, 1), "many": (0, 12), "flush": (0, 0)}
"""The offsets that a step leaves out, and the records that it copies."""


def pairs_of(emitter, steps):
    """Returns the pairs of ``P`` that each step makes due."""
    upstream, found = 0, []
    for skipped, count in map(STEPS.get, steps):
        upstream += skipped
        due = emitter.copied(P, upstream, 100 + upstream, count) if count else emitter.take_delayed()
        found.append([sync for sync in due if sync.partition == P])
        upstream += count
    return found


@pytest.mark.parametrize("before", list(product(STEPS, repeat=2)), ids="-".join)
def test_a_forgotten_partition_is_like_a_new_one(before):
    """Nothing of before is written later, not even by a flush that comes before the next record."""
    for after in product(STEPS, repeat=3):
        emitter = SyncEmitter(lag_max=10)
        emitter.copied(OTHER, 0, 100, 2)
        pairs_of(emitter, before)
        emitter.forget(P)
        steps = (*after, "flush")
        assert pairs_of(emitter, steps) == pairs_of(SyncEmitter(lag_max=10), steps)


@st.composite
def histories(draw):
    """Runs of copied records: (upstream, downstream, count), with gaps on both sides and returns of the mirror."""
    runs = []
    upstream = downstream = 0
    for _ in range(draw(st.integers(1, 30))):
        if runs and draw(st.integers(0, 9)) == 0:
            upstream = draw(st.integers(0, upstream))  # the mirror starts again at an earlier position
        upstream += draw(st.sampled_from([0, 0, 0, 1, 7]))
        downstream += draw(st.sampled_from([0, 0, 1, 3]))
        count = draw(st.integers(1, 40))
        runs.append((upstream, downstream, count))
        upstream += count
        downstream += count
    return runs


@settings(deadline=None, max_examples=examples(60))
@given(histories(), st.integers(0, 30), st.data())
def test_translation_skips_no_unread_record(runs, lag_max, data):
    """Every record at or behind the group's offset has its newest copy at or behind the translated offset.

    A mirror that goes back copies everything from there again, so earlier copies behind that point do not count.
    """
    emitter, store = SyncEmitter(lag_max), SyncStore()
    copies = {}
    for upstream, downstream, count in runs:
        due = emitter.copied(P, upstream, downstream, count)
        copies = {offset: copy for offset, copy in copies.items() if offset < upstream}
        copies.update({upstream + n: downstream + n for n in range(count)})
        if data.draw(st.booleans()):
            due += emitter.take_delayed()
        for sync in due:
            store.add(sync)
        assert store.count(P) <= 128
        for offset in (0, upstream, upstream + count // 2, upstream + count, max(copies) + 1):
            translated = store.translate(P, offset)
            if translated is not None:
                skipped = [o for o, copy in copies.items() if o >= offset and copy < translated]
                assert skipped == [], f"offset {offset} became {translated}"


@settings(deadline=None, max_examples=examples(60))
@given(histories(), st.integers(0, 100), st.data())
def test_the_end_of_a_caught_up_partition_is_exact(runs, lag_max, data):
    """After a flush, a group at the end of the source goes on at the end of the target, whatever came before."""
    emitter, store = SyncEmitter(lag_max), SyncStore()
    for upstream, downstream, count in runs:
        due, is_flushed = emitter.copied(P, upstream, downstream, count), data.draw(st.booleans())
        for sync in [*due, *(emitter.take_delayed() if is_flushed else ())]:
            store.add(sync)
        assert not is_flushed or store.translate(P, upstream + count) == downstream + count


def book_of(*pairs):
    book = CheckpointBook()
    for upstream, downstream in pairs:
        book.add(Checkpoint("g", COPY, upstream, downstream))
    return book


def due(book, upstream, downstream):
    committed = {P: CommittedOffset(upstream, metadata="m")}
    return book.due("g", committed, lambda _, __: downstream, lambda topic: f"east.{topic}")


def test_a_checkpoint_is_due_if_it_is_news():
    assert due(book_of(), 5, 50) == [Checkpoint("g", COPY, 5, 50, "m")]
    assert due(book_of((5, 50)), 5, 50) == []
    assert due(book_of((5, 50)), 6, 51) != []
    assert due(book_of((5, 50)), 6, 49) == [], "the target's offset must not go back by itself"
    assert due(book_of((5, 50)), 4, 40) != [], "the group went back"
    assert due(book_of(), 5, None) == []


def test_offsets_of_the_target_only_go_forwards():
    checkpoints = {COPY: Checkpoint("g", COPY, 5, 50)}
    assert offsets_to_sync(checkpoints, {}) == {COPY: CommittedOffset(50)}
    assert offsets_to_sync(checkpoints, {COPY: CommittedOffset(49)}) == {COPY: CommittedOffset(50)}
    assert offsets_to_sync(checkpoints, {COPY: CommittedOffset(50)}) == {}


def test_an_offset_keeps_its_text_in_the_target():
    """Kafka Streams, for one, keeps the time of a partition there."""
    checkpoints = {COPY: Checkpoint("g", COPY, 5, 50, "AgAAAX8=")}
    assert offsets_to_sync(checkpoints, {}) == {COPY: CommittedOffset(50, metadata="AgAAAX8=")}
