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
from moldau_jepsen.launcher import ClusterSpec, LauncherUsageError
from moldau_jepsen.launcher.cluster import refuse_wrong
from moldau_jepsen.launcher.spec import PROMPT_GROUPS
from moldau_jepsen.places import place_of
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants
from moldau_jepsen.simulation.judge.observer import ClusterObserver
from moldau_jepsen.simulation.judge.watch import LogLines, StepGuard
from moldau_jepsen.testing.limit import TimeLimit
from moldau_jepsen.testing.local import settings_text
from moldau_jepsen.testing.wanted import VIRTUAL_SECONDS_MAX, check_limit
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


class TestNeverEndedError(SimulationError):
    """The scenario has not ended within its limit of virtual time; the message names the lines at which it waits."""

    __test__ = False  # Pytest would collect the class for its name.


class _Watched:
    """A cluster and the judges that watch it while the scenario runs."""

    def __init__(self, world: World, shape: ClusterShape, logs: LogLines, seconds_max: float) -> None:
        self.cluster = SimulatedCluster(world, shape)
        nodes = [self.cluster.host(node_id) for node_id in self.cluster.machines]
        self.limit = TimeLimit(world.agenda.clock, seconds_max, trio.lowlevel.current_task(), nodes)
        self._world = world
        self._logs = logs
        self._judge = ClusterInvariants(trio.current_time)
        self._guard = StepGuard(world.agenda.clock)
        self._observer = ClusterObserver(self.cluster, self._judge)

    @contextlib.contextmanager
    def watching(self, scope: trio.CancelScope) -> Iterator[None]:
        """Judges every step of the block; cancels ``scope`` if tasks never rest, or the time is up."""
        watchers = self._world.agenda.watchers
        mine = (self._observer.turn_ended, self._guard.turn_ended, self.limit.turn_ended)
        self._guard.on_found = self.limit.on_found = scope.cancel
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

    def error(self, seed: int) -> SimulationError | None:
        """Returns the error that names what was found, None if nothing was."""
        if not (found := self._found()):
            return None
        kind = SimulationError if self.limit.found is None else TestNeverEndedError
        return kind(f"seed {seed}: {'; '.join(found[:SHOWN_MAX])}")

    def _found(self) -> list[str]:
        found = [str(violation) for violation in self._judge.violations]
        found += [f"failed request: {line}" for line in self._logs.failures]
        found += [text for text in (self._guard.found, self.limit.found) if text is not None]
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


def _limit(seconds: float | None) -> float:
    """Returns a limit of virtual time, the usual one for None.

    Raises:
        LauncherUsageError: It is no number above 0.
    """
    chosen = VIRTUAL_SECONDS_MAX if seconds is None else seconds
    try:
        check_limit(chosen)
    except ValueError as error:
        raise LauncherUsageError(str(error)) from error
    return chosen


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
    virtual_seconds_max: float | None,
) -> T:
    """See ``moldau_jepsen.testing.simulate``."""

    async def main(cluster: SimulatedCluster, _: Acknowledged) -> T:
        return await scenario(cluster)

    return run_reported(
        main,
        seed=seed,
        brokers=brokers,
        controllers=controllers,
        settings=settings,
        virtual_seconds_max=virtual_seconds_max,
    )


def run_reported(
    scenario: Callable[[SimulatedCluster, Acknowledged], Awaitable[T]],
    *,
    seed: int,
    brokers: int,
    controllers: int,
    settings: Mapping[str, object],
    virtual_seconds_max: float | None = None,
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
    seconds_max = _limit(virtual_seconds_max)
    raised: list[BaseException] = []  # Keeps the scenario's exception out of trio's exception groups.
    logs = LogLines()

    async def main(world: World) -> tuple[T | None, SimulationError | None]:
        # Brokers sync before they acknowledge, so that a loss of power loses no acknowledged record.
        chosen = {"log.flush.interval.messages": "1", **PROMPT_GROUPS, **texts}
        shape = ClusterShape(brokers=brokers, controllers=controllers, settings=chosen)
        watched = _Watched(world, shape, logs, seconds_max)
        if recording is not None:
            recording.begin(world.trace)
            world.agenda.watchers.append(recording.turn_ended)
        result = None
        try:
            with trio.CancelScope() as scope, watched.watching(scope):
                try:
                    watched.cluster.start_all()
                    result = await scenario(watched.cluster, watched.acknowledged)
                except BaseException as error:
                    if is_interrupt(error) or all(isinstance(leaf, trio.Cancelled) for leaf in leaves(error)):
                        raise
                    raised.append(error)  # It is raised again below; pytest.fail does not raise an Exception.
        finally:
            if timeline is not None:
                timeline.extend(_timeline(world, logs))
            if recording is not None:
                recording.take()
        return result, watched.error(seed)

    logger = logging.getLogger("moldau")
    logger.addHandler(logs)  # The test's own handlers still get their lines.
    try:
        result, error = run_world(main, seed)
    finally:
        logger.removeHandler(logs)
    if error is not None:
        raise error from (raised[0] if raised else None)
    if raised:
        raise raised[0]
    return cast("T", result)
