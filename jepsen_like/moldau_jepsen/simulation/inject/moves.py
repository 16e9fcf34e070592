"""Administration while faults strike: voters leave and come back, partitions move, preferred leaders are elected.

Moves are asked for through the admin client, from a machine of its own, as an operator would; what is refused or not
answered is part of the run and goes into its timeline. ``restore`` brings back what the end of a run needs: all voters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin, ConfigAlteration, ConfigResource, ResourceType
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from moldau.runtime.config import CORDONED_LOG_DIRS
from moldau.runtime.net.rpc import RpcConnection
from moldau_jepsen.cluster.simulated import BROKER_PORT, CONTROLLER_PORT, ClusterNotReadyError

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from moldau_jepsen.cluster.simulated import SimulatedCluster

ADMIN_HOST = "admin"
API_TIMEOUT_MS = 5_000
RETRY_S = 0.2


class Moves:
    """Starts moves; each runs as a task of the world until it is answered."""

    def __init__(self, cluster: SimulatedCluster, marker: Callable[[], Callable[[], None]]) -> None:
        """Starts without moves. ``marker`` returns the function that a new move calls once it has taken effect."""
        self._marker = marker
        self._cluster = cluster
        self._world = cluster.world
        self._machine = cluster.world.node(ADMIN_HOST)
        self._unsettled: dict[str, int] = {}
        self.lost_voter: int | None = None
        """A voter that has lost its log: until it is replaced no other one may be taken away."""

    def settled(self, name: str) -> bool:
        """Returns whether no move of that name is in progress or unanswered.

        A move that was not answered with success may take effect at any time.
        """
        return name not in self._unsettled

    def start(
        self, name: str, move: Callable[[Admin], Awaitable[str]], accepted: Callable[[], None] = lambda: None
    ) -> None:
        """Begins a move; its outcome goes into the timeline. ``accepted`` is called if it is not refused."""
        # Before the task has run: as faults end they ask for moves, and the core is drawn in the same turn.
        self._unsettled[name] = self._unsettled.get(name, 0) + 1
        self._world.nursery.start_soon(self._move, name, move, accepted)

    async def _move(self, name: str, move: Callable[[Admin], Awaitable[str]], accepted: Callable[[], None]) -> None:
        config = {"bootstrap.servers": self._cluster.bootstrap, "default.api.timeout.ms": API_TIMEOUT_MS}
        try:
            async with Admin(config, environment=self._machine.environment) as admin:
                outcome = await move(admin)
        except (KafkaError, OSError, trio.TooSlowError) as error:
            outcome = str(error)
        else:
            accepted()
            self._unsettled[name] -= 1
            if not self._unsettled[name]:
                del self._unsettled[name]
        self._world.trace.note("move", name, outcome)

    # --- voters

    def voters(self) -> list[int]:
        """Returns the voters that the active controller knows; none without an active controller."""
        active = self._cluster.active_controller()
        return [] if active is None else sorted(self._cluster.controllers[active].log.voters)

    def remove_voter(self, draw: random.Random) -> Callable[[], None]:
        """Removes a drawn controller from the voters; returns a function that adds it again."""
        voters = self.voters()
        if len(voters) < len(self._cluster.controller_ids) or self.lost_voter is not None:
            return lambda: None  # one at a time: two voters cannot lose one more
        voter_id = draw.choice(voters)

        async def remove(admin: Admin) -> str:
            await admin.remove_voter(voter_id)
            return f"voter {voter_id} was removed"

        self.start("voters", remove, self._marker())
        return lambda: self.start("voters", lambda admin: self._add(admin, voter_id))

    async def _add(self, admin: Admin, voter_id: int) -> str:
        await admin.add_voter(voter_id, self._cluster.host(voter_id), CONTROLLER_PORT)
        return f"voter {voter_id} was added"

    async def replace_voter(self, voter_id: int) -> None:
        """Removes a voter and adds the node of that id, and repeats both until they succeed."""
        config = {"bootstrap.servers": self._cluster.bootstrap, "default.api.timeout.ms": API_TIMEOUT_MS}
        is_removed = False
        async with Admin(config, environment=self._machine.environment) as admin:
            while True:
                voters = self.voters()
                is_removed = is_removed or (bool(voters) and voter_id not in voters)
                try:
                    if is_removed and voter_id in voters:
                        return
                    if is_removed:
                        self._world.trace.note("move", "replace", await self._add(admin, voter_id))
                    elif voters:
                        await admin.remove_voter(voter_id)
                        is_removed = True
                except (KafkaError, OSError, trio.TooSlowError) as error:
                    self._world.trace.note("move", "replace", str(error))
                await trio.sleep(RETRY_S)

    async def restore(self, seconds: float) -> None:
        """Adds every controller that is not a voter.

        Raises:
            ClusterNotReadyError: The time was not enough.
        """
        config = {"bootstrap.servers": self._cluster.bootstrap, "default.api.timeout.ms": API_TIMEOUT_MS}
        with trio.move_on_after(seconds):
            async with Admin(config, environment=self._machine.environment) as admin:
                while missing := sorted(set(self._cluster.controller_ids) - set(self.voters())):
                    try:
                        if self.voters():
                            await self._add(admin, missing[0])
                    except (KafkaError, OSError, trio.TooSlowError) as error:
                        self._world.trace.note("move", "voters", str(error))
                    await trio.sleep(RETRY_S)
                return
        raise ClusterNotReadyError(
            f"the voters are {self.voters()} after {seconds} s, of {self._cluster.controller_ids}"
        )

    # --- partitions

    def reassign(self, draw: random.Random) -> Callable[[], None]:
        """Moves drawn partitions of all topics to drawn replicas, once now and once more at the end."""

        mark = self._marker()

        def begin() -> None:
            targets = self._draw_targets(draw)

            async def move(admin: Admin) -> str:
                await admin.alter_partition_reassignments(targets)
                shown = ", ".join(f"{topic}-{number} to {replicas}" for (topic, number), replicas in targets.items())
                return f"reassigned {shown}"

            if targets:
                self.start("reassign", move, mark)

        begin()
        return begin

    def _draw_targets(self, draw: random.Random) -> dict[tuple[str, int], list[int]]:
        brokers = list(self._cluster.brokers.values())
        if not brokers:
            return {}
        image = max((broker.metadata.image for broker in brokers), key=lambda one: one.offset)
        partitions = [(topic.name, number) for topic in image.topics_by_name.values() for number in topic.partitions]
        count = len(self._cluster.broker_ids)
        return {
            partition: draw.sample(self._cluster.broker_ids, draw.randint(min(2, count), min(3, count)))
            for partition in draw.sample(sorted(partitions), min(len(partitions), draw.randint(1, 4)))
        }

    def elect(self, draw: random.Random) -> Callable[[], None]:
        """Elects preferred leaders of all partitions, again and again."""
        active = True
        mark = self._marker()

        async def move(admin: Admin) -> str:
            changed = len(await admin.elect_leaders())
            if changed:
                mark()
            return f"{changed} partitions changed their leader"

        def strike() -> None:
            if active:
                self.start("elect", move)
                self._world.agenda.call_after(draw.uniform(0.2, 2.0), strike)

        def end() -> None:
            nonlocal active
            active = False

        strike()
        return end

    # --- log directories

    def move_directories(self, draw: random.Random) -> Callable[[], None]:
        """Moves drawn replicas of a drawn broker to other log directories of that broker.

        It does so once now and again at the end, when the first move may still be in progress.
        """
        directories = self._cluster.log_directories(self._cluster.broker_ids[0])
        if len(directories) < 2:
            return lambda: None
        node_id = draw.choice(self._cluster.broker_ids)
        mark = self._marker()

        def begin() -> None:
            broker = self._cluster.brokers.get(node_id)
            if broker is None or not broker.is_built:
                return
            held = sorted(broker.context.logs.logs.items())
            targets = [
                (key.topic, key.partition, draw.choice([path for path in directories if path != log.parent_directory]))
                for key, log in draw.sample(held, min(len(held), draw.randint(1, 4)))
            ]
            if targets:
                self._world.nursery.start_soon(self._move_directories, node_id, targets, mark)

        begin()
        return begin

    def cordon(self, draw: random.Random) -> Callable[[], None]:
        """Cordons a drawn log directory of a drawn broker; returns a function that uncordons it.

        The other directories stay, so that topics can be created meanwhile.
        """
        node_id = draw.choice(self._cluster.broker_ids)
        directories = self._cluster.log_directories(node_id)
        if len(directories) < 2:
            return lambda: None
        mark = self._marker()

        def begin(path: str) -> None:
            change = ConfigAlteration(name=CORDONED_LOG_DIRS, value=path)

            async def move(admin: Admin) -> str:
                await admin.alter_configs({ConfigResource(type=ResourceType.BROKER, name=str(node_id)): [change]})
                return f"{self._cluster.host(node_id)} cordons {path or 'nothing'}"

            self.start("cordon", move, mark)

        begin(draw.choice(directories))
        return lambda: begin("")

    async def _move_directories(
        self, node_id: int, targets: list[tuple[str, int, str]], mark: Callable[[], None]
    ) -> None:
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[number])])
                for topic, number, path in targets
            ]
        )
        environment, host = self._machine.environment, self._cluster.host(node_id)
        try:
            connection = await RpcConnection.open(environment, host, BROKER_PORT, ADMIN_HOST, timeout_ms=API_TIMEOUT_MS)
            try:
                answer = await connection.request_as(AlterReplicaLogDirsResponse, request, timeout_ms=API_TIMEOUT_MS)
            finally:
                connection.close()
        except (OSError, trio.TooSlowError) as error:
            outcome = str(error)
        else:
            answers = [(result.topic_name, partition) for result in answer.results for partition in result.partitions]
            if any(partition.error_code == ErrorCode.NONE for _, partition in answers):
                mark()
            outcome = ", ".join(
                f"{topic}-{partition.partition_index} {ErrorCode(partition.error_code).name}"
                for topic, partition in answers
            )
        shown = ", ".join(f"{topic}-{number} to {path}" for topic, number, path in targets)
        self._world.trace.note("move", "directories", f"of {host}: {shown}: {outcome}")
