"""Goal: no fault makes two members of a streams group run one task, or loses a commit; and planted bugs do (KIP-1071).

Method: members as programs on virtual time, in a cluster whose brokers die and are cut off, while members crash, hang,
leave and lose their links. `moldau_jepsen.checkers.group.streams` judges what the members did. Planted bugs must be
found in the runs in which the real code is flawless.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.checkers.group.streams import StreamsAnomalyKind
from moldau_jepsen.planted_bug import planted
from support.coordinator import streams_mutants
from support.streams.story import tell

K = StreamsAnomalyKind
SEEDS = range(1, 13)
BUGS = {
    "active-task-given-before-release": {K.TWO_AT_ONCE, K.TWO_IN_EPOCH},
    "silence-counts-as-release": {K.TWO_AT_ONCE, K.TWO_IN_EPOCH},
    "revoked-without-order": {K.TWO_AT_ONCE, K.TWO_IN_EPOCH},
    "streams-session-never-ends": {K.NOT_SETTLED},
    "task-forgotten-by-assignor": {K.NOT_SETTLED},
    "commit-of-stranger-accepted": {K.OFFSET_BACK, K.OFFSET_LOST},
}


def judged(story):
    return [(each.kind.value, each.text) for each in story.anomalies]


def test_members_share_tasks_while_brokers_die():
    """One run: each task has one member at a time, commits stay, and the group comes to rest."""
    story = tell(1, work_s=35)
    assert judged(story) == []
    assert story.faults["kill"] + story.faults["cut-broker"] >= 2
    assert story.faults["hang"] >= 2
    assert story.faults["crash"] >= 1
    assert len(story.history.holdings) > 20
    assert sum(bool(each.accepted) for each in story.history.commits) > 50
    assert len(story.history.reads) > 10


def test_lost_order_to_close_a_task_is_repeated():
    """A member whose answer with a revocation is lost hears of it again, and need not be removed."""
    assert judged(tell(14)) == []


@pytest.mark.proof
@pytest.mark.parametrize("first", [2, 8, 14])
def test_more_seeds(first):
    """The runs in which the planted bugs are hunted, and many more, are flawless without them."""
    for seed in range(first, first + 6):
        assert judged(tell(seed)) == [], seed


def _find(name: str) -> None:
    (bug,) = (each for each in streams_mutants.BUGS if each.name == name)
    found = set()
    with planted(bug):
        for seed in SEEDS:
            found |= {each.kind for each in tell(seed).anomalies}
            if found & BUGS[name]:
                return
    raise AssertionError(f"{name} was not found in {len(SEEDS)} seeds: {found}")


@pytest.mark.proof
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name):
    """Each bug is convicted by the anomaly that it causes."""
    _find(name)
