"""A consumer and a small cluster on virtual time, for tests of the consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.consumer import CommitFailedError, Consumer
from moldau.records import encode_batch
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster, FakePartition

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from moldau_jepsen.world.world import World

    OpenConsumer = Callable[..., Consumer]
    Key = tuple[str, str, int]
    Committed = tuple[int, int, str]


def simulate(scenario: Callable[[FakeCluster, OpenConsumer], Awaitable[Any]], seed: int = 1, brokers: int = 2) -> Any:
    """Runs ``scenario(cluster, open_consumer)`` in a simulated world."""

    async def main(world: World) -> Any:
        cluster = FakeCluster(world, brokers)
        cluster.start()
        environment = world.node("client").environment

        def consumer(callbacks: Mapping[str, Any] | None = None, **config: object) -> Consumer:
            given: dict[str, object] = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
            given |= {key.replace("_", "."): value for key, value in config.items()}
            return Consumer(given, environment=environment, **(callbacks or {}))

        return await scenario(cluster, consumer)

    return run_world(main, seed)


def fill(
    part: FakePartition, start: int, end: int, *, size: int = 10, value: bytes | None = None, **options: Any
) -> None:
    """Appends the records ``start`` .. ``end`` in batches of ``size``.

    The timestamp of a record is its number, and so is its value unless ``value`` is given.
    """
    for first in range(start, end, size):
        numbers = range(first, min(first + size, end))
        part.append(encode_batch([(number, None, value or b"%d" % number, ()) for number in numbers], **options))


async def take(consumer: Consumer, count: int) -> list[Any]:
    """Polls until ``count`` values have come, in the order in which they came."""
    values: list[Any] = []
    with trio.fail_after(60):
        while len(values) < count:
            for batch in await consumer.poll(500):
                values += [record.value for record in batch.records]
    return values


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


class CommittedOffsets(dict["Key", "Committed"]):
    """The offsets of a ``FakeCluster``'s groups; records each commit that reset an offset of another member."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_back: list[tuple[Key, int, int]] = []

    def __setitem__(self, key: Key, value: Committed) -> None:
        if key in self and value[0] < self[key][0]:
            self.taken_back.append((key, self[key][0], value[0]))
        super().__setitem__(key, value)


class Resubscriber:
    """A member that works, commits, and changes its subscription as its random stream says."""

    def __init__(self, consumer: Consumer, topics: list[str], draw: random.Random) -> None:
        self.consumer = consumer
        self.topics = topics
        self.draw = draw
        self.seen: set[tuple[str, int, int]] = set()
        self.resubscribed = 0
        self.is_settling = False
        """Whether the member keeps all topics from now on, and only reads."""

    async def run(self) -> None:
        draw = self.draw
        async with self.consumer as consumer:
            consumer.subscribe(self.topics)
            while True:
                batches = await consumer.poll(draw.choice([0, 20, 200]), max_records=draw.choice([1, 5, 500]))
                for batch in batches:
                    self.seen.update((*batch.topic_partition, record.offset) for record in batch.records)
                if self.is_settling:
                    if set(consumer.subscription) != set(self.topics):
                        consumer.subscribe(self.topics)
                    continue
                if draw.random() < 0.3:
                    await self._commit()
                if draw.random() < 0.2:
                    await trio.sleep(draw.uniform(0.0, 1.5))  # the application processes its records
                    await self._commit()
                if draw.random() < 0.1:
                    consumer.subscribe(draw.sample(self.topics, draw.randint(1, len(self.topics))))
                    self.resubscribed += 1

    async def _commit(self) -> None:
        try:
            await self.consumer.commit()
        except CommitFailedError:
            return  # this member left the generation: other members read its records again


async def resubscribing(
    cluster: FakeCluster,
    open_consumer: OpenConsumer,
    draw: random.Random,
    *,
    members: int = 3,
    seconds: float = 20,
    **config: object,
) -> list[Resubscriber]:
    """Lets members of one group resubscribe, narrower and wider, while records arrive; returns them.

    Then all subscribe to all topics, until every record was seen. ``cluster.offsets`` must be ``CommittedOffsets``.
    """
    topics = {name: cluster.add_topic(name, 2) for name in ("a", "b", "c")}
    parts = [(name, number, part) for name, found in topics.items() for number, part in enumerate(found)]
    workers = [
        Resubscriber(open_consumer(client_id=f"member{number}", group_id="g", **config), list(topics), draw)
        for number in range(members)
    ]

    def missing() -> list[tuple[str, int, int]]:
        seen: set[tuple[str, int, int]] = set().union(*(worker.seen for worker in workers))
        every = ((name, number, offset) for name, number, part in parts for offset in range(part.end))
        return [each for each in every if each not in seen]

    async with trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(worker.run)
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            fill(draw.choice(parts)[2], 0, draw.randint(1, 20), size=5)
            cluster.appended.notify()
            await trio.sleep(draw.uniform(0.0, 0.2))
        for worker in workers:
            worker.is_settling = True
        with trio.fail_after(60):
            while True:
                if not missing():
                    break
                await trio.sleep(0.5)
        nursery.cancel_scope.cancel()
    return workers
