"""A simulated world: virtual time, network and disks inside one trio run.

It knows nothing of Kafka and runs any trio program that takes clock, randomness, network and disk from an
``Environment``: docs/guides/simulate.md shows how.
"""

from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.time.scheduler import StuckError
from moldau_jepsen.world.world import ProcessFailedError, SimulatedNode, World, derive_random, run_world

__all__ = ["NetworkProfile", "ProcessFailedError", "SimulatedNode", "StuckError", "World", "derive_random", "run_world"]
