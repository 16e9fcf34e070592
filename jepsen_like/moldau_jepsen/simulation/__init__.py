"""Deterministic simulation: production code on virtual time, a virtual network and virtual disks, from one seed.

``run_seed`` runs one whole cluster with its clients and faults; ``run_seeds`` spreads many over the cores,
and ``run_guided`` also chooses their kinds.
"""

from moldau_jepsen.simulation.campaign.campaign import Result, RunOptions, run_seed
from moldau_jepsen.simulation.campaign.runner import examine, run_guided, run_seeds, write_failure

__all__ = ["Result", "RunOptions", "examine", "run_guided", "run_seed", "run_seeds", "write_failure"]
