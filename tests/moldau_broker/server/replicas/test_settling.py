"""Goal: ``flush.messages`` holds for a whole cluster, and delays only the topics that set it.

Method: whole brokers on virtual time, whose disks take seconds for a sync. A sync takes effect at one instant after its
delay, so an answer in between proves that the event loop was not blocked.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.runtime.tasks.sync import Signal
from moldau.values import BrokerId
from moldau_broker.log.values import TopicPartition
from moldau_jepsen.world.disk.disk import VirtualFile
from moldau_jepsen.world.world import run_world
from support.cluster.broker_cluster import Cluster, batch, run_cluster, values_of
from support.cluster.fetchers import fetchers_of
from support.proof import proof_beyond

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

SYNC_SECONDS = 2.0


def slow(cluster: Cluster, *broker_ids: int, seconds: float = SYNC_SECONDS) -> None:
    for broker_id in broker_ids:
        cluster.world.node(f"b{broker_id}").disk.profile.offload_delay_min = seconds


def log_of(cluster: Cluster, broker_id: int, topic: str):
    return cluster.replica(broker_id, topic).log


async def set_policy(cluster: Cluster, topic: str, flush_messages: int) -> None:
    """Alters the topic, and waits until all replicas apply the policy."""
    change = AlterableConfig(name="flush.messages", config_operation=0, value=str(flush_messages))
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
    answer = await cluster.client(1).request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE
    await cluster.until(
        lambda: all(log_of(cluster, b, topic).config.flush_messages == flush_messages for b in cluster.broker_ids)
    )


async def submitted(client, topic: str, records: bytes, *, acks: int = -1, timeout_ms: int = 60_000):
    """A produce request that was sent."""
    connection = await client.connection()
    partition = PartitionProduceData(index=0, records=records)
    topics = [TopicProduceData(name=topic, partition_data=[partition])]
    return connection.submit(ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics), 12)


async def answer_of(pending):
    return (await pending.wait(120_000)).responses[0].partition_responses[0]


@pytest.mark.parametrize("acks", [1, -1])
def test_others_are_answered_while_a_sync_takes_its_time(acks: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, other = cluster.client(1), cluster.client(1)
        await client.create_topic("synced", flush_messages="1")
        await client.create_topic("t")
        slow(cluster, 1)
        begin = trio.current_time()
        waiting = await submitted(client, "synced", batch(b"a"), acks=acks)
        for number in range(20):
            assert (await other.produce("t", batch(b"%d" % number), acks=acks)).error_code == ErrorCode.NONE
        assert len(values_of((await other.fetch("t")).records)) == 20
        read = await other.fetch("synced")
        assert (read.high_watermark, values_of(read.records)) == (0, []), (
            "no reader sees records before their acknowledgement"
        )
        assert trio.current_time() - begin < SYNC_SECONDS / 10
        assert log_of(cluster, 1, "synced").log_end_offset == 1, "it is written already"
        assert (await answer_of(waiting)).error_code == ErrorCode.NONE
        assert trio.current_time() - begin >= SYNC_SECONDS
        assert log_of(cluster, 1, "synced").recovery_point == 1
        assert values_of((await other.fetch("synced")).records) == [b"a"]

    run_cluster(scenario)


@pytest.mark.parametrize("acks", [1, -1])
def test_appends_during_one_sync_cost_one_more(acks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = VirtualFile.sync

    def counted(self: VirtualFile) -> None:
        synced.append(self.path)
        sync(self)

    monkeypatch.setattr(VirtualFile, "sync", counted)

    async def scenario(cluster: Cluster) -> None:
        clients = [cluster.client(1) for _ in range(5)]
        await clients[0].create_topic("synced", flush_messages="1")
        assert (await clients[0].produce("synced", batch(b"first"))).error_code == ErrorCode.NONE
        slow(cluster, 1)
        synced.clear()
        begin = trio.current_time()
        pending = [await submitted(clients[0], "synced", batch(b"early"), acks=acks)]
        await trio.sleep(SYNC_SECONDS / 2)
        pending += [await submitted(clients[number % 5], "synced", batch(b"late"), acks=acks) for number in range(40)]
        for waiting in pending:
            assert (await answer_of(waiting)).error_code == ErrorCode.NONE
        assert 2 * SYNC_SECONDS <= trio.current_time() - begin < 2.5 * SYNC_SECONDS
        # One is enough where the first sync reached the disk after the late appends: it covered them.
        assert len([path for path in synced if "/synced-0/" in path and path.endswith(".log")]) in (1, 2)
        assert log_of(cluster, 1, "synced").recovery_point == 42

    run_cluster(scenario)


@pytest.mark.parametrize("policy", ["from the beginning", "set later"])
def test_a_follower_acknowledges_only_after_its_own_sync(policy: str) -> None:
    """A follower acknowledges no records before its own sync, and delays no other topic."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        at_once = {"flush_messages": "1"} if policy == "from the beginning" else {}
        await client.create_topic("synced", replicas=2, **at_once)
        await client.create_topic("t", replicas=2)
        if not at_once:
            await set_policy(cluster, "synced", 1)
        leader = await cluster.leader("synced")
        follower = 3 - leader
        client, other = cluster.client(leader), cluster.client(await cluster.leader("t"))
        await client.produce("synced", batch(b"0"))
        await other.produce("t", batch(b"0"))
        slow(cluster, follower)
        begin = trio.current_time()
        waiting = await submitted(client, "synced", batch(b"1"))
        quick = cluster.client(leader)
        assert (await quick.produce("synced", batch(b"2"), acks=1)).error_code == ErrorCode.NONE
        for number in range(10):
            assert (await other.produce("t", batch(b"%d" % number))).error_code == ErrorCode.NONE
        assert trio.current_time() - begin < SYNC_SECONDS / 2
        assert log_of(cluster, follower, "synced").log_end_offset >= 2, "the follower has it, but not on its disk"
        replica = cluster.replica(leader, "synced").replica
        assert (replica.follower(follower).log_end_offset, replica.high_watermark) == (1, 1)
        assert (await answer_of(waiting)).error_code == ErrorCode.NONE
        assert trio.current_time() - begin >= SYNC_SECONDS
        assert log_of(cluster, follower, "synced").recovery_point >= 2

    run_cluster(scenario, brokers=2)


def test_a_partition_that_leaves_delays_no_fetch() -> None:
    """Its log hangs in a sync when another broker becomes its leader; the other partitions are fetched at once."""

    def followed(number: int, *, is_settled: bool) -> Any:
        state = SimpleNamespace(leader=BrokerId(2), leader_epoch=1)
        log = SimpleNamespace(
            config=SimpleNamespace(bounds_unsynced=True),
            log_end_offset=0,
            latest_epoch=-1,
            log_start_offset=0,
            is_settled=is_settled,
        )
        key, topic_id = TopicPartition("t", number), UUID(int=7)
        return SimpleNamespace(key=key, topic_id=topic_id, replica=SimpleNamespace(state=state), log=log)

    async def main(world: World) -> None:
        asked = trio.Event()

        async def connect(*_: object) -> Any:
            asked.set()
            await trio.sleep_forever()

        fetchers = fetchers_of(world, SimpleNamespace(settled=Signal()), connect=connect)
        async with trio.open_nursery() as nursery:
            await nursery.start(fetchers.run)
            hanging = followed(0, is_settled=False)
            fetchers.follow(hanging)
            fetchers.follow(followed(1, is_settled=True))
            await trio.sleep(SYNC_SECONDS)
            assert not asked.is_set(), "one request acknowledges both"
            fetchers.unfollow(hanging.key)
            with trio.fail_after(SYNC_SECONDS):
                await asked.wait()
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_leader_and_followers_sync_side_by_side() -> None:
    """Followers read records before their leader syncs them, so an acknowledgement takes one sync and not two."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("synced", replicas=3, flush_messages="1", min_insync_replicas="2")
        leader = await cluster.leader("synced")
        client = cluster.client(leader)
        await client.produce("synced", batch(b"0"))
        slow(cluster, *cluster.broker_ids)
        begin = trio.current_time()
        assert (await client.produce("synced", batch(b"1"), timeout_ms=60_000)).error_code == ErrorCode.NONE
        assert SYNC_SECONDS <= trio.current_time() - begin < 1.5 * SYNC_SECONDS

    run_cluster(scenario, brokers=3)


def test_a_leader_does_not_count_its_own_unsynced_copy() -> None:
    """The follower has synced more than its leader: the high watermark waits for the leader's sync."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("synced", replicas=2, flush_messages="1")
        leader = await cluster.leader("synced")
        client = cluster.client(leader)
        await client.produce("synced", batch(b"0"))
        slow(cluster, leader)
        waiting = await submitted(client, "synced", batch(b"1"))
        replica = cluster.replica(leader, "synced").replica
        await cluster.until(lambda: replica.follower(3 - leader).log_end_offset == 2, timeout_ms=2000)
        assert (replica.high_watermark, replica.settled_end_offset, replica.log_end_offset) == (1, 1, 2)
        assert (await answer_of(waiting)).error_code == ErrorCode.NONE
        assert replica.high_watermark == 2

    run_cluster(scenario, brokers=2)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_sync_that_fails_acknowledges_nothing(acks: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("synced", replicas=3, flush_messages="1", min_insync_replicas="2")
        first = await cluster.leader("synced")
        client = cluster.client(first)
        await client.produce("synced", batch(b"0"))
        slow(cluster, first)
        waiting = await submitted(client, "synced", batch(b"1"), acks=acks)
        await trio.sleep(SYNC_SECONDS / 2)
        cluster.world.node(f"b{first}").disk.profile.sync_error_probability = 1.0
        try:
            answer = await answer_of(waiting)
        except (ConnectionError, EOFError):
            answer = None  # it was the broker's only directory: the broker has ended
        assert answer is None or answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        second = await cluster.leader("synced", other_than=first)
        after = cluster.client(second)
        assert (await after.produce("synced", batch(b"2"))).error_code == ErrorCode.NONE
        values = values_of((await after.fetch("synced")).records)
        assert values in ([b"0", b"2"], [b"0", b"1", b"2"])

    run_cluster(scenario, brokers=3)


def test_acks_one_waits_end_with_the_leadership() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("synced", replicas=2, flush_messages="1")
        first = await cluster.leader("synced")
        client = cluster.client(first)
        await client.produce("synced", batch(b"0"))
        slow(cluster, first, seconds=20.0)
        waiting = await submitted(client, "synced", batch(b"1"), acks=1)
        cluster.world.network.cut(f"b{first}", "c101")
        cluster.world.network.cut(f"b{first}", f"b{3 - first}")
        await cluster.leader("synced", other_than=first)
        cluster.world.network.heal_all()
        answer = await answer_of(waiting)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        slow(cluster, first, seconds=0.0001)
        await cluster.until(lambda: len(cluster.partition_image("synced").isr) == 2)

    run_cluster(scenario, brokers=2)


def test_a_wait_for_a_sync_ends_with_the_timeout_of_its_request() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("synced", flush_messages="1")
        slow(cluster, 1)
        begin = trio.current_time()
        answer = await client.produce("synced", batch(b"1"), acks=1, timeout_ms=1000)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert trio.current_time() - begin < SYNC_SECONDS

    run_cluster(scenario)


def test_a_topic_whose_policy_changes_goes_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=2)
        leader = await cluster.leader("t")
        follower = 3 - leader
        client = cluster.client(leader)
        await client.produce("t", batch(b"0"))
        await set_policy(cluster, "t", 1)
        assert (await client.produce("t", batch(b"1"))).error_code == ErrorCode.NONE
        for broker_id in cluster.broker_ids:
            assert log_of(cluster, broker_id, "t").recovery_point == 2
        slow(cluster, leader, follower)
        waiting = await submitted(client, "t", batch(b"2"))
        await trio.sleep(SYNC_SECONDS / 3)
        await set_policy(cluster, "t", 1_000_000)
        begin = trio.current_time()
        assert (await answer_of(waiting)).error_code == ErrorCode.NONE
        assert trio.current_time() - begin < SYNC_SECONDS / 2, "the policy that asked for the sync is gone"
        assert (await client.produce("t", batch(b"3"))).error_code == ErrorCode.NONE

    run_cluster(scenario, brokers=2)


class PowerLossWriter:
    """Writes to one topic until its broker is gone, and notes the acknowledged records."""

    def __init__(self, cluster: Cluster, topic: str, acks: int, number: int) -> None:
        self.cluster = cluster
        self.topic = topic
        self.acks = acks
        self.number = number
        self.acknowledged: dict[int, bytes] = {}

    async def run(self) -> None:
        client = self.cluster.client(await self.cluster.leader(self.topic))
        count = 0
        while True:
            value = b"%s-%d-%d" % (self.topic.encode(), self.number, count)
            count += 1
            try:
                answer = await client.produce(self.topic, batch(value), acks=self.acks)
            except (OSError, EOFError, trio.TooSlowError, KafkaError):
                return
            if answer.error_code != ErrorCode.NONE:
                return
            self.acknowledged[answer.base_offset] = value


async def read_all(cluster: Cluster, topic: str) -> list[bytes]:
    client = cluster.client(await cluster.leader(topic))
    values: list[bytes] = []
    while True:
        part = await client.fetch(topic, len(values))
        assert part.error_code == ErrorCode.NONE
        new = values_of(part.records)
        if not new:
            return values
        values += new


def _all_in_sync(cluster: Cluster, topic: str) -> bool:
    image = cluster.partition_image(topic)
    return image.leader >= 0 and len(image.isr) == len(image.replicas)


async def survivors_of_a_power_loss(cluster: Cluster, topics: dict[str, int], acks: int) -> dict[str, tuple[int, int]]:
    """Writes, cuts the power of all brokers at once, reads again; acknowledged and lost records by topic."""
    writers = [PowerLossWriter(cluster, topic, acks, number) for topic in topics for number in range(4)]
    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(writer.run)
        await trio.sleep(cluster.world.random("moment").uniform(0.1, 0.4))
        for broker_id in cluster.broker_ids:
            cluster.running.pop(broker_id)
            cluster.world.node(f"b{broker_id}").lose_power()
    for broker_id in cluster.broker_ids:
        cluster.start_broker(broker_id)
    await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))
    found: dict[str, tuple[int, int]] = {}
    for topic in topics:
        await cluster.until(lambda topic=topic: _all_in_sync(cluster, topic))
        leader = await cluster.leader(topic)
        assert (await cluster.client(leader).produce(topic, batch(b"last"))).error_code == ErrorCode.NONE
        values = await read_all(cluster, topic)
        acknowledged: dict[int, bytes] = {}
        for writer in writers:
            if writer.topic == topic:
                acknowledged.update(writer.acknowledged)
        lost = [offset for offset, value in acknowledged.items() if values[offset : offset + 1] != [value]]
        # A log loses its tail and nothing else.
        assert sorted(lost) == [offset for offset in sorted(acknowledged) if offset >= min(lost, default=1 << 62)]
        found[topic] = len(acknowledged), len(lost)
    return found


@pytest.mark.parametrize("acks", proof_beyond(1, [-1, 1]))
@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2, 3]))
def test_a_power_loss_of_all_loses_less_than_flush_messages(seed: int, acks: int) -> None:
    """A power loss of all brokers loses fewer records than ``flush.messages`` (L11).

    That is none with 1 and fewer than M with M; by default it loses the records that no flush covered, no others.
    """
    topics = {"one": 1, "seven": 7, "default": 0}

    async def scenario(cluster: Cluster) -> dict[str, tuple[int, int]]:
        for topic, bound in topics.items():
            settings = {"flush_messages": str(bound)} if bound else {}
            if acks == -1:
                await cluster.client(1).create_topic(topic, replicas=3, min_insync_replicas="2", **settings)
            else:  # acks=1 promises one copy: there is one
                await cluster.client(1).create_topic(topic, **settings)
        return await survivors_of_a_power_loss(cluster, topics, acks)

    found, _ = run_cluster(scenario, seed=seed, brokers=3)
    assert all(acknowledged > 20 for acknowledged, _ in found.values()), found
    assert found["one"][1] == 0
    assert found["seven"][1] < 7
    assert found["default"][1] > 0, "nothing was synced: if nothing is lost, the fault does not do what it says"
