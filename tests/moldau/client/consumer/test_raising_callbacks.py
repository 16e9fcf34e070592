"""Goal: a rebalance callback that raises an error holds neither its member nor the group up.

The application gets the error, and the partitions are given up as if the callback had returned.
"""

import pytest
import trio

from moldau import TopicPartition
from support.client.consumer_stories import fill, numbers, simulate, take

PROTOCOLS = ["range", "cooperative-sticky"]
A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


class Callbacks(dict):
    """Callbacks for all events, each of which notes its partitions and raises."""

    def __init__(self):
        self.calls = []
        super().__init__({f"on_{kind}": self._raising(kind) for kind in ("revoked", "lost")})

    def _raising(self, kind):
        async def callback(partitions):
            self.calls.append((kind, sorted(partitions)))
            await trio.lowlevel.checkpoint()
            raise ValueError(f"in on_{kind}")

        return callback


async def polled(consumer, until):
    """Polls until a condition holds; returns the errors of callbacks."""
    errors = []
    with trio.fail_after(30):
        while not until():
            try:
                await consumer.poll(100)
            except ValueError as error:
                errors.append(str(error))
    return errors


@pytest.mark.parametrize("end", ["unsubscribe", "close"])
def test_a_member_leaves_although_its_callback_raises(end):
    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("a")[0], 0, 5)
        callbacks = Callbacks()
        async with open_consumer(callbacks, group_id="g") as consumer:
            consumer.subscribe(["a"])
            assert await take(consumer, 5) == numbers(0, 5)
            with pytest.raises(ValueError, match="in on_revoked"):
                await getattr(consumer, end)()
            assert cluster.groups["g"].members == {}
            assert (consumer.assignment, consumer.subscription) == ([], [])
            assert cluster.offsets["g", "a", 0][0] == 5
            assert consumer._client.is_closed == (end == "close")
            await getattr(consumer, end)()
            if end == "unsubscribe":
                consumer.assign([A0])
                assert await consumer.position(A0) == 5
        assert callbacks.calls == [("revoked", [A0])]

    simulate(scenario)


@pytest.mark.parametrize("strategy", PROTOCOLS)
def test_another_subscription_holds_although_its_callback_raises(strategy):
    async def scenario(cluster, open_consumer):
        for topic in "ab":
            fill(cluster.add_topic(topic)[0], 0, 5)
        callbacks = Callbacks()
        config = {"group_id": "g", "partition_assignment_strategy": strategy}
        async with open_consumer(callbacks, **config) as consumer:
            consumer.subscribe(["a"])
            assert await take(consumer, 5) == numbers(0, 5)
            consumer.subscribe(["b"])
            assert await polled(consumer, lambda: consumer.assignment == [B0]) == ["in on_revoked"]
            assert callbacks.calls == [("revoked", [A0])]
            with pytest.raises(ValueError, match="in on_revoked"):
                await consumer.close()

    simulate(scenario)


def test_a_partition_moves_although_its_callback_raises():
    """A member of the cooperative protocol learns in its next assignment that it has to give a partition up."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("a", 2)
        callbacks = Callbacks()
        config = {"group_id": "g", "heartbeat_interval_ms": 300, "partition_assignment_strategy": "cooperative-sticky"}
        async with open_consumer(callbacks, **config) as first, open_consumer(**config) as second:
            first.subscribe(["a"])
            second.subscribe(["a"])
            await polled(first, lambda: len(first.assignment) == 2)
            errors = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(polled, second, lambda: len(second.assignment) == 1 == len(first.assignment))
                errors = await polled(first, lambda: len(second.assignment) == 1 == len(first.assignment))
            assert errors == ["in on_revoked"]
            assert len(callbacks.calls) == 1
            first.abandon()

    simulate(scenario)


def test_an_expelled_member_joins_although_its_callback_raises():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("a")
        fill(part, 0, 5)
        callbacks = Callbacks()
        async with open_consumer(callbacks, group_id="g", heartbeat_interval_ms=300) as consumer:
            consumer.subscribe(["a"])
            assert await take(consumer, 5) == numbers(0, 5)
            cluster.groups["g"].members.clear()
            assert await polled(consumer, lambda: bool(callbacks.calls)) == ["in on_lost"]
            fill(part, 5, 10)
            assert (await take(consumer, 5))[-5:] == numbers(5, 10)
            assert callbacks.calls == [("lost", [A0])]
            consumer.abandon()

    simulate(scenario)
