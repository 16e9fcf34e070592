"""Goal: what a cluster says about a share group is read as it is: the times of the group, and what was given up.

Method: records of a coordinator's log, in the form that brokers write; a simulated broker that holds a lock for long.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau.producer import Producer
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.share import AcknowledgeType, ShareConsumer
from moldau_broker.coordinator.share.core.batches import ACKNOWLEDGED, ARCHIVED, AVAILABLE, StateBatch
from moldau_broker.coordinator.share.core.records import change_record
from moldau_broker.coordinator.share.core.state import SharePartitionKey, ShareState, Snapshot, Update
from moldau_jepsen.checkers.group.share import Archived, Sent
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads import share
from moldau_jepsen.workloads.phases.share_evidence import (
    StoredStates,
    archived_records,
    group_times_ms,
)
from moldau_jepsen.workloads.share import ShareOptions, ShareWorkload, settings_of
from support.cluster.broker_cluster import run_cluster
from support.share.story import set_group

TOPIC_ID = UUID(int=7)
WHERE = TopicPartition("share", 1)


def update(*batches, group="share", start=-1):
    key = SharePartitionKey(group, TOPIC_ID, 1)
    change = Update(
        key=key, snapshot_epoch=0, leader_epoch=3, start_offset=start, delivery_complete_count=-1, batches=batches
    )
    return record_of(change)


def snapshot(*batches, start, epoch=0):
    state = ShareState(
        snapshot_epoch=1,
        state_epoch=epoch,
        leader_epoch=3,
        start_offset=start,
        delivery_complete_count=0,
        create_ms=1,
        write_ms=2,
        batches=batches,
    )
    return record_of(Snapshot(key=SharePartitionKey("share", TOPIC_ID, 1), state=state))


def deletion():
    return record_of(Snapshot(key=SharePartitionKey("share", TOPIC_ID, 1), state=None))


def record_of(change):
    record = change_record(change)
    return SimpleNamespace(key=record.key, value=record.value)


def archived(*records, apart_ms=0):
    """Records that were written one after the other, for a group with a lock of two seconds."""
    states = StoredStates("share", "share", 2_000)
    for number, record in enumerate(records):
        record.timestamp = number * apart_ms
        states.take([record])
    return {place[1]: count for place, count in states.archived()}


def test_archived_records_are_named_with_their_deliveries():
    batches = (StateBatch(4, 5, ARCHIVED, 10), StateBatch(6, 6, AVAILABLE, 3), StateBatch(7, 7, ACKNOWLEDGED, 1))
    assert archived(update(*batches)) == {4: 10, 5: 10}
    assert archived(snapshot(*batches, start=4)) == {4: 10, 5: 10}


def test_a_state_that_begins_again_forgets_what_was_archived():
    """An administrator has set another start offset, or has deleted the state."""
    given_up = snapshot(StateBatch(4, 4, ARCHIVED, 10), StateBatch(5, 5, AVAILABLE, 1), start=4, epoch=3)
    assert archived(given_up, snapshot(start=6, epoch=3)) == {4: 10, 5: 2}
    assert archived(given_up, snapshot(start=2, epoch=4)) == {}
    assert archived(given_up, deletion()) == {}
    assert archived(given_up, snapshot(start=2, epoch=4), update(StateBatch(2, 2, ARCHIVED, 3), start=2)) == {2: 3}
    again = update(StateBatch(2, 2, AVAILABLE, 1), start=2), update(start=3)
    for ends in (snapshot(start=2, epoch=4), deletion()):
        assert archived(given_up, ends, *again) == {2: 2}, "it begins below the former start"


def test_states_of_another_topic_are_left_out():
    states = StoredStates("share", "share", 2_000, UUID(int=8))
    record = update(StateBatch(4, 4, ARCHIVED, 10))
    record.timestamp = 0
    states.take([record])
    assert states.archived() == []


def test_a_start_offset_archives_what_was_available():
    """With the delivery that came after its last state; not what was accepted, or what it has not passed."""
    available = update(StateBatch(4, 6, AVAILABLE, 9), start=4)
    assert archived(available, update(StateBatch(5, 5, ACKNOWLEDGED, 10), start=6)) == {4: 10}
    assert archived(available, snapshot(start=7)) == {4: 10, 5: 10, 6: 10}
    assert archived(available, update(StateBatch(4, 4, ARCHIVED, 9), start=-1)) == {4: 9}
    assert archived(update(start=9)) == {}


def test_locks_that_expired_during_a_write_may_count():
    """A write took 3.5 s: a lock of 2 s ends three times within it if a clock runs at twice the rate."""
    available = update(StateBatch(4, 4, AVAILABLE, 5), start=4)
    assert archived(available, update(start=5), apart_ms=999) == {4: 6}
    assert archived(available, update(start=5), apart_ms=3_500) == {4: 9}
    assert archived(available, update(start=4), update(start=5), apart_ms=1_200) == {4: 8}


def test_other_groups_and_ends_of_states_say_nothing():
    end = record_of(Snapshot(key=SharePartitionKey("share", TOPIC_ID, 1), state=None))
    assert archived(update(StateBatch(4, 5, ARCHIVED, 10), group="other"), end) == {}


def test_an_unknown_form_is_no_evidence():
    with pytest.raises(DecodeError):
        archived(SimpleNamespace(key=b"\0\x09", value=b""))


@pytest.mark.parametrize("last", [3, 1 << 49])
def test_a_state_of_impossible_size_is_no_evidence(last):
    """A batch with a wrong offset may have been acquired: no list of its offsets is made."""
    with pytest.raises(DecodeError, match=f"has the offsets 4 to {last}"):
        archived(update(StateBatch(4, last, ARCHIVED, 10)))


def test_a_cluster_says_what_it_uses_and_what_it_gave_up():
    """The group has a lock of its own, the session of the broker, and one record that was released too often."""
    found = []

    async def scenario(cluster):
        client, environment = cluster.client(1), cluster.client_environment
        await client.create_topic("share", partitions=1, replicas=1)
        found.append(await group_times_ms({"bootstrap.servers": "b1:9092"}, environment, "share"))
        await set_group(
            client,
            "share",
            share_auto_offset_reset="earliest",
            share_record_lock_duration_ms="20000",
            share_delivery_count_limit="2",
        )
        found.append(await group_times_ms({"bootstrap.servers": "b1:9092"}, environment, "share"))
        config = {"bootstrap.servers": "b1:9092"}
        async with Producer(config, environment=environment) as producer:
            for value in (b"0", b"1"):
                await (await producer.send("share", value, partition=0))
        options = {**config, "group.id": "share", "share.acknowledgement.mode": "explicit"}
        async with ShareConsumer(options, environment=environment) as member:
            member.subscribe(["share"])
            done = 0
            while done < 3:
                for record in await member.poll(500.0):
                    member.acknowledge(record, AcknowledgeType.RELEASE if record.offset else AcknowledgeType.ACCEPT)
                    done += 1
                await member.commit(5_000)
        found.append(await archived_records({"bootstrap.servers": "b1:9092"}, environment, "share", "share", 20_000))

    run_cluster(
        scenario,
        brokers=1,
        share_coordinator_state_topic_num_partitions="2",
        share_coordinator_state_topic_replication_factor="1",
        share_coordinator_state_topic_min_isr="1",
        group_share_session_timeout_ms="50000",
    )
    assert found == [(30_000, 50_000), (20_000, 50_000), [Archived((TopicPartition("share", 0), 1), 2)]]


@pytest.mark.parametrize("is_pruned", [False, True])
def test_records_are_lost_only_where_the_log_can_tell(is_pruned):
    """A coordinator's log without its beginning may lack that a record was given up, so nothing is called lost."""
    found = []
    options = ShareOptions(partitions=1, lock_ms=1_000, session_ms=1_000)

    async def scenario(cluster):
        client, environment = cluster.client(1), cluster.client_environment
        await client.create_topic("share", partitions=1, replicas=1)
        config = {"bootstrap.servers": "b1:9092"}
        async with Producer(config, environment=environment) as producer:
            await (await producer.send("share", b"0", partition=0))
        workload = ShareWorkload("b1:9092", options, environment)
        await workload.set_group(environment)
        await workload.final_read(environment, 60)
        if is_pruned:
            cluster.replica(1, "__share_group_state").log.delete_records(1)  # as its coordinator does
        workload.events.append(Sent((TopicPartition("share", 0), 9), 9))
        await workload.final_read(environment, 60)
        assert workload.stuck is None
        assert ("begins at offset 1" in workload.evidence) is is_pruned
        found.extend(kind for kind, _ in workload.wrong())

    run_cluster(
        scenario,
        brokers=1,
        share_coordinator_state_topic_num_partitions="1",
        share_coordinator_state_topic_replication_factor="1",
        share_coordinator_state_topic_min_isr="1",
        **{name.replace(".", "_"): value for name, value in settings_of(options).items()},
    )
    assert found == ([] if is_pruned else ["share-lost"])


@pytest.mark.parametrize(
    ("error", "is_known"),
    [
        (KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), True),  # no state was ever stored
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), False),
        (DecodeError("a record of a share coordinator has an unknown version"), False),
        (trio.TooSlowError(), False),
    ],
)
def test_without_the_log_nothing_is_called_lost(monkeypatch, error, is_known):
    """The record may have been given up at the limit, so the run fails because that is not known."""

    async def archived_records(*_):
        await trio.lowlevel.checkpoint()
        raise error

    monkeypatch.setattr(share, "archived_records", archived_records)
    workload = ShareWorkload("b:1", ShareOptions(), SimpleNamespace(clock=None))
    workload.events.append(Sent((TopicPartition("share", 0), 0), 0))

    async def drain(*_):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(workload, "drain", drain)
    trio.run(workload.final_read, None, 1)
    assert [kind for kind, _ in workload.wrong()] == (["share-lost"] if is_known else [])
    assert (workload.stuck is None) is is_known
