"""Goal: streams groups keep their rules in random histories, and the rules notice planted bugs (KIP-1071).

Method: seeded campaigns of clients against the pure core, with delayed and refused writes, lost answers, ended
sessions, changing topics, failed creations of topics, and new coordinators. After each step no active task has two
owners, no process has a task twice, no commit without the right is accepted, and the replayed log equals the state. At
the end every task runs. Each planted bug must make a campaign fail.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.planted_bug import planted
from support.coordinator.streams_mutants import BUGS, SEEDS
from support.coordinator.streams_world import run_campaign, run_campaigns
from support.proof import proof_beyond


@pytest.mark.parametrize("seed", proof_beyond(1, range(8)))
def test_campaign_of_streams_clients(seed: int) -> None:
    run_campaign(seed)


@pytest.mark.parametrize("seed", [104, 130])
def test_a_refused_move_gives_no_member_time_without_end(seed: int) -> None:
    """Seeds in which a member's time ended while its move was being written, and the write was refused."""
    run_campaign(seed)


@pytest.mark.proof
@pytest.mark.parametrize("first", range(8, 200, 24))
def test_many_campaigns_of_streams_clients(first: int) -> None:
    run_campaigns(range(first, first + 24))


@pytest.mark.proof
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_planted_bug_of_streams_is_found(bug) -> None:
    with planted(bug), pytest.raises(AssertionError):
        run_campaigns(SEEDS)
