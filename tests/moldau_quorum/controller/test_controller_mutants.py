"""Planted bugs in the controller's decisions: the random histories of a partition must convict every one.

The real code passes the same machine (``partition_machine``); a bug that survives shows a gap in the machine.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from moldau_jepsen.planted_bug import planted
from moldau_quorum.metadata import image
from support.controller.mutants import BUGS, PARTITION_BUGS
from support.controller.partition_machine import MovingPartitionMachine, PartitionMachine

SLOW = ("every-election-unclean", "last-known-leader-first", "last-known-leader-clean", "redirect-drops-replicas")
"""Each of these takes as long as all others of its machine."""


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug.name, marks=[pytest.mark.proof] * (bug.name in SLOW)) for bug in BUGS]
)
def test_planted_bugs_are_convicted(bug) -> None:
    machine = PartitionMachine if bug in PARTITION_BUGS else MovingPartitionMachine
    thorough = settings(
        max_examples=400,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with planted(bug), pytest.raises((AssertionError, image.r.MetadataCorruptError)):
        run_state_machine_as_test(machine, settings=thorough)
