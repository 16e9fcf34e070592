"""Goal: clients of both levels of ``transaction.version`` work, on clusters of either level and while it changes.

Kafka's clients depend on the level: from 2 on they add no partitions to their transactions (KIP-890). Method: tables of
served levels; producers and raw requests against brokers on virtual time.
"""

from __future__ import annotations

import pytest
import trio

from moldau.admin import Admin
from moldau.consumer import Consumer
from moldau.producer import Producer, ProducerFencedError
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau_broker.coordinator.runtime.effects import Marker
from moldau_broker.coordinator.runtime.effects import TransactionalProducer as ProducerIdentity
from moldau_broker.server.handlers.apis import BASE_APIS
from moldau_quorum.controller.cluster.features import (
    INITIAL_FEATURES,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
    unsupported_level,
)
from support.cluster.broker_cluster import batch, run_cluster


def test_level_2_is_supported_only_where_its_requests_are_served() -> None:
    last = {api.key: api.last_version for api in BASE_APIS}
    served = last[ApiKey.END_TXN] >= 5 and last[ApiKey.TXN_OFFSET_COMMIT] >= 5 and last[ApiKey.WRITE_TXN_MARKERS] >= 2
    assert (SUPPORTED_FEATURES[TRANSACTION_VERSION][1] >= 2) == served
    assert INITIAL_FEATURES[TRANSACTION_VERSION] == SUPPORTED_FEATURES[TRANSACTION_VERSION][1]
    assert last[ApiKey.ADD_PARTITIONS_TO_TXN] >= 5, "brokers add partitions"
    assert unsupported_level({TRANSACTION_VERSION: 3}, SUPPORTED_FEATURES) is not None


async def reported(cluster, broker_id: int) -> tuple[int, int]:
    """Returns the level in force and the highest supported level, as reported to clients."""
    answer = await cluster.client(broker_id).request(
        ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4
    )
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    supported = {feature.name: feature.max_version for feature in answer.supported_features}
    return finalized.get(TRANSACTION_VERSION, 0), supported[TRANSACTION_VERSION]


def config(cluster, **more) -> dict[str, object]:
    return {"bootstrap.servers": ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids), **more}


async def set_level(cluster, level: int) -> None:
    lowers = any(image.features.get(TRANSACTION_VERSION, 0) > level for image in images(cluster))
    async with Admin(config(cluster), environment=cluster.client_environment) as admin:
        await admin.update_features({TRANSACTION_VERSION: level}, allow_downgrade=lowers)
    await cluster.until(lambda: all(image.features.get(TRANSACTION_VERSION, 0) == level for image in images(cluster)))


def images(cluster):
    return [cluster.running[broker_id].metadata.image for broker_id in cluster.running]


def state_of(cluster, topic: str, producer_id: int):
    """Returns what the leader of partition 0 knows of a producer."""
    found = [cluster.replica(broker_id, topic) for broker_id in cluster.running]
    leader = next(replica for replica in found if replica is not None and replica.is_leader)
    return leader.log.producer_state.describe_producer(producer_id)


def test_a_producer_follows_the_level_between_transactions() -> None:
    """Goes 2, 1, 0, 2: the epoch rises with each transaction at level 2 and with the step up, and nothing is lost."""

    async def scenario(cluster) -> None:
        assert await reported(cluster, 1) == (2, 2)
        await cluster.client(1).create_topic("t", replicas=1)
        sent: list[bytes] = []
        epochs: list[tuple[int, int]] = []
        settings = config(cluster, **{"transactional.id": "id", "metadata.max.age.ms": 200})
        async with Producer(settings, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
            manager = producer._transactions.manager
            for level in (2, 1, 0, 2):
                await set_level(cluster, level)
                await cluster.until(lambda level=level: producer._client.feature_level(TRANSACTION_VERSION) == level)
                for number in range(2):
                    producer.begin_transaction()
                    sent.append(b"%d-%d" % (level, number))
                    await producer.send("t", sent[-1])
                    await producer.send_offsets_to_transaction({("t", 0): len(sent)}, "g")
                    await producer.commit_transaction()
                    epochs.append((manager.level, manager.producer_epoch))
        assert epochs == [(2, 1), (2, 2), (1, 2), (1, 2), (1, 2), (1, 2), (2, 4), (2, 5)]
        assert await committed_values(cluster) == sent
        async with Admin(config(cluster), environment=cluster.client_environment) as admin:
            assert (await admin.list_group_offsets("g"))["t", 0].offset == len(sent)

    run_cluster(scenario)


async def committed_values(cluster) -> list[bytes]:
    settings = config(cluster, **{"auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    async with Consumer(settings, environment=cluster.client_environment) as consumer:
        consumer.assign([("t", 0)])
        end = (await consumer.end_offsets([("t", 0)]))["t", 0]
        found: list[bytes] = []
        with trio.fail_after(30):
            while (consumer.position_nowait(("t", 0)) or 0) < end:
                for chunk in await consumer.poll(200):
                    found += [bytes(record.value) for record in chunk.records]
    return found


def produce_of(producer_id: int, epoch: int, sequence: int) -> ProduceRequest:
    records = batch(b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
    return ProduceRequest(
        transactional_id="id",
        acks=-1,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])],
    )


def offsets_of(producer_id: int, epoch: int) -> TxnOffsetCommitRequest:
    offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[offset])]
    return TxnOffsetCommitRequest(
        transactional_id="id", group_id="g", producer_id=producer_id, producer_epoch=epoch, topics=topics
    )


def test_late_requests_are_refused_by_their_epoch() -> None:
    """Requests of an ended transaction find their epoch over: in its partitions, in others and at the coordinators."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=1)
        settings = config(cluster, **{"transactional.id": "id"})
        async with Producer(settings, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
            manager = producer._transactions.manager
            producer_id = manager.producer_id

            async def code(request: ProduceRequest, version: int = 12) -> ErrorCode:
                answer = await client.request(request, version)
                return ErrorCode(answer.responses[0].partition_responses[0].error_code)

            assert await code(produce_of(producer_id, 0, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            producer.begin_transaction()
            await producer.send_offsets_to_transaction({("t", 0): 5}, "g")
            await producer.abort_transaction()
            assert manager.producer_epoch == 1
            # The partition has no state of the producer, so the coordinator refuses; at level 1 it would be asked too.
            assert await code(produce_of(producer_id, 0, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
            assert await code(produce_of(producer_id, 0, 0), 11) is ErrorCode.INVALID_PRODUCER_EPOCH
            for version in (4, 5):
                answer = await client.request(offsets_of(producer_id, 0), version)
                assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
            end = EndTxnRequest(transactional_id="id", producer_id=producer_id, producer_epoch=0, committed=True)
            producer.begin_transaction()
            await producer.send("t", b"kept")
            await producer.flush()
            assert (await client.request(end, 5)).error_code == ErrorCode.PRODUCER_FENCED
            assert (await client.request(end, 4)).error_code == ErrorCode.PRODUCER_FENCED
            assert await code(produce_of(producer_id, 0, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
            await producer.commit_transaction()
            assert state_of(cluster, "t", producer_id).producer_epoch == 2
        assert await committed_values(cluster) == [b"kept"]

    run_cluster(scenario)


def test_a_late_copy_of_a_marker_ends_no_later_transaction() -> None:
    """Markers to other brokers state the level. Without it, the copy looks like the end of the next transaction."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=1)
        leader = await cluster.leader("t")
        settings = config(cluster, **{"transactional.id": "id"})
        async with Producer(settings, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
            manager = producer._transactions.manager
            async with producer.transaction():
                await producer.send("t", b"first")
            producer.begin_transaction()
            await producer.send("t", b"unfinished")
            await producer.flush()
            known = state_of(cluster, "t", manager.producer_id)
            assert known.current_transaction_start_offset >= 0
            identity = ProducerIdentity(producer_id=manager.producer_id, producer_epoch=manager.producer_epoch)
            copy = Marker(
                producer=identity, coordinator_epoch=known.coordinator_epoch, commit=True, transaction_version=2
            )
            codes = await cluster.running[3 - leader].context.markers.write_markers(copy, (("t", 0),))
            assert codes == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
            await producer.abort_transaction()
        assert await committed_values(cluster) == [b"first"]

    run_cluster(scenario, brokers=2)


def test_an_old_client_is_verified_and_its_late_batch_refused() -> None:
    """A client of level 1 that adds no partition opens no transaction; the code depends on the version of Produce."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=1)
        settings = config(cluster, **{"transactional.id": "id"})
        async with Producer(settings, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
            producer_id = producer._transactions.manager.producer_id
            for version, expected in ((9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)):
                answer = await client.request(produce_of(producer_id, 0, 0), version)
                assert answer.responses[0].partition_responses[0].error_code == expected
            for version, expected in ((3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)):
                answer = await client.request(offsets_of(producer_id, 0), version)
                assert answer.topics[0].partitions[0].error_code in (expected, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            assert state_of(cluster, "t", producer_id) is None

    run_cluster(scenario)


def test_a_timed_out_transaction_can_be_aborted_at_level_2() -> None:
    """The coordinator's abort raised the epoch; the client's own abort returns it, and the producer goes on."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=1)
        settings = config(cluster, **{"transactional.id": "id", "transaction.timeout.ms": 1_000})
        async with Producer(settings, environment=cluster.client_environment) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"late")
            await producer.flush()
            await trio.sleep(5)
            await producer.abort_transaction()
            producer.begin_transaction()
            await producer.send("t", b"next")
            await producer.commit_transaction()
            producer.begin_transaction()
            await producer.send("t", b"late again")
            await producer.flush()
            await trio.sleep(5)
            with pytest.raises(ProducerFencedError):
                await producer.commit_transaction()
        assert await committed_values(cluster) == [b"next"]

    run_cluster(scenario)
