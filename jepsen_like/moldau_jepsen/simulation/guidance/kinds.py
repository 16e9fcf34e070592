"""The kinds of runs that can be chosen: the swarm of everything, and profiles.

Beside the profiles that campaigns draw, some of those that press on one rule can be chosen. They lead to rare
situations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign.profiles import PROFILES, drawn_profile, options_in_campaign
from moldau_jepsen.simulation.mutants import pressed

if TYPE_CHECKING:
    from moldau_jepsen.simulation.campaign.options import Result, RunOptions
    from moldau_jepsen.simulation.campaign.profile import Profile

SWARM = "swarm"
"""Name of the runs without a profile."""

CHOSEN: dict[str, Profile] = PROFILES | {
    profile.name: profile
    for profile in (
        pressed.ADMINISTRATION,
        pressed.HELD_MEMBERSHIPS,
        pressed.HELD_QUESTIONS,
        pressed.LATE_PACKETS,
        pressed.NEAR_READERS,
        pressed.POWER_CUTS,
        pressed.SHORT_SEQUENCES,
        pressed.STARTED_OVER,
    )
}
"""All profiles that can be chosen by name. Their runs must be clean."""
KINDS = (SWARM, *CHOSEN)


def chosen_options(kind: str, seed: int) -> RunOptions:
    """Returns the run of a seed as one of a kind, whatever the seed itself would draw.

    Raises:
        KeyError: There is no such kind.
    """
    return options_in_campaign(None if kind == SWARM else CHOSEN[kind], seed)


def kind_of(result: Result) -> str:
    """Returns the kind of a run, chosen or drawn by its seed."""
    if result.kind:
        return result.kind
    drawn = drawn_profile(result.seed)
    return SWARM if drawn is None else drawn.name
