"""Goal: each request is answered by the rules of Kafka's protocol, and bad requests affect no other client.

Method: one broker on virtual time and a bare client.
"""

from __future__ import annotations

import random
import struct

import pytest
import trio

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
)
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import Compression
from moldau.runtime.config import ConfigSource
from moldau.values import ZERO_UUID
from support.cluster.broker_cluster import batch, decode_response, frame, read_frame, run_cluster, values_of

# --- versions ------------------------------------------------------------------------------------------------------


def test_advertised_apis_are_served_and_known() -> None:
    async def scenario(cluster) -> None:
        answer = await cluster.client(1).request(
            ApiVersionsRequest(client_software_name="t", client_software_version="1")
        )
        versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        assert versions[ApiKey.PRODUCE][0] == 0, "librdkafka 2.0 turns compression off otherwise"
        for key, (first, last) in versions.items():
            known = APIS[key].versions
            assert last <= known.last
            assert first == known.first or key == ApiKey.PRODUCE

    run_cluster(scenario)


def test_unknown_api_versions_requests_get_a_version_0_answer() -> None:
    """ApiVersions in an unknown version is answered in version 0."""

    async def scenario(cluster) -> None:
        connection = await cluster.client(1).raw()
        request = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1)
        await connection.send_all([struct.pack(">i", len(request)), request])
        answer = await read_frame(connection)
        assert answer is not None
        correlation_id, response = decode_response(ApiVersionsResponse, 0, answer)
        assert (correlation_id, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
        assert [entry.api_key for entry in response.api_keys] == [ApiKey.API_VERSIONS]

    run_cluster(scenario)


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (1, 3), (3, 99), (9999, 0), (56, 3), (-1, 0)])
def test_unserved_apis_end_only_their_own_connection(key: int, version: int) -> None:
    async def scenario(cluster) -> None:
        bystander = cluster.client(1)
        await bystander.create_topic("t")
        connection = await cluster.client(1).raw()
        request = struct.pack(">hhih", key, version, 1, -1) + bytes(40)
        await connection.send_all([struct.pack(">i", len(request)), request])
        assert await read_frame(connection) is None
        assert (await bystander.produce("t", batch(b"x"))).error_code == ErrorCode.NONE

    run_cluster(scenario)


def test_hostile_bytes_affect_no_other_client() -> None:
    """Sends random bodies with valid headers of every served API, and truncated and oversized frames."""

    async def attack(cluster, data: bytes) -> None:
        connection = await cluster.client(1).raw()
        try:
            await connection.send_all([data])
            with trio.move_on_after(1):
                while await read_frame(connection) is not None:
                    continue
        except ConnectionError:
            pass  # the broker closed the connection, as it should
        finally:
            connection.close()

    async def scenario(cluster) -> None:
        draw = random.Random(5)
        bystander = cluster.client(1)
        await bystander.create_topic("t")
        for key in sorted(APIS):
            for version in (APIS[key].versions.first, APIS[key].versions.last):
                for size in (0, 3, 40, 400):
                    body = struct.pack(">hhih", key, version, 1, -1) + draw.randbytes(size)
                    await attack(cluster, struct.pack(">i", len(body)) + body)
        good = frame(
            ProduceRequest(
                acks=-1,
                timeout_ms=1000,
                topic_data=[
                    TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch(b"v" * 50))])
                ],
            ),
            9,
        )
        for _ in range(100):
            broken = bytearray(good)
            for _ in range(draw.randrange(1, 4)):
                broken[draw.randrange(4, len(broken))] = draw.randrange(256)
            await attack(cluster, bytes(broken))
        for size in (-1, 0, 7, 0x7FFFFFFF, 200 * 1024 * 1024):
            await attack(cluster, struct.pack(">i", size) + bytes(100))
        await attack(cluster, good[: len(good) // 2])
        assert (await bystander.produce("t", batch(b"alive"))).error_code == ErrorCode.NONE

    run_cluster(scenario)


# --- produce -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_and_fetch_carries_a_record(version: int) -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        answer = await client.produce("t", batch(b"x"), version=version)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
        part = await client.fetch("t", version=max(4, version))
        assert values_of(part.records) == [b"x"]

    run_cluster(scenario)


def test_topic_ids_from_version_13() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        topic_id = cluster.image().topics_by_name.get("t").topic_id
        request = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    topic_id=topic_id, partition_data=[PartitionProduceData(index=0, records=batch(b"x"))]
                ),
                TopicProduceData(
                    topic_id=ZERO_UUID, partition_data=[PartitionProduceData(index=0, records=batch(b"x"))]
                ),
            ],
        )
        answer = await client.request(request, 13)
        codes = {topic.topic_id: topic.partition_responses[0].error_code for topic in answer.responses}
        assert codes == {topic_id: ErrorCode.NONE, ZERO_UUID: ErrorCode.UNKNOWN_TOPIC_ID}
        for version in (13, 15, 16, 17, 18):
            answer = await client.request(
                FetchRequest(
                    max_wait_ms=0,
                    topics=[
                        FetchTopic(
                            topic_id=topic_id, partitions=[FetchPartition(partition=0, partition_max_bytes=1000)]
                        ),
                        FetchTopic(topic_id=ZERO_UUID, partitions=[FetchPartition(partition=0, partition_max_bytes=9)]),
                    ],
                ),
                version,
            )
            by_id = {topic.topic_id: topic.partitions[0] for topic in answer.responses}
            assert values_of(by_id[topic_id].records) == [b"x"]
            assert by_id[ZERO_UUID].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run_cluster(scenario)


def test_acks_0_gets_no_answer_and_a_failure_closes() -> None:
    """acks=0 gets no answer, and its failure closes the connection."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        connection = await client.raw()
        for topic, closes in (("t", False), ("nowhere", True)):
            request = ProduceRequest(
                acks=0,
                timeout_ms=0,
                topic_data=[
                    TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch(b"x"))])
                ],
            )
            await connection.send_all([frame(request, 9, 1), frame(MetadataRequest(topics=[]), 9, 2)])
            answer = await read_frame(connection)
            if closes:
                assert answer is None
            else:
                assert answer is not None
                assert answer[:4] == struct.pack(">i", 2)
        assert (await client.offset("t")).offset == 1

    run_cluster(scenario)


def test_errors_of_produce() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", max_message_bytes="200")
        flipped = bytearray(batch(b"x"))
        flipped[-1] ^= 1
        expected = [
            (("nowhere", batch(b"x")), {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (("t", batch(b"x")), {"partition": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (("t", batch(b"x")), {"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
            (("t", bytes(flipped)), {}, ErrorCode.CORRUPT_MESSAGE),
            (("t", batch(b"x" * 500)), {}, ErrorCode.MESSAGE_TOO_LARGE),
            (("t", batch(b"x", compression=Compression.ZSTD)), {"version": 6}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            (
                ("t", batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)),
                {},
                ErrorCode.INVALID_TXN_STATE,
            ),
        ]
        for arguments, more, error in expected:
            assert (await client.produce(*arguments, **more)).error_code == error
        assert (await client.offset("t")).offset == 0, "nothing was appended"
        sent = batch(b"x", compression=Compression.ZSTD)
        assert (await client.produce("t", sent, version=7)).error_code == ErrorCode.NONE

    run_cluster(scenario)


def test_an_idempotent_producer_is_deduplicated() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        ids = [
            (
                await client.request(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
            ).producer_id
            for _ in range(3)
        ]
        assert len(set(ids)) == 3
        first = batch(b"x", producer_id=ids[0], producer_epoch=0, base_sequence=0)
        assert (await client.produce("t", first)).base_offset == 0
        again = await client.produce("t", first)
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        gap = batch(b"z", producer_id=ids[0], producer_epoch=0, base_sequence=5)
        assert (await client.produce("t", gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await client.offset("t")).offset == 1
        names = {"t": [0, 9], "a/b": [0]}
        asked = [TopicRequest(name=name, partition_indexes=indexes) for name, indexes in names.items()]
        described = await client.request(DescribeProducersRequest(topics=asked))
        ok, missing = described.topics[0].partitions
        assert described.topics[1].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert [p.producer_id for p in ok.active_producers] == [ids[0]]
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_cluster(scenario)


def test_each_replica_describes_its_producers() -> None:
    """Kafka's ``find-hanging --broker-id`` asks a broker about the partitions that it follows too."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2)
        await client.create_topic("alone")
        answer = await client.request(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        records = batch(b"x", producer_id=answer.producer_id, producer_epoch=0, base_sequence=0)
        leaders = {name: await cluster.leader(name) for name in ("t", "alone")}
        assert (await cluster.client(leaders["t"]).produce("t", records, acks=-1)).base_offset == 0
        follower = 3 - leaders["t"]
        asked = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
        for broker in (leaders["t"], follower):
            (found,) = (await cluster.client(broker).request(asked)).topics[0].partitions
            assert [each.producer_id for each in found.active_producers] == [answer.producer_id]
        asked = DescribeProducersRequest(topics=[TopicRequest(name="alone", partition_indexes=[0])])
        (found,) = (await cluster.client(3 - leaders["alone"]).request(asked)).topics[0].partitions
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_cluster(scenario, brokers=2)


# --- fetch ---------------------------------------------------------------------------------------------------------


def test_a_long_poll_ends_with_records_or_with_time() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        begin = trio.current_time()
        part = await client.fetch("t", max_wait_ms=400)
        assert not part.records
        assert trio.current_time() - begin == pytest.approx(0.4, abs=0.1)
        got = []

        async def poll() -> None:
            got.append(await cluster.client(1).fetch("t", max_wait_ms=60_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.sleep(0.5)
            begin = trio.current_time()
            await client.produce("t", batch(b"x"))
        assert trio.current_time() - begin < 0.2
        assert values_of(got[0].records) == [b"x"]

    run_cluster(scenario)


def test_min_bytes_waits_for_enough() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        got = []

        async def poll() -> None:
            got.append(await cluster.client(1).fetch("t", max_wait_ms=60_000, min_bytes=300))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            for _ in range(3):
                await trio.sleep(0.1)
                assert not got
                await client.produce("t", batch(b"x" * 50))
        assert 300 <= len(got[0].records) < 600

    run_cluster(scenario)


def test_limits_give_at_least_one_batch_and_not_much_more() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await client.produce("t", batch(b"a" * 1000), batch(b"b" * 1000), batch(b"c" * 1000))
        assert values_of((await client.fetch("t", partition_max_bytes=10)).records) == [b"a" * 1000]
        assert values_of((await client.fetch("t", max_bytes=10)).records) == [b"a" * 1000]
        assert len(values_of((await client.fetch("t", partition_max_bytes=2500)).records)) == 2

    run_cluster(scenario)


def test_fetch_errors() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await client.produce("t", batch(b"x"))
        expected = [
            (("t", 9), {}, ErrorCode.OFFSET_OUT_OF_RANGE),
            (("t", -5), {}, ErrorCode.OFFSET_OUT_OF_RANGE),
            (("nowhere", 0), {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (("t", 0), {"partition": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (("t", 0), {"current_leader_epoch": 7}, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (("t", 1), {"last_fetched_epoch": 9}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ]
        for arguments, more, error in expected:
            assert (await client.fetch(*arguments, **more)).error_code == error

    run_cluster(scenario)


def test_a_fetch_session_answers_only_news() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=3)
        first = await client.request(
            FetchRequest(
                max_wait_ms=0,
                session_epoch=0,
                topics=[FetchTopic(topic="t", partitions=[_wanted(index) for index in range(3)])],
            ),
            12,
        )
        assert first.session_id > 0
        assert len(first.responses[0].partitions) == 3
        idle = await client.request(FetchRequest(max_wait_ms=0, session_id=first.session_id, session_epoch=1), 12)
        assert (idle.session_id, len(idle.responses)) == (first.session_id, 0)
        await client.produce("t", batch(b"x"), partition=1)
        news = await client.request(FetchRequest(max_wait_ms=0, session_id=first.session_id, session_epoch=2), 12)
        assert [p.partition_index for p in news.responses[0].partitions] == [1]
        forget = FetchRequest(
            max_wait_ms=0,
            session_id=first.session_id,
            session_epoch=3,
            forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[1])],
        )
        assert len((await client.request(forget, 12)).responses) == 0
        stale = await client.request(FetchRequest(max_wait_ms=0, session_id=first.session_id, session_epoch=3), 12)
        assert stale.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH

    run_cluster(scenario)


def _wanted(partition: int) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1000)


def test_a_connection_that_dies_takes_its_waiting_fetch_along() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        waiters = cluster.running[1].context.replicas.waits.fetches.purgatory
        before = len(waiters)
        connection = await client.raw()
        request = FetchRequest(
            max_wait_ms=500_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[_wanted(0)])]
        )
        await connection.send_all([frame(request, 12, 1), frame(request, 12, 2)])
        await trio.sleep(0.1)
        assert len(waiters) == before + 2
        connection.close()
        await trio.sleep(0.1)
        assert len(waiters) == before
        # A session that another request ends hears of no change any more, so its waiting fetch is answered then.
        topics = [FetchTopic(topic="t", partitions=[_wanted(0)])]
        opening = FetchRequest(max_wait_ms=0, session_epoch=0, topics=topics)
        session = (await client.request(opening, 12)).session_id
        connection = await client.raw()
        waiting = FetchRequest(max_wait_ms=500_000, min_bytes=1, session_id=session, session_epoch=1)
        await connection.send_all([frame(waiting, 12, 1)])
        await trio.sleep(0.1)
        assert len(waiters) == before + 1
        await client.request(FetchRequest(max_wait_ms=0, session_id=session, session_epoch=-1, topics=topics), 12)
        await trio.sleep(0.1)
        assert len(waiters) == before
        connection.close()

    run_cluster(scenario)


# --- offsets -------------------------------------------------------------------------------------------------------


def test_offsets_by_time_and_epoch() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        for timestamp in (1000, 2000, 3000):
            await client.produce("t", batch(b"x", timestamp=timestamp))
        for timestamp, offset in ((-1, 3), (-2, 0), (-4, 0), (-3, 2), (1500, 1), (3001, -1), (0, 0), (-5, -1)):
            assert (await client.offset("t", timestamp)).offset == offset, timestamp
        assert (await client.offset("t", -77)).error_code == ErrorCode.UNSUPPORTED_VERSION
        request = OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic="t",
                    partitions=[
                        OffsetForLeaderPartition(partition=0, leader_epoch=0),
                        OffsetForLeaderPartition(partition=0, leader_epoch=0, current_leader_epoch=8),
                        OffsetForLeaderPartition(partition=7, leader_epoch=0),
                    ],
                )
            ]
        )
        ends = (await client.request(request)).topics[0].partitions
        assert (ends[0].leader_epoch, ends[0].end_offset) == (0, 3)
        assert ends[1].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert ends[2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_cluster(scenario)


def test_deleted_records_are_gone() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2)
        leader = cluster.client(await cluster.leader("t"))
        await leader.produce("t", *(batch(b"%d" % n) for n in range(5)))

        async def delete(offset: int):
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
                ],
                timeout_ms=5000,
            )
            return (await leader.request(request)).topics[0].partitions[0]

        done = await delete(3)
        assert (done.error_code, done.low_watermark) == (ErrorCode.NONE, 3)
        assert (await leader.offset("t", -2)).offset == 3
        assert (await leader.fetch("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete(77)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete(-1)).low_watermark == 5
        for broker_id in cluster.broker_ids:
            assert cluster.replica(broker_id, "t").log.log_start_offset == 5

    run_cluster(scenario, brokers=2)


# --- cluster and configuration -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_every_version(version: int) -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2, partitions=2)
        answer = await client.request(MetadataRequest(topics=[] if version == 0 else None), version)
        assert sorted((broker.node_id, broker.host) for broker in answer.brokers) == [(1, "b1"), (2, "b2")]
        assert [topic.name for topic in answer.topics] == ["t"]
        assert [sorted(partition.isr_nodes) for partition in answer.topics[0].partitions] == [[1, 2], [1, 2]]
        if version >= 2:
            assert answer.cluster_id == cluster.image().cluster_id
        if version >= 10:
            assert answer.topics[0].topic_id == cluster.image().topics_by_name.get("t").topic_id

    run_cluster(scenario, brokers=2)


def test_unknown_topics_in_metadata() -> None:
    async def scenario(cluster) -> None:
        answer = await cluster.client(1).metadata("nowhere", "bad name")
        assert [topic.error_code for topic in answer.topics] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]

    run_cluster(scenario)


def test_describe_cluster_and_topic_partitions_page_by_page() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        for name in ("a", "b"):
            await client.create_topic(name, partitions=3)
        described = await client.request(DescribeClusterRequest())
        assert [broker.broker_id for broker in described.brokers] == [1]
        assert (await client.request(DescribeClusterRequest(endpoint_type=2), 1)).error_code != ErrorCode.NONE
        seen, cursor = [], None
        for _ in range(10):
            page = await client.request(DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor))
            seen += [(topic.name, part.partition_index) for topic in page.topics for part in topic.partitions]
            if page.next_cursor is None:
                break
            cursor = DescribeTopicPartitionsRequestCursor(
                topic_name=page.next_cursor.topic_name, partition_index=page.next_cursor.partition_index
            )
        assert seen == [(name, index) for name in "ab" for index in range(3)]
        page = await client.request(DescribeTopicPartitionsRequest(response_partition_limit=2000))
        assert [len(topic.partitions) for topic in page.topics] == [3, 1], "the broker's own limit is lower"

    run_cluster(scenario, max_request_partition_size_limit="4")


def test_topic_configuration_is_described_changed_and_obeyed() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", retention_ms="5000")

        async def described(name: str):
            request = DescribeConfigsRequest(
                resources=[DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=[name])],
                include_synonyms=True,
            )
            return (await client.request(request)).results[0].configs[0]

        retention = await described("retention.ms")
        assert (retention.value, retention.config_source) == ("5000", 1)
        assert (await described("max.message.bytes")).config_source == 5
        change = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=2,
                    resource_name="t",
                    configs=[AlterableConfig(name="max.message.bytes", config_operation=0, value="100")],
                )
            ]
        )
        assert (await client.request(change)).responses[0].error_code == ErrorCode.NONE
        assert (await described("max.message.bytes")).value == "100"
        assert (await client.produce("t", batch(b"x" * 200))).error_code == ErrorCode.MESSAGE_TOO_LARGE

    run_cluster(scenario)


def test_broker_configs_hide_secrets_and_refuse_other_brokers() -> None:
    """DescribeConfigs hides secrets, and refuses to describe another broker."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None),
                DescribeConfigsResource(resource_type=4, resource_name="7"),
                DescribeConfigsResource(resource_type=2, resource_name="nowhere"),
                DescribeConfigsResource(resource_type=99, resource_name="x"),
            ]
        )
        own, other, topic, unknown = (await client.request(request)).results
        values = {config.name: config for config in own.configs}
        assert values["node.id"].value == "1"
        assert values["node.id"].read_only
        assert all(config.value is None for config in own.configs if config.is_sensitive)
        assert other.error_code == ErrorCode.INVALID_REQUEST
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.error_code == ErrorCode.INVALID_REQUEST

    run_cluster(scenario)


def test_sources_of_a_brokers_values_and_of_one_listeners() -> None:
    """DescribeConfigs names the sources of a broker's values, also of the values of one listener."""
    own, secret = "listener.name.plaintext.ssl.client.auth", "listener.name.plaintext.ssl.key.password"

    async def scenario(cluster) -> None:
        resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        (described,) = (await cluster.client(1).request(request)).results
        values = {config.name: config for config in described.configs}

        def reported(name):
            return [(each.name, each.value, ConfigSource(each.source)) for each in values[name].synonyms]

        static, default = ConfigSource.STATIC_BROKER, ConfigSource.DEFAULT
        assert reported("ssl.client.auth") == [
            ("ssl.client.auth", "requested", static),
            ("ssl.client.auth", "none", default),
        ]
        assert reported(own) == [(own, "none", static), *reported("ssl.client.auth")]
        assert (values[own].value, values[own].config_source, values[own].read_only) == ("none", static, False)
        assert (values[secret].value, values[secret].is_sensitive) == (None, True)
        assert all(value is None for _, value, _ in reported(secret))
        assert reported("log.retention.ms")[-1][2] is default

    settings = {own: "none", secret: "s3cr3t", "ssl.client.auth": "requested"}
    run_cluster(scenario, **settings)


def test_log_directories_are_described() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await client.produce("t", batch(b"x" * 100))
        result = (await client.request(DescribeLogDirsRequest(topics=None))).results[0]
        assert (result.error_code, result.log_dir) == (ErrorCode.NONE, "/data")
        assert result.topics[0].partitions[0].partition_size > 100

    run_cluster(scenario)


def test_coordinators_are_found() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        for version in (0, 3, 4):
            request = FindCoordinatorRequest(key="g", coordinator_keys=["g"])
            answer = await client.request(request, version)
            found = answer.coordinators[0] if version >= 4 else answer
            assert (found.error_code, found.node_id, found.host) == (ErrorCode.NONE, 1, "b1")
        answer = await client.request(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 4)
        assert (answer.coordinators[0].error_code, answer.coordinators[0].node_id) == (ErrorCode.NONE, 1)
        many = [f"g-{number}" for number in range(2_500)]
        answer = await client.request(FindCoordinatorRequest(coordinator_keys=many), 4)
        assert [one.key for one in answer.coordinators] == many, "every key has an answer"
        answer = await client.request(FindCoordinatorRequest(key_type=2, coordinator_keys=["share"]), 6)
        assert answer.coordinators[0].error_code == ErrorCode.INVALID_REQUEST

    run_cluster(scenario)
