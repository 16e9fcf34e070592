"""Goal: a snapshot never takes a follower or a controller back.

Method: the metadata service and the state machine, over images that the test makes.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchRequest
from moldau_quorum.log.port import Leadership, LogPosition, SnapshotInvalidError
from moldau_quorum.metadata.image import RESOURCE_TOPIC, MetadataImage
from moldau_quorum.metadata.records import ConfigRecord, FeatureLevelRecord
from moldau_quorum.metadata.snapshot import snapshot_pieces
from moldau_quorum.node.serving.metadata_service import (
    SNAPSHOT_IDLE_SECONDS,
    SNAPSHOT_LAG_MAX,
    MetadataService,
)
from moldau_quorum.node.state_machine import MetadataStateMachine


@pytest.mark.parametrize(("next_offset", "served"), [(30, 30), (31, 60), (50, 60)])
def test_a_kept_snapshot_is_not_served_below_the_follower(next_offset: int, served: int) -> None:
    """It is young enough for another follower, but this one has later entries already."""
    machine: Any = MetadataStateMachine(101)
    log: Any = SimpleNamespace(
        leadership=Leadership(leader_id=101, epoch=3), hangs=False, high_watermark=60, log_start_index=55, voters={}
    )
    service = MetadataService(log, machine)

    def fetched(wanted: int) -> int:
        request = MetadataFetchRequest(node_id=1, next_offset=wanted, wait_ms=0)
        return trio.run(service.fetch, request).snapshot_offset

    assert SNAPSHOT_LAG_MAX >= 60 - 30
    for offset in (30, 60):
        machine.image = MetadataImage(offset=offset, epoch=3)
        assert fetched(0) == 30, "all followers share the young one"
    assert fetched(next_offset) == served


def made_image(offset: int) -> MetadataImage:
    """Returns an image whose snapshot has three pieces at least."""
    image = MetadataImage().apply([FeatureLevelRecord(name="metadata.version", level=3)], offset=0, epoch=3).image
    records = [
        ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name=f"t{number}", name="k", value="v")
        for number in range(1_200)
    ]
    return image.apply(records, offset=offset, epoch=3).image


def test_many_starting_followers_share_few_snapshots() -> None:
    """Each change of the metadata makes all kept snapshots too old, while four followers read piece by piece."""
    machine: Any = MetadataStateMachine(101)
    log: Any = SimpleNamespace(
        leadership=Leadership(leader_id=101, epoch=3), hangs=False, high_watermark=9_000, log_start_index=1, voters={}
    )
    service = MetadataService(log, machine)
    first_offsets: dict[int, list[int]] = {}

    async def follow(node_id: int) -> None:
        while True:
            response = await service.fetch(MetadataFetchRequest(node_id=node_id, next_offset=0, wait_ms=0, bytes_max=1))
            offset, count = response.snapshot_offset, len(response.pieces)
            first_offsets.setdefault(node_id, []).append(offset)
            while not response.complete:
                await trio.sleep(1)
                response = await service.fetch(
                    MetadataFetchRequest(
                        node_id=node_id, next_offset=0, wait_ms=0, snapshot_offset=offset, piece=count, bytes_max=1
                    )
                )
                if response.error_code != ErrorCode.NONE:
                    break
                count += len(response.pieces)
            else:
                return

    async def main() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for node_id in range(4):
                    machine.image = made_image(1_000 * (node_id + 1))
                    nursery.start_soon(follow, node_id)
                    await trio.sleep(0.2)
        assert list(first_offsets.values()) == [[1_000], [2_000], [2_000], [2_000]]
        with_start = MetadataFetchRequest(node_id=9, next_offset=0, wait_ms=0)
        log.log_start_index = 3_000
        assert (await service.fetch(with_start)).snapshot_offset == 4_000, "the log does not go on from the others"
        log.log_start_index = 1
        machine.image = made_image(8_000)
        await trio.sleep(11)
        assert (await service.fetch(with_start)).snapshot_offset == 8_000, "the kept ones are not read any more"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_lowered_level_makes_a_new_snapshot() -> None:
    """A broker of the older version starts after the downgrade: it cannot read what was kept at the higher level.

    Later changes go on sharing one snapshot, and so does a level that is raised.
    """
    machine: Any = MetadataStateMachine(101)
    log: Any = SimpleNamespace(
        leadership=Leadership(leader_id=101, epoch=3), hangs=False, high_watermark=60, log_start_index=1, voters={}
    )
    service = MetadataService(log, machine)
    request = MetadataFetchRequest(node_id=1, next_offset=0, wait_ms=0)
    served = []
    for offset, level in ((10, 4), (20, 4), (30, 3), (40, 3), (50, 4)):
        record = FeatureLevelRecord(name="metadata.version", level=level)
        machine.image = machine.image.apply([record], offset=offset, epoch=3).image
        served.append(trio.run(service.fetch, request).snapshot_offset)
    assert served == [10, 10, 30, 30, 30]


def test_a_snapshot_is_kept_while_its_pieces_are_asked_for() -> None:
    """Two slow followers take longer than an idle snapshot is kept; a third one shares what they read."""
    machine: Any = MetadataStateMachine(101)
    log: Any = SimpleNamespace(
        leadership=Leadership(leader_id=101, epoch=3), hangs=False, high_watermark=9_000, log_start_index=1, voters={}
    )
    service = MetadataService(log, machine)

    async def fetched(snapshot_offset: int = -1, piece: int = 0) -> int:
        request = MetadataFetchRequest(
            node_id=1, next_offset=0, wait_ms=0, snapshot_offset=snapshot_offset, piece=piece, bytes_max=1
        )
        response = await service.fetch(request)
        assert response.error_code == ErrorCode.NONE
        assert not response.complete
        return response.snapshot_offset

    async def main() -> None:
        base = made_image(1_000)
        for offset in (1_000, 2_000):
            machine.image = replace(base, offset=offset)
            assert await fetched() == offset
        machine.image = replace(base, offset=3_000)
        for _ in range(2):
            await trio.sleep(SNAPSHOT_IDLE_SECONDS * 0.6)
            for offset in (1_000, 2_000):
                assert await fetched(offset, 1) == offset
        assert await fetched() == 2_000

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("offset", "epoch", "refused"), [(10, 3, False), (11, 4, False), (11, 2, True), (9, 3, True), (9, 4, True)]
)
def test_a_controller_takes_no_snapshot_of_an_older_state(offset: int, epoch: int, refused: bool) -> None:
    """An older epoch at a later offset is another history: epochs of a log never fall."""
    machine = MetadataStateMachine(101)
    machine.image = MetadataImage(offset=10, epoch=3)
    machine.restore_begin()
    for piece in snapshot_pieces(MetadataImage(offset=offset, epoch=epoch)):
        machine.restore_piece(piece)
    if refused:
        with pytest.raises(SnapshotInvalidError, match="is older than offset 10, epoch 3"):
            machine.restore_end(LogPosition(index=offset, epoch=epoch))
        assert (machine.image.offset, machine.image.epoch) == (10, 3)
    else:
        machine.restore_end(LogPosition(index=offset, epoch=epoch))
        assert (machine.image.offset, machine.image.epoch) == (offset, epoch)
