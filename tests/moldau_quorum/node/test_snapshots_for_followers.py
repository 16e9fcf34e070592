"""Goal: a snapshot never takes a follower or a controller back.

Method: the metadata service and the state machine, over images that the test makes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau_quorum.broker_side.metadata_fetch import MetadataFetchRequest
from moldau_quorum.log.port import Leadership, LogPosition, SnapshotInvalidError
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.snapshot import snapshot_pieces
from moldau_quorum.node.serving.metadata_service import SNAPSHOT_LAG_MAX, MetadataService
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
