"""Goal: no record is left out when processors crash, are cancelled, or share a group; and a failed handler ends one.

Method: trio's processor in the simulated world, on virtual time, against the fake cluster.
"""

import pytest
import trio

from moldau import ConfigError, Consumer, Producer
from moldau.processing import RetryTopics, process
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

COUNT = 200


def simulated(scenario, partitions=4):
    async def main(world):
        fake = FakeCluster(world, 2)
        fake.start()
        fake.add_topic("t", partitions)
        async with Producer({"bootstrap.servers": fake.bootstrap}, environment=world.node("p").environment) as producer:
            for number in range(COUNT):
                await producer.send("t", b"%d" % number, b"%d" % (number % 7))
        await scenario(fake, world)

    run_world(main, 1)


def member(fake, world, name, **settings):
    config = {"bootstrap.servers": fake.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    config |= {"enable.auto.commit": False, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    return Consumer(config | settings, environment=world.node(name).environment)


@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_a_crash_repeats_records_and_loses_none(order):
    """The first processor is abandoned, as if it had died; the second one has the rest, and what was not committed."""
    seen = []
    running = {}

    async def handler(record):
        lane = {"partition": record.partition, "key": (record.partition, record.key), "none": record.offset}[order]
        assert running.setdefault((record.partition, lane), record.offset) == record.offset
        await trio.sleep(0.2)
        seen.append(int(record.value))
        del running[record.partition, lane]

    async def scenario(fake, world):
        async with member(fake, world, "a") as consumer:
            consumer.subscribe(["t"])
            with trio.move_on_after(4):
                await process(consumer, handler, concurrency=5, order=order, commit_interval_ms=300, pending_max=20)
                raise AssertionError("it has no end")
            consumer.abandon()
        first = len(seen)
        assert 0 < first < COUNT
        running.clear()
        async with member(fake, world, "b") as consumer:
            consumer.subscribe(["t"])
            await process(consumer, handler, order=order, until=lambda: len(set(seen)) == COUNT)
            offsets = await consumer.committed([("t", number) for number in range(4)])
        assert set(seen) == set(range(COUNT))
        assert sum(each.offset for each in offsets.values()) == COUNT
        assert len(seen) - COUNT <= 5 + 4 * 20, "a cancelled processor commits what it has processed"

    simulated(scenario)


def test_a_member_that_joins_takes_partitions_over():
    seen = {"a": [], "b": []}

    async def scenario(fake, world):
        async def run(name, delay_s):
            async def handler(record):
                await trio.sleep(0.1)
                seen[name].append(int(record.value))

            await trio.sleep(delay_s)
            async with member(fake, world, name) as consumer:
                consumer.subscribe(["t"])
                await process(consumer, handler, concurrency=2, commit_interval_ms=200, until=is_over)

        def is_over():
            return len({*seen["a"], *seen["b"]}) == COUNT

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "a", 0)
            nursery.start_soon(run, "b", 2)

    simulated(scenario)
    assert {*seen["a"], *seen["b"]} == set(range(COUNT))
    assert len(seen["b"]) > 10


def test_a_failing_handler_ends_the_processor_without_its_commit():
    async def handler(record):
        if record.offset == 7:
            raise ZeroDivisionError

    async def scenario(fake, world):
        async with member(fake, world, "a") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(ExceptionGroup) as caught:
                await process(consumer, handler, concurrency=1)
            assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
            assert (await consumer.committed([("t", 0)]))["t", 0].offset == 7

    simulated(scenario, partitions=1)


def test_offsets_do_not_go_to_another_cluster():
    """Records are in hand when the address leads to another cluster, in which the group has read everything."""

    async def scenario(fake, world):
        released, handled = trio.Event(), []

        async def handler(record):
            if not released.is_set():
                await released.wait()
            handled.append(record.offset)

        nonlocal is_over
        async with member(fake, world, "a", **{"metadata.max.age.ms": 100}) as consumer:
            consumer.assign([("t", 0)])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: process(consumer, handler, commit_interval_ms=100, until=lambda: is_over))
                await trio.sleep(1)
                records = fake.topics["t"][0].end
                fake.topics.clear()
                fake.add_topic("t")
                fake.cluster_id = "other"
                fake.offsets["g", "t", 0] = (0, -1, "")
                while not consumer.clusters_left:  # noqa: ASYNC110 - the client has no event for it
                    await trio.sleep(0.05)
                await trio.sleep(1)
                released.set()
                await trio.sleep(1)
                is_over = True
        assert handled == [0]
        assert records > 1
        assert fake.offsets["g", "t", 0][0] == 0

    is_over = False
    simulated(scenario, partitions=1)


def test_unusable_settings_are_refused():
    async def scenario(fake, world):
        async with member(fake, world, "a", **{"enable.auto.commit": True}) as consumer:
            with pytest.raises(ConfigError, match=r"enable\.auto\.commit: must be false for process"):
                await process(consumer, None)
        async with Consumer({"bootstrap.servers": fake.bootstrap}, environment=world.node("c").environment) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(ConfigError, match=r"group\.id: needed to commit"):
                await process(consumer, None, until=lambda: True)  # its first commit failed, after handlers had run
        async with member(fake, world, "b") as consumer:
            with pytest.raises(TypeError, match="retries needs the producer"):
                await process(consumer, None, retries=RetryTopics("t"))
            with pytest.raises(ValueError, match="order must be one of"):
                await process(consumer, None, order="lane")

    simulated(scenario)
