"""Goal: no short history of two members of a consumer group lets both read one partition, or accepts a late commit.

Method: all histories of heartbeats, lost answers, commits of a former epoch, departures, refused writes, an ended
session and a failover, up to a depth. The rules are those of the random campaign.
"""

from __future__ import annotations

import pytest

from support.histories.consumer_group import SCENES, joining_pair
from support.histories.explorer import explore


@pytest.mark.parametrize("scene", [SCENES[0], joining_pair])  # the others, and longer histories, are below
def test_short_assignments_have_one_reader(scene):
    assert explore(scene, 3, copies=False, settle_depth=1).states > 50


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES)
def test_longer_assignments_have_one_reader(scene):
    assert explore(scene, 5, copies=False, settle_depth=3).states > 500
