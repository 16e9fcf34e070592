"""Removes, empties, cuts or damages the metadata log of a voter that is down, or its whole disk.

What such a voter has promised is forgotten, so it must not vote under its old identity again. One whose directory is
still there finds that out and does not start; one whose directory is gone is another voter for the others. In the end
an operator replaces it: an empty disk, the old voter removed, the new one added.

One voter at a time, and only while all voters are there: what is committed is on a majority of the others before the
next one is lost. In half of the cases the victim is one that is needed: of the others one was down and has missed what
was committed meanwhile, and the leader dies with the victim, so that a node that trusts the victim loses that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau_jepsen.cluster.simulated import ClusterNotReadyError
from moldau_jepsen.simulation.inject.faults import FaultScope

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from moldau_jepsen.simulation.inject.moves import Moves
    from moldau_jepsen.simulation.inject.targets import Targets

AGAIN_SECONDS = 0.25
BEHIND_SECONDS = (0.3, 1.5)
NEEDED_PROBABILITY = 0.5
WAYS = ("gone", "removed", "emptied", "cut", "bit")
ENGINE = "metadata.quorum.engine"


class LogLosses:
    """Damages the logs of voters, and replaces those voters."""

    def __init__(self, targets: Targets, moves: Moves) -> None:
        """Starts without a loss."""
        self._targets = targets
        self._cluster = targets.cluster
        self._world = targets.world
        self._moves = moves
        self.under_way: int | None = None
        """The voter that is being affected, or has been, and has yet to be replaced."""
        self.victims: dict[int, None] = {}
        """Nodes that may refuse to start, because their log was lost."""

    def strike(self, draw: random.Random) -> Callable[[], None]:
        """Strikes a drawn voter as soon as all voters run; returns a function that ends the fault."""
        cluster = self._cluster
        fixed = str(cluster.settings(cluster.controller_ids[0]).get(ENGINE, "raft")) != "raft"
        if fixed or len(cluster.controller_ids) < 3 or self._targets.fault_scope is FaultScope.BROKERS:
            return lambda: None
        over = trio.Event()
        mark = self._targets.mark

        def begin() -> None:
            if over.is_set():
                return
            active = cluster.active_controller()
            if active is not None and self._may_lose():
                victim = draw.choice([node_id for node_id in cluster.controller_ids if node_id != active])
                self.under_way = self._moves.lost_voter = victim
                self._world.nursery.start_soon(self._lose, victim, active, draw, over, mark)
                return
            self._world.agenda.call_after(AGAIN_SECONDS, begin)

        begin()
        return over.set

    def _may_lose(self) -> bool:
        cluster = self._cluster
        return (
            self.under_way is None
            and self._moves.settled("voters")
            and self._moves.voters() == sorted(cluster.controller_ids)
            and all(cluster.machines[node_id].is_running for node_id in cluster.controller_ids)
        )

    async def _lose(
        self, victim: int, leader: int, draw: random.Random, over: trio.Event, mark: Callable[[], None]
    ) -> None:
        cluster = self._cluster
        killed = []
        if draw.random() < NEEDED_PROBABILITY and len(cluster.controller_ids) == 3:
            (behind,) = set(cluster.controller_ids) - {victim, leader}
            cluster.kill(behind)
            with trio.move_on_after(draw.uniform(*BEHIND_SECONDS)):
                await over.wait()
            killed = [leader, behind]
            cluster.kill(leader)
        cluster.kill(victim)
        cluster.lost_logs[victim] = None
        way = draw.choice(WAYS)
        if self._damage(victim, way, draw):
            mark()
            self.victims[victim] = None
        self._world.trace.note("log-loss", cluster.host(victim), way)
        self._targets.start([victim, *killed[1:]])
        await over.wait()
        self._targets.start(killed)
        await self._replace(victim)
        self.under_way = self._moves.lost_voter = None

    def _damage(self, node_id: int, way: str, draw: random.Random) -> bool:
        """Damages the log; returns whether there was one."""
        disk = self._cluster.machines[node_id].disk
        directories = self._cluster.log_directories(node_id)
        found = [path for one in directories for path in disk.files(one) if path.endswith(".wal")]
        segments = sorted(path for path in found if disk.size(path))
        if not segments:
            return False
        last = segments[-1]
        match way:
            case "gone":
                disk.replace(directories)
            case "removed":
                for path in segments if draw.random() < 0.5 else [last]:
                    disk.forget(path)
            case "emptied":
                disk.cut_short(last, 0)
            case "cut":
                disk.cut_short(last, draw.randrange(disk.size(last)))
            case _:
                path = draw.choice(segments)
                disk.flip_bit(path, draw.randrange(disk.size(path)), draw.randrange(8))
        return True

    async def _replace(self, node_id: int) -> None:
        """Gives the machine an empty disk, and replaces the lost voter by the one that starts there."""
        self._cluster.kill(node_id)
        self._cluster.machines[node_id].disk.replace(self._cluster.log_directories(node_id))
        self._cluster.lost_logs.pop(node_id, None)
        self._cluster.start(node_id)
        await self._moves.replace_voter(node_id)

    async def wait_replaced(self, seconds: float) -> None:
        """Waits until no voter is lost.

        Raises:
            ClusterNotReadyError: The time was not enough.
        """
        with trio.move_on_after(seconds):
            while self.under_way is not None:  # noqa: ASYNC110 - the voters are polled, no event reports it
                await trio.sleep(AGAIN_SECONDS)
            return
        raise ClusterNotReadyError(
            f"voter {self.under_way} was not replaced within {seconds} s: the voters are {self._moves.voters()}"
        )
