"""Several simulated clusters in one world, with a mirror between them on a machine of its own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import trio

from moldau import Admin, Consumer, NewTopic, Producer, TopicPartition
from moldau.admin import LATEST
from moldau.mirror.core.settings import MirrorSettings, parse_settings
from moldau.mirror.mirror import Mirror
from moldau_jepsen.world.world import run_world
from support.cluster.broker_cluster import BROKER_PORT, Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.world.world import World

QUICK = {
    "refresh.topics.interval.seconds": 2,
    "sync.topic.configs.interval.seconds": 2,
    "sync.topic.acls.interval.seconds": 2,
    "emit.checkpoints.interval.seconds": 2,
    "sync.group.offsets.interval.seconds": 2,
    "offset.flush.interval.ms": 500,
}
"""Intervals of a mirror that has something to do."""
CLIENT = {"default.api.timeout.ms": 15_000, "request.timeout.ms": 5_000, "metadata.max.age.ms": 5_000}
"""Client keys of the mirror, so that it notices dead clusters within seconds."""


class Clusters:
    """The clusters by alias, and the mirror's processes by machine."""

    def __init__(self, world: World, aliases: Iterable[str], **settings: Any) -> None:
        self.world = world
        self.by_alias: dict[str, Cluster] = {}
        for number, alias in enumerate(aliases):
            self.by_alias[alias] = Cluster(
                world, first_broker=1 + 10 * number, first_controller=101 + 10 * number, **settings
            )
        self.environment = world.node("client").environment
        self.mirrors: dict[str, Mirror] = {}

    def __getitem__(self, alias: str) -> Cluster:
        return self.by_alias[alias]

    def bootstrap(self, alias: str) -> str:
        return ",".join(f"b{broker_id}:{BROKER_PORT}" for broker_id in self[alias].broker_ids)

    # --- clients

    def admin(self, alias: str) -> Admin:
        return Admin({"bootstrap.servers": self.bootstrap(alias)}, environment=self.environment)

    def producer(self, alias: str, **keys: object) -> Producer[bytes, bytes]:
        given = {key.replace("_", "."): value for key, value in keys.items()}
        return Producer({"bootstrap.servers": self.bootstrap(alias), **given}, environment=self.environment)

    def consumer(self, alias: str, **keys: object) -> Consumer[bytes, bytes]:
        given = {key.replace("_", "."): value for key, value in keys.items()}
        return Consumer({"bootstrap.servers": self.bootstrap(alias), **given}, environment=self.environment)

    async def create(self, alias: str, topic: str, partitions: int = 1, **configs: str) -> None:
        keys = {key.replace("_", "."): value for key, value in configs.items()}
        async with self.admin(alias) as admin:
            await admin.create_topics([NewTopic(topic, partitions, 1, configs=keys)])

    async def fill(self, alias: str, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        """Produces records and waits until they are acknowledged."""
        async with self.producer(alias) as producer:
            for value in values:
                await producer.send(topic, value, key=b"k" + value, partition=partition, headers=(("h", value),))

    async def read(self, alias: str, topic: str, partition: int = 0) -> list[Record]:
        """Returns the committed records of a partition up to its present end."""
        wanted = TopicPartition(topic, partition)
        found: list[Record] = []
        async with self.admin(alias) as admin, self.consumer(alias, isolation_level="read_committed") as consumer:
            end = (await admin.list_offsets({wanted: LATEST}, isolation_level=1))[wanted][0]
            consumer.assign([wanted])
            consumer.seek_to_beginning()
            with trio.fail_after(60):
                while await consumer.position(wanted) < end:
                    for batch in await consumer.poll(500):
                        found += batch.records
        return found

    async def values(self, alias: str, topic: str, partition: int = 0) -> list[bytes]:
        """Returns the values of a partition; none while there is no such topic."""
        async with self.admin(alias) as admin:
            listed = {each.name: each.partition_count for each in await admin.list_topics(include_internal=True)}
        if listed.get(topic, 0) <= partition:
            return []
        return [bytes(record.value or b"") for record in await self.read(alias, topic, partition)]

    def committed_end(self, alias: str, topic: str, partition: int = 0) -> object:
        """Returns the leader's replica and its high watermark, which change whenever records are committed."""
        for broker_id in self[alias].running:
            led = self[alias].replica(broker_id, topic, partition)
            if led is not None and led.is_leader:
                return led, led.replica.high_watermark
        return None

    async def wait_values(
        self, alias: str, topic: str, expected: Iterable[bytes], partition: int = 0, *, timeout_s: float = 60
    ) -> list[bytes]:
        """Waits until a partition holds every expected value; returns all values that it holds.

        It reads the partition again when more of it is committed: to look costs little, a client that reads much.
        """
        wanted = set(expected)
        found: list[bytes] = []
        read_to: object = None
        with trio.move_on_after(timeout_s):
            while not wanted <= set(found):
                await trio.sleep(0.3)
                end = self.committed_end(alias, topic, partition)
                if end != read_to:
                    found, read_to = await self.values(alias, topic, partition), end
        missing = sorted(wanted - set(found))
        assert not missing, f"{len(missing)} values are missing, such as {missing[0]!r}"
        return found

    # --- the mirror

    def settings(
        self, sources: Iterable[str], target: str, *, per_source: dict[str, dict[str, Any]] | None = None, **keys: Any
    ) -> MirrorSettings:
        """Returns the settings of a mirror; in ``keys`` a double underscore is a dash, a single one a dot."""
        given = QUICK | {key.replace("__", "-").replace("_", "."): value for key, value in keys.items()}
        lines = [f"target = {toml(target)}", *(f"{toml(key)} = {toml(value)}" for key, value in given.items())]
        sources = list(sources)
        for alias in dict.fromkeys([*sources, target]):
            lines += [f"[clusters.{alias}]", f'"bootstrap.servers" = {toml(self.bootstrap(alias))}']
            lines += [f"{toml(key)} = {toml(value)}" for key, value in CLIENT.items()]
            lines.append('"producer.delivery.timeout.ms" = 10000')
        for alias in sources:
            lines.append(f"[sources.{alias}]")
            lines += [f"{toml(key)} = {toml(value)}" for key, value in (per_source or {}).get(alias, {}).items()]
        return parse_settings("\n".join(lines), "mirror.toml")

    def start(self, settings: MirrorSettings, machine: str = "mirror") -> Mirror:
        """Starts a mirror on a machine of its own."""

        async def main(environment: Environment) -> None:
            mirror = self.mirrors[machine] = Mirror(environment, settings)
            await mirror.run()

        self.world.node(machine).start(main)
        return self.mirrors.get(machine)  # type: ignore[return-value]  # set once the process has run

    def kill(self, machine: str = "mirror") -> None:
        self.world.node(machine).kill()

    async def stop(self, machine: str = "mirror") -> None:
        """Ends a mirror in order."""
        self.mirrors[machine].stop.set()
        with trio.fail_after(60):
            await self.world.node(machine).wait_ended()


def toml(value: Any) -> str:
    """Returns a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    return str(value) if isinstance(value, int) else "'" + str(value) + "'"


def run_clusters(
    scenario: Callable[[Clusters], Awaitable[Any]],
    *aliases: str,
    seed: int = 1,
    fails: bool = False,
    **settings: str,
) -> Any:
    """Runs a scenario with a started cluster for each alias; fails if an error ended a node, unless ``fails``."""

    async def main(world: World) -> Any:
        clusters = Clusters(world, aliases or ("east", "hub"), **settings)
        for cluster in clusters.by_alias.values():
            await cluster.start()
        result = await scenario(clusters)
        assert fails or world.failures == []
        return result

    return run_world(main, seed)


def numbers(first: int, last: int) -> list[bytes]:
    """Returns distinct values for records."""
    return [b"%06d" % number for number in range(first, last)]


def duplicates(values: Iterable[bytes]) -> dict[bytes, int]:
    """Returns the values that occur more than once."""
    return {value: count for value, count in Counter(values).items() if count > 1}
