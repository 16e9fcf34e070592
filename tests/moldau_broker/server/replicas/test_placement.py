"""Goal: replicas move, leaders move back, and consumers read nearby, without lost records or refused requests.

Method: whole brokers on virtual time.
"""

from __future__ import annotations

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from support.cluster.broker_cluster import batch, run_cluster, values_of


async def _produce_somewhere(cluster, value: bytes, *, timeout_ms: int = 5000, **fields: int):
    """Produces to the leader, which it finds by the hints of the other brokers. ``fields`` are those of the batch."""
    for _ in range(50):
        leader = await cluster.leader("t")
        answer = await cluster.client(leader).produce("t", batch(value, **fields), timeout_ms=timeout_ms)
        if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return answer
        await trio.sleep(0.01)
    raise AssertionError("no leader takes the record")


def test_a_partition_moves_to_other_brokers_under_load() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2, min_insync_replicas="2")
        before = cluster.partition_image("t").replicas
        target = [b for b in cluster.broker_ids if b not in before][:2]
        acknowledged: list[bytes] = []
        moved = trio.Event()

        async def load() -> None:
            number = 0
            while not moved.is_set():
                answer = await _produce_somewhere(cluster, b"%d" % number)
                assert answer.error_code == ErrorCode.NONE
                acknowledged.append(b"%d" % number)
                number += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await trio.sleep(0.2)
            request = AlterPartitionReassignmentsRequest(
                topics=[
                    ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=target)])
                ]
            )
            answer = await cluster.client(1).request(request)
            assert answer.error_code == ErrorCode.NONE, answer
            assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE, answer
            await cluster.until(lambda: list(cluster.partition_image("t").replicas) == target)
            await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
            await trio.sleep(0.2)
            moved.set()
        leader = await cluster.leader("t")
        assert leader in target
        part = await cluster.client(leader).fetch("t")
        held = values_of(part.records)
        assert [value for value in dict.fromkeys(held) if value in acknowledged] == acknowledged
        for broker_id in before:
            assert cluster.replica(broker_id, "t") is None, "the old replicas are gone"

    run_cluster(scenario, brokers=4)


async def _move(cluster, through: int, target: list[int] | None) -> int:
    """Moves partition 0, or cancels its move with None; returns the error code."""
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=target)])]
    )
    answer = await cluster.client(through).request(request)
    assert answer.error_code == ErrorCode.NONE, answer
    return answer.responses[0].partitions[0].error_code


def test_a_redirected_move_keeps_records_of_the_abandoned_target() -> None:
    """A redirected move keeps records that only a replica of the abandoned target has.

    The old replica is dead; one replica of the first target has caught up and acknowledged more since then.
    """

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=1)
        (old,) = cluster.partition_image("t").replicas
        holder, late, newcomer = (b for b in cluster.broker_ids if b != old)
        assert (await _produce_somewhere(cluster, b"before")).error_code == ErrorCode.NONE
        cluster.kill(late)
        await cluster.until(lambda: cluster.image().brokers[late].fenced)
        assert await _move(cluster, holder, [holder, late]) == ErrorCode.NONE
        await cluster.until(lambda: holder in cluster.partition_image("t").isr)
        cluster.kill(old)
        assert await cluster.leader("t") == holder
        assert (await _produce_somewhere(cluster, b"precious")).error_code == ErrorCode.NONE
        assert cluster.partition_image("t").isr == (holder,)

        assert await _move(cluster, newcomer, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await _move(cluster, newcomer, [late, newcomer]) == ErrorCode.NONE
        await cluster.until(lambda: newcomer in cluster.partition_image("t").isr)
        assert set(cluster.partition_image("t").isr) == {holder, newcomer}
        cluster.start_broker(late)
        await cluster.until(lambda: cluster.partition_image("t").replicas == (late, newcomer))
        await cluster.until(lambda: set(cluster.partition_image("t").isr) == {late, newcomer})
        leader = await cluster.leader("t")
        assert leader in (late, newcomer)
        assert values_of((await cluster.client(leader).fetch("t")).records) == [b"before", b"precious"]
        await cluster.until(lambda: cluster.replica(holder, "t") is None)

    run_cluster(scenario, brokers=4)


def test_the_preferred_leader_takes_over_without_a_refused_write() -> None:
    """The preferred leader becomes leader again, and no write is refused."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="2")
        preferred = cluster.partition_image("t").replicas[0]
        await cluster.stop(preferred)
        second = await cluster.leader("t", other_than=preferred)
        await cluster.client(second).produce("t", batch(b"while away"))
        cluster.start_broker(preferred)
        await cluster.until(lambda: preferred in cluster.running and len(cluster.partition_image("t").isr) == 3)
        codes: list[int] = []

        async def load() -> None:
            for number in range(60):
                # Idempotent: a leader that is replaced while it waits for followers answers that it leads no more.
                sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
                codes.append((await _produce_somewhere(cluster, b"%d" % number, **sent)).error_code)
                await trio.sleep(0.005)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await trio.sleep(0.1)
            request = ElectLeadersRequest(
                election_type=0, topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=5000
            )
            answer = await cluster.client(second).request(request)
            assert answer.error_code == ErrorCode.NONE
        assert cluster.partition_image("t").leader == preferred
        assert set(codes) == {ErrorCode.NONE}
        assert (await cluster.client(preferred).offset("t")).offset == 61

    run_cluster(scenario, brokers=3)


def test_added_partitions_are_led_and_written() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2)
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=4, assignments=None)], timeout_ms=5000
        )
        assert (await client.request(request)).results[0].error_code == ErrorCode.NONE
        for partition in range(4):
            leader = await cluster.leader("t", partition)
            answer = await cluster.client(leader).produce("t", batch(b"x"), partition=partition)
            assert answer.error_code == ErrorCode.NONE

    run_cluster(scenario, brokers=2)


def test_a_consumer_reads_the_replica_of_its_rack() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        await cluster.client(leader).produce("t", batch(b"x"))
        for broker_id in cluster.broker_ids:
            part = await cluster.client(leader).fetch("t", rack_id=f"r{broker_id}")
            if broker_id == leader:
                assert part.preferred_read_replica == -1
                assert values_of(part.records) == [b"x"]
                continue
            assert part.preferred_read_replica == broker_id
            assert not part.records
            await trio.sleep(0.1)
            near = await cluster.client(broker_id).fetch("t", rack_id=f"r{broker_id}")
            assert (near.error_code, values_of(near.records)) == (ErrorCode.NONE, [b"x"])
            far = await cluster.client(broker_id).fetch("t", 5, rack_id=f"r{broker_id}")
            assert far.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            old = await cluster.client(broker_id).fetch("t", version=10)
            assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        nowhere = await cluster.client(leader).fetch("t", rack_id="elsewhere")
        assert (nowhere.preferred_read_replica, values_of(nowhere.records)) == (-1, [b"x"])

    run_cluster(
        scenario,
        brokers=3,
        racks={1: "r1", 2: "r2", 3: "r3"},
        replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector",
    )


def test_a_rolling_restart_refuses_nothing() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="2")
        done = trio.Event()
        codes: list[int] = []

        async def load() -> None:
            number = 0
            while not done.is_set():
                try:
                    codes.append((await _produce_somewhere(cluster, b"%d" % number)).error_code)
                except OSError:
                    continue  # the connection of a stopped broker; a client would retry
                number += 1
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            for broker_id in cluster.broker_ids:
                await cluster.stop(broker_id)
                cluster.start_broker(broker_id)
                await cluster.until(lambda: len(cluster.running) == 3 and len(cluster.partition_image("t").isr) == 3)
            done.set()
        assert set(codes) == {ErrorCode.NONE}
        assert (await cluster.client(await cluster.leader("t")).offset("t")).offset >= len(codes)

    run_cluster(scenario, brokers=3)


def test_a_copy_over_its_rate_delays_no_replica_in_sync() -> None:
    """The leader is over its rate for minutes; a follower in sync, of the same throttled topic, gets all at once."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2, leader_replication_throttled_replicas="*")
        leader = await cluster.leader("t")
        third = next(b for b in cluster.broker_ids if b not in cluster.partition_image("t").replicas)
        for number in range(20):
            await cluster.client(leader).produce("t", batch(b"%05d" % number * 1000))
        partition = ReassignablePartition(partition_index=0, replicas=[*cluster.partition_image("t").replicas, third])
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])
        assert (await cluster.client(1).request(request)).error_code == ErrorCode.NONE
        context = cluster.running[leader].context
        throttle, clock = context.replicas.leader_throttle, context.environment.clock
        await cluster.until(lambda: throttle.wait_ms(clock.monotonic_ms()) > 1000)
        begin = trio.current_time()
        for number in range(5):
            answer = await cluster.client(leader).produce("t", batch(b"%05d" % number))
            assert answer.error_code == ErrorCode.NONE
        assert trio.current_time() - begin < 1
        assert len(cluster.partition_image("t").isr) == 2, "the story needs a copy that is not over"

    run_cluster(scenario, brokers=3, leader_replication_throttled_rate="100", replica_fetch_max_bytes="10000")


def test_a_fetch_that_waits_does_not_use_up_the_rate() -> None:
    """The records are fewer than ``replica.fetch.min.bytes``: the leader reads them twice and sends them once."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", leader_replication_throttled_replicas="*")
        leader = await cluster.leader("t")
        other = next(b for b in cluster.broker_ids if b != leader)
        await cluster.client(leader).produce("t", batch(b"x" * 5000))
        partition = ReassignablePartition(partition_index=0, replicas=[leader, other])
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])
        assert (await cluster.client(1).request(request)).error_code == ErrorCode.NONE
        with trio.fail_after(2):
            await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)

    run_cluster(scenario, brokers=2, leader_replication_throttled_rate="1000", replica_fetch_min_bytes=str(2**20))


def test_a_throttled_copy_does_not_delay_in_sync_replicas() -> None:
    """A throttled copy takes the time of its rate, and in-sync replicas do not wait."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic(
            "t",
            replicas=1,
            leader_replication_throttled_replicas="*",
            follower_replication_throttled_replicas="*",
        )
        leader = await cluster.leader("t")
        other = next(b for b in cluster.broker_ids if b != leader)
        for number in range(20):
            await cluster.client(leader).produce("t", batch(b"%05d" % number * 1000))
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[leader, other])]
                )
            ]
        )
        begin = trio.current_time()
        assert (await cluster.client(1).request(request)).error_code == ErrorCode.NONE
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
        assert 1.5 < trio.current_time() - begin < 12, "100 kB at 20 kB/s, the first second's worth at once"
        begin = trio.current_time()
        for number in range(20):
            answer = await cluster.client(leader).produce("t", batch(b"%05d" % number * 1000))
            assert answer.error_code == ErrorCode.NONE
        assert trio.current_time() - begin < 1

    run_cluster(
        scenario,
        brokers=2,
        leader_replication_throttled_rate="20000",
        follower_replication_throttled_rate="20000",
        replica_fetch_max_bytes="10000",
    )
