"""Goal: our own consumer works with ``group.protocol=consumer``, through rebalances, restarts and a dead coordinator.

Method: consumers on a cluster with virtual network, disk and time. Each notes when it holds a partition, by its
callbacks; two of these spans must never overlap, and each record must be read.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio

from moldau import Admin, Consumer
from moldau.consumer import CommitFailedError
from moldau.protocol.errors import ErrorCode, KafkaError
from support.cluster.broker_cluster import Cluster, batch, run_cluster
from support.proof import proof_beyond

SETTINGS = {
    "group_consumer_min_session_timeout_ms": "1",
    "group_consumer_session_timeout_ms": "6000",
    "group_consumer_min_heartbeat_interval_ms": "1",
    "group_consumer_heartbeat_interval_ms": "300",
    "offsets_topic_num_partitions": "1",
}
PARTITIONS = 4


class Worker:
    """A consumer that reads until its end is requested, and commits as it goes."""

    def __init__(self, cluster: Cluster, name: str, **options: str) -> None:
        self.name = name
        self.end = trio.Event()
        self.read: list[tuple[int, bytes]] = []
        self.since: dict = {}
        self.spans: list = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": ",".join(f"b{number}:9092" for number in cluster.broker_ids),
                "group.id": "g",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": "200",
                **{key.replace("_", "."): value for key, value in options.items()},
            },
            environment=cluster.client_environment,
            on_assigned=self.assigned,
            on_revoked=self.revoked,
        )

    async def assigned(self, partitions) -> None:
        for partition in partitions:
            self.since[partition] = trio.current_time()

    async def revoked(self, partitions) -> None:
        for partition in partitions:
            self.spans.append((partition, self.since.pop(partition), trio.current_time(), self.name))

    async def run(self, **subscription) -> None:
        async with self.consumer as consumer:
            consumer.subscribe(**subscription or {"topics": ["t"]})
            while not self.end.is_set():
                for found in await consumer.poll(100):
                    self.read += [(found.partition, bytes(record.value)) for record in found.records]


async def produce(cluster: Cluster, values: range) -> None:
    for value in values:
        leader = await cluster.leader("t", value % PARTITIONS)
        answer = await cluster.client(leader).produce("t", batch(b"%d" % value), partition=value % PARTITIONS)
        assert answer is not None


def check_spans(workers: list[Worker]) -> None:
    spans = sorted(span for worker in workers for span in worker.spans)
    for (partition, _, end, one), (other_partition, begin, _, other) in pairwise(spans):
        assert partition != other_partition or end <= begin, f"{one} and {other} hold {partition}"


def values_read(workers: list[Worker]) -> list[bytes]:
    return sorted(value for worker in workers for _, value in worker.read)


def values_of(count: int) -> list[bytes]:
    return sorted(b"%d" % value for value in range(count))


@pytest.mark.parametrize("seed", proof_beyond(1, range(3)))
def test_consumers_share_hand_over_and_go_on(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3)
        workers = [Worker(cluster, f"w{number}") for number in range(3)]
        await produce(cluster, range(20))
        async with trio.open_nursery() as nursery:
            for count, worker in enumerate(workers, 1):
                nursery.start_soon(worker.run)
                await cluster.until(
                    lambda count=count: (
                        sum(len(each.since) for each in workers) == PARTITIONS
                        and all(len(each.since) >= PARTITIONS // 3 for each in workers[:count])
                    )
                )
            await cluster.until(lambda: values_read(workers) == values_of(20))
            await produce(cluster, range(20, 40))
            await cluster.until(lambda: values_read(workers) == values_of(40))
            workers[0].end.set()
            await cluster.until(lambda: sum(len(each.since) for each in workers[1:]) == PARTITIONS)
            await produce(cluster, range(40, 60))
            await cluster.until(lambda: values_read(workers) == values_of(60))
            for worker in workers:
                worker.end.set()
        check_spans(workers)

    run_cluster(scenario, seed=seed, brokers=3, **SETTINGS)


class Raising(Worker):
    """A consumer whose callback for revoked partitions raises each time, and which polls on."""

    errors = 0

    async def revoked(self, partitions) -> None:
        await super().revoked(partitions)
        raise ValueError("in on_revoked")

    async def run(self, **subscription) -> None:
        async with self.consumer as consumer:
            consumer.subscribe(["t"])
            while not self.end.is_set():
                try:
                    for found in await consumer.poll(100):
                        self.read += [(found.partition, bytes(record.value)) for record in found.records]
                except ValueError:
                    self.errors += 1
            with pytest.raises(ValueError, match="in on_revoked"):
                await consumer.close()


def test_a_callback_that_raises_holds_no_partition_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS)
        first, second = Raising(cluster, "first"), Worker(cluster, "second")
        await produce(cluster, range(8))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run)
            await cluster.until(lambda: values_read([first]) == values_of(8))
            nursery.start_soon(second.run)
            await cluster.until(lambda: len(first.since) == len(second.since) == PARTITIONS // 2)
            assert first.errors == 1
            await produce(cluster, range(8, 16))
            await cluster.until(lambda: set(values_of(16)) == set(values_read([first, second])))
            first.end.set()
            await cluster.until(lambda: len(second.since) == PARTITIONS)
            second.end.set()
        check_spans([first, second])

    run_cluster(scenario, brokers=1, **SETTINGS)


def test_a_dead_coordinator_costs_no_partition() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3)
        workers = [Worker(cluster, f"w{number}") for number in range(2)]
        await produce(cluster, range(8))
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(worker.run)
            await cluster.until(lambda: all(len(each.since) == 2 for each in workers))
            await cluster.until(lambda: values_read(workers) == values_of(8))
            before = [dict(each.since) for each in workers]
            cluster.kill(await cluster.leader("__consumer_offsets"))
            await trio.sleep(12)
            assert [each.since for each in workers] == before, "members keep what they have"
            for worker in workers:
                worker.end.set()
        check_spans(workers)

    run_cluster(scenario, brokers=3, **SETTINGS)


def test_a_pattern_and_a_static_member() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=PARTITIONS)
        first = Worker(cluster, "first", group_instance_id="i", metadata_max_age_ms="500")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: first.run(pattern="t.*"))
            await cluster.until(lambda: len(first.since) == PARTITIONS)
            await client.create_topic("t2", partitions=1)
            await cluster.until(lambda: len(first.since) == PARTITIONS + 1)
            first.end.set()
        again = Worker(cluster, "again", group_instance_id="i")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: again.run(pattern="t.*"))
            await cluster.until(lambda: len(again.since) == PARTITIONS + 1, timeout_ms=3_000)
            again.end.set()
        check_spans([first, again])

    run_cluster(scenario, **SETTINGS)


def test_a_member_that_was_removed_loses_its_partitions() -> None:
    """A member that does not poll leaves; its commit is refused, and the other one takes over."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS)
        await produce(cluster, range(4))
        slow = Worker(cluster, "slow", max_poll_interval_ms="2000", enable_auto_commit="false")
        other = Worker(cluster, "other")
        async with slow.consumer as consumer, trio.open_nursery() as nursery:
            consumer.subscribe(["t"])
            while not consumer.assignment:
                await consumer.poll(100)
            held = dict.fromkeys([tuple(each) for each in consumer.assignment], 1)
            nursery.start_soon(other.run)
            await cluster.until(lambda: len(other.since) == PARTITIONS)
            with pytest.raises(CommitFailedError):
                await consumer.commit(held)
            while len(consumer.assignment) != PARTITIONS // 2:
                await consumer.poll(100)
            await consumer.commit()
            other.end.set()

    run_cluster(scenario, **SETTINGS)


def test_a_refused_member_receives_the_reason() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        worker = Worker(cluster, "w", group_remote_assignor="sticky")
        async with worker.consumer as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match="Supported assignors: uniform, range") as refused:
                await consumer.poll(30_000)
            assert refused.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR

    run_cluster(scenario, **SETTINGS)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_protocol_while_it_reads(strategy: str) -> None:
    """Members of the classic protocol are replaced one by one, and the admin client shows the protocol of each."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS, replicas=3)
        classic = {
            "group_protocol": "classic",
            "partition_assignment_strategy": strategy,
            "heartbeat_interval_ms": "300",
        }
        workers = [Worker(cluster, f"old{number}", **classic) for number in range(2)]
        workers += [Worker(cluster, f"new{number}") for number in range(2)]
        old, new = workers[:2], workers[2:]

        async def members() -> tuple[str, list[str]]:
            description = (await admin.describe_groups(["g"]))["g"]
            return description.type, sorted(member.type for member in description.members)

        def all_held() -> bool:
            return sum(len(each.since) for each in workers) == PARTITIONS

        config = {"bootstrap.servers": "b1:9092,b2:9092,b3:9092"}
        async with Admin(config, environment=cluster.client_environment) as admin, trio.open_nursery() as nursery:
            for worker in old:
                nursery.start_soon(worker.run)
            await cluster.until(lambda: all_held() and all(worker.since for worker in old))
            await produce(cluster, range(20))
            nursery.start_soon(new[0].run)
            await cluster.until(lambda: all_held() and bool(new[0].since))
            assert await members() == ("consumer", ["classic", "classic", "consumer"])
            await produce(cluster, range(20, 40))
            old[0].end.set()
            nursery.start_soon(new[1].run)
            await cluster.until(lambda: all_held() and all(worker.since for worker in (old[1], *new)))
            for worker in new:
                worker.end.set()
            await cluster.until(lambda: len(old[1].since) == PARTITIONS)
            assert await members() == ("classic", ["classic"])
            await produce(cluster, range(40, 60))
            await cluster.until(lambda: values_read(workers) == values_of(60))
            old[1].end.set()
        check_spans(workers)

    run_cluster(scenario, seed=1, brokers=3, **SETTINGS)


def test_what_is_taken_back_before_a_poll_is_revoked() -> None:
    """The group gives a busy member a partition, and takes others: the callback must hear of these, to commit them."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=3)
        options = {"enable_auto_commit": "false", "max_poll_records": "1"}
        busy, other = Worker(cluster, "busy", **options), Worker(cluster, "other")
        for value in range(30):
            leader = await cluster.leader("t", value % 3)
            await cluster.client(leader).produce("t", batch(b"%d" % value), partition=value % 3)
        server = {"bootstrap.servers": "b1:9092"}
        async with (
            Admin(server, environment=cluster.client_environment) as admin,
            busy.consumer as consumer,
            trio.open_nursery() as nursery,
        ):
            consumer.subscribe(["t"])
            while len(busy.since) < 3:
                await consumer.poll(100)
            await admin.create_partitions({"t": 4})
            await trio.sleep(2)
            assert await consumer.poll(100), "the first poll after the news returns records, and takes nothing over"
            nursery.start_soon(other.run)
            await trio.sleep(3)
            assert len(busy.since) == 3, "the story needs a member that has not polled"
            with trio.fail_after(30):
                while len(consumer.assignment) != 2 or len(other.since) != 2:
                    await consumer.poll(100)
            assert sorted(busy.since) == sorted(consumer.assignment)
            other.end.set()

    run_cluster(scenario, **SETTINGS)
