"""The members of a measured group, in the simulation or against real brokers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.consumer import Consumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moldau.cluster.metadata import TopicPartition
    from moldau.runtime.ports.environment import Environment

RATE = 100
SESSION_MS = 10_000
HEARTBEAT_MS = 1_000
GROUP, TOPIC = "g", "t"
LIMIT_S = 300.0
STEP_S = 0.02
SETTINGS = {
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.initial.rebalance.delay.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
}
PROTOCOLS = {
    "classic, range": {"partition.assignment.strategy": "range"},
    "classic, cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer, uniform": {"group.protocol": "consumer"},
}


@dataclass
class Readers:
    """Keeps the reader of each partition, and how long each partition had none since `begin`."""

    count: int
    owner: dict[int, int] = field(default_factory=dict)
    free_since: dict[int, float] = field(default_factory=dict)
    waited_s: float = 0.0
    changed_at: float = 0.0

    def begin(self) -> None:
        now = self.changed_at = trio.current_time()
        self.waited_s = 0.0
        self.free_since = {number: now for number in range(self.count) if number not in self.owner}

    def took(self, member: int, numbers: Iterable[int]) -> None:
        self.changed_at = trio.current_time()
        for number in numbers:
            since = self.free_since.pop(number, None)
            if since is not None:
                self.waited_s += trio.current_time() - since
            self.owner[number] = member

    def gave(self, member: int, numbers: Iterable[int]) -> None:
        self.changed_at = trio.current_time()
        for number in numbers:
            if self.owner.get(number) == member:
                del self.owner[number]
                self.free_since[number] = trio.current_time()


class Group:
    """The members of one run."""

    def __init__(
        self,
        environment: Environment,
        bootstrap: str,
        protocol: str,
        partitions: int,
        nursery: trio.Nursery,
        *,
        name: str = "",
    ) -> None:
        """``name`` is that of the group and of its topic, if they are not ``GROUP`` and ``TOPIC``."""
        self.environment = environment
        self.bootstrap = bootstrap
        self.group, self.topic = name or GROUP, name or TOPIC
        self.settings = PROTOCOLS[protocol]
        self.readers = Readers(partitions)
        self.nursery = nursery
        self.scopes: dict[int, trio.CancelScope] = {}
        self.numbers = itertools.count()

    def add(self) -> None:
        self.nursery.start_soon(self._member, next(self.numbers))

    async def _member(self, number: int) -> None:
        async def took(partitions: Sequence[TopicPartition]) -> None:
            self.readers.took(number, [each.partition for each in partitions])

        async def gave(partitions: Sequence[TopicPartition]) -> None:
            self.readers.gave(number, [each.partition for each in partitions])

        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "fetch.max.wait.ms": 5_000,
            "enable.auto.commit": False,
            **self.settings,
        }
        if "group.protocol" not in self.settings:
            config |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        consumer = Consumer(config, environment=self.environment, on_assigned=took, on_revoked=gave)
        with trio.CancelScope() as scope:
            self.scopes[number] = scope
            async with consumer:
                consumer.subscribe([self.topic])
                try:
                    while True:
                        await consumer.poll(5_000)
                except trio.Cancelled:
                    consumer.abandon()
                    raise

    def kill(self) -> None:
        """A member dies: its partitions have no reader until the coordinator notices."""
        number, scope = self.scopes.popitem()
        scope.cancel()
        self.readers.gave(number, [each for each, owner in list(self.readers.owner.items()) if owner == number])

    def is_read(self, members: int) -> bool:
        """Whether every partition has a reader, and every member partitions."""
        return len(self.readers.owner) == self.readers.count and len(set(self.readers.owner.values())) == members

    async def until_rest(self, members: int, rests: Callable[[int], bool], quiet_s: float) -> tuple[float, float]:
        """Returns the seconds until the group rests, and the records that were delayed.

        It must rest for ``quiet_s`` without a change: cooperative groups rebalance twice.
        """
        self.readers.begin()
        began = rested_at = trio.current_time()
        with trio.fail_after(LIMIT_S):
            while True:
                await trio.sleep(STEP_S)
                if not rests(members):
                    rested_at = trio.current_time()
                elif trio.current_time() - max(rested_at, self.readers.changed_at) > quiet_s:
                    return rested_at - began, self.readers.waited_s * RATE

    async def events(self, members: int, rests: Callable[[int], bool], quiet_s: float) -> list[tuple[float, float]]:
        """All members join, one more joins, one dies; returns the figures of each event."""
        figures = []
        for _ in range(members):
            self.add()
        figures.append(await self.until_rest(members, rests, quiet_s))
        self.add()
        figures.append(await self.until_rest(members + 1, rests, quiet_s))
        self.kill()
        figures.append(await self.until_rest(members, rests, quiet_s))
        return figures
