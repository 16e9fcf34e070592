"""Provides a simulated world: one seed, one virtual time, one network, and nodes with disks, in one ``trio.run``.

Every part draws from its own random stream, derived from the seed and the part's name, so that a change in one part of
a test does not change the draws of the others. A ``SimulatedNode`` is a machine: its name, clock and disk outlive the
process on it. ``start`` runs the production code of a node (a coroutine function that takes an ``Environment``).
``kill`` freezes the disk and the sockets first and cancels the tasks afterwards, so that code in ``finally`` blocks has
no effect on the world; ``lose_power`` also removes data that was not durable.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import trio

from moldau.runtime.ports.environment import Environment
from moldau.runtime.tasks.exceptions import leaves
from moldau.runtime.telemetry.log_levels import PROCESS_LOG_LEVELS
from moldau_jepsen.places import place_of
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.disk.disk_profile import DiskProfile
from moldau_jepsen.world.disk.virtual_disk import VirtualDisk
from moldau_jepsen.world.network.network import HostNetwork, NetworkProfile, VirtualNetwork
from moldau_jepsen.world.objects import SimulatedObjects, SimulatedStore
from moldau_jepsen.world.time.clocks import NodeClock
from moldau_jepsen.world.time.gate import MACHINE, TaskGate
from moldau_jepsen.world.time.scheduler import run_deterministic
from moldau_jepsen.world.time.timeline import Agenda
from moldau_jepsen.world.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
T = TypeVar("T")


FAILURES_SHOWN = 5


class ProcessFailedError(AssertionError):
    """A process of a world ended with an exception."""


def derive_random(seed: int, *names: object) -> random.Random:
    """Returns the random stream of a part of a world."""
    text = "/".join(map(str, (seed, *names)))
    return random.Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big"))


def is_interrupt(error: BaseException) -> bool:
    """Returns whether an error is, or contains, a ``KeyboardInterrupt``: the user ended the run, no code failed."""
    return any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error))


def ends_the_run(error: BaseException) -> bool:
    """Returns whether an error is meant for the run as a whole, and not for the process whose code it reached.

    That is an interrupt, and what test frameworks raise to end a test (``pytest.fail``, a time limit whose signal
    reached this code by chance): exceptions that are no ``Exception``. ``SystemExit`` ends a process only.
    """
    return not isinstance(error, Exception | SystemExit | GeneratorExit | trio.Cancelled)


class SimulatedNode:
    """A machine of a simulated world."""

    def __init__(self, world: World, name: str) -> None:
        """Makes a machine with power, an empty disk and no process; called by ``World.node``."""
        self.name = name
        self._world = world
        self.disk = VirtualDisk(name, derive_random(world.seed, "disk", name), world.trace, DiskProfile())
        self.disk.clock = NodeClock(world.agenda.clock)
        self.disk.is_watched = lambda: world.agenda.watching
        self.clock = self.disk.clock
        self.incarnation = 0
        self.has_power = True
        self.failure: BaseException | None = None
        self.ended_in_order = False
        """Whether the last process ended without a fault and without an exception."""
        self._environment: Environment | None = None
        self._network_port: HostNetwork | None = None
        self._disk_port: NodeDisk | None = None
        self._objects_port: SimulatedObjects | None = None
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()
        world.network.host(name)

    @property
    def is_running(self) -> bool:
        """Returns whether a process runs on the node."""
        return self._scope is not None

    @property
    def is_paused(self) -> bool:
        """Returns whether the tasks of the machine are held back."""
        return self._world.gate.is_paused(self.name)

    @property
    def environment(self) -> Environment:
        """Returns the environment of the running process, or of a program of the test that needs no process."""
        if self._environment is None:
            self._make_environment()
        assert self._environment is not None
        return self._environment

    def _make_environment(self) -> None:
        world = self._world
        self.incarnation += 1
        self._network_port = HostNetwork(world.network, world.network.host(self.name))
        self._disk_port = NodeDisk(self.disk)
        self._objects_port = SimulatedObjects(world.objects, self.name)
        self._environment = Environment(
            clock=self.clock,
            random=derive_random(world.seed, "node", self.name, self.incarnation),
            network=self._network_port,
            disk=self._disk_port,
            open_objects=self._objects_port.open,
        )

    def start(self, main: Callable[[Environment], Awaitable[None]]) -> None:
        """Starts the process: ``main`` runs with the node's environment until it ends or is killed.

        Clock, disk and name stay the same over all processes. An exception that ends ``main`` is kept in ``failure``
        and reported to the world.
        """
        assert not self.is_running, f"{self.name} runs already"
        world = self._world
        if not self.has_power:
            self.has_power = True
            world.network.power_on(self.name)
        self._make_environment()
        self.failure = None
        self.ended_in_order = False
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        world.trace.note("start", self.name, self.incarnation)
        assert self._environment is not None
        world.nursery.start_soon(self._run, main, self._environment, self._scope, self._ended, self.incarnation)

    async def _run(
        self,
        main: Callable[[Environment], Awaitable[None]],
        environment: Environment,
        scope: trio.CancelScope,
        ended: trio.Event,
        incarnation: int,
    ) -> None:
        failure: BaseException | None = None
        MACHINE.set(self.name)
        try:
            with scope:
                await main(environment)
        except trio.Cancelled:
            raise
        except BaseException as error:
            if any(map(ends_the_run, leaves(error))):
                raise  # It ends the whole run.
            failure = error  # The process ends; the world judges the failure.
        finally:
            ended.set()
        if self.incarnation == incarnation and self._scope is scope:
            self.failure = failure
            self.ended_in_order = failure is None
            self._freeze()
            self._world.network.kill_process(self.name)
            self._world.trace.note("exit", self.name, incarnation, type(failure).__name__ if failure else "normally")
            if failure is not None:
                self._world.node_failed(self, failure)

    def _freeze(self) -> None:
        assert self._network_port is not None
        assert self._disk_port is not None
        assert self._objects_port is not None
        self._network_port.frozen = True
        self._objects_port.frozen = True
        self._world.network.host(self.name).forget_crash_point()
        self._disk_port.freeze()
        self._scope = None
        self._environment = None

    def kill(self) -> None:
        """Ends the process as SIGKILL does; its writes stay in the page cache, peers see its connections close."""
        if self._scope is None:
            return
        scope = self._scope
        self._world.trace.note("kill", self.name, self.incarnation)
        self._freeze()
        self.resume()
        self._world.network.kill_process(self.name)
        scope.cancel()

    def lose_power(self) -> None:
        """Ends the process and removes data that is not durable from its disk; peers receive nothing."""
        scope = self._scope
        if not self.has_power:
            return
        self._world.trace.note("power-off", self.name, self.incarnation)
        if scope is not None:
            self._freeze()
        self.resume()
        self.has_power = False
        self._world.network.power_off(self.name)
        self.disk.lose_power()
        if scope is not None:
            scope.cancel()

    def pause(self) -> None:
        """Pauses the process as SIGSTOP does: its tasks stop, its connections stay open, its clock continues."""
        if not self.is_paused:
            self._world.trace.note("paused", self.name)
            self._world.gate.pause(self.name)

    def resume(self) -> None:
        """Resumes a paused process (SIGCONT); has no effect on a running one."""
        if self.is_paused:
            self._world.trace.note("resumed", self.name)
            self._world.gate.resume(self.name)

    async def run_program(self, program: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a program of the test on this machine, so that ``pause`` also stops the program, but not the caller."""
        MACHINE.set(self.name)
        return await program(*args, **kwargs)

    def crash_after_writes(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash`` (``kill``, ``lose_power``) just after the process's ``count``-th disk write from now."""
        assert self._disk_port is not None, f"{self.name} does not run"
        self._disk_port.crash_after_writes(count, crash)

    def crash_after_truncation(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash`` just after the process has shortened a file and made ``count`` writes more."""
        assert self._disk_port is not None, f"{self.name} does not run"
        self._disk_port.crash_after_truncation(count, crash)

    def crash_after_sends(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash`` just after the ``count``-th send of the process from now, before it writes anything else."""
        assert self.is_running, f"{self.name} does not run"
        self._world.network.host(self.name).crash_after_sends(count, crash)

    def forget_crash_point(self) -> None:
        """Cancels the crash points of the running process, if any."""
        self._world.network.host(self.name).forget_crash_point()
        if self._disk_port is not None:
            self._disk_port.forget_crash_point()

    async def wait_ended(self) -> None:
        """Waits until the tasks of the last process have ended."""
        await self._ended.wait()


class World:
    """All parts of one simulated run."""

    def __init__(
        self,
        seed: int,
        nursery: trio.Nursery,
        agenda: Agenda,
        gate: TaskGate,
        network_profile: NetworkProfile | None = None,
    ) -> None:
        """Is called by ``run_world`` only."""
        self.seed = seed
        self.nursery = nursery
        self.agenda = agenda
        self.gate = gate
        self.trace = Trace(agenda.clock.current_time)
        self.network = VirtualNetwork(
            self.agenda, derive_random(seed, "network"), self.trace, network_profile or NetworkProfile()
        )
        self.objects = SimulatedStore(agenda, derive_random(seed, "objects"), self.trace)
        """The object store that all nodes use, whatever URL their configurations have."""
        self.nodes: dict[str, SimulatedNode] = {}
        self.failures: list[tuple[str, BaseException]] = []

    def node(self, name: str) -> SimulatedNode:
        """Returns the machine with a name; adds it if it is new."""
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = SimulatedNode(self, name)
        return found

    def random(self, *names: object) -> random.Random:
        """Returns the random stream of a part of a test."""
        return derive_random(self.seed, *names)

    def check_failures(self) -> None:
        """Checks that no process has ended with an exception.

        Raises:
            ProcessFailedError: One has; the message names the machines and the code, and the cause has the traceback.
        """
        if self.failures:
            shown = [f"{name} ended with {place_of(failure)}" for name, failure in self.failures[:FAILURES_SHOWN]]
            more = len(self.failures) - len(shown)
            raise ProcessFailedError("; ".join([*shown, *([f"and {more} more"] if more else [])])) from self.failures[
                0
            ][1]

    def node_failed(self, node: SimulatedNode, failure: BaseException) -> None:
        """Adds a process that ended with an exception to ``failures``."""
        self.failures.append((node.name, failure))


def run_world(main: Callable[[World], Awaitable[T]], seed: int, network_profile: NetworkProfile | None = None) -> T:
    """Runs ``main`` in a new world, then kills the processes that still run, and returns the result of ``main``.

    Levels of loggers that brokers of this world were asked to change (KIP-412) are taken back.

    An interrupt from the terminal may be raised in any code, a node's too (as in trio: code that never waits must be
    interruptible). It ends the run at once and is raised as ``KeyboardInterrupt``, never in a group. The same holds for
    exceptions with which test frameworks end a test, such as those of a time limit.

    Exceptions of ``main`` pass through.

    Raises:
        StuckError: The program would never end: all tasks wait for each other, or tasks run without time advancing.
    """
    agenda, gate = Agenda(), TaskGate()

    raised: list[BaseException] = []  # Keeps the exception of ``main`` out of the nursery's group.

    async def run() -> T:
        async with trio.open_nursery() as nursery:
            world = World(seed, nursery, agenda, gate, network_profile)
            nursery.start_soon(world.agenda.run)
            try:
                return await main(world)
            except trio.Cancelled:
                raise
            except BaseException as error:
                if any(isinstance(leaf, trio.Cancelled) for leaf in leaves(error)):
                    raise  # The nursery knows what was cancelled.
                raised.append(error)
            finally:
                for node in world.nodes.values():
                    node.kill()
                    node.resume()  # Tasks that are held back could not be cancelled.
                nursery.cancel_scope.cancel()
        raise raised.pop()

    try:
        return run_deterministic(run, seed, agenda, gate)
    except BaseExceptionGroup as group:
        if is_interrupt(group):
            raise KeyboardInterrupt from group
        if (ending := next(filter(ends_the_run, leaves(group)), None)) is not None:
            raise ending from group
        raise
    except trio.TrioInternalError as error:
        if error.__cause__ is not None and ends_the_run(error.__cause__):
            raise error.__cause__ from None  # A signal handler raised it in trio's own code.
        raise
    finally:
        PROCESS_LOG_LEVELS.reset_all()
