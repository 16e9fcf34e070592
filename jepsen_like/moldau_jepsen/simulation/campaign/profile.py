"""Defines what a profile is: runs with faults that concentrate on one part of the cluster.

A swarm of all faults reaches most states, but narrow windows of a protocol need many faults of a few kinds. A profile
names those kinds and matching time settings of the cluster; the seed draws the rest. ``profiles`` has the profiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.world.world import derive_random

if TYPE_CHECKING:
    from moldau_jepsen.workloads.queue import QueueOptions

PLAIN = RunOptions(pipe=False)
"""The options that most profiles start from."""


def workload(**changes: object) -> QueueOptions:
    """Returns the usual queue with other values of some options."""
    return replace(PLAIN.workload, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of run."""

    name: str
    text: str
    options: RunOptions
    kinds: tuple[FaultKind, ...]
    strikes: tuple[int, int] = (6, 14)
    """Fewest and most faults."""
    lengths: tuple[float, float] = (0.2, 3.0)
    """Shortest and longest fault, in virtual seconds."""
    story: tuple[tuple[FaultKind, float, float], ...] = ()
    """Faults that belong together, with begin and end in seconds; repeated, a little differently each time, while
    others strike."""
    story_seconds: float = 5.0
    """Virtual seconds from the beginning of one repetition to that of the next."""
    stream: str = ""
    """Name of the random stream, if it is not ``name``: a renamed profile keeps the runs of its seeds."""

    def of_seed(self, seed: int) -> RunOptions:
        """Returns the run of a seed: the profile's options with a plan drawn."""
        draw = derive_random(seed, "profile", self.stream or self.name)
        duration = self.options.fault_seconds
        spans = []
        start = 0.5
        while self.story and start + self.story_seconds <= duration:
            for kind, first, last in self.story:
                shift = draw.uniform(0.0, 0.1)
                spans.append((start + first + shift, start + last + shift, kind))
            start += self.story_seconds
        for _ in range(draw.randint(*self.strikes)):
            begin = draw.uniform(0.0, duration * 0.9)
            spans.append((begin, min(duration, begin + draw.uniform(*self.lengths)), draw.choice(self.kinds)))
        faults = tuple(
            PlannedFault(kind=kind, begin=begin, end=end, number=number)
            for number, (begin, end, kind) in enumerate(sorted(spans, key=lambda span: span[0]))
        )
        return replace(self.options, faults=faults)
