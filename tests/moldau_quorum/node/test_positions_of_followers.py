"""Goal: a controller refuses a follower whose position its log cannot contain, and no other follower.

Method: the metadata service over a log that the test sets up, one row for each relation between the two.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise, product
from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchRequest
from moldau_quorum.log.port import CommittedEntry, CommittedRange, Leadership, LogPosition
from moldau_quorum.metadata.epoch_history import EpochHistory
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClusterRecord, Command, ControllerChangeRecord, encode_command
from moldau_quorum.metadata.snapshot import snapshot_pieces
from moldau_quorum.node.serving.metadata_service import MetadataService
from moldau_quorum.node.state_machine import MetadataStateMachine

REFUSED = ErrorCode.OFFSET_OUT_OF_RANGE
TAKEN = ErrorCode.NONE


class Log:
    """A committed log without entries of its own: the service only compares positions."""

    voters: dict[int, object] = {}  # noqa: RUF012 - never changed
    log_start_index = 1
    hangs = False

    def __init__(self, high_watermark: int, leadership: Leadership, end: int = 30) -> None:
        self.high_watermark = high_watermark
        self.leadership = leadership
        self.end = end
        self.machine: SimpleNamespace | None = None

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(log_end_index=self.end)

    def read_committed(self, from_index: int, bytes_max: int) -> CommittedRange:
        return CommittedRange(entries=(), next_index=from_index, high_watermark=self.high_watermark)

    async def wait_for_commit(self, index: int) -> int:
        """While the follower waits, the other history reaches its offset, by commands of epoch 9."""
        await trio.sleep(0.01)
        self.high_watermark = index
        self.machine.epochs.take(index - 1, 9)
        return index


def answer(log: Log, *, offset: int, epoch: int, heard: int = 0, wait_ms: int = 0) -> ErrorCode:
    """Fetches from ``log``, whose commands are of epoch 3 from offset 10 and of epoch 5 from offset 20 on."""
    epochs = EpochHistory()
    epochs.restart(10, 3)
    epochs.take(20, 5)
    log.machine = SimpleNamespace(image=MetadataImage(offset=30, epoch=5), epochs=epochs)
    service = MetadataService(log, log.machine)
    request = MetadataFetchRequest(
        node_id=1, next_offset=offset + 1, wait_ms=wait_ms, last_epoch=epoch, leader_epoch=heard
    )

    async def main() -> ErrorCode:
        return ErrorCode((await service.fetch(request)).error_code)

    return trio.run(main)


def following(epoch: int = 6) -> Leadership:
    return Leadership(leader_id=102, epoch=epoch)


def leading(epoch: int = 6) -> Leadership:
    return Leadership(leader_id=101, epoch=epoch, active=True)


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (30, 5, TAKEN),
        (20, 5, TAKEN),
        (19, 3, TAKEN),
        (19, 5, REFUSED),
        (20, 3, REFUSED),
        (30, 4, REFUSED),
        (30, 6, REFUSED),
        (9, 7, TAKEN),  # before the snapshot with which this node began: it cannot know
        (0, 0, TAKEN),
        (30, -1, TAKEN),  # an older broker, which names no epoch
    ],
)
def test_positions_within_the_log_are_compared(offset: int, epoch: int, expected: ErrorCode) -> None:
    for leadership in (following(), leading()):
        assert answer(Log(30, leadership), offset=offset, epoch=epoch) == expected


@pytest.mark.parametrize(
    ("leadership", "epoch", "heard", "expected"),
    [
        (following(), 5, 6, TAKEN),  # this node lags behind the one that the follower asked before
        (following(), 7, 7, TAKEN),
        (following(), 4, 6, REFUSED),  # its position is earlier than entries here, at a higher offset
        (leading(), 5, 6, REFUSED),  # a leader has all that was committed before it
        (leading(), 5, 5, REFUSED),
        (leading(), 7, 7, TAKEN),  # deposed, and does not know it yet
    ],
)
def test_positions_beyond_the_log_are_judged(
    leadership: Leadership, epoch: int, heard: int, expected: ErrorCode
) -> None:
    assert answer(Log(30, leadership), offset=35, epoch=epoch, heard=heard) == expected


@pytest.mark.parametrize(
    ("epoch", "end", "expected"), [(5, 35, TAKEN), (6, 40, TAKEN), (5, 34, REFUSED), (4, 40, REFUSED)]
)
def test_a_leader_may_be_the_last_to_apply_its_entries(epoch: int, end: int, expected: ErrorCode) -> None:
    """Its disk is slow: a majority without it has committed, and brokers have applied, what is in its own log."""
    assert answer(Log(30, leading(), end), offset=35, epoch=epoch, heard=6) == expected


def test_a_position_is_compared_again_after_a_wait() -> None:
    """Entries that were committed during the long poll may belong to another history."""
    assert answer(Log(30, following()), offset=35, epoch=5, wait_ms=50) == REFUSED


def restore(machine: MetadataStateMachine, image: MetadataImage) -> None:
    """Lets a controller take a snapshot of ``image``."""
    machine.restore_begin()
    for piece in snapshot_pieces(image):
        machine.restore_piece(piece)
    machine.restore_end(LogPosition(index=image.offset, epoch=image.epoch))


def position_answers(service: MetadataService, positions: list[tuple[int, int]]) -> list[ErrorCode]:
    """Returns the answers to followers, each with an offset and the epoch of the last command at or below it."""

    async def main() -> list[ErrorCode]:
        requests = [
            MetadataFetchRequest(node_id=1, next_offset=offset + 1, wait_ms=0, last_epoch=epoch)
            for offset, epoch in positions
        ]
        return [ErrorCode((await service.fetch(request)).error_code) for request in requests]

    return trio.run(main)


def test_a_follower_at_a_restored_snapshot_is_of_its_epoch() -> None:
    """The controller knows no earlier commands of that epoch: the snapshot was taken elsewhere, or before a restart."""
    machine = MetadataStateMachine(101)
    restore(machine, MetadataImage(offset=0).apply([ClusterRecord(cluster_id="c")], offset=30, epoch=5).image)
    service = MetadataService(Log(30, leading()), machine)
    assert position_answers(service, [(30, 5), (30, 4)]) == [TAKEN, REFUSED]


def entry_of(epoch: int, image: MetadataImage, index: int) -> CommittedEntry:
    """Returns the next command of the active controller, the first one of its epoch if that is new."""
    sequence = image.controller_sequence + 1 if image.controller_epoch == epoch else 0
    record = ClusterRecord(cluster_id="c") if sequence else ControllerChangeRecord(controller_id=102, epoch=epoch)
    command = Command(controller_epoch=epoch, sequence=sequence, records=(record,))
    return CommittedEntry(index=index, epoch=epoch, data=encode_command(command, image.metadata_level))


@pytest.mark.parametrize("epochs", list(combinations_with_replacement((1, 2, 4), 3)))
def test_followers_of_the_same_history_are_never_refused(epochs: tuple[int, ...]) -> None:
    """A controller has each command from the log or from a snapshot, in any mixture.

    From its newest snapshot on it refuses all others.
    """
    source = MetadataStateMachine(102)
    entries, images = [], []
    for number, epoch in enumerate(epochs, 1):
        entries.append(entry_of(epoch, source.image, 10 * number))
        source.apply(entries[-1])
        images.append(source.image)
    for ways in product(("apply", "restore", "skip"), repeat=len(entries)):
        if ways[-1] == "skip" or ("skip", "apply") in pairwise(ways):
            continue  # what was skipped is in the snapshot that follows
        machine, known_from = MetadataStateMachine(101), 10
        for way, entry, image in zip(ways, entries, images, strict=True):
            if way == "apply":
                machine.apply(entry)
            elif way == "restore":
                restore(machine, image)
                known_from = entry.index
        service = MetadataService(Log(entries[-1].index, leading()), machine)
        right = [(offset, epochs[offset // 10 - 1]) for offset in (10, 15, 20, 25, 30)]
        wrong = [(offset, epoch + by) for offset, epoch in right if offset >= known_from for by in (-1, 1)]
        assert position_answers(service, right) == [TAKEN] * len(right), ways
        assert position_answers(service, wrong) == [REFUSED] * len(wrong), ways


def test_a_part_of_the_log_is_not_taken_for_all() -> None:
    """A starting broker serves when it has all that was committed, and an answer holds a bounded part of that."""
    log = Log(30, leading())
    entries = tuple(CommittedEntry(index=index, epoch=5, data=b"x") for index in (21, 22))
    log.read_committed = lambda from_index, bytes_max: CommittedRange(  # type: ignore[method-assign]
        entries=entries, next_index=23, high_watermark=30
    )
    machine = SimpleNamespace(image=MetadataImage(offset=30, epoch=5), epochs=EpochHistory())
    request = MetadataFetchRequest(node_id=1, next_offset=21, wait_ms=0)
    response = trio.run(MetadataService(log, machine).fetch, request)
    assert ([offset for offset, _, _ in response.entries], response.committed_offset) == ([21, 22], 30)
