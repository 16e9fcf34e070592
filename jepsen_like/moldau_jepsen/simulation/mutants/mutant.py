"""A planted bug together with the simulated runs in which it is hunted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.planted_bug import PlantedBug
from moldau_jepsen.simulation.campaign.options import RunOptions

if TYPE_CHECKING:
    from moldau_jepsen.simulation.campaign.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant(PlantedBug):
    """One planted bug of a whole cluster."""

    profile: Profile | None = None
    """The runs that press on the rule; the swarm of everything if None."""
    swarm: RunOptions | None = None
    """Other options of the swarm, where there is no profile."""

    @property
    def options(self) -> RunOptions | None:
        """The options that all its runs share; None for those of the swarm."""
        return self.profile.options if self.profile is not None else self.swarm

    def run_of(self, seed: int) -> RunOptions:
        """Returns the run of a seed in which the bug is hunted."""
        if self.profile is not None:
            return self.profile.of_seed(seed)
        return self.swarm if self.swarm is not None else RunOptions()
