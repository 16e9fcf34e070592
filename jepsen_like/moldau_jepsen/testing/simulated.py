"""A scenario of a user's test in a simulated cluster, watched by the invariants after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import trio

from moldau_jepsen.simulation.cluster import ClusterShape, SimulatedCluster
from moldau_jepsen.simulation.invariants import ClusterInvariants
from moldau_jepsen.simulation.observer import ClusterObserver
from moldau_jepsen.simulation.world import run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau_jepsen.simulation.world import World

T = TypeVar("T")


class SimulationError(AssertionError):
    """An invariant did not hold, or a process of the cluster ended with an exception."""


def run_scenario(
    scenario: Callable[[SimulatedCluster], Awaitable[T]],
    *,
    seed: int,
    brokers: int,
    controllers: int,
    settings: dict[str, str],
) -> T:
    """See ``moldau_jepsen.testing.simulate``."""

    raised: list[Exception] = []  # an exception of the scenario must not come out as a group of trio's

    async def main(world: World) -> T | None:
        # Brokers sync before they acknowledge, so that a loss of power costs nothing that was promised.
        chosen = {"log.flush.interval.messages": "1", **settings}
        cluster = SimulatedCluster(world, ClusterShape(brokers=brokers, controllers=controllers, settings=chosen))
        judge = ClusterInvariants(trio.current_time)
        observer = ClusterObserver(cluster, judge)
        world.agenda.watchers.append(observer.step_ended)
        try:
            cluster.start_all()
            result = await scenario(cluster)
        except Exception as error:  # noqa: BLE001 - it is raised again below, outside of the world
            raised.append(error)
            return None
        finally:
            world.agenda.watchers.remove(observer.step_ended)
        found = [str(violation) for violation in judge.violations]
        found += [f"{name} ended with {error!r}" for name, error in world.failures]
        if found:
            raise SimulationError(f"seed {seed}: {'; '.join(found[:5])}")
        return result

    result = run_world(main, seed)
    if raised:
        raise raised[0]
    return cast("T", result)
