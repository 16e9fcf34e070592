"""Goal: no short history of two members gives one partition twice, or accepts a commit of an older generation.

Method: all histories of joins, syncs, commits in time and late, heartbeats, departures, ended sessions, a replaced
static member, refused writes and a failover, up to a depth. From every state both members must come together again.
"""

from __future__ import annotations

import pytest

from support.histories.classic_group import SCENES, ClassicGroup, stable_pair, syncing_pair
from support.histories.explorer import explore


@pytest.mark.parametrize(("scene", "depth"), [(ClassicGroup, 4), (stable_pair, 3), (syncing_pair, 2)])
def test_short_rebalances_keep_the_rules_of_groups(scene, depth):
    assert explore(scene, depth, copies=False).states > 100


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES)
def test_longer_rebalances_keep_the_rules_of_groups(scene):
    assert explore(scene, 4, copies=False).states > 500
