"""Goal: brokers replicate, fail over and restart without losing acknowledged records.

Method: whole brokers and controllers on virtual time.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from support.cluster.broker_cluster import batch, run_cluster, values_of


async def _everything(cluster, topic: str, leader: int) -> list[bytes]:
    values: list[bytes] = []
    client = cluster.client(leader)
    offset = 0
    while True:
        part = await client.fetch(topic, offset)
        assert part.error_code == ErrorCode.NONE
        new = values_of(part.records)
        if not new:
            return values
        values += new
        offset += len(new)


def test_a_record_is_acknowledged_replicated_and_read() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        client = cluster.client(leader)
        answer = await client.produce("t", batch(b"a", b"b"), batch(b"c"))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 2)
        part = await client.fetch("t")
        assert values_of(part.records) == [b"a", b"b", b"c"]
        assert part.high_watermark == 3
        for broker_id in cluster.broker_ids:
            assert cluster.replica(broker_id, "t").log.log_end_offset == 3

    run_cluster(scenario, brokers=3)


def test_replicas_are_byte_identical() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        for number in range(5):
            await cluster.client(leader).produce("t", batch(b"%d" % number))
        contents = set()
        for broker_id in cluster.broker_ids:
            result = cluster.replica(broker_id, "t").log.read(0, max_bytes=1 << 20, upper_bound_offset=5)
            contents.add(b"".join(part.file.read(part.position, part.count) for part in result.ranges))
        assert len(contents) == 1

    run_cluster(scenario, brokers=3)


def test_a_killed_leader_is_succeeded_within_a_second() -> None:
    """A killed leader is succeeded within a second, and no acknowledged record is lost."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="2")
        first = await cluster.leader("t")
        await cluster.client(first).produce("t", batch(b"before"))
        killed_at = trio.current_time()
        cluster.kill(first)
        second = await cluster.leader("t", other_than=first)
        answer = await cluster.client(second).produce("t", batch(b"after"))
        assert answer.error_code == ErrorCode.NONE
        assert trio.current_time() - killed_at < 1.0
        cluster.start_broker(first)
        await cluster.until(lambda: first in cluster.running)
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 3)
        assert await _everything(cluster, "t", second) == [b"before", b"after"]
        assert cluster.replica(first, "t").log.log_end_offset == 2

    run_cluster(scenario, brokers=3)


def test_a_deposed_leader_drops_unacknowledged_records() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="2")
        first = await cluster.leader("t")
        old = cluster.client(first)
        await old.produce("t", batch(b"kept"))
        network = cluster.world.network
        network.cut_between([f"b{first}"], [*(f"b{b}" for b in cluster.broker_ids if b != first), "c101"])
        answer = await old.produce("t", batch(b"alone"), acks=1)
        assert answer.error_code == ErrorCode.NONE, "it does not know of the election yet"
        second = await cluster.leader("t", other_than=first)
        refused = await old.produce("t", batch(b"alone too"), timeout_ms=100)
        assert refused.error_code != ErrorCode.NONE, "a leader without followers commits nothing"
        assert (await cluster.client(second).produce("t", batch(b"new"))).error_code == ErrorCode.NONE
        network.heal_all()
        await cluster.until(lambda: len(cluster.running[second].metadata.partition("t", 0).isr) == 3)
        assert await _everything(cluster, "t", second) == [b"kept", b"new"]
        result = cluster.replica(first, "t").log.read(0, max_bytes=1 << 20, upper_bound_offset=2)
        held = b"".join(part.file.read(part.position, part.count) for part in result.ranges)
        assert values_of(held) == [b"kept", b"new"]

    run_cluster(scenario, brokers=3)


def test_a_power_loss_of_all_brokers_loses_no_synced_record() -> None:
    """A power loss of all brokers loses no record that was synced before its acknowledgement."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="2", flush_messages="1")
        first = await cluster.leader("t")
        for number in range(10):
            await cluster.client(first).produce("t", batch(b"%d" % number))
        for broker_id in cluster.broker_ids:
            cluster.running.pop(broker_id)
            cluster.world.node(f"b{broker_id}").lose_power()
        for broker_id in cluster.broker_ids:
            cluster.start_broker(broker_id)
        await cluster.until(lambda: len(cluster.running) == 3)
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 3)  # fewer refuse acks=all
        second = await cluster.leader("t")
        assert (await cluster.client(second).produce("t", batch(b"last"))).error_code == ErrorCode.NONE
        assert await _everything(cluster, "t", second) == [b"%d" % number for number in range(10)] + [b"last"]

    run_cluster(scenario, brokers=3)


def test_a_paused_follower_leaves_the_isr_and_comes_back() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        follower = next(broker_id for broker_id in cluster.broker_ids if broker_id != leader)
        cluster.kill(follower)
        await cluster.until(lambda: follower not in cluster.partition_image("t").isr)
        answer = await cluster.client(leader).produce("t", batch(b"x"))
        assert answer.error_code == ErrorCode.NONE
        cluster.start_broker(follower)
        await cluster.until(lambda: follower in cluster.partition_image("t").isr)
        assert cluster.replica(follower, "t").log.log_end_offset == 1

    run_cluster(scenario, brokers=3)


def test_too_few_in_sync_replicas_refuse_only_acks_all() -> None:
    """Too few in-sync replicas refuse acks=all, and serve acks=1."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2, min_insync_replicas="2")
        leader = await cluster.leader("t")
        other = next(b for b in cluster.partition_image("t").replicas if b != leader)
        await cluster.client(leader).produce("t", batch(b"both"))
        cluster.kill(other)
        await cluster.until(lambda: cluster.replica(leader, "t").replica.state.isr == (leader,))
        answer = await cluster.client(leader).produce("t", batch(b"one"))
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        answer = await cluster.client(leader).produce("t", batch(b"one"), acks=1)
        assert answer.error_code == ErrorCode.NONE
        part = await cluster.client(leader).fetch("t")
        assert values_of(part.records) == [b"both"], "the high watermark stands still below min.insync.replicas"

    run_cluster(scenario, brokers=2)


def test_a_wait_for_a_silent_follower_ends() -> None:
    """The wait for a silent follower times out, or ends when the controller fences the follower."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        leader = await cluster.leader("t")
        other = next(b for b in cluster.partition_image("t").replicas if b != leader)
        cluster.world.node(f"b{other}").pause()  # the controller would fence a dead process at once
        quick = await cluster.client(leader).produce("t", batch(b"x"), timeout_ms=50)
        assert quick.error_code == ErrorCode.REQUEST_TIMED_OUT
        patient = await cluster.client(leader).produce("t", batch(b"y"), timeout_ms=20_000)
        assert patient.error_code == ErrorCode.NONE

    run_cluster(scenario, brokers=2)


def test_controlled_shutdown_moves_leadership_first() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3, partitions=6)
        leader = await cluster.leader("t")
        await cluster.client(leader).produce("t", batch(b"x"))
        await cluster.stop(leader)
        survivors = [broker_id for broker_id in cluster.broker_ids if broker_id != leader]
        image = cluster.image()
        for index in range(6):
            assert image.topics_by_name.get("t").partitions.get(index).leader in survivors
        cluster.start_broker(leader)
        await cluster.until(lambda: leader in cluster.running)
        assert cluster.running[leader].context.logs.directories[0].clean, "the stop before was clean"

    run_cluster(scenario, brokers=3)


def test_a_deleted_topic_takes_its_logs_and_waiters_along() -> None:
    from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        waiting: list = []

        async def poll() -> None:
            waiting.append(await cluster.client(1).fetch("t", max_wait_ms=60_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.sleep(0.1)
            answer = await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000))
            assert answer.responses[0].error_code == ErrorCode.NONE
        assert waiting[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert cluster.replica(1, "t") is None
        assert cluster.running[1].context.logs.logs == {}
        await client.create_topic("t")
        await cluster.leader("t")
        assert (await client.produce("t", batch(b"new"))).base_offset == 0

    run_cluster(scenario)


def test_a_restarted_broker_keeps_records_topic_ids_and_epochs() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t")
        await cluster.client(1).produce("t", batch(b"x"))
        before = cluster.image().topics_by_name.get("t").topic_id
        cluster.kill(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        await cluster.leader("t")
        part = await cluster.client(1).fetch("t")
        assert values_of(part.records) == [b"x"]
        assert cluster.image().topics_by_name.get("t").topic_id == before

    run_cluster(scenario)


def test_auto_creation_on_metadata() -> None:
    from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")], allow_auto_topic_creation=True)
        answer = await client.request(request, 12)
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert [p.partition_index for p in answer.topics[0].partitions] == [0, 1]
        request = MetadataRequest(topics=[MetadataRequestTopic(name="no/name")], allow_auto_topic_creation=True)
        answer = await client.request(request, 12)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run_cluster(scenario, num_partitions="2")


@pytest.mark.parametrize("seed", [7, 8])
def test_one_seed_gives_one_history(seed: int) -> None:
    async def scenario(cluster) -> list[int]:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        for number in range(20):
            await cluster.client(leader).produce("t", batch(b"%d" % number))
        cluster.kill(leader)
        second = await cluster.leader("t", other_than=leader)
        await cluster.client(second).produce("t", batch(b"x"))
        return [leader, second]

    assert run_cluster(scenario, seed=seed, brokers=3) == run_cluster(scenario, seed=seed, brokers=3)
