"""Goal: share consumers deliver each record until it is accepted, in both modes, and survive brokers and errors.

Method: consumers on a cluster with virtual network, disk and time; membership and durable state are the test's own.
"""

from __future__ import annotations

import base64
from collections import Counter
from contextlib import suppress

import pytest
import trio

from moldau import (
    AcknowledgeType,
    ConfigError,
    ErrorCode,
    KafkaError,
    RecordDeserializationError,
    ShareConsumer,
    TopicPartition,
)
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.serialization.core.values import RegistryError, SchemaNeeded
from moldau.share.group import ShareGroupClient
from moldau.share.node import Outcome
from moldau_broker.server.share.share_partition_manager import SharePartitionManager
from moldau_jepsen.world.world import run_world
from support.cluster.broker_cluster import batch, run_cluster
from support.share.fixed_group import FixedGroup
from support.share.memory_persister import MemoryPersister

P0 = TopicPartition("t", 0)


@pytest.fixture
def run(monkeypatch):
    """Runs a scenario with a topic ``t`` and a share group ``g`` that begins with the first record."""

    def start(scenario, *, brokers=1, partitions=1, replicas=1, **settings):
        async def prepared(cluster):
            cluster.memory, cluster.group = MemoryPersister(), FixedGroup(cluster)
            monkeypatch.setattr(ShareGroupClient, "_request", cluster.group.request)
            client = cluster.client(1)
            await client.create_topic("t", partitions=partitions, replicas=replicas)
            given = {"share.auto.offset.reset": "earliest"}
            given |= {key.replace("_", "."): value for key, value in settings.items()}
            configs = [AlterableConfig(name=key, config_operation=0, value=value) for key, value in given.items()]
            resource = AlterConfigsResource(resource_type=32, resource_name="g", configs=configs)
            answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
            assert answer.responses[0].error_code == ErrorCode.NONE
            await cluster.until(lambda: all(b.metadata.image.config(32, "g") for b in cluster.running.values()))
            for broker in cluster.running.values():
                broker.context.share_partitions.persister = cluster.memory
            await cluster.leader("t")
            await scenario(cluster)

        run_cluster(prepared, brokers=brokers)

    return start


def consumer(cluster, *, objects=None, **settings):
    return ShareConsumer(
        {
            "bootstrap.servers": ",".join(f"b{number}:9092" for number in cluster.broker_ids),
            "group.id": "g",
            **{key.replace("_", "."): value for key, value in settings.items()},
        },
        environment=cluster.client_environment,
        **(objects or {}),
    )


async def produce(cluster, *values, partition=0):
    leader = await cluster.leader("t", partition)
    now_ms = int(cluster.client_environment.clock.wall_ms())
    batches = (batch(value, timestamp=now_ms) for value in values)
    await cluster.client(leader).produce("t", *batches, partition=partition)


async def polled(member, count, **options):
    """Polls until ``count`` records have arrived."""
    found = []
    with trio.fail_after(60):
        while len(found) < count:
            found += await member.poll(1000, **options)
    return found


def test_implicit_mode_accepts_with_the_next_poll(run):
    """A poll accepts the records of the poll before; those of the last poll are released when the consumer closes."""

    async def scenario(cluster):
        await produce(cluster, b"0", b"1", b"2")
        async with consumer(cluster) as member:
            member.subscribe(["t"])
            first = await polled(member, 3)
            assert [(r.offset, r.value, r.delivery_count) for r in first] == [(n, b"%d" % n, 1) for n in range(3)]
            await produce(cluster, b"3")
            assert [r.offset for r in await polled(member, 1)] == [3]
            assert member.acquisition_lock_timeout_ms == 30_000
            assert member.assignment == [P0]
        assert cluster.group.left == [member.member_id]
        async with consumer(cluster) as other:
            other.subscribe(["t"])
            assert [(r.offset, r.delivery_count) for r in await polled(other, 1)] == [(3, 2)]
            assert await other.commit() == {P0: None}
        assert list(cluster.memory.start_offsets.values()) == [4]

    run(scenario)


def test_member_ids_are_what_kafkas_brokers_take(run):
    """Kafka's brokers decode the id of a share group's member as a UUID in base64, and fail at other forms."""

    async def scenario(cluster):
        async with consumer(cluster) as one, consumer(cluster) as other:
            one.subscribe(["t"])
            other.subscribe(["t"])
            ids = {one.member_id, other.member_id}
            assert [len(base64.urlsafe_b64decode(each + "==")) for each in ids] == [16, 16]

    run(scenario)


def test_explicit_mode(run):
    """Each record needs its own acknowledgement; released ones come again, with a higher count."""

    async def scenario(cluster):
        outcomes = []
        await produce(cluster, b"0", b"1", b"2", b"3")
        settings = {
            "share_acknowledgement_mode": "explicit",
            "objects": {"on_acknowledged": lambda *o: outcomes.append(o)},
        }
        async with consumer(cluster, **settings) as member:
            member.subscribe(["t"])
            zero, one, two, three = await polled(member, 4)
            member.acknowledge(zero)
            with pytest.raises(RuntimeError, match="3 records of earlier polls"):
                await member.poll(10)
            member.acknowledge(one, AcknowledgeType.RELEASE)
            member.acknowledge_offset(P0, two.offset, AcknowledgeType.REJECT)
            member.acknowledge(three)
            assert await member.commit() == {P0: None}
            with pytest.raises(RuntimeError, match="does not hold t-0 offset 0"):
                member.acknowledge(zero)
            for place, offset in ((None, 0), (("t",), 0), (("t", "0"), 0), (P0, "0"), (P0, -1), (("t", -1), 0)):
                with pytest.raises((TypeError, ValueError), match=r"^acknowledge: "):
                    member.acknowledge_offset(place, offset)
            with pytest.raises(ValueError, match="9 is no acknowledge type"):
                member.acknowledge(one, 9)
            (again,) = await polled(member, 1)
            assert (again.offset, again.delivery_count) == (1, 2)
            member.acknowledge(again)
        assert outcomes == [(P0, [0, 1, 2, 3], None), (P0, [1], None)]
        assert list(cluster.memory.start_offsets.values()) == [4]

    run(scenario)


def test_a_callback_that_raises_hides_no_other_outcome(run):
    """Closing ends, all outcomes are reported, and the first error is raised."""

    async def scenario(cluster):
        outcomes = []

        def note(*outcome):
            outcomes.append(outcome)
            raise ValueError(f"outcome {len(outcomes)}")

        await produce(cluster, b"0", b"1")
        settings = {"share_acknowledgement_mode": "explicit", "objects": {"on_acknowledged": note}}
        async with consumer(cluster, **settings) as member:
            member.subscribe(["t"])
            for record in await polled(member, 2):
                member.acknowledge(record)
            earlier = (P0, [7], None)
            member._fetching().outcomes.append(earlier)
            with pytest.raises(ValueError, match="outcome 1"):
                await member.close()
            assert outcomes == [earlier, (P0, [0, 1], None)]
            assert member._client.is_closed
        assert list(cluster.memory.start_offsets.values()) == [2]

    run(scenario)


def test_iteration_accepts_what_was_asked_after(run):
    """Asking for the next record accepts the one before, and a commit does not accept records not yet received."""

    async def scenario(cluster):
        await produce(cluster, b"0", b"1", b"2")
        async with consumer(cluster) as member:
            member.subscribe(["t"])
            async for record in member:
                if record.offset == 1:
                    await member.commit()
                    break
        async with consumer(cluster) as other:
            other.subscribe(["t"])
            assert [(r.offset, r.delivery_count) for r in await polled(other, 1)] == [(2, 2)]

    run(scenario)


def test_commit_waits_for_what_a_fetch_carries(run):
    """The poll before has begun a fetch with the acknowledgements; the broker holds it until there are records."""

    async def scenario(cluster):
        await produce(cluster, b"0", b"1")
        async with consumer(cluster, fetch_max_wait_ms=400) as member:
            member.subscribe(["t"])
            await polled(member, 2)
            assert await member.poll(100) == []
            assert await member.commit() == {P0: None}
            assert list(cluster.memory.start_offsets.values()) == [2]
            assert await member.commit() == {}

    run(scenario)


def test_a_commit_that_is_too_slow_loses_no_records(run):
    """The session ended with the call: its records counted as delivered once more, until the group gave them up."""

    async def scenario(cluster):
        outcomes = []
        await produce(cluster, b"0", b"1", b"2")
        objects = {"on_acknowledged": lambda *outcome: outcomes.append(outcome)}
        async with consumer(cluster, share_acknowledgement_mode="explicit", objects=objects) as member:
            member.subscribe(["t"])
            (first,) = await polled(member, 1, max_records=1)
            member.acknowledge(first)
            cluster.memory.delay_ms = 3_000
            with pytest.raises(trio.TooSlowError):
                await member.commit(500)
            cluster.memory.delay_ms = 0
            assert [(r.offset, r.delivery_count) for r in await polled(member, 2)] == [(1, 1), (2, 1)]
            await member.commit()
            assert outcomes == [(P0, [0], None)]
        with pytest.raises(RuntimeError, match="closed"):
            await member.commit()

    run(scenario)


def test_a_commit_names_a_failure_of_each_partition(monkeypatch):
    """A partition has several outcomes if a fetch or a renewal carried some of its acknowledgements."""
    failed = KafkaError(ErrorCode.INVALID_RECORD_STATE)
    mixed = [(0, failed), (0, None), (1, None), (1, failed), (2, None), (2, None)]
    given = [Outcome(TopicPartition("t", number), [offset], error) for offset, (number, error) in enumerate(mixed)]
    reported, earlier = [], Outcome(TopicPartition("t", 2), [9], failed)

    async def main(world):
        settings = {"bootstrap.servers": "b1:9092", "group.id": "g"}
        environment = world.node("c").environment
        async with ShareConsumer(
            settings, environment=environment, on_acknowledged=lambda *outcome: reported.append(Outcome(*outcome))
        ) as member:
            fetcher = member._fetching()

            async def acknowledge_all():
                fetcher.outcomes.extend(given)

            monkeypatch.setattr(fetcher, "acknowledge_all", acknowledge_all)
            fetcher.outcomes.append(earlier)
            results = await member.commit()
            assert {partition.partition: error for partition, error in results.items()} == {
                0: failed,
                1: failed,
                2: None,
            }
            assert reported == [earlier, *given], "but that of an earlier fetch is none of the commit"

    run_world(main, 1)


def test_members_share_a_partition(run):
    """Three members of one partition get every record exactly once while all works."""

    async def scenario(cluster):
        seen = Counter()

        async def work(*, task_status):
            async with consumer(cluster, max_poll_records=5, share_acquire_mode="record_limit") as member:
                member.subscribe(["t"])
                task_status.started()
                async for record in member:
                    seen[record.value] += 1
                    await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                await nursery.start(work)
            for n in range(60):
                await produce(cluster, b"%d" % n)
            await cluster.until(lambda: len(seen) == 60)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert set(seen.values()) == {1}

    run(scenario)


def test_renewal(run):
    """A renewed record stays with its member beyond the lock, and is acknowledged later."""

    async def scenario(cluster):
        await produce(cluster, b"0")
        settings = {"share_acknowledgement_mode": "explicit"}
        async with consumer(cluster, **settings) as member, consumer(cluster, **settings) as other:
            member.subscribe(["t"])
            (record,) = await polled(member, 1)
            other.subscribe(["t"])
            for _ in range(4):
                assert await other.poll(8_000) == []
                member.acknowledge(record, AcknowledgeType.RENEW)
                assert await member.commit() == {P0: None}
                assert await member.poll(10) == []
            member.acknowledge(record)
            assert await member.commit() == {P0: None}
        assert list(cluster.memory.start_offsets.values()) == [1]

    run(scenario, share_record_lock_duration_ms="15000")


def test_a_renewed_record_outlives_its_assignment(run):
    """Its broker has no partition for the member any more. No other member gets the record meanwhile."""

    async def scenario(cluster):
        elsewhere = "u"
        await cluster.client(1).create_topic(elsewhere, partitions=1, replicas=1)
        while await cluster.leader(elsewhere) == await cluster.leader("t"):
            elsewhere += "u"
            await cluster.client(1).create_topic(elsewhere, partitions=1, replicas=1)
        await produce(cluster, b"0")
        settings = {"share_acknowledgement_mode": "explicit"}
        async with consumer(cluster, **settings) as member, consumer(cluster, **settings) as other:
            member.subscribe(["t"])
            (record,) = await polled(member, 1)
            other.subscribe(["t"])
            member.subscribe([elsewhere])
            for _ in range(3):
                member.acknowledge(record, AcknowledgeType.RENEW)
                assert await member.poll(2_000) == []
                assert await other.poll(2_000) == []
            member.acknowledge(record)
            assert await member.poll(2_000) == []
            assert await other.poll(2_000) == []
        assert list(cluster.memory.start_offsets.values()) == [1, 0]

    run(scenario, brokers=2)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_unsubscribing_gives_records_up(run, mode):
    """They come again after another subscription. Nothing is left to acknowledge, and no outcome is reported."""

    async def scenario(cluster):
        outcomes = []
        await produce(cluster, b"0", b"1")
        settings = {"share_acknowledgement_mode": mode, "objects": {"on_acknowledged": lambda *o: outcomes.append(o)}}
        async with consumer(cluster, **settings) as member:
            member.subscribe(["t"])
            first = await polled(member, 2)
            await member.unsubscribe()
            member.subscribe(["t"])
            again = await polled(member, 2)
            assert [record.offset for record in again] == [0, 1]
            assert outcomes == []
            if mode == "explicit":
                for record in first:
                    member.acknowledge(record)
            assert await member.commit() == {P0: None}
        assert outcomes == [(P0, [0, 1], None)]

    run(scenario)


def test_leader_dies(run):
    """The leader of the partition dies: unacknowledged records come from the new one, accepted ones do not."""

    async def scenario(cluster):
        outcomes = []
        leader = await cluster.leader("t")
        await produce(cluster, *(b"%d" % n for n in range(4)))
        settings = {
            "share_acknowledgement_mode": "explicit",
            "objects": {"on_acknowledged": lambda *o: outcomes.append(o)},
        }
        async with consumer(cluster, **settings) as member:
            member.subscribe(["t"])
            records = await polled(member, 4)
            member.acknowledge(records[0])
            assert await member.commit() == {P0: None}
            for record in records[1:]:
                member.acknowledge(record)
            cluster.kill(leader)
            again = await polled(member, 3)
            assert [(r.offset, r.delivery_count) for r in again] == [(1, 1), (2, 1), (3, 1)]
            for record in again:
                member.acknowledge(record)
            assert await member.commit() == {P0: None}
        failed = [(offsets, error.code) for _, offsets, error in outcomes if error is not None]
        assert failed == [([1, 2, 3], ErrorCode.NETWORK_EXCEPTION)]

    run(scenario, brokers=3, replicas=3)


def test_lost_locks_are_reported(run):
    """A member that was too slow learns that its acknowledgement did not count."""

    async def scenario(cluster):
        await produce(cluster, b"0")
        settings = {"share_acknowledgement_mode": "explicit"}
        async with consumer(cluster, **settings) as member, consumer(cluster, **settings) as other:
            member.subscribe(["t"])
            (record,) = await polled(member, 1)
            other.subscribe(["t"])
            (taken,) = await polled(other, 1)
            assert taken.delivery_count == 2
            member.acknowledge(record)
            (error,) = (await member.commit()).values()
            assert error.code is ErrorCode.INVALID_RECORD_STATE
            other.acknowledge(taken)
            assert await other.commit() == {P0: None}

    run(scenario, share_record_lock_duration_ms="15000")


def test_records_that_cannot_be_deserialized(run):
    """A poison record raises, is released by itself, and can be rejected by its offset."""

    async def scenario(cluster):
        def parse(data):
            return int(data)

        await produce(cluster, b"1", b"bad", b"3")
        objects = {"value_deserializer": parse}
        async with consumer(cluster, share_acknowledgement_mode="explicit", objects=objects) as member:
            member.subscribe(["t"])
            (good,) = await polled(member, 1)
            assert good.value == 1
            member.acknowledge(good)
            with pytest.raises(RecordDeserializationError) as caught:
                await polled(member, 1)
            assert caught.value.offset == 1
            member.acknowledge_offset(P0, 1, AcknowledgeType.REJECT)
            (last,) = await polled(member, 1)
            assert last.value == 3
            member.acknowledge(last)
            assert await member.commit() == {P0: None}
        assert list(cluster.memory.start_offsets.values()) == [3]

    run(scenario)


class Registry:
    """A deserializer whose registry must be asked once before it reads ``b"needs"``; ``answers`` are its answers."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def deserialize(self, data, _context):
        if data == b"needs" and self._answers:
            raise SchemaNeeded(self, "a schema")
        return data

    async def resolve(self, _need):
        answer = self._answers.pop(0)
        await trio.sleep(answer if isinstance(answer, float) else 0)
        if isinstance(answer, Exception):
            raise answer


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("answer", [RegistryError("it is down"), 60.0])
def test_records_before_a_silent_registry_stay(run, mode, answer):
    """A poll that fails, or is cancelled, in the middle of its records: those before were accepted, and never seen."""

    async def scenario(cluster):
        await produce(cluster, b"0", b"needs", b"2")
        objects = {"value_deserializer": Registry(answer)}
        async with consumer(cluster, share_acknowledgement_mode=mode, objects=objects) as member:
            member.subscribe(["t"])
            found = []
            with trio.fail_after(20):
                while len(found) < 3:
                    with suppress(RegistryError), trio.move_on_after(2):
                        records = await member.poll(1000)
                        found += records
                        if mode == "explicit":
                            for record in records:
                                member.acknowledge(record)
            assert [(r.offset, r.value) for r in found] == [(0, b"0"), (1, b"needs"), (2, b"2")]

    run(scenario)


def test_an_unreadable_record_waits_for_its_error(run):
    """It comes behind others: it was released with their acknowledgements, before the application could reject it."""

    async def scenario(cluster):
        await produce(cluster, b"1", b"bad")
        objects = {"value_deserializer": lambda data: int(data)}
        async with consumer(cluster, share_acknowledgement_mode="explicit", objects=objects) as one:
            one.subscribe(["t"])
            (good,) = await polled(one, 1)
            one.acknowledge(good)
            assert await one.commit() == {P0: None}
            with pytest.raises(RecordDeserializationError):
                await polled(one, 1)
            one.acknowledge_offset(P0, 1, AcknowledgeType.REJECT)
            assert await one.commit() == {P0: None}
        assert list(cluster.memory.start_offsets.values()) == [2]

    run(scenario)


def test_an_unreadable_record_is_released_by_the_next_call(run):
    """A renewal is on its way when the error comes; what follows it must not release what is to be rejected."""

    async def scenario(cluster):
        await produce(cluster, b"1", b"2", b"bad")
        objects = {"value_deserializer": lambda data: int(data)}
        async with consumer(cluster, share_acknowledgement_mode="explicit", objects=objects) as one:
            one.subscribe(["t"])
            good, slow = await polled(one, 2)
            one.acknowledge(good)
            one.acknowledge(slow, AcknowledgeType.RENEW)
            one.commit_nowait()
            with pytest.raises(RecordDeserializationError):
                await one.poll(1000)
            await trio.sleep(1)  # the application writes the record elsewhere
            one.acknowledge_offset(P0, 2, AcknowledgeType.REJECT)
            one.acknowledge(slow)
            assert await one.commit() == {P0: None}
        assert list(cluster.memory.start_offsets.values()) == [3]

    run(scenario)


def test_a_fetch_may_wait_longer_than_a_lock_lasts(run):
    """The record comes after the time of a lock: it was dropped each time, and given up without a delivery."""

    async def scenario(cluster):
        async with consumer(cluster, fetch_max_wait_ms="40000") as member, trio.open_nursery() as nursery:
            member.subscribe(["t"])

            async def later():
                await trio.sleep(20)
                await produce(cluster, b"late")

            nursery.start_soon(later)
            (record,) = await polled(member, 1)
            assert (record.value, record.delivery_count) == (b"late", 1)

    run(scenario, share_record_lock_duration_ms="15000")


def test_a_slow_member_sees_each_record(run):
    """Locks expired in its buffer, which counts as a delivery: the group gave records up that no member had seen."""

    async def scenario(cluster):
        for partition in range(3):
            await produce(cluster, *(b"%d" % n for n in range(30)), partition=partition)
        counts = {}
        async with consumer(cluster) as member:
            member.subscribe(["t"])
            with trio.fail_after(400):
                while len(counts) < 90:
                    (record,) = await polled(member, 1, max_records=1)
                    counts.setdefault((record.partition, record.offset), []).append(record.delivery_count)
                    await trio.sleep(1)
        assert sum(map(len, counts.values())) < 120

    limits = {"share_record_lock_duration_ms": "15000", "share_delivery_count_limit": "2"}
    run(scenario, partitions=3, **limits)


def test_refused_member(run):
    """A fatal answer of the coordinator is raised by the polls, until the application subscribes again."""

    async def scenario(cluster):
        cluster.group.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.GROUP_AUTHORIZATION_FAILED]
        await produce(cluster, b"0")
        async with consumer(cluster) as member:
            with pytest.raises(RuntimeError, match="not subscribed"):
                await member.poll(10)
            member.subscribe(["t"])
            with pytest.raises(KafkaError) as caught:
                await polled(member, 1)
            assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
            member.subscribe(["t"])
            assert len(await polled(member, 1)) == 1

    run(scenario)


def test_the_heartbeat_after_a_lost_answer_says_everything(run, monkeypatch):
    """Else the coordinator, which has answered, would not repeat the assignment that was in the answer."""
    said = []

    async def scenario(cluster):
        async def request(message, timeout_ms):
            said.append(message.subscribed_topic_names)
            response = await cluster.group.request(message, timeout_ms)
            if len(said) == 2:
                raise ConnectionAbortedError("the answer is lost")
            return response

        monkeypatch.setattr(ShareGroupClient, "_request", staticmethod(request))
        async with consumer(cluster) as member:
            member.subscribe(["t"])
            await member.poll(3_000)

    run(scenario)
    assert said[:4] == [["t"], None, ["t"], None]


def test_a_poll_may_wait_longer_than_the_poll_interval(run):
    """One call that waits for records is no missing poll: the member stays, and gets what comes at last."""

    async def scenario(cluster):
        async with consumer(cluster, max_poll_interval_ms="3000") as member, trio.open_nursery() as nursery:
            member.subscribe(["t"])

            async def later():
                await trio.sleep(20)
                await produce(cluster, b"late")

            nursery.start_soon(later)
            (record,) = await member.poll(60_000)
            assert record.value == b"late"

    run(scenario)


def test_member_that_does_not_poll_leaves(run):
    """A member that does not poll within max.poll.interval.ms leaves the group, and the next poll joins again."""

    async def scenario(cluster):
        cluster.group.interval_ms = 5_000
        await produce(cluster, b"0")
        async with consumer(cluster, max_poll_interval_ms="3000") as member:
            member.subscribe(["t"])
            assert len(await polled(member, 1)) == 1
            await trio.sleep(6)
            assert cluster.group.left == [member.member_id]
            await produce(cluster, b"1")
            begun = trio.current_time()
            assert len(await polled(member, 1)) == 1
            assert trio.current_time() - begun < 2, "it does not wait for its next heartbeat"
            assert member.member_id in cluster.group.members

    run(scenario)


def test_configuration():
    """Keys that have no meaning for share consumers are refused, as Kafka refuses them."""
    valid = {"bootstrap.servers": "b1:9092", "group.id": "g"}
    with pytest.raises(ConfigError, match=r"group\.id"):
        ShareConsumer({"bootstrap.servers": "b1:9092"})
    for key in (
        "auto.offset.reset",
        "enable.auto.commit",
        "group.instance.id",
        "isolation.level",
        "session.timeout.ms",
    ):
        with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
            ShareConsumer({**valid, key: "1"})
    with pytest.raises(ConfigError, match=r"share\.acknowledgement\.mode"):
        ShareConsumer({**valid, "share.acknowledgement.mode": "both"})
    with pytest.raises(TypeError, match="on_acknowledged"):
        ShareConsumer(valid, on_acknowledged=3)


def test_reading_goes_on_when_the_leader_is_cut_off(run):
    """Packets disappear and connections stay open: the fetch waited for request.timeout.ms, 30 seconds."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        await produce(cluster, b"before")
        async with consumer(cluster) as member:
            member.subscribe(["t"])
            assert [record.value for record in await polled(member, 1)] == [b"before"]
            others = ["client", "c101", *(f"b{each}" for each in cluster.broker_ids if each != leader)]
            cluster.world.network.cut_between([f"b{leader}"], others)
            begun = trio.current_time()
            successor = await cluster.leader("t", other_than=leader)
            now_ms = int(cluster.client_environment.clock.wall_ms())
            await cluster.client(successor).produce("t", batch(b"after", timestamp=now_ms))
            # The member had not accepted the first record yet, so the new leader delivers it again.
            assert [record.value for record in await polled(member, 2)] == [b"before", b"after"]
            assert trio.current_time() - begun < 8

    run(scenario, brokers=3, replicas=3)


def test_a_leader_that_hangs_keeps_no_member_in_its_group(run):
    """The end of its session has no answer; the member left only after that, and so not at all."""

    async def scenario(cluster):
        await produce(cluster, b"0")
        async with consumer(cluster, share_acknowledgement_mode="explicit") as member:
            member.subscribe(["t"])
            await polled(member, 1)
            cluster.world.network.cut_between([f"b{await cluster.leader('t')}"], ["client"])
            await member.close(timeout_ms=5_000)
            assert cluster.group.left == [member.member_id]

    run(scenario)


@pytest.mark.parametrize(
    ("code", "is_raised"), [(ErrorCode.NOT_LEADER_OR_FOLLOWER, False), (ErrorCode.CORRUPT_MESSAGE, True)]
)
def test_a_partition_that_fails_is_not_asked_without_a_pause(run, monkeypatch, code, is_raised):
    """A broker answers at once while a partition has an error; a damaged log has it for good, and is reported."""

    async def scenario(cluster):
        monkeypatch.setattr(SharePartitionManager, "acquire", lambda *_: code)
        await produce(cluster, b"0")
        raised = []
        async with consumer(cluster) as member:
            member.subscribe(["t"])
            with trio.move_on_after(5):
                while True:
                    try:
                        await member.poll(1000)
                    except KafkaError as error:
                        raised.append(error.code)
            assert bool(raised) is is_raised
            assert set(raised) <= {code}
            assert 5 <= member.statistics().fetch_total <= 100

    run(scenario)


def test_no_poll_raises_an_error_of_a_former_subscription(run, monkeypatch):
    """It arrives between two polls, and the application has turned to another topic by then."""
    acquire = SharePartitionManager.acquire
    failing = [True]

    async def scenario(cluster):
        monkeypatch.setattr(
            SharePartitionManager, "acquire", lambda *args: ErrorCode.CORRUPT_MESSAGE if failing else acquire(*args)
        )
        await produce(cluster, b"0")
        await cluster.client(1).create_topic("u", partitions=1)
        await cluster.leader("u")
        async with consumer(cluster) as member:
            member.subscribe(["t"])
            with trio.fail_after(30):
                while not member._fetching().errors:
                    with suppress(KafkaError):
                        await member.poll(0)
                    await trio.sleep(1)
            failing.clear()
            await member.unsubscribe()
            member.subscribe(["u"])
            assert await member.poll(5_000) == []

    run(scenario)
