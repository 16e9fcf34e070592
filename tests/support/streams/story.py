"""A cluster in the simulation whose streams group works while brokers die and links are cut, and members crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from moldau_jepsen.checkers.group.streams import History, StreamsAnomaly, judge
from moldau_jepsen.workloads.streams.member import Application, Link, StreamsMember, read_offset
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import random

    from support.cluster.broker_cluster import Cluster

APPLICATION = Application(group="g", topic="t")
PARTITIONS = 3
SLOTS = 3
SESSION_MS = 6_000
SETTLED_S = 90.0
"""The time in which a group comes to rest after the last fault: sessions, elections and two rounds of revocations."""
SETTINGS: dict[str, Any] = {
    "offsets_topic_num_partitions": "1",
    "min_insync_replicas": "2",
    "group_streams_min_heartbeat_interval_ms": "1",
    "group_streams_heartbeat_interval_ms": "500",
    "group_streams_min_session_timeout_ms": "1",
    "group_streams_session_timeout_ms": str(SESSION_MS),
    "group_streams_initial_rebalance_delay_ms": "1000",
}


@dataclass(frozen=True)
class Story:
    """The observations of a run."""

    history: History
    anomalies: list[StreamsAnomaly]
    faults: dict[str, int]
    digest: str


class Scene:
    """The members and the faults of one run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.history = History()
        self.faults = dict.fromkeys(("kill", "cut-broker", "cut-member", "hang", "crash", "leave"), 0)
        self.draw: random.Random = cluster.world.random("story")
        self.hosts = [f"b{number}" for number in cluster.broker_ids]
        self.brokers = [(host, 9092) for host in self.hosts]
        self.members: dict[int, StreamsMember] = {}
        self.calm = trio.Event()
        """Set when members stop to crash, to hang and to leave."""
        self.count = 0

    async def slot(self, number: int) -> None:
        """Runs members on one machine in turn."""
        environment = self.cluster.world.node(f"member-{number}").environment
        while True:
            self.count += 1
            link = Link(environment, self.brokers, APPLICATION)
            member = self.members[number] = StreamsMember(f"m{self.count}", link, self.history)
            try:
                await self._life(member)
            finally:
                link.close()
            await trio.sleep(self.draw.uniform(0.5, 3.0))

    async def _life(self, member: StreamsMember) -> None:
        leaves = self.draw.random() < 0.4
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.live)
            end = trio.current_time() + self.draw.uniform(8.0, 30.0)
            while trio.current_time() < end or self.calm.is_set():
                await trio.sleep(self.draw.uniform(2.0, 6.0))
                if self.draw.random() < 0.25 and not self.calm.is_set():
                    self.faults["hang"] += 1
                    member.hung_until = trio.current_time() + self.draw.uniform(1.0, 2.0 * SESSION_MS / 1000)
            if leaves:
                self.faults["leave"] += 1
                with trio.move_on_after(10.0):
                    await member.leave()
            else:
                self.faults["crash"] += 1
            nursery.cancel_scope.cancel()

    async def disturb(self, until: float) -> None:
        """Kills brokers and cuts links, one fault at a time."""
        while trio.current_time() < until:
            await trio.sleep(self.draw.uniform(2.0, 6.0))
            kind = self.draw.choice(("kill", "kill", "cut-broker", "cut-member"))
            self.faults[kind] += 1
            if kind == "kill":
                victim = self.draw.choice(sorted(self.cluster.running))
                self.cluster.kill(victim)
                await trio.sleep(self.draw.uniform(1.0, 4.0))
                self.cluster.start_broker(victim)
            else:
                hosts, network = self.hosts, self.cluster.world.network
                if kind == "cut-broker":
                    lonely = self.draw.choice(hosts)
                    controllers = [f"c{number}" for number in self.cluster.controller_ids]
                    network.cut_between([lonely], [*controllers, *(each for each in hosts if each != lonely)])
                else:
                    network.cut_between([f"member-{self.draw.randrange(SLOTS)}"], hosts)
                await trio.sleep(self.draw.uniform(1.0, 1.8 * SESSION_MS / 1000))
                network.heal_all()
            await self.cluster.until(self._is_whole, timeout_ms=60_000)

    def _is_whole(self) -> bool:
        offsets = self.cluster.image().topics_by_name.get("__consumer_offsets")
        whole = len(self.cluster.running) == len(self.hosts)
        return whole and (offsets is None or all(len(part.isr) == 3 for part in offsets.partitions.values()))

    async def settle(self) -> None:
        """Waits until each task runs once on members that are alive, and the coordinator says so."""
        link = Link(self.cluster.client_environment, self.brokers, APPLICATION)
        every = sorted((part, number) for part in ("0", "1") for number in range(PARTITIONS))
        deadline = trio.current_time() + SETTLED_S
        running: list[Any] = []
        state = ""
        while trio.current_time() < deadline:
            await trio.sleep(0.5)
            running = sorted(task for member in self.members.values() for task in member.acting)
            if running != every or any(member.revoked for member in self.members.values()):
                continue
            answer = await link.ask(
                StreamsGroupDescribeResponse, StreamsGroupDescribeRequest(group_ids=[APPLICATION.group]), 1
            )
            if answer is None:
                continue
            state = answer.groups[0].group_state
            if state == "Stable" and len(answer.groups[0].members) == SLOTS:
                break
        else:
            self.history.unsettled = f"the group is {state}, and its members run {running}"
        for partition in range(PARTITIONS):
            with trio.fail_after(30):
                while await read_offset(link, self.history, partition) == -2:  # noqa: ASYNC110 - asks brokers
                    await trio.sleep(0.2)
        link.close()


def tell(seed: int, *, work_s: float = 45.0) -> Story:
    """Runs the members under faults, then without, and judges what they did."""
    scenes: list[Scene] = []

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3)
        scene = Scene(cluster)
        scenes.append(scene)
        async with trio.open_nursery() as nursery:
            for number in range(SLOTS):
                nursery.start_soon(scene.slot, number)
            await scene.disturb(trio.current_time() + work_s)
            scene.calm.set()
            await scene.settle()
            nursery.cancel_scope.cancel()

    _, digest = run_cluster(scenario, seed=seed, brokers=3, **SETTINGS)
    (scene,) = scenes
    return Story(scene.history, judge(scene.history, SESSION_MS), scene.faults, digest)
