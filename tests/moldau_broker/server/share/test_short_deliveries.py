"""Goal: a record that a member of a share group has accepted is not delivered again, whatever happens to its write.

Method: all histories of two members, successive leaders and the share coordinator, up to a depth, from scenes in which
writes are repeated, late, or of a former leader. From every state a new leader must get all records done.
"""

from __future__ import annotations

import pytest

from support.histories.explorer import explore
from support.histories.shares import SCENES, accepted_first


@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
def test_short_histories_of_deliveries_keep_promises(scene):
    assert explore(scene, 3).states > 100


def test_a_late_write_leaves_the_start_offset_alone():
    """A copy of a write that arrives after the next write does not undo that one, nor its count of done records."""
    world = accepted_first()
    world.accept("A", 1)
    world.deliver()
    world.commit()
    assert world.accepted == {0, 1}
    world.deliver_late()
    world.commit()
    (state,) = world.coordinator.core.states.values()
    assert (state.start_offset, state.batches, state.delivery_complete_count) == (2, (), 0)
    world.settle()


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES, ids=[scene.__name__ for scene in SCENES])
def test_longer_histories_of_deliveries_keep_promises(scene):
    assert explore(scene, 5).states > 1_000
