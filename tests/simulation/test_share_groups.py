"""Goal: no fault makes a share group deliver a record to two members, or lose one; and planted bugs do.

Method: the share workload in the simulation, with brokers that die; its checker judges what the members saw. Each
planted bug must be found within a few seeds, in the same runs in which the real code is flawless.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.checkers.group.share import ShareAnomalyKind
from moldau_jepsen.planted_bug import PlantedBug, planted
from moldau_jepsen.simulation.mutants.planted import shares
from support.share.story import tell

K = ShareAnomalyKind
SEEDS = (1, 2, 3)
BUGS = {
    "share-acquires-acquired": (shares.share_acquires_acquired, {K.TWO_HOLDERS, K.DELIVERED_AGAIN}),
    "share-any-member-acknowledges": (shares.share_any_member_acknowledges, {K.TWO_HOLDERS}),
    "share-state-not-written": (shares.share_state_not_written, {K.DELIVERED_AGAIN}),
    "share-delivery-count-kept": (shares.share_delivery_count_kept, {K.COUNT}),
    "share-released-is-done": (shares.share_released_is_done, {K.LOST}),
    "share-lock-never-expires": (shares.share_lock_never_expires, {K.LOST}),
}


def judged(story):
    return [(each.kind.value, each.place, each.text) for each in story.verdict.anomalies]


def test_members_agree_while_brokers_die():
    """One run: every record ends accepted, rejected or given up, and has one holder at a time."""
    story = tell(1, work_s=14, kill_every_s=5)
    assert judged(story) == []
    assert story.kills >= 2
    assert story.verdict.records > 100
    assert story.verdict.deliveries > story.verdict.records
    assert story.verdict.acknowledged > 100


@pytest.mark.proof
@pytest.mark.parametrize("seed", SEEDS[1:])
def test_more_seeds(seed):
    """The runs in which the planted bugs are hunted are flawless without them."""
    assert judged(tell(seed)) == []


@pytest.mark.proof
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name):
    """Each bug is convicted by the anomaly that it causes."""
    patches, expected = BUGS[name]
    bug = PlantedBug(name=name, area="shares", text=patches.__doc__ or "", patches=patches)
    found = set()
    with planted(bug):
        for seed in SEEDS:
            found |= {each.kind for each in tell(seed).verdict.anomalies}
            if found & expected:
                return
    raise AssertionError(f"{name} was not found in {len(SEEDS)} seeds: {found}")
