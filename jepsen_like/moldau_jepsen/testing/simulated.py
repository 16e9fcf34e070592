"""Runs a user's test in a simulated cluster and checks the invariants after every step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import trio

from moldau.runtime.tasks.exceptions import leaves
from moldau_broker.log.errors import LogStorageError
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.launcher import ClusterSpec
from moldau_jepsen.launcher.cluster import refuse_wrong
from moldau_jepsen.launcher.spec import PROMPT_GROUPS
from moldau_jepsen.places import place_of
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants
from moldau_jepsen.simulation.judge.observer import ClusterObserver
from moldau_jepsen.simulation.judge.watch import LogLines, StepGuard
from moldau_jepsen.testing.local import settings_text
from moldau_jepsen.world.world import is_interrupt, run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Mapping

    from moldau_jepsen.testing.recording import Recording
    from moldau_jepsen.world.world import World

T = TypeVar("T")

Acknowledged = Callable[[str, int, int], None]
"""A function of topic, partition and offset, called for each record that was acknowledged with acks=all."""

SHOWN_MAX = 5


class SimulationError(AssertionError):
    """The simulated cluster misbehaved.

    An invariant did not hold, a request failed inside a node, a process of the cluster ended with an exception, or
    tasks kept running without time advancing. The cause is the exception that the scenario raised, if any.
    """


class _Watched:
    """A cluster and the judges that watch it while the scenario runs."""

    def __init__(self, world: World, shape: ClusterShape, logs: LogLines) -> None:
        self.cluster = SimulatedCluster(world, shape)
        self._world = world
        self._logs = logs
        self._judge = ClusterInvariants(trio.current_time)
        self._guard = StepGuard(world.agenda.clock)
        self._observer = ClusterObserver(self.cluster, self._judge)

    @contextlib.contextmanager
    def watching(self, scope: trio.CancelScope) -> Iterator[None]:
        """Judges every step of the block; cancels ``scope`` if tasks never rest."""
        watchers = self._world.agenda.watchers
        mine = (self._observer.turn_ended, self._guard.turn_ended)
        self._guard.on_found = scope.cancel
        watchers.extend(mine)
        try:
            yield
        finally:
            for watcher in mine:
                watchers.remove(watcher)
            self._guard.end()

    def acknowledged(self, topic: str, partition: int, offset: int) -> None:
        """See ``Acknowledged``. If a topic was deleted and created again, the topic with the longest log counts."""
        named = [key for key in self._judge.partitions if (key.topic, key.partition) == (topic, partition)]
        if named:
            furthest = max(named, key=lambda key: self._judge.partition(key).end)
            self._judge.acknowledged(furthest, offset)

    def found(self) -> list[str]:
        """Returns the violations found so far."""
        found = [str(violation) for violation in self._judge.violations]
        found += [f"failed request: {line}" for line in self._logs.failures]
        found += [self._guard.found] if self._guard.found is not None else []
        found += [
            f"{name} ended with {place_of(error)}"
            for index, (name, error) in enumerate(self._world.failures)
            if not self._is_full_disk(index, name, error)
        ]
        return found

    def _is_full_disk(self, index: int, name: str, error: BaseException) -> bool:
        """Returns whether a process may have ended because the test had filled its disk."""
        if not all(isinstance(leaf, OSError | LogStorageError) for leaf in leaves(error)):
            return False
        nodes = [node_id for node_id in self.cluster.machines if self.cluster.host(node_id) == name]
        return any(self.cluster.full_disks.explains(node_id, index) for node_id in nodes)


def _timeline(world: World, logs: LogLines) -> list[str]:
    """Merges the notes of the trace and the log lines in order of time; each line begins with its time."""
    return sorted([*map(str, world.trace.notes()), *logs.lines], key=lambda line: float(line[:12]))


def run_scenario(
    scenario: Callable[[SimulatedCluster], Awaitable[T]],
    *,
    seed: int,
    brokers: int,
    controllers: int,
    settings: Mapping[str, object],
) -> T:
    """See ``moldau_jepsen.testing.simulate``."""

    async def main(cluster: SimulatedCluster, _: Acknowledged) -> T:
        return await scenario(cluster)

    return run_reported(main, seed=seed, brokers=brokers, controllers=controllers, settings=settings)


def run_reported(
    scenario: Callable[[SimulatedCluster, Acknowledged], Awaitable[T]],
    *,
    seed: int,
    brokers: int,
    controllers: int,
    settings: Mapping[str, object],
    timeline: list[str] | None = None,
    recording: Recording | None = None,
) -> T:
    """Runs a scenario that also reports acknowledged records, which must be committed already.

    When the scenario has ended, the actions on nodes and the nodes' log lines are added to ``timeline``. All events are
    added to ``recording`` meanwhile.

    Raises:
        LauncherUsageError: A cluster of processes would refuse the shape or the settings as well.
    """
    texts = settings_text(settings)
    refuse_wrong(ClusterSpec(brokers=brokers, controllers=controllers, settings=texts))
    raised: list[BaseException] = []  # Keeps the scenario's exception out of trio's exception groups.
    logs = LogLines()

    async def main(world: World) -> tuple[T | None, list[str]]:
        # Brokers sync before they acknowledge, so that a loss of power loses no acknowledged record.
        chosen = {"log.flush.interval.messages": "1", **PROMPT_GROUPS, **texts}
        shape = ClusterShape(brokers=brokers, controllers=controllers, settings=chosen)
        watched = _Watched(world, shape, logs)
        if recording is not None:
            recording.begin(world.trace)
            world.agenda.watchers.append(recording.turn_ended)
        result = None
        try:
            with trio.CancelScope() as scope, watched.watching(scope):
                try:
                    watched.cluster.start_all()
                    result = await scenario(watched.cluster, watched.acknowledged)
                except trio.Cancelled:
                    raise
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    raised.append(error)  # It is raised again below; pytest.fail does not raise an Exception.
        finally:
            if timeline is not None:
                timeline.extend(_timeline(world, logs))
            if recording is not None:
                recording.take()
        return result, watched.found()

    logger = logging.getLogger("moldau")
    logger.addHandler(logs)  # The test's own handlers still get their lines.
    try:
        result, found = run_world(main, seed)
    finally:
        logger.removeHandler(logs)
    if found:
        text = f"seed {seed}: {'; '.join(found[:SHOWN_MAX])}"
        raise SimulationError(text) from (raised[0] if raised else None)
    if raised:
        raise raised[0]
    return cast("T", result)
