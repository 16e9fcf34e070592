"""Goal: ShareFetch and ShareAcknowledge answer as Kafka's broker does, in the normal case and in each error.

Method: brokers on virtual time, bare members, and the durable state in memory.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.share_fetch import ShareFetchRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.runtime.net.serving.answer_queue import ready_bytes
from moldau_broker.coordinator.share.core.state import GROUP_ID_BYTES_MAX, SharePartitionKey
from moldau_broker.server.data_path.handler_answers import Exchange
from moldau_broker.server.share import settings as share_settings
from moldau_broker.server.share.core.values import RecordState
from moldau_broker.server.share.persister import ShareKey
from moldau_broker.server.share.settings import CachedSettings, group_settings
from support.cluster.broker_cluster import batch, run_cluster
from support.share.member import Member, acquired, codes, outcomes, values
from support.share.memory_persister import MemoryPersister

OK = ErrorCode.NONE
ACCEPT, RELEASE, REJECT, RENEW = (1,), (2,), (3,), (4,)


def run(scenario, *, brokers=1, partitions=1, replicas=1, **group_settings):
    """Runs a scenario with a topic ``t``, a group ``g`` that begins with the first record, and durable state."""

    async def prepared(cluster):
        memory = cluster.memory = MemoryPersister()
        client = cluster.client(1)
        await client.create_topic("t", partitions=partitions, replicas=replicas)
        settings = {"share.auto.offset.reset": "earliest"}
        settings |= {key.replace("_", "."): value for key, value in group_settings.items()}
        answer = await client.request(
            IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=32,
                        resource_name="g",
                        configs=[AlterableConfig(name=k, config_operation=0, value=v) for k, v in settings.items()],
                    )
                ]
            )
        )
        assert answer.responses[0].error_code == OK, answer
        await cluster.until(lambda: all(b.metadata.image.config(32, "g") for b in cluster.running.values()))
        for broker in cluster.running.values():
            broker.context.share_partitions.persister = memory
        await cluster.leader("t")
        await scenario(cluster)

    run_cluster(prepared, brokers=brokers)


def test_delivery_and_acknowledgement():
    """Two members share a partition: each record is delivered to one of them, and accepted records never again."""

    async def scenario(cluster):
        producer = cluster.client(1)
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        await producer.produce("t", batch(b"0", b"1", b"2"), batch(b"3", b"4"))
        first = await a.fetch(0, max_records=1, max_wait_ms=1000)
        assert acquired(first) == {0: [(0, 2, 1)]}
        assert values(first) == [b"0", b"1", b"2"]
        assert first.acquisition_lock_timeout_ms == 30_000
        second = await b.fetch(0, max_wait_ms=1000)
        assert acquired(second) == {0: [(3, 4, 1)]}
        assert values(second) == [b"3", b"4"]
        answer = await a.fetch(acks={0: [(0, 0, ACCEPT), (1, 2, (2, 3))]}, max_wait_ms=0)
        assert (outcomes(answer), acquired(answer)) == ({0: (OK, OK)}, {})
        assert acquired(await a.fetch(max_wait_ms=10)) == {0: [(1, 1, 2)]}
        assert codes(await a.acknowledge({0: [(1, 1, ACCEPT)]})) == {0: OK}
        assert codes(await b.acknowledge({0: [(3, 4, ACCEPT)]})) == {0: OK}
        (key,) = cluster.memory.start_offsets
        assert cluster.memory.start_offsets[key] == 5
        assert cluster.memory.records[key] == {}

    run(scenario)


def test_waiting_for_new_records():
    """A fetch without records waits; a produce and a release wake it, and the deadline ends it."""

    async def scenario(cluster):
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        begun = trio.current_time()
        assert acquired(await a.fetch(0, max_wait_ms=700)) == {}
        assert 0.7 <= trio.current_time() - begun < 1.0
        async with trio.open_nursery() as nursery:

            async def consume(member, expected, limit):
                begun = trio.current_time()
                assert acquired(await member.fetch(0, max_wait_ms=20_000)) == expected
                assert trio.current_time() - begun < limit

            nursery.start_soon(consume, a, {0: [(0, 1, 1)]}, 2.0)
            await trio.sleep(1)
            await cluster.client(1).produce("t", batch(b"0", b"1"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, b, {0: [(1, 1, 2)]}, 2.0)
            await trio.sleep(1)
            assert codes(await a.acknowledge({0: [(1, 1, RELEASE)]})) == {0: OK}

    run(scenario)


def test_lock_expires():
    """Without an acknowledgement the record goes to another member after the lock, and is archived after the limit."""

    async def scenario(cluster):
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        await cluster.client(1).produce("t", batch(b"0"))
        for count, member in enumerate((a, b), start=1):
            assert acquired(await member.fetch(0, max_wait_ms=20_000)) == {0: [(0, 0, count)]}
        assert outcomes(await a.fetch(acks={0: [(0, 0, ACCEPT)]})) == {0: (OK, ErrorCode.INVALID_RECORD_STATE)}
        assert acquired(await a.fetch(max_wait_ms=20_000)) == {}
        (key,) = cluster.memory.start_offsets
        assert cluster.memory.start_offsets[key] == 1

    run(scenario, share_record_lock_duration_ms="15000", share_delivery_count_limit="2")


def test_a_lock_ends_without_another_request():
    """The delivery counts for the next leader, even if no member asks the present one again."""

    async def scenario(cluster):
        await cluster.client(1).produce("t", batch(b"0", b"1"))
        assert acquired(await Member(cluster, 1, "a").fetch(0, max_wait_ms=1000)) == {0: [(0, 1, 1)]}
        await trio.sleep(14)
        assert not any(cluster.memory.records.values())
        await trio.sleep(2)
        assert list(cluster.memory.records.values()) == [dict.fromkeys((0, 1), (RecordState.AVAILABLE, 1))]

    run(scenario, share_record_lock_duration_ms="15000")


def test_renewal_keeps_the_lock():
    """A member that renews keeps its records (KIP-1222); a renewal fetches nothing, and must say so."""

    async def scenario(cluster):
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        await cluster.client(1).produce("t", batch(b"0"))
        assert acquired(await a.fetch(0, max_wait_ms=1000)) == {0: [(0, 0, 1)]}
        nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "is_renew_ack": True}
        assert (await a.fetch(**nothing | {"min_bytes": 1})).error_code == ErrorCode.INVALID_REQUEST
        await b.fetch(0)
        for _ in range(3):
            await trio.sleep(10)
            assert outcomes(await a.fetch(acks={0: [(0, 0, RENEW)]}, **nothing)) == {0: (OK, OK)}
            assert acquired(await b.fetch()) == {}
        assert codes(await a.acknowledge({0: [(0, 0, RENEW)]})) == {0: ErrorCode.INVALID_REQUEST}
        assert codes(await a.acknowledge({0: [(0, 0, RENEW)]}, is_renew_ack=True)) == {0: OK}
        assert codes(await a.acknowledge({0: [(0, 0, ACCEPT)]}, version=1)) == {0: OK}

    run(scenario, share_record_lock_duration_ms="15000")


def test_a_group_may_forbid_renewals():
    """The lock goes on as it was; requests that carry other acknowledgements are unaffected."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0", b"1"))
        assert acquired(await a.fetch(0, max_wait_ms=1000)) == {0: [(0, 1, 1)]}
        refused = await a.acknowledge({0: [(0, 0, RENEW)]}, is_renew_ack=True)
        assert codes(refused) == {0: ErrorCode.INVALID_RECORD_STATE}
        assert codes(await a.acknowledge({0: [(0, 1, ACCEPT)]}, is_renew_ack=True)) == {0: OK}

    run(scenario, share_renew_acknowledge_enable="false")


def test_sessions():
    """Epochs, unknown sessions, the end of a session and of a connection release records."""

    async def scenario(cluster):
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        await cluster.client(1).produce("t", batch(b"0"), batch(b"1"))
        assert (await a.fetch(0, share_session_epoch=3)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await a.fetch(share_session_epoch=-1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await a.acknowledge({}, share_session_epoch=0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        wrong = await a.fetch(acks={0: [(0, 0, ACCEPT)]})
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        assert acquired(await a.fetch(0, max_wait_ms=1000)) == {0: [(0, 1, 1)]}
        assert (await a.fetch(share_session_epoch=7)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        ended = await a.fetch(acks={0: [(0, 0, ACCEPT)]}, share_session_epoch=-1)
        assert outcomes(ended) == {0: (OK, OK)}
        assert acquired(await b.fetch(0, max_wait_ms=1000)) == {0: [(1, 1, 2)]}, "the record may have ended its session"
        b.client.close()
        c = Member(cluster, 1, "c")
        assert acquired(await c.fetch(0, max_wait_ms=2000)) == {0: [(1, 1, 3)]}, "the record may have ended its member"
        assert (await c.acknowledge({0: [(1, 1, REJECT)]}, share_session_epoch=-1)).error_code == OK
        assert len(cluster.running[1].context.share_partitions.sessions) == 0

    run(scenario)


def test_share_groups_need_their_feature():
    """At share.version 0 both requests are refused as a whole."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        update = FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=2)
        answer = await cluster.client(1).request(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=10_000))
        assert answer.error_code == OK
        await cluster.until(lambda: cluster.image().features.get("share.version", 0) == 0)
        assert (await a.fetch(0)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await a.acknowledge({})).error_code == ErrorCode.UNSUPPORTED_VERSION

    run(scenario)


@pytest.mark.parametrize("more_bytes", [0, 1])
def test_the_longest_group_id_has_coordinator_keys(more_bytes):
    """A key that is longer than a string of the protocol could not be encoded, which ended the broker."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("t")
        await cluster.leader("t")
        group = "ü" * (GROUP_ID_BYTES_MAX // 2) + "g" * (GROUP_ID_BYTES_MAX % 2 + more_bytes)
        answer = await Member(cluster, 1, "m", group).fetch(0, max_wait_ms=100)
        assert answer.error_code == (ErrorCode.INVALID_REQUEST if more_bytes else OK)
        topic_id = cluster.image().topics_by_name["t"].topic_id
        key = ShareKey(group, topic_id, 2**31 - 1).coordinator_key
        assert len(key.encode()) == 32_767 + more_bytes
        assert key == SharePartitionKey(group, topic_id, 2**31 - 1).coordinator_key

    run_cluster(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST),
        ({"share_acquire_mode": 2}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_malformed_requests(fields, code):
    """Bad names and modes refuse the whole request."""

    async def scenario(cluster):
        request = ShareFetchRequest(**{"group_id": "g", "member_id": "m", **fields})
        assert (await cluster.client(1).request(request, 2)).error_code == code

    run(scenario)


def test_partitions_that_cannot_be_read():
    """Unknown partitions and topics are answered one by one; the others are delivered."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"))
        answer = await a.fetch(0, 5, max_wait_ms=1000)
        assert outcomes(answer)[5] == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, OK)
        stranger = Member(cluster, 1, "b")
        stranger.topic_id = type(stranger.topic_id)(int=5)
        assert outcomes(await stranger.fetch(0)) == {0: (ErrorCode.UNKNOWN_TOPIC_ID, OK)}

    run(scenario)


def test_new_leader_continues():
    """The leader dies: the new one delivers what was not acknowledged, and nothing that was."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        a = Member(cluster, leader, "a")
        await cluster.client(leader).produce("t", *(batch(b"%d" % n) for n in range(6)))
        assert sum(last - first + 1 for first, last, _ in acquired(await a.fetch(0, max_wait_ms=1000))[0]) == 6
        other = Member(cluster, 3 - leader, "b")
        wrong = await other.fetch(0)
        assert outcomes(wrong) == {0: (ErrorCode.NOT_LEADER_OR_FOLLOWER, OK)}
        assert wrong.responses[0].partitions[0].current_leader.leader_id == leader
        assert [each.node_id for each in wrong.node_endpoints] == [leader]
        assert codes(await a.acknowledge({0: [(0, 1, ACCEPT), (3, 3, REJECT), (5, 5, RELEASE)]})) == {0: OK}
        cluster.kill(leader)
        await cluster.leader("t", other_than=leader)
        answer = await other.fetch(max_wait_ms=5000)
        assert acquired(answer) == {0: [(2, 2, 1), (4, 4, 1), (5, 5, 2)]}

    run(scenario, brokers=2, replicas=2)


def test_unstored_acknowledgements_are_undone():
    """While the share coordinator refuses, acknowledgements fail and the record stays with its member."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"))
        await a.fetch(0, max_wait_ms=1000)
        cluster.memory.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert codes(await a.acknowledge({0: [(0, 0, ACCEPT)]})) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert codes(await a.acknowledge({0: [(0, 0, ACCEPT)]})) == {0: OK}
        assert cluster.memory.start_offsets[ShareKey("g", a.topic_id, 0)] == 1

    run(scenario)


def test_unreadable_state_is_reported():
    """A fetch reports that the state cannot be read, and the next one reads it."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", batch(b"0"))
        cluster.memory.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        answer = await a.fetch(0, max_wait_ms=1000)
        assert outcomes(answer) == {0: (ErrorCode.COORDINATOR_NOT_AVAILABLE, OK)}
        assert acquired(await a.fetch(max_wait_ms=1000)) == {0: [(0, 0, 1)]}

    run(scenario)


def test_fenced_by_a_new_state():
    """An administrator has reset the group: the old state is dropped, and the new one is read."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", *(batch(b"%d" % n) for n in range(4)))
        await a.fetch(0, max_wait_ms=1000)
        key = ShareKey("g", a.topic_id, 0)
        cluster.memory.state_epochs[key], cluster.memory.start_offsets[key] = 5, 2
        assert codes(await a.acknowledge({0: [(0, 0, ACCEPT)]})) == {0: ErrorCode.FENCED_STATE_EPOCH}
        assert acquired(await a.fetch(max_wait_ms=1000)) == {0: [(2, 3, 1)]}
        assert codes(await a.acknowledge({0: [(2, 3, ACCEPT)]})) == {0: OK}
        assert cluster.memory.start_offsets[key] == 4

    run(scenario)


@pytest.mark.parametrize("end", ["fetch", "acknowledge", "connection"])
def test_a_group_without_members_is_read_again(end):
    """The offsets of a group can be altered while it has no members; only a read of the state shows that."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        await cluster.client(1).produce("t", *(batch(b"%d" % n) for n in range(4)))
        assert acquired(await a.fetch(0, max_wait_ms=1000)) == {0: [(0, 3, 1)]}
        shares = cluster.running[1].context.share_partitions
        cluster.memory.delay_ms = 20.0
        if end == "fetch":
            answer = await a.fetch(acks={0: [(0, 3, ACCEPT)]}, share_session_epoch=-1)
            assert outcomes(answer) == {0: (OK, OK)}
        elif end == "acknowledge":
            answer = await a.acknowledge({0: [(0, 3, ACCEPT)]}, share_session_epoch=-1)
            assert codes(answer) == {0: OK}
        else:
            assert codes(await a.acknowledge({0: [(0, 2, ACCEPT)]})) == {0: OK}
            a.client.close()
            await cluster.until(lambda: not len(shares.sessions))
        key = ShareKey("g", a.topic_id, 0)
        await cluster.until(lambda: shares.find("g", (a.topic_id, 0)) is None)
        assert cluster.memory.start_offsets[key] == (3 if end == "connection" else 4), "it ended before its write"
        cluster.memory.state_epochs[key], cluster.memory.start_offsets[key] = 5, 1
        cluster.memory.records[key] = {}
        b = Member(cluster, 1, "b")
        assert acquired(await b.fetch(0, max_wait_ms=1000)) == {0: [(1, 3, 1)]}
        assert codes(await b.acknowledge({0: [(1, 3, ACCEPT)]})) == {0: OK}

    run(scenario)


@pytest.mark.parametrize(("reset", "first"), [("latest", 3), ("earliest", 0), ("by_duration:PT1H", 2)])
def test_where_a_group_begins(reset, first):
    """``share.auto.offset.reset``: after the last record, with the first, or with those of the last hour."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        producer = cluster.client(1)
        now_ms = int(cluster.client_environment.clock.wall_ms())
        for age_ms in (9_000_000, 8_000_000, 10):
            await producer.produce("t", batch(b"old", timestamp=now_ms - age_ms))
        await a.fetch(0, max_wait_ms=100)
        await producer.produce("t", batch(b"new", timestamp=now_ms))
        led = cluster.running[1].context.share_partitions.find("g", (a.topic_id, 0))
        assert led.core.start_offset == first

    run(scenario, share_auto_offset_reset=reset)


@pytest.mark.parametrize("reset", ["latest", "by_duration:PT1H"])
def test_a_group_begins_when_the_leader_knows_what_is_committed(reset):
    """F764. A new leader's high watermark lags: the group began before records that were acknowledged long ago."""

    async def scenario(cluster):
        a, producer = Member(cluster, 1, "a"), cluster.client(1)
        broker = cluster.running[1]
        old = int(cluster.client_environment.clock.wall_ms()) - 9_000_000
        await producer.produce("t", batch(b"0", timestamp=old), batch(b"1", timestamp=old))
        (partition,) = (each for each in broker.context.replicas.by_raw_id.values() if each.key.topic == "t")
        partition.replica.epoch_start_offset = 3  # as if the leader before it had committed a record more
        assert acquired(await a.fetch(0, max_wait_ms=100)) == {}
        led = broker.context.share_partitions.find("g", (a.topic_id, 0))
        assert led.core is None
        await producer.produce("t", batch(b"2", timestamp=old))
        await cluster.until(lambda: led.core is not None)
        assert led.core.start_offset == 3

    run(scenario, share_auto_offset_reset=reset)


def test_a_leader_that_does_not_learn_what_is_committed_says_so():
    """The wait is bounded, and the member asks again."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        broker = cluster.running[1]
        await cluster.client(1).produce("t", batch(b"0"))
        (partition,) = (each for each in broker.context.replicas.by_raw_id.values() if each.key.topic == "t")
        partition.replica.epoch_start_offset = 3
        answer = await a.fetch(0, max_wait_ms=20_000)
        assert codes(answer) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert broker.context.share_partitions.find("g", (a.topic_id, 0)) is None

    run(scenario, share_auto_offset_reset="latest")


def test_the_place_where_a_group_begins_is_stored():
    """A leader that takes over before the first acknowledgement delivers what the first one has delivered."""

    async def scenario(cluster):
        memory, producer = cluster.memory, cluster.client(1)
        await producer.produce("t", batch(b"0"))
        a = Member(cluster, 1, "a")
        key, write = ShareKey("g", a.topic_id, 0), memory.write

        async def refuse(*_):
            memory.write = write
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        memory.write = refuse
        assert outcomes(await a.fetch(0, max_wait_ms=1000)) == {0: (ErrorCode.COORDINATOR_NOT_AVAILABLE, OK)}
        assert key not in memory.start_offsets
        await a.fetch(0, max_wait_ms=100)
        assert memory.start_offsets[key] == 1
        await producer.produce("t", batch(b"1"))
        assert acquired(await a.fetch(max_wait_ms=1000)) == {0: [(1, 1, 1)]}
        led = cluster.running[1].context.share_partitions.find("g", (a.topic_id, 0))
        cluster.running[1].context.share_partitions.leadership_changed(led.partition, False)
        await producer.produce("t", batch(b"2"))
        assert acquired(await a.fetch(max_wait_ms=1000)) == {0: [(1, 2, 1)]}

    run(scenario, share_auto_offset_reset="latest")


def test_a_session_without_room_is_refused_in_time():
    """The client asks again when it is answered: an answer at once would be the first of a storm of requests."""

    async def scenario(cluster):
        cluster.running[1].context.share_partitions.sessions.sessions_max = 1
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")
        assert (await a.fetch(0, max_wait_ms=0)).error_code == OK
        began = trio.current_time()
        assert (await b.fetch(0, max_wait_ms=700)).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert 0.7 <= trio.current_time() - began < 0.8

    run(scenario)


def test_an_unreadable_place_to_begin_counts_as_none():
    """Metadata of older versions may hold a duration that cannot be parsed: it must not end the broker."""
    given = {"share.auto.offset.reset": "by_duration:Pfoo", "share.delivery.count.limit": "3"}
    image = SimpleNamespace(config=lambda *_: given, features={})
    settings = group_settings(SimpleNamespace(get_int=lambda _: 100), image, "g")
    assert settings.reset_duration_ms is None
    assert (settings.reset, settings.limits.delivery_count_max) == ("latest", 3)


def test_settings_are_those_of_the_newest_metadata(monkeypatch):
    """They are remembered, each for its group, until the metadata change."""
    given = {("g", "share.delivery.count.limit"): "3"}

    def image():
        now = dict(given)
        return SimpleNamespace(
            features={}, config=lambda _, group: {name: value for (of, name), value in now.items() if of == group}
        )

    images = [image()]
    settings = CachedSettings(lambda: SimpleNamespace(get_int=lambda _: 100), lambda: images[-1])

    def counts():
        return [settings(group).limits.delivery_count_max for group in ("g", "h", "g")]

    assert counts() == [3, 100, 3]
    assert settings("g") is settings("g")
    given |= {("g", "share.delivery.count.limit"): "7", ("h", "share.delivery.count.limit"): "9"}
    assert counts() == [3, 100, 3]
    images.append(image())
    assert counts() == [7, 9, 7]
    given.clear()
    images.append(image())
    assert counts() == [100, 100, 100]
    monkeypatch.setattr(share_settings, "KNOWN_MAX", 5)
    for number in range(50):
        settings(f"group {number}")
    assert len(settings._known) <= 5, "members may name any group"


def test_deleted_records_are_forgotten():
    """DeleteRecords passes acquired records: their acknowledgement is ignored, the group goes on behind them."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        client = cluster.client(1)
        await client.produce("t", *(batch(b"%d" % n) for n in range(4)))
        assert acquired(await a.fetch(0, max_records=2, share_acquire_mode=1, max_wait_ms=1000)) == {0: [(0, 1, 1)]}
        await client.request(
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=3)])],
                timeout_ms=1000,
            )
        )
        assert codes(await a.acknowledge({0: [(0, 1, ACCEPT)]})) == {0: OK}
        assert acquired(await a.fetch()) == {0: [(3, 3, 1)]}

    run(scenario)


def test_limits_of_a_fetch():
    """Records of many partitions: the limit of records holds for all of them, and the next fetch begins elsewhere."""

    async def scenario(cluster):
        a = Member(cluster, 1, "a")
        client = cluster.client(1)
        for index in range(3):
            await client.produce("t", batch(b"x", b"y"), partition=index)
        await a.fetch(0, 1, 2, max_records=0)
        seen = []
        for _ in range(3):
            found = acquired(await a.fetch(max_records=1, max_wait_ms=1000))
            seen += [index for index, ranges in found.items() if ranges == [(0, 1, 1)]]
        assert sorted(seen) == [0, 1, 2]
        led = cluster.running[1].context.share_partitions.find("g", (a.topic_id, 0))
        assert [run[2] for run in led.core.snapshot()] == [RecordState.ACQUIRED]

    run(scenario, partitions=3)


def test_a_full_answer_does_not_wait_for_more():
    """No answer is larger than ``max_bytes``, so a higher minimum is never reached."""

    async def scenario(cluster):
        producer, member = cluster.client(1), Member(cluster, 1, "m")
        for _ in range(4):
            await producer.produce("t", batch(b"v" * 1_000))
        begun = trio.current_time()
        answer = await member.fetch(0, min_bytes=1 << 19, max_bytes=2_500, max_wait_ms=20_000)
        assert acquired(answer) == {0: [(0, 1, 1)]}
        assert trio.current_time() - begun < 10

    run(scenario)


def test_an_answer_keeps_no_records_in_memory(monkeypatch):
    """Each of a thousand members that read slowly would keep 16 MiB, outside of ``queued.max.request.bytes``."""
    kept = []
    finish = Exchange.finish

    async def observed(self, work):
        parts = await finish(self, work)
        kept.append(ready_bytes(parts))
        return parts

    monkeypatch.setattr(Exchange, "finish", observed)

    async def scenario(cluster):
        producer = cluster.client(1)
        sent = [bytes((number,)) * 50_000 for number in range(20)]
        for value in sent:
            await producer.produce("t", batch(value))
        answer = await Member(cluster, 1, "a").fetch(0, max_wait_ms=10_000, max_bytes=620_000)
        assert values(answer) == sent[:12]
        assert max(kept) < 2_000

    run(scenario)
