"""Goal: the newest versions of Kafka 4.4's requests do what they add.

Method: requests as a client of Kafka 4.4 sends them, to a broker on virtual time.
"""

from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from support.cluster.broker_cluster import Cluster, run_cluster
from support.cluster.transactional_client import TransactionalProducer

EARLIEST_PENDING_UPLOAD = -6


def test_no_offset_waits_for_an_upload_to_tiered_storage() -> None:
    """ListOffsets 11: without tiered storage the answer is no offset; older versions do not know the question."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        partition = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST_PENDING_UPLOAD)
        asked = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])])
        found = (await client.request(asked, 11)).topics[0].partitions[0]
        assert (found.error_code, found.timestamp, found.offset, found.leader_epoch) == (0, -1, -1, -1)
        refused = (await client.request(asked, 10)).topics[0].partitions[0]
        assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION

    run_cluster(scenario)


def test_a_client_of_another_cluster_is_sent_away() -> None:
    """ApiVersions 5 (KIP-1242): a client whose metadata are of another cluster or broker starts again."""

    async def scenario(cluster: Cluster) -> None:
        client, cluster_id = cluster.client(1), cluster.image().cluster_id

        async def code(cluster_id: str | None, node_id: int, version: int = 5) -> ErrorCode:
            request = ApiVersionsRequest(
                client_software_name="t", client_software_version="1", cluster_id=cluster_id, node_id=node_id
            )
            answer = await client.request(request, version)
            assert bool(answer.api_keys) is (answer.error_code == ErrorCode.NONE)
            return ErrorCode(answer.error_code)

        assert await code(None, -1) is ErrorCode.NONE
        assert await code(cluster_id, 1) is ErrorCode.NONE
        assert await code(cluster_id, 2) is ErrorCode.REBOOTSTRAP_REQUIRED
        assert await code("another", 1) is ErrorCode.REBOOTSTRAP_REQUIRED
        assert await code(cluster_id, -1) is ErrorCode.INVALID_REQUEST
        assert await code(None, 1) is ErrorCode.INVALID_REQUEST
        assert await code("another", 1, version=4) is ErrorCode.NONE, "older versions do not carry the fields"

    run_cluster(scenario)


@pytest.mark.parametrize("software", [("", "1"), ("t", ""), ("-t", "1"), ("a b", "1"), ("t", "1."), ("t\n", "1")])
def test_the_name_of_a_client_has_a_form(software: tuple[str, str]) -> None:
    """Metrics and logs show it, so that brokers take letters, digits, dots and dashes only (KIP-511)."""
    name, version = software

    async def scenario(cluster: Cluster) -> None:
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        client = cluster.client(1)
        assert (await client.request(request, 3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await client.request(request, 2)).error_code == ErrorCode.NONE, "older versions do not carry it"

    run_cluster(scenario)


def test_the_description_of_apis_follows_the_metadata() -> None:
    """ApiVersions is encoded once for each version and state of the metadata; correlation ids differ."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)

        async def described(version: int) -> ApiVersionsResponse:
            request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
            return await client.request(request, version)

        before = await described(3)
        assert before == await described(3), "the client checks that the answer is that of its request"
        assert [key.api_key for key in (await described(0)).api_keys] == [key.api_key for key in before.api_keys]
        await client.create_topic("t")
        await cluster.leader("t")
        after = await described(3)
        assert after.finalized_features_epoch > before.finalized_features_epoch
        assert after.api_keys == before.api_keys

    run_cluster(scenario)


def test_offsets_of_transactions_name_topics_by_id() -> None:
    """TxnOffsetCommit 6 (KIP-1319)."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        topic_id = cluster.image().topics_by_name["t"].topic_id
        producer = TransactionalProducer(cluster, "tx")
        await producer.begin()
        client = await producer.coordinator("g", 0)

        async def commit(topic_id: UUID, **member: object) -> tuple[UUID, ErrorCode]:
            part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
            request = TxnOffsetCommitRequest(
                transactional_id="tx",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id="g",
                topics=[TxnOffsetCommitRequestTopic(topic_id=topic_id, partitions=[part])],
                **member,
            )
            again = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            while (topic := (await client.request(request, 6)).topics[0]).partitions[0].error_code in again:
                pass
            return topic.topic_id, ErrorCode(topic.partitions[0].error_code)

        assert await commit(UUID(int=99)) == (UUID(int=99), ErrorCode.UNKNOWN_TOPIC_ID)
        assert (await commit(topic_id, generation_id=3, member_id="m"))[1] is ErrorCode.GROUP_ID_NOT_FOUND
        assert await commit(topic_id) == (topic_id, ErrorCode.NONE)
        assert await producer.end(commit=True) is ErrorCode.NONE
        wanted = OffsetFetchRequestGroup(
            group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        fetched = await client.request(OffsetFetchRequest(groups=[wanted], require_stable=True), 8)
        assert fetched.groups[0].topics[0].partitions[0].committed_offset == 7

    run_cluster(scenario)


def test_a_refused_deletion_of_a_group_says_why() -> None:
    """DeleteGroups 3."""

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        coordinator = await TransactionalProducer(cluster, "tx").coordinator("none", 0)
        (result,) = (await coordinator.request(DeleteGroupsRequest(groups_names=["none"]), 3)).results
        assert result.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert result.error_message == "The group has neither members nor committed offsets."
        (result,) = (await coordinator.request(DeleteGroupsRequest(groups_names=["none"]), 2)).results
        assert result.error_message is None

    run_cluster(scenario)
