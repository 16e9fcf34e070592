"""Goal: the simulation empties, cuts and damages the logs of stopped voters, and convicts a quorum that trusts them.

Method: runs of the profile that does so, with the real code, which must hold and get its voters back, and with the
planted bug that knows voters by their id alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.simulation.campaign.profiles import LOST_VOTERS
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.inject.faults import STREAMS, FaultKind, PlannedFault, plan_of_seed
from moldau_jepsen.simulation.mutants.mutants import planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from support.proof import proof_beyond


@pytest.mark.parametrize(
    ("seed", "seconds", "changes"), proof_beyond(1, [(1, 4.0, 5.0), (1, 20.0, 25.0), (3, 20.0, 25.0)])
)
def test_a_quorum_bears_the_loss_of_logs(seed, seconds, changes):
    options = replace(LOST_VOTERS.of_seed(seed), fault_seconds=seconds, config_changes_per_second=changes)
    result = run_seed(seed, options)
    assert not result.violations
    assert result.faults_by_kind["lost-log"] >= 2, "they took effect"


@pytest.mark.proof
def test_emptied_voters_that_vote_are_convicted():
    with planted(MUTANTS["raft-emptied-voter-accepted"]):
        result = run_seed(1, LOST_VOTERS.of_seed(1))
    assert any("metadata-prefix" in violation for violation in result.violations), result.violations


def test_lost_logs_shift_no_other_fault():
    """They are drawn of a stream of their own, and come after those that were there before them."""
    later = [kind for stream, kinds in STREAMS.items() if stream != "apart" for kind in kinds]
    older = tuple(kind for kind in FaultKind if kind not in later)
    for seed in range(30):
        without, with_them = plan_of_seed(seed, 15.0, older), plan_of_seed(seed, 15.0, (*older, *STREAMS["last"]))
        kept = [fault for fault in with_them if fault.kind is not FaultKind.LOST_LOG]
        assert kept == without
        assert all(
            isinstance(fault, PlannedFault) and fault.number >= len(without) for fault in set(with_them) - set(kept)
        )
