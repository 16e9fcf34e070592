"""Goal: the state of a log's producers is exact: sequences, epochs, open transactions, snapshots.

Method: the pure manager, with headers of batches that no file holds.
"""

from __future__ import annotations

import itertools

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records.batch import BatchHeader
from moldau_broker.log.errors import LogError
from moldau_broker.log.files.batches import CONTROL_BIT, TRANSACTIONAL_BIT
from moldau_broker.log.producers.producer_state import EndMarker, ProducerStateManager, decode_snapshot
from moldau_broker.log.values import NO_EPOCH, AppendOrigin

PRODUCER, EPOCH = 7, 2
LAST_SEQUENCE = 0x7FFFFFFF


def batch(
    offset: int, *, sequence: int = 0, count: int = 1, epoch: int = EPOCH, transactional: bool = False
) -> BatchHeader:
    attributes = TRANSACTIONAL_BIT if transactional else 0
    return BatchHeader(offset, 100, 0, 2, 0, attributes, count - 1, 5, 5, PRODUCER, epoch, sequence, count)


def marker(offset: int, *, epoch: int = EPOCH) -> BatchHeader:
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    return BatchHeader(offset, 100, 0, 2, 0, attributes, 0, 5, 5, PRODUCER, epoch, -1, 1)


def manager(now_ms: int = 1_000) -> ProducerStateManager:
    made = ProducerStateManager(10_000, now_ms)
    made.reset(0)
    return made


def refusal(state: ProducerStateManager, header: BatchHeader) -> ErrorCode:
    with pytest.raises(LogError) as caught:
        state.check(header, AppendOrigin.CLIENT)
    return caught.value.code


def test_sequence_numbers_begin_again_at_0() -> None:
    state = manager()
    state.apply(batch(0, sequence=LAST_SEQUENCE))
    assert refusal(state, batch(1, sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(batch(1, sequence=0), AppendOrigin.CLIENT) is None


def test_a_repeated_batch_across_the_last_sequence_is_known() -> None:
    state = manager()
    across = batch(0, sequence=LAST_SEQUENCE - 1, count=4)
    state.apply(across)
    state.apply(batch(4, sequence=2))
    original = state.check(batch(5, sequence=LAST_SEQUENCE - 1, count=4), AppendOrigin.CLIENT)
    assert original is not None
    assert (original.first_offset, original.last_offset) == (0, 3)


def test_the_state_knows_up_to_where_it_reflects_the_log() -> None:
    state = manager()
    state.stage(batch(0, count=3))
    state.commit_staged(3)
    assert state.map_end_offset == 3
    state.apply(batch(3, sequence=3, count=2))
    assert state.map_end_offset == 5
    state.replay(marker(5), EndMarker(commit=True, coordinator_epoch=1))
    assert state.map_end_offset == 6


def test_a_marker_is_compared_with_staged_batches() -> None:
    state = manager()
    state.apply(batch(0, epoch=2))
    state.stage(batch(1, epoch=4))
    with pytest.raises(LogError) as caught:
        state.check_marker(marker(2, epoch=3), EndMarker(commit=True, coordinator_epoch=0))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_damaged_marker_lets_no_former_coordinator_in() -> None:
    """It does not tell which coordinator wrote it, so the newest known one still counts."""
    state = manager()
    state.replay(marker(0), EndMarker(commit=True, coordinator_epoch=5))
    state.replay(marker(1), EndMarker(commit=False, coordinator_epoch=NO_EPOCH))
    with pytest.raises(LogError) as caught:
        state.check_marker(marker(2), EndMarker(commit=True, coordinator_epoch=4))
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_an_open_transaction_is_that_of_its_epoch_alone() -> None:
    """A batch of the next epoch begins another transaction, of which the coordinator must know."""
    state = manager()
    state.apply(batch(0, transactional=True))
    assert [state.has_ongoing_transaction(PRODUCER, epoch) for epoch in (EPOCH - 1, EPOCH, EPOCH + 1)] == [
        False,
        True,
        False,
    ]


def test_a_marker_without_a_transaction_ends_none() -> None:
    state = manager()
    state.apply(batch(0))
    assert state.apply_marker(marker(1), EndMarker(commit=False, coordinator_epoch=0)) is None
    assert state.first_unstable_offset() is None


def test_a_transaction_is_unstable_until_its_end_is_replicated() -> None:
    state = manager()
    state.apply(batch(3, transactional=True))
    assert state.first_unstable_offset() == 3
    assert state.replay(marker(4), EndMarker(commit=True, coordinator_epoch=0)) is None
    assert state.first_unstable_offset() == 3
    state.high_watermark_moved(4)
    assert state.first_unstable_offset() == 3
    state.high_watermark_moved(5)
    assert state.first_unstable_offset() is None


def test_a_cut_marker_holds_no_reader_back() -> None:
    """Its transaction began behind the cut: what is written there next belongs to others."""
    state = manager()
    state.apply(batch(3, transactional=True))
    state.replay(marker(4), EndMarker(commit=True, coordinator_epoch=0))
    state.reset(2)
    assert state.first_unstable_offset() is None


def test_a_marker_counts_as_a_sign_of_life() -> None:
    state = manager(now_ms=1_000)
    state.apply(batch(0, transactional=True))
    state.now_ms = 8_000
    state.replay(marker(1), EndMarker(commit=True, coordinator_epoch=0))
    assert state.remove_expired(11_000) == 0
    assert state.remove_expired(18_000) == 1


def test_a_snapshot_keeps_both_epochs_and_open_transactions() -> None:
    state = manager()
    state.apply(batch(0, transactional=True))
    state.replay(marker(1), EndMarker(commit=True, coordinator_epoch=9))
    state.apply(batch(2, sequence=1, transactional=True))
    state.apply(batch(3, sequence=2, transactional=True))
    again = manager(now_ms=2_000)
    again.load_snapshot(decode_snapshot("x", state.encode_snapshot()), 4)
    assert again.describe() == state.describe()
    known, loaded = state.get(PRODUCER), again.get(PRODUCER)
    assert known is not None
    assert loaded is not None
    assert loaded.batches == known.batches
    assert len(loaded.batches) == 3
    row = again.describe()[0]
    assert (row.producer_epoch, row.coordinator_epoch, row.current_transaction_start_offset) == (EPOCH, 9, 2)
    assert (again.first_unstable_offset(), again.map_end_offset, again.knows_all) == (2, 4, True)


def test_a_snapshot_without_the_mark_knows_not_all_producers() -> None:
    state = manager()
    state.load_snapshot([], 0)
    assert not state.knows_all
    assert state.check(batch(0, sequence=5), AppendOrigin.CLIENT) is None
    state.reset(0)
    assert refusal(state, batch(0, sequence=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_aborted_transaction_names_the_oldest_open_one() -> None:
    """A look-up stops at an entry whose last stable offset is high enough: it would miss transactions that end later.

    Producer 8 writes from offset 0 on and ends last; producer 9, from 50 on, is open too when the first one is aborted.
    """
    state = manager()
    for offset, producer_id in ((0, 8), (5, PRODUCER), (50, 9)):
        state.apply(batch(offset, transactional=True)._replace(producer_id=producer_id))
    abort = EndMarker(commit=False, coordinator_epoch=1)
    first = state.replay(marker(60), abort)
    assert first is not None
    assert (first.first_offset, first.last_offset, first.last_stable_offset) == (5, 60, 0)
    second = state.replay(marker(70)._replace(producer_id=8), abort)
    assert second is not None
    assert (second.first_offset, second.last_offset, second.last_stable_offset) == (0, 70, 50)


def test_only_a_batch_with_both_sequence_numbers_is_a_repetition() -> None:
    """One with the same first or the same last number holds other records."""
    state = manager()
    state.apply(batch(0, sequence=0, count=3))
    state.apply(batch(3, sequence=3, count=3))
    state.apply(batch(6, sequence=6))
    for sequence, count in ((0, 1), (0, 2), (0, 4), (1, 2), (2, 1), (3, 2), (4, 2), (5, 1), (2, 4)):
        again = batch(7, sequence=sequence, count=count)
        assert refusal(state, again) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (sequence, count)
    for sequence, first, last in ((0, 0, 2), (3, 3, 5)):
        original = state.check(batch(7, sequence=sequence, count=3), AppendOrigin.CLIENT)
        assert original is not None
        assert (original.first_offset, original.last_offset) == (first, last)


def test_staged_batches_count_in_all_questions() -> None:
    """A batch that is repeated before the first one is written must not be written twice."""
    state = manager()
    state.apply(batch(0, sequence=0))
    state.stage(batch(1, sequence=1, transactional=True))
    original = state.check(batch(2, sequence=1, transactional=True), AppendOrigin.CLIENT)
    assert original is not None
    assert original.last_offset == 1
    assert state.check(batch(2, sequence=2, transactional=True), AppendOrigin.CLIENT) is None
    assert refusal(state, batch(2, sequence=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.has_ongoing_transaction(PRODUCER, EPOCH)
    row = state.describe_producer(PRODUCER)
    assert row is not None
    assert (row.last_sequence, row.current_transaction_start_offset) == (1, 1)


def test_a_producer_that_wrote_has_no_epoch_to_begin() -> None:
    """After a marker alone its first sequence number is 0; once it has written, and its batches are forgotten, any."""
    state = manager()
    state.replay(marker(0), EndMarker(commit=True, coordinator_epoch=0))
    entry = state.get(PRODUCER)
    assert entry is not None
    began = entry.has_epoch_to_begin
    state.apply(batch(1, sequence=0))
    entry = state.get(PRODUCER)
    assert entry is not None
    assert (began, entry.has_epoch_to_begin) == (True, False)


def test_expired_producers_are_counted_and_forgotten() -> None:
    state = manager(now_ms=1_000)
    state.apply(batch(0))
    assert state.describe()[0].last_timestamp_ms == 5
    assert state.remove_expired(10_999) == 0
    assert state.knows_all
    assert (state.remove_expired(11_000), len(state), state.knows_all) == (1, 0, False)
    assert state.remove_expired(99_000) == 0


class MovedLog:
    """A log whose producers are known twice: since its beginning, and by copies of the log that took over later."""

    def __init__(self) -> None:
        self.end_offset = 0
        self._batches: list[tuple[BatchHeader, EndMarker | None]] = []
        self.states = [manager()]

    def write(self, producer_id: int, end: EndMarker | None = None) -> None:
        """Writes a batch of a transaction, or the marker that ends it."""
        offset = self.end_offset
        header = batch(offset, transactional=True) if end is None else marker(offset)
        self._batches.append((header._replace(producer_id=producer_id), end))
        self.end_offset += 1
        aborted = [state.replay(*self._batches[-1]) for state in self.states]
        assert aborted == aborted[:1] * len(aborted)

    def replicate(self) -> None:
        """The in-sync replicas get all records."""
        for state in self.states:
            state.high_watermark_moved(self.end_offset)

    def move(self) -> None:
        """Copies the log to another directory, where no high watermark was ever known."""
        copied = manager()
        for header, end in self._batches:
            copied.replay(header, end)
        copied.take_over(self.states[0])
        self.states.append(copied)

    def check(self) -> None:
        seen = [
            (state.first_unstable_offset(), state.encode_snapshot(), state.map_end_offset, state.knows_all)
            for state in self.states
        ]
        assert seen == seen[:1] * len(seen)


def test_a_moved_log_goes_on_like_the_former_one() -> None:
    """After each step of each short history: readers of committed records must not get ahead of a marker by a move."""
    commit, abort = EndMarker(commit=True, coordinator_epoch=1), EndMarker(commit=False, coordinator_epoch=1)
    writes = ((PRODUCER, None), (PRODUCER, commit), (8, None), (8, abort))
    for history in itertools.product((*writes, None), repeat=5):
        log = MovedLog()
        for step in history:
            if step is None:
                log.replicate()
            else:
                log.write(*step)
            log.move()
            log.check()
