"""Goal: no short history of a partition acknowledges a record that an electable replica lacks.

Method: all histories of appends, fetches, pauses, fenced brokers, proposals with lost, late and refused answers, up to
a depth, from seven beginnings. From every state the ISR must become whole again, and every record committed.
"""

from __future__ import annotations

import pytest

from support.histories.explorer import explore
from support.histories.replicas import SCENES


@pytest.mark.parametrize("scene", SCENES)
def test_short_replications_acknowledge_what_is_safe(scene):
    assert explore(scene, 4).states > 200


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES)
def test_longer_replications_acknowledge_what_is_safe(scene):
    assert explore(scene, 6).states > 2_000
