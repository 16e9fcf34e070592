"""Runs the streams workload: members of a streams group that take tasks, commit, hang, leave and crash (KIP-1071).

Members live on machines of their own; each life ends by leaving or by a crash. At the end two members start, and the
group must come to rest: each task runs on one of them. ``checkers.group.streams`` judges what all members did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin, ConfigResource, ResourceType
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from moldau.runtime.config import ADMIN_CONFIG, parse_address
from moldau.runtime.tls.outgoing import client_environment
from moldau_jepsen.checkers.group.streams import History, judge
from moldau_jepsen.workloads.operations import OperationFailedError
from moldau_jepsen.workloads.streams.member import Application, Link, StreamsMember, read_offset

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Environment

PAUSE_S = (0.2, 2.0)
"""Time between two lives on a machine."""
LEAVE_S = 5.0
AT_THE_END = 2
"""Members that share the tasks at the end."""
LOOK_S = 0.25
PARTS = ("0", "1")
"""The subtopologies of the application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsOptions:
    """The options of the workload."""

    topic: str = "streams"
    partitions: int = 3
    group: str = "streams"
    slots: int = 3
    life_s: float = 10.0
    """Mean length of a member's life."""
    leave_share: float = 0.4
    """Of the lives: those that end in order."""
    hang_share: float = 0.3
    """Of the lives: those that begin with a hang, in which the member acts on its tasks and sends nothing."""
    session_ms: int = 3_000
    """Session timeout of the group."""
    connection: Mapping[str, str] = field(default_factory=dict)
    """How members reach the cluster: keys that all kinds of clients know."""

    @property
    def application(self) -> Application:
        """The application of all members."""
        return Application(group=self.group, topic=self.topic)

    @property
    def internal_topics(self) -> list[str]:
        """The topics that brokers create for the application."""
        parts = self.application.topology.subtopologies
        topics = [topic for part in parts for topic in (*part.repartition_source_topics, *part.state_changelog_topics)]
        return [topic.name for topic in topics]

    @property
    def hosts(self) -> list[str]:
        """Names of the machines on which members live."""
        return [f"streamer-{slot}" for slot in range(self.slots)]

    @property
    def settings(self) -> dict[str, str]:
        """Settings of brokers with which a group of these options works within a run of some seconds."""
        return {
            "group.streams.min.session.timeout.ms": "1",
            "group.streams.session.timeout.ms": str(self.session_ms),
            "group.streams.min.heartbeat.interval.ms": "1",
            "group.streams.heartbeat.interval.ms": "500",
            "group.streams.initial.rebalance.delay.ms": "500",
        }


class StreamsWorkload:
    """All members of one run; ``history`` is what they did."""

    def __init__(self, bootstrap: str, options: StreamsOptions) -> None:
        """Runs nothing before ``live``."""
        self._brokers = [parse_address(each) for each in bootstrap.split(",")]
        self._bootstrap = bootstrap
        self._options = options
        self._session_ms = options.session_ms
        self._stopping = trio.Event()
        self._next_member = 0
        self.history = History()
        self.counts: Counter[str] = Counter()
        """How often lives ended in which way."""
        self.stuck: str | None = None
        """Why the final read did not end."""

    async def ask_session(self, environment: Environment) -> None:
        """Asks the cluster for the session timeout of the group, which need not be that of the options.

        Raises:
            OperationFailedError: The cluster serves no streams groups.
        """
        name, group = "streams.session.timeout.ms", ConfigResource(ResourceType.GROUP, self._options.group)
        keys = {**self._options.connection, "bootstrap.servers": self._bootstrap}
        async with Admin(keys, environment=environment) as admin:
            brokers = (await admin.describe_cluster()).brokers
            broker = ConfigResource(ResourceType.BROKER, str(min(node.node_id for node in brokers)))
            found = await admin.describe_configs([group, broker])
        entry = found[group].get(name)
        if entry is None or entry.is_default:
            entry = found[broker].get(f"group.{name}")
        if entry is None or entry.value is None:
            raise OperationFailedError("the cluster serves no streams groups")
        self._session_ms = int(entry.value)

    def stop(self) -> None:
        """Ends the members."""
        self._stopping.set()

    def _link(self, environment: Environment) -> Link:
        connection = self._options.connection
        if connection:
            config = ADMIN_CONFIG.parse({**connection, "bootstrap.servers": self._bootstrap})
            environment = client_environment(environment, config)
        return Link(environment, self._brokers, self._options.application)

    def _new_member(self, link: Link) -> StreamsMember:
        self._next_member += 1
        return StreamsMember(f"m{self._next_member}", link, self.history)

    async def live(self, environment: Environment) -> None:
        """Runs members in turn until ``stop``."""
        while not self._stopping.is_set():
            link = self._link(environment)
            try:
                await self._life(self._new_member(link), environment.random)
            finally:
                link.close()
            await self._unless_stopped(environment.random.uniform(*PAUSE_S))

    async def _life(self, member: StreamsMember, draw: random.Random) -> None:
        options = self._options
        leaves = draw.random() < options.leave_share
        hang_s = draw.uniform(0.5, 2.0) * options.session_ms / 1000 if draw.random() < options.hang_share else 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.live)
            length_s = draw.expovariate(1 / options.life_s)
            if hang_s:
                await self._unless_stopped(length_s / 2)
                self.counts["hang"] += 1
                member.hung_until = trio.current_time() + hang_s
            await self._unless_stopped(length_s)
            self.counts["leave" if leaves else "crash"] += 1
            if leaves:
                with trio.move_on_after(LEAVE_S):
                    await member.leave()
            nursery.cancel_scope.cancel()

    async def _unless_stopped(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._stopping.wait()

    # -- end

    async def final_read(self, environment: Environment, seconds: float) -> None:
        """Lets new members take all tasks, and reads the committed offsets; sets ``stuck`` if they cannot be read."""
        options = self._options
        links = [self._link(environment) for _ in range(AT_THE_END + 1)]
        members = [self._new_member(link) for link in links[1:]]
        try:
            async with trio.open_nursery() as nursery:
                for member in members:
                    nursery.start_soon(member.live)
                await self._settle(links[0], members, seconds + 3 * self._session_ms / 1000)
                nursery.cancel_scope.cancel()
            with trio.fail_after(seconds):
                for partition in range(options.partitions):
                    while await read_offset(links[0], self.history, partition) == -2:  # noqa: ASYNC110 - asks brokers
                        await trio.sleep(LOOK_S)
        except trio.TooSlowError:
            self.stuck = f"the offsets of streams group {options.group} could not be read within {seconds:g} s"
        finally:
            for link in links:
                link.close()

    async def _settle(self, link: Link, members: list[StreamsMember], seconds: float) -> None:
        """Waits until each task runs on one of the members, and the coordinator says that the group is stable."""
        every = sorted((part, number) for part in PARTS for number in range(self._options.partitions))
        request = StreamsGroupDescribeRequest(group_ids=[self._options.group])
        state, running = "not described", []
        with trio.move_on_after(seconds):
            while True:
                await trio.sleep(LOOK_S)
                running = sorted(task for member in members for task in member.acting)
                if running != every or any(member.revoked for member in members):
                    continue
                answer = await link.ask(StreamsGroupDescribeResponse, request, 1)
                if answer is None:
                    continue
                state = answer.groups[0].group_state
                if state == "Stable" and len(answer.groups[0].members) == len(members):
                    return
        self.history.unsettled = f"the group is {state}, and its members run {running}"

    def wrong(self) -> list[tuple[str, str]]:
        """Returns the kind and the text of each broken rule."""
        # Half of the session: a clock of a broker may run at twice the rate.
        found = judge(self.history, self._session_ms / 2)
        return [(one.kind.value, f"{one.kind.value}: {one.text}") for one in found]

    @property
    def done(self) -> str:
        """How much the members did, for a report."""
        accepted = sum(bool(commit.accepted) for commit in self.history.commits)
        return (
            f"{self._next_member} members, {len(self.history.holdings)} tasks begun, {accepted} commits accepted, "
            f"session {self._session_ms} ms"
        )

    def situations(self) -> Counter[str]:
        """Counts what members met: tasks that moved between live members, lost memberships, refused commits."""
        found = Counter({"fenced": self.history.fenced, "refused": self.history.refused})
        former: dict[tuple[str, int], str] = {}
        for holding in self.history.holdings:
            if former.setdefault(holding.task, holding.member) != holding.member:
                found["moved"] += 1
            former[holding.task] = holding.member
        return +found
