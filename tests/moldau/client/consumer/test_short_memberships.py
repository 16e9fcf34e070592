"""Goal: no short history of two members lets one commit for partitions that the other one owns.

Method: all histories of the client's cores against the coordinator's, up to a depth: answers that come, come late or
get lost, polls, commits, departures, ended sessions and a failover. From every state both members must settle.
"""

from __future__ import annotations

import pytest

from support.histories.explorer import explore
from support.histories.members import SCENES, Members, lost_member, stable_members


@pytest.mark.parametrize(("scene", "depth"), [(Members, 4), (stable_members, 3), (lost_member, 3)])
def test_short_memberships_commit_their_own_offsets(scene, depth):
    assert explore(scene, depth, copies=False).states > 50


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES)
def test_longer_memberships_commit_their_own_offsets(scene):
    assert explore(scene, 5, copies=False).states > 400
