"""Goal: no short history of three voters breaks a rule of Raft, or leaves a quorum that cannot go on.

Method: all histories of elections between two nodes, proposals, replications, writes without a sync, syncs, crashes and
one late request, up to a depth, from several beginnings. Log matching, votes, what a node calls durable, and what a
leader believes of the others are checked against the disks after each action.
"""

from __future__ import annotations

import pytest

from support.histories.explorer import explore
from support.histories.quorum import SCENES, contested_quorum


@pytest.mark.parametrize(
    "scene", [scene for scene in SCENES if scene is not contested_quorum]
)  # twice as many as others
def test_short_histories_of_a_quorum_keep_its_rules(scene):
    explored = explore(scene, 3, settle_depth=1)
    assert explored.states > 1_000


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES)
def test_longer_histories_of_a_quorum_keep_its_rules(scene):
    assert explore(scene, 4, settle_depth=2).states > 6_000
