"""Goal: the producers at an offset are those of a log that has the batches on its disk.

Method: batches as a leader wrote them, given in pieces of every size; then damaged ones, and those of another lineage.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import LogError
from moldau_broker.remote_log.core.producers import ProducersAt
from support.log.lab import create, open_manager
from support.log.model import START_MS, VirtualMachine, make_batch

EPOCH = LeaderEpoch(1)


def written() -> tuple[list[bytes], bytes]:
    """Batches of producers, one transaction of whom is open, and the snapshot behind them."""
    log = create(open_manager(VirtualMachine(1)))
    for sequence in range(3):
        for producer in (5, 6):
            data = make_batch([(START_MS, b"k", b"v")], producer=(producer, 0, sequence), transactional=producer == 6)
            log.append_as_leader(memoryview(data), leader_epoch=EPOCH, now_ms=START_MS)
    log.append_end_transaction_marker(
        producer_id=6, producer_epoch=0, coordinator_epoch=0, commit=True, leader_epoch=EPOCH, now_ms=START_MS
    )
    data = make_batch([(START_MS, b"k", b"v")], producer=(6, 0, 3), transactional=True)
    log.append_as_leader(memoryview(data), leader_epoch=EPOCH, now_ms=START_MS)
    batches: list[bytes] = []
    while (offset := len(batches)) < log.log_end_offset:
        found = log.read(offset, max_bytes=1, upper_bound_offset=log.log_end_offset, min_one_batch=True)
        batches += [piece.file.read(piece.position, piece.count) for piece in found.ranges]
    return batches, log.producer_state.encode_snapshot()


def test_batches_behind_a_snapshot_complete_it() -> None:
    batches, whole = written()
    for cut in range(len(batches) + 1):
        first = ProducersAt(0, None)
        first.apply(b"".join(batches[:cut]), lambda _: 1)
        assert first.offset == cut
        later = ProducersAt(cut, first.snapshot())
        later.apply(b"".join(batches[cut:]), lambda _: 1)
        assert (later.offset, later.snapshot()) == (len(batches), whole)


def test_batches_of_another_lineage_count_up_to_where_it_parts() -> None:
    """An unclean election has dropped what follows in the segment: the log has another epoch there."""
    batches, _ = written()
    producers = ProducersAt(0, None)
    with pytest.raises(LogError) as caught:
        producers.apply(b"".join(batches), lambda offset: 1 if offset < 4 else 2)
    assert (caught.value.code, producers.offset) == (ErrorCode.CORRUPT_MESSAGE, 4)


def test_damage_is_an_error() -> None:
    batches, snapshot = written()
    damaged = bytearray(batches[0])
    damaged[-1] ^= 1
    with pytest.raises(LogError):
        ProducersAt(0, None).apply(bytes(damaged), lambda _: 1)
    with pytest.raises(LogError):
        ProducersAt(3, snapshot[:-1])
