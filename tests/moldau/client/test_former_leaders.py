"""Goal: a group continues at its committed offset, however old the metadata of the new member is.

Method: a broker without contact to the controllers still acts as the leader of a partition that other brokers have led
since. Its log ends before the committed offset, so it answers that the offset is out of range. A consumer that trusts
this answer would reset its position and commit old offsets. The leader epoch of the committed offset prevents it
(KIP-320).
"""

from functools import partial

import pytest
import trio

from moldau import Consumer, TopicPartition
from moldau.cluster.client import ClusterClient
from moldau.consumer.core.positions import NO_EPOCH, PartitionPosition
from moldau.protocol.api import ApiKey
from moldau.records import encode_batch
from moldau.runtime.config import CONSUMER_CONFIG
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

T0 = TopicPartition("t", 0)
COORDINATOR, FORMER, LEADER = 1, 2, 3
ASKED_OF_LEADERS = (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)


def fill(part, start, end):
    part.append(encode_batch([(number, None, b"%d" % number, ()) for number in range(start, end)]))


def answer(cluster, view, news_s, name, broker, request):
    is_behind = broker == FORMER or (broker == COORDINATOR and trio.current_time() < news_s)
    return getattr(view if is_behind else cluster, name)(broker, request)


def cluster_with_a_former_leader(world):
    """Of three brokers the second one still leads epoch 0 in its own view, up to offset 60; the third leads epoch 1.

    The second one has never heard of the third, and the first one hears of all that after a second.
    """
    cluster, view = FakeCluster(world, 3), FakeCluster(world, 2)
    for each in (cluster, view):
        (part,) = each.add_topic("t")
        part.leader = FORMER
        fill(part, 0, 60)
    cluster.move("t", 0, LEADER)
    fill(cluster.topics["t"][0], 60, 120)
    for key in (ApiKey.METADATA, *ASKED_OF_LEADERS):
        cluster.handlers[key] = partial(answer, cluster, view, trio.current_time() + 1, f"on_{key.name.lower()}")
    cluster.start()
    return cluster


def asked_of(cluster, broker):
    return [key for who, key, _ in cluster.requests if who == broker and key in ASKED_OF_LEADERS]


async def first_value(consumer):
    with trio.fail_after(600):
        while True:
            for batch in await consumer.poll(500):
                return batch.records[0].value


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_member_skips_leaders_older_than_its_offset(reset, seed):
    """A member does not ask a leader of an epoch before that of its committed offset."""

    async def main(world):
        cluster = cluster_with_a_former_leader(world)
        cluster.offsets["g", "t", 0] = (115, 1, "")
        config = {
            "bootstrap.servers": f"{cluster.brokers[FORMER]}:9092",
            "group.id": "g",
            "auto.offset.reset": reset,
        }
        async with Consumer(config, environment=world.node("client").environment) as consumer:
            consumer.subscribe(["t"])
            begun = trio.current_time()
            assert await first_value(consumer) == b"115"
            assert trio.current_time() - begun < 1.5, "others are asked for metadata, and not who was behind"
            await consumer.commit()
        assert asked_of(cluster, FORMER) == []
        assert ApiKey.OFFSET_FOR_LEADER_EPOCH in asked_of(cluster, LEADER)
        assert cluster.offsets["g", "t", 0] == (120, 1, "")

    run_world(main, seed)


def test_seek_with_leader_epoch_skips_former_leaders():
    """A seek with a leader epoch does not ask former leaders either."""

    async def main(world):
        cluster = cluster_with_a_former_leader(world)
        config = {"bootstrap.servers": f"{cluster.brokers[FORMER]}:9092", "auto.offset.reset": "none"}
        async with Consumer(config, environment=world.node("client").environment) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 115, leader_epoch=1)
            assert await first_value(consumer) == b"115"
        assert asked_of(cluster, FORMER) == []

    run_world(main, 1)


def test_new_owner_skips_the_leader_of_its_old_metadata():
    """The member's metadata name the former leader, although the broker that sent them now knows better."""

    async def main(world):
        cluster = FakeCluster(world, 3)
        parts = cluster.add_topic("t", 2)
        parts[0].leader, parts[1].leader = LEADER, FORMER
        for part in parts:
            fill(part, 0, 60)
        cluster.start()
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        async with Consumer(config, environment=world.node("client").environment) as consumer:
            consumer.assign([T0])
            assert await first_value(consumer) == b"0"
            view = FakeCluster(world, 3)
            view.add_topic("t", 2)[1].leader = FORMER
            fill(view.topics["t"][1], 0, 60)
            cluster.move("t", 1, LEADER)
            fill(parts[1], 60, 120)
            cluster.offsets["g", "t", 1] = (115, 1, "")
            for key in ASKED_OF_LEADERS:
                cluster.handlers[key] = partial(answer, cluster, view, 0, f"on_{key.name.lower()}")
            cluster.requests.clear()
            consumer.assign([(T0.topic, 1)])
            assert await first_value(consumer) == b"115"
        assert asked_of(cluster, FORMER) == []

    run_world(main, 1)


def test_brokers_with_stale_metadata_are_asked_last():
    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.add_topic("t")
        cluster.start()
        config = CONSUMER_CONFIG.parse({"bootstrap.servers": cluster.bootstrap})
        client = ClusterClient(world.node("client").environment, config, "consumer")

        async def answering_broker():
            await client.refresh()
            return [broker for broker, key, _ in cluster.requests if key == ApiKey.METADATA][-1]

        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            await client.refresh()  # by a bootstrap server
            first = await answering_broker()
            await trio.sleep(1)
            client.doubt_metadata(client.now_ms)
            assert await answering_broker() == first, "its metadata was current when it answered"
            client.doubt_metadata(0)
            assert await answering_broker() != first
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_wait_for_an_offset_of_a_former_topic_ends():
    """The topic was created again, so its leader epochs restart and never reach that of the committed offset."""

    async def main(world):
        cluster = FakeCluster(world, 3)
        fill(cluster.add_topic("t")[0], 0, 60)
        cluster.offsets["g", "t", 0] = (115, 7, "")
        cluster.start()
        config = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "default.api.timeout.ms": 20_000,
        }
        async with Consumer(config, environment=world.node("client").environment) as consumer:
            consumer.subscribe(["t"])
            begun = trio.current_time()
            assert await first_value(consumer) == b"0"
            assert 20 <= trio.current_time() - begun < 22
        asked = [key for _, key, _ in cluster.requests if key == ApiKey.METADATA]
        assert len(asked) < 20 / 0.1 * 1.2, "at the pace of the retry back-off"

    run_world(main, 1)


def test_position_waits_for_the_latest_known_epoch():
    """A position waits for the latest leader epoch that it knows."""
    position = PartitionPosition(T0)
    assert not position.is_ahead_of(0, now_ms=0, patience_ms=100)
    position.seek(115, 4)
    position.reset(None)
    position.seek(0)
    assert position.is_ahead_of(3, now_ms=10, patience_ms=100)
    assert position.is_ahead_of(3, now_ms=109, patience_ms=100)
    assert not position.is_ahead_of(3, now_ms=110, patience_ms=100)
    assert not position.is_ahead_of(3, now_ms=111, patience_ms=100), "it has given up waiting"
    position.seek(115, 4)
    assert position.is_ahead_of(3, now_ms=200, patience_ms=100)
    assert not position.is_ahead_of(NO_EPOCH, now_ms=200, patience_ms=100), "brokers without epochs"
    position.seek(115, 4)
    assert position.is_ahead_of(3, now_ms=500, patience_ms=100), "the time counts again"
    assert not position.is_ahead_of(4, now_ms=500, patience_ms=100)
    assert not position.is_ahead_of(3, now_ms=500, patience_ms=100), "a topic made again starts over"
