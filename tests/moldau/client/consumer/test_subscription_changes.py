"""Members that change their subscription: the partitions they revoke before they rejoin, and their commits."""

import pytest
import trio

from moldau import TopicPartition
from moldau.consumer.core.assignors import decode_subscription
from moldau.protocol.api import ApiKey
from support.client.consumer_stories import CommittedOffsets, fill, numbers, resubscribing, simulate, take
from support.client.fake_cluster import FakePartition
from support.proof import proof_beyond

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
COOPERATIVE = {
    "group_id": "g",
    "partition_assignment_strategy": "cooperative-sticky",
    "heartbeat_interval_ms": 300,
    "enable_auto_commit": False,
}


async def polled_until(consumer, partitions):
    """Polls one record at a time until the consumer has been given ``partitions`` and has read from each of them."""
    seen = set()
    with trio.fail_after(30):
        while set(consumer.assignment) != set(partitions) or not seen >= set(partitions):
            seen |= {batch.topic_partition for batch in await consumer.poll(100, max_records=1)}


async def holds(consumer, partitions):
    with trio.fail_after(30):
        while set(consumer.assignment) != set(partitions):
            await consumer.poll(100, max_records=1)


@pytest.mark.parametrize("auto", [False, True])
def test_narrower_member_takes_back_no_commit(auto):
    """After subscribe([a]) a busy member must not commit b, which another member owns and has committed since."""

    async def scenario(cluster, open_consumer):
        for topic in ("a", "b"):
            fill(cluster.add_topic(topic)[0], 0, 100)
        config = COOPERATIVE | {"enable_auto_commit": auto}
        async with open_consumer(**config) as first:
            first.subscribe(["a", "b"])
            await polled_until(first, [A0, B0])
            async with open_consumer(**COOPERATIVE) as second:
                second.subscribe(["b"])
                await second.poll(0)
                await holds(first, [A0, B0])
                first.subscribe(["a"])
                await first.poll(0)  # begins to join, and then the application works on what it has
                await holds(second, [B0])
                await second.poll(1000)
                await second.commit({B0: 90})
                if not auto:
                    await first.commit()
                await holds(first, [A0])
                assert cluster.offsets["g", "b", 0][0] == 90
                assert ("g", "a", 0) in cluster.offsets

    simulate(scenario)


def test_a_pattern_is_matched_soon_after_a_metadata_request():
    """It is set while a request without topics is under way: the wish for all topics outlasts the answer."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("a")[0], 0, 10)
        asked = trio.Event()

        def handle(broker, request):
            answer = cluster.on_metadata(broker, request)
            asked.set()

            async def wait():
                await trio.sleep(1)
                return answer

            return wait

        cluster.handlers[ApiKey.METADATA] = handle
        async with open_consumer(**COOPERATIVE) as consumer:
            await asked.wait()
            consumer.subscribe(pattern="a")
            await holds(consumer, [A0])

    simulate(scenario)


def test_polls_without_news_compare_no_topic_with_the_pattern():
    """A cluster may have thousands of topics; the metadata say when there is another one."""

    class Counted:
        def __init__(self, pattern):
            self.pattern, self.names = pattern, []

        def fullmatch(self, name):
            self.names.append(name)
            return self.pattern.fullmatch(name)

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("a0")[0], 0, 10)
        cluster.add_topic("b")
        async with open_consumer(metadata_max_age_ms=60_000, **COOPERATIVE) as consumer:
            consumer.subscribe(pattern="a.*")
            await holds(consumer, [TopicPartition("a0", 0)])
            counted = consumer._rebalancer._pattern = Counted(consumer._rebalancer._pattern)
            for _ in range(20):
                await consumer.poll(100, max_records=1)
            assert counted.names == []
            cluster.add_topic("a1")
            await trio.sleep(70)
            await holds(consumer, [TopicPartition("a0", 0), TopicPartition("a1", 0)])
            assert sorted(set(counted.names)) == ["a0", "a1", "b"]

    simulate(scenario)


def joins(cluster):
    """Topics and owned partitions of each JoinGroup, in order."""
    found = []
    for _, key, request in cluster.requests:
        if key == ApiKey.JOIN_GROUP and request.member_id:
            member = decode_subscription(request.member_id, None, request.protocols[0].metadata)
            found.append((member.topics, sorted(member.owned)))
    return found


def test_unsubscribed_topics_are_revoked_before_join():
    """The callback and the last commit come while the partition is still owned; JoinGroup no longer names it."""

    async def scenario(cluster, open_consumer):
        for topic in ("a", "b"):
            fill(cluster.add_topic(topic)[0], 0, 100)
        reported = []

        async def on_revoked(partitions):
            reported.append((list(partitions), len(joins(cluster)), consumer.group_generation))
            await consumer.commit()

        async with open_consumer({"on_revoked": on_revoked}, **COOPERATIVE) as consumer:
            consumer.subscribe(["a", "b"])
            await polled_until(consumer, [A0, B0])
            generation, before = consumer.group_generation, len(joins(cluster))
            consumer.subscribe(["a"])
            await consumer.poll(0)
            assert reported == [([B0], before, generation)]
            assert cluster.offsets["g", "b", 0][0] > 0
            assert consumer.assignment == [A0]
            await trio.sleep(1)
            assert joins(cluster)[-1] == (("a",), [A0])

    simulate(scenario)


@pytest.mark.parametrize("seed", proof_beyond(1, range(8)))
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_drawn_resubscriptions_take_back_no_commit(strategy, seed):
    """Members resubscribe narrower and wider under load: no commit is taken back, and every record is read."""

    async def scenario(cluster, open_consumer):
        cluster.offsets = CommittedOffsets()
        config = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 200, "enable_auto_commit": False}
        workers = await resubscribing(cluster, open_consumer, cluster.world.random("members"), **config)
        assert cluster.offsets.taken_back == []
        assert sum(worker.resubscribed for worker in workers) >= 10, "the story needs members that resubscribe"

    simulate(scenario, seed)


def test_a_leader_that_subscribes_again_watches_all_topics():
    """The same subscription again changes nothing; the other member gets a partition that its topic has got."""

    async def scenario(cluster, open_consumer):
        for topic in "tu":
            cluster.add_topic(topic)
        config = {"group_id": "g", "metadata_max_age_ms": 1000, "heartbeat_interval_ms": 300}
        async with open_consumer(**config) as first, open_consumer(**config) as member, trio.open_nursery() as nursery:

            async def poll(consumer, topic):
                while True:
                    consumer.subscribe([topic])
                    await consumer.poll(200)

            nursery.start_soon(poll, first, "t")
            await trio.sleep(2)
            nursery.start_soon(poll, member, "u")
            await trio.sleep(5)
            assert (first.assignment, member.assignment) == ([("t", 0)], [("u", 0)])
            leads = first.group_metadata().member_id == cluster.group("g").leader
            topic, other = ("u", member) if leads else ("t", first)
            cluster.topics[topic].append(FakePartition(leader=1))
            await trio.sleep(10)
            assert sorted(other.assignment) == [(topic, 0), (topic, 1)]
            nursery.cancel_scope.cancel()

    simulate(scenario)


def test_positions_are_committed_before_another_assignment():
    """No rebalance follows that would commit those of the former partitions."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        cluster.add_topic("u")
        async with open_consumer(group_id="g", auto_commit_interval_ms=1000) as consumer:
            consumer.assign([("t", 0)])
            assert await take(consumer, 10) == numbers(0, 10)
            await trio.sleep(2)
            consumer.assign([("u", 0)])
            await trio.sleep(1)
            assert cluster.offsets["g", "t", 0][0] == 10

    simulate(scenario)


def test_a_topic_that_comes_back_smaller_is_shared_out_again():
    """It was deleted and created again with fewer partitions; the leader looks at the numbers of all."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("a", 3)
        async with open_consumer(metadata_max_age_ms=1000, **COOPERATIVE) as consumer:
            consumer.subscribe(["a"])
            await holds(consumer, [TopicPartition("a", number) for number in range(3)])
            del cluster.topics["a"][1:]
            await holds(consumer, [A0])

    simulate(scenario)
