"""Damages closed files of a stopped broker, as chaos damages those of real ones (``moldau_jepsen.faults.rot``).

A closed segment is one that is not the last of its partition: nothing is ever written to its files again. Indexes and
producer snapshots can be made again from the records, so a broker must come back from their damage by itself. Damaged
records cannot be made again: no node may accept them, and in the end an operator replaces the disk, after which
the records come from the other replicas. Files rot only while the whole cluster is in sync, and of one broker at a
time: what has rotted is on the disks of others.

An observer does not read what has rotted (``disk.VirtualFile``): the clients judge what is served.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import trio

from moldau_jepsen.cluster.simulated import ClusterNotReadyError
from moldau_jepsen.faults.rot import DERIVED, LOG, RECORDS_SHARE
from moldau_jepsen.simulation.inject.faults import FaultScope

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau_jepsen.simulation.inject.targets import Targets
    from moldau_jepsen.world.disk.virtual_disk import VirtualDisk

AGAIN_SECONDS = 0.25
DAMAGES_MAX = 3


class RotFaults:
    """Damages closed files, and replaces the disks that hold damaged records."""

    def __init__(self, targets: Targets, *, replaceable: bool) -> None:
        """Starts without damage. ``replaceable``: every partition has several replicas."""
        self._targets = targets
        self._world = targets.world
        self._cluster = targets.cluster
        self._keeping = targets.safekeeping
        self._replaceable = replaceable
        self._under_way: int | None = None
        """The broker that is being affected, or has been, and has yet to get its new disk."""

    def strike(self, draw: random.Random) -> Callable[[], None]:
        """Damages files of a drawn broker once all replicas are in sync; returns a function that ends the fault."""
        if not self._replaceable or self._targets.fault_scope is FaultScope.CONTROLLERS:
            return lambda: None
        over = trio.Event()
        mark = self._targets.mark

        def begin() -> None:
            if over.is_set():
                return
            if self._under_way is None and self._cluster.is_healthy():
                node_id = draw.choice(self._cluster.broker_ids)
                if not self._keeping.refusal(node_id):
                    self._under_way = node_id
                    self._world.nursery.start_soon(self._rot, node_id, draw, over, mark)
                    return
            self._world.agenda.call_after(AGAIN_SECONDS, begin)

        begin()
        return over.set

    async def _rot(self, node_id: int, draw: random.Random, over: trio.Event, mark: Callable[[], None]) -> None:
        await self._damage_stopped(node_id, draw, over, mark)
        if node_id in self._keeping.rotten:
            await over.wait()
            await self._replace_disk(node_id)
        self._under_way = None

    async def _stop(self, node_id: int) -> bool:
        """Stops a broker in order; returns whether it ended so and is still down."""
        machine = self._cluster.machines[node_id]
        if machine.is_running:
            self._cluster.stop(node_id)
            await machine.wait_ended()
        return machine.ended_in_order and not machine.is_running

    async def _damage_stopped(
        self, node_id: int, draw: random.Random, over: trio.Event, mark: Callable[[], None]
    ) -> None:
        disk = self._cluster.machines[node_id].disk
        if await self._stop(node_id) and not over.is_set():  # the core that is healed first may need what it has
            for _ in range(draw.randint(1, DAMAGES_MAX)):
                held_records = damage(disk, self._cluster.log_directories(node_id), draw)
                if held_records is not None:
                    mark()
                if held_records:
                    self._keeping.rotten[node_id] = None
        self._cluster.start(node_id)

    async def _replace_disk(self, node_id: int) -> None:
        """Gives the broker an empty disk as soon as no record is lost by it."""
        machine = self._cluster.machines[node_id]
        while self._keeping.refusal(node_id):  # noqa: ASYNC110 - the state of the cluster is looked at, no event reports it
            await trio.sleep(AGAIN_SECONDS)
        self._keeping.lose(node_id)
        while machine.is_running:  # another fault may have started it again
            await self._stop(node_id)
        machine.disk.replace(self._cluster.log_directories(node_id))
        del self._keeping.rotten[node_id]
        self._cluster.start(node_id)

    async def wait_replaced(self, seconds: float) -> None:
        """Waits until no damaged records are left.

        Raises:
            ClusterNotReadyError: The time was not enough.
        """
        with trio.move_on_after(seconds):
            while self._under_way is not None:  # noqa: ASYNC110 - see _replace_disk
                await trio.sleep(AGAIN_SECONDS)
            return
        raise ClusterNotReadyError(
            f"broker {self._under_way} could not get a new disk within {seconds} s: "
            f"{self._keeping.refusal(self._under_way or 0)}"
        )


def closed_files(disk: VirtualDisk, directories: Sequence[str]) -> list[str]:
    """Returns the sorted paths of the files of closed segments below log directories, without empty files."""
    by_partition: dict[str, list[str]] = {}
    for directory in directories:
        for path in disk.files(directory):
            by_partition.setdefault(posixpath.dirname(path), []).append(path)
    found: list[str] = []
    for paths in by_partition.values():
        stems = sorted(_stem(path) for path in paths if path.endswith(LOG))
        found += [
            path
            for path in paths
            if _stem(path) in stems[:-1] and path.endswith((LOG, *DERIVED)) and disk.size(path) > 0
        ]
    return sorted(found)


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.basename(path))[0]


def damage(disk: VirtualDisk, directories: Sequence[str], draw: random.Random) -> bool | None:
    """Damages one closed file; returns whether it held records, which now only other replicas have.

    None if there is no closed file.
    """
    files = closed_files(disk, directories)
    wanted = draw.random() < RECORDS_SHARE
    candidates = [path for path in files if path.endswith(LOG) is wanted] or files
    if not candidates:
        return None
    path = draw.choice(candidates)
    records = path.endswith(LOG)
    size = disk.size(path)
    ways: Sequence[str] = ("bit", "bit", "cut") if records else ("bit", "cut", "gone")
    match draw.choice(ways):
        case "bit":
            disk.flip_bit(path, draw.randrange(size), draw.randrange(8))
        case "cut":
            disk.cut_short(path, draw.randrange(size))
        case _:
            disk.forget(path)
    return records
