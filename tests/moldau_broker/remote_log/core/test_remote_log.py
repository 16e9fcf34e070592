"""The remote segments of a partition, as a broker knows them.

Method: single cases, and all small sets of segments against sets of offsets.
"""

import itertools
import random
from uuid import UUID

import pytest

from moldau.runtime.ports.objects import StoredObject
from moldau_broker.remote_log.core.names import DeletionProof, Listing, RemoteSegment
from moldau_broker.remote_log.core.remote_log import RemoteLog


def segment(base: int, end: int, *, epoch: int = 1, number: int = 0, size: int | None = None) -> RemoteSegment:
    """A segment of ten bytes for each offset."""
    size = 10 * (end - base) if size is None else size
    return RemoteSegment(base, end - 1, epoch, 5, False, UUID(int=number or base + 1), size)


def known(*segments: RemoteSegment, epoch: int = 1) -> RemoteLog:
    return RemoteLog(Listing(list(segments), []), lambda _: epoch, 0)


def test_segments_of_another_lineage_are_foreign() -> None:
    epochs = [(0, 1), (20, 3)]

    def epoch_for_offset(offset: int) -> int:
        return max((epoch for start, epoch in epochs if start <= offset), default=-1)

    own = [segment(0, 10), segment(10, 20), segment(20, 30, epoch=3)]
    foreign = [segment(20, 25, epoch=1, number=90), segment(10, 20, epoch=2, number=91), segment(30, 40, epoch=4)]
    remote = RemoteLog(Listing([*own, *foreign], []), epoch_for_offset, 0)
    assert list(remote.segments) == own
    assert set(remote.foreign) == set(foreign)
    epochs[0] = (10, 1)  # the log start offset has moved: the log knows no epoch below
    assert segment(0, 10) in RemoteLog(Listing(own, []), epoch_for_offset, 0).foreign


def test_offsets_lead_to_segments() -> None:
    remote = known(segment(0, 10), segment(10, 20), segment(15, 30), segment(40, 50))
    assert remote.segment_at(9) == segment(0, 10)
    assert remote.segment_at(17) == segment(15, 30)
    assert remote.segment_at(30) is None
    assert remote.segment_at(50) is None
    assert remote.segments_from(30) == [segment(40, 50)]
    assert remote.segments_from(45) == [segment(40, 50)]
    assert remote.segments_from(50) == []
    assert remote.first_offset == 0
    assert remote.copied_end(0) == 30
    assert remote.copied_end(31) == 31
    assert remote.copied_end(44) == 50
    assert remote.holes(0, 60) == [(30, 40), (50, 60)]
    assert remote.holes(35, 38) == [(35, 38)]
    assert remote.size_bytes == 400


def test_an_empty_log() -> None:
    remote = known()
    assert remote.first_offset is None
    assert remote.segment_at(0) is None
    assert remote.copied_end(7) == 7
    assert remote.holes(3, 5) == [(3, 5)]
    assert remote.size_bytes == 0


def test_of_equal_copies_the_lowest_id_stays() -> None:
    copies = [segment(0, 10, number=number) for number in (7, 3, 9)]
    for order in itertools.permutations(copies):
        remote = known(*order)
        assert [item.segment_id.int for item in remote.segments] == [3]
        assert {item.segment_id.int for item in remote.contained} == {7, 9}


def test_changes_of_this_broker() -> None:
    leftover = StoredObject("x.aux", 5, 0)
    remote = RemoteLog(Listing([segment(0, 10), segment(20, 30, epoch=9)], [leftover]), lambda _: 1, 0)
    remote.copied(segment(10, 30))
    assert remote.copied_end(0) == 30
    remote.copied(segment(0, 30, number=50))
    assert set(remote.contained) == {segment(0, 10), segment(10, 30)}
    remote.deleted(segment(0, 10))
    remote.deleted(segment(0, 30, number=50))
    assert list(remote.segments) == [segment(10, 30)]
    remote.deleted(segment(20, 30, epoch=9))
    remote.removed(leftover)
    assert not remote.foreign
    assert not remote.unfinished
    with pytest.raises(AssertionError, match="was copied before"):
        remote.copied(segment(10, 30))


def test_proofs_are_known_once_and_in_order_until_they_go() -> None:
    first, second, third = (DeletionProof(end, 1) for end in (10, 20, 30))
    remote = RemoteLog(Listing([], [], [second]), lambda _: 1, 0)
    for proof in (third, first, second, first):
        remote.proved(proof)
    assert remote.proofs == [first, second, third]
    remote.superseded(second)
    assert remote.proofs == [first, third]
    assert remote.deleted_end == 20


@pytest.mark.parametrize(
    ("proof", "deleted_end"),
    [((20, 1), 20), ((20, 3), 0), ((21, 3), 21), ((21, 1), 0), ((19, 1), 19), ((9, 1), 0)],
)
def test_a_proof_is_of_the_log_if_its_last_record_is(proof: tuple[int, int], deleted_end: int) -> None:
    """The log has epoch 1 from offset 10 on, and epoch 3 from 20 on."""
    remote = RemoteLog(
        Listing([], [], [DeletionProof(*proof)]), lambda offset: -1 if offset < 10 else 1 if offset < 20 else 3, 0
    )
    assert remote.deleted_end == deleted_end


RANGES = [(base, end) for base in range(4) for end in range(base + 1, 5)]


def test_all_small_sets_of_segments() -> None:
    """A union of offsets is the model. Any contained segments may go at once."""
    for count in range(4):
        for chosen in itertools.combinations_with_replacement(RANGES, count):
            check_set([segment(base, end, number=number + 1) for number, (base, end) in enumerate(chosen)])


def check_set(segments: list[RemoteSegment]) -> None:
    offsets = {offset for item in segments for offset in range(item.base_offset, item.end_offset)}
    remote = known(*segments)
    bases = [item.base_offset for item in remote.segments]
    ends = [item.end_offset for item in remote.segments]
    assert bases == sorted(set(bases))
    assert ends == sorted(set(ends))
    assert remote.size_bytes == 10 * len(offsets)
    assert sorted([*remote.segments, *remote.contained], key=id) == sorted(segments, key=id)
    for offset in range(6):
        found = remote.segment_at(offset)
        assert (found is not None) == (offset in offsets)
        assert found is None or found.base_offset <= offset < found.end_offset
        end = offset
        while end in offsets:
            end += 1
        assert remote.copied_end(offset) == end
        for stop in range(7):
            missing = [at for at in range(offset, stop) if at not in offsets]
            starts = [at for at in missing if at - 1 not in missing]
            ends = [at + 1 for at in missing if at + 1 not in missing]
            assert remote.holes(offset, stop) == list(zip(starts, ends, strict=True))
    left = known(*remote.segments)
    assert left.copied_end(0) == remote.copied_end(0)
    assert not left.contained


def test_deletions_by_brokers_with_other_views_leave_all_offsets() -> None:
    """Each broker knows some of the segments, and deletes those that are contained in what it knows."""
    draw = random.Random(8)
    for _ in range(3000):
        segments = [segment(*draw.choice(RANGES), number=number + 1) for number in range(draw.randint(2, 6))]
        offsets = {offset for item in segments for offset in range(item.base_offset, item.end_offset)}
        left = set(segments)
        for _ in range(3):
            view = draw.sample(segments, draw.randint(1, len(segments)))
            left -= set(known(*view).contained)
        assert offsets == {offset for item in left for offset in range(item.base_offset, item.end_offset)}
