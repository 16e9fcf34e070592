"""Deterministic simulation: production code on virtual time, a virtual network and virtual disks, from one seed.

``run_seed`` runs one whole cluster with its clients and faults; ``run_seeds`` spreads many over the cores,
and ``run_guided`` also chooses their kinds. Each name is loaded at its first use: a simulated test of the pytest plugin
needs the judges of this package, but neither campaigns nor planted bugs.
"""

from typing import TYPE_CHECKING

from moldau.lazy import lazy_names

if TYPE_CHECKING:
    from moldau_jepsen.simulation.campaign.options import Result, RunOptions
    from moldau_jepsen.simulation.campaign.runner import examine, run_guided, run_seeds, write_failure
    from moldau_jepsen.simulation.campaign.seed import run_seed

__all__ = ["Result", "RunOptions", "examine", "run_guided", "run_seed", "run_seeds", "write_failure"]

_HOMES = {
    "Result": "campaign.options",
    "RunOptions": "campaign.options",
    "examine": "campaign.runner",
    "run_guided": "campaign.runner",
    "run_seed": "campaign.seed",
    "run_seeds": "campaign.runner",
    "write_failure": "campaign.runner",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
