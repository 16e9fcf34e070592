"""Negative controls: configurations that promise less, under faults that make use of it. The checkers convict them.

A kit that acquits these would acquit anything. The settings are those of well known losses: acknowledgement by the
leader alone, election of replicas that are not in sync, retries without idempotence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign import Result, RunOptions, run_seed
from moldau_jepsen.simulation.cluster import ClusterShape
from moldau_jepsen.simulation.faults import FaultKind, Struck
from moldau_jepsen.simulation.mutants import finder_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_BROKERS_DIE = (FaultKind.KILL_LEADER, FaultKind.CUT, FaultKind.RESET, FaultKind.KILL_MANY, FaultKind.HALVES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One negative control."""

    name: str
    text: str
    options: RunOptions
    convicted_by: tuple[str, ...]
    """Invariants and checkers that may convict it; anything else is a defect."""


def _options(producer: dict[str, object], settings: dict[str, str]) -> RunOptions:
    plain = RunOptions()
    return replace(
        plain,
        shape=ClusterShape(settings=settings),
        workload=replace(plain.workload, producer=producer),
        kinds=_BROKERS_DIE,
        struck=Struck.BROKERS,
    )


CONTROLS: dict[str, Control] = {
    control.name: control
    for control in (
        Control(
            name="acks-1",
            text="records acknowledged by the leader alone are lost with it",
            options=_options({"acks": "1", "enable.idempotence": False}, {}),
            convicted_by=("lost-write", "unseen", "inconsistent-offsets", "stuck"),
        ),
        Control(
            name="unclean-election",
            text="a replica that is not in sync leads, and what it lacks is lost",
            options=_options({}, {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}),
            convicted_by=("leader-completeness", "log-agreement", "lost-write", "unseen", "inconsistent-offsets"),
        ),
        Control(
            name="no-idempotence",
            text="retries write records twice",
            options=_options({"enable.idempotence": False, "max.in.flight.requests.per.connection": 5}, {}),
            convicted_by=("duplicate", "nonmonotonic-send", "int-nonmonotonic-send"),
        ),
    )
}


def run_control(control: Control, seeds: Iterable[int]) -> tuple[Result | None, int]:
    """Runs seeds until one convicts; returns its result (None if none does) and how many were run."""
    count = 0
    for seed in seeds:
        count += 1
        result = run_seed(seed, control.options)
        if any(finder_of(violation) in control.convicted_by for violation in result.violations):
            return result, count
    return None, count
