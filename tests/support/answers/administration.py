"""Administration of the cluster: elections, moves, log directories, features, the quorum, and the cluster's nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.messages.sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from support.answers.topics import made

if TYPE_CHECKING:
    from support.answers.session import AnswerSession


def election(kind: int, *parts: tuple[str, list[int]]) -> ElectLeadersRequest:
    """Returns a request to elect the preferred leaders (0), or any replica that lives (1)."""
    asked = [TopicPartitions(topic=topic, partitions=partitions) for topic, partitions in parts]
    return ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=5_000)


def move(
    topic: str, replicas: list[int] | None, partition: int = 0, **fields: bool
) -> AlterPartitionReassignmentsRequest:
    """Returns a request to move a partition; None cancels a move."""
    part = ReassignablePartition(partition_index=partition, replicas=replicas)
    topics = [ReassignableTopic(name=topic, partitions=[part])]
    return AlterPartitionReassignmentsRequest(timeout_ms=5_000, topics=topics, **fields)


async def administration(session: AnswerSession) -> None:
    """Asks for what an operator asks for, of one broker with a controller."""
    name, _ = await made(session, "administered", 2)
    unknown = session.name("unknown")
    await _elections(session, name, unknown)
    await _moves(session, name, unknown)
    await _directories(session, name, unknown)
    await _cluster(session)


async def _elections(session: AnswerSession, name: str, unknown: str) -> None:
    cases = {
        "of the preferred leader": election(0, (name, [0])),
        "of any replica": election(1, (name, [0])),
        "of an unknown topic": election(0, (unknown, [0]), (name, [9])),
        "of nothing": election(0),
    }
    for version in (0, 1, 2):
        await session.ask_all(f"election, version {version}", cases, version)


async def _moves(session: AnswerSession, name: str, unknown: str) -> None:
    cases = {
        "to where it is": move(name, [1]),
        "cancelled that was not begun": move(name, None),
        "to nowhere": move(name, []),
        "to a broker twice": move(name, [1, 1]),
        "to an unknown broker": move(name, [9]),
        "to broker -1": move(name, [-1]),
        "with another number of replicas": move(name, [1, 9], allow_replication_factor_change=False),
        "of an unknown topic": move(unknown, [1]),
        "of an unknown partition": move(name, [1], 9),
        "of a topic without a name": move("", [1]),
        "of nothing": AlterPartitionReassignmentsRequest(timeout_ms=5_000, topics=[]),
    }
    await session.ask_all("move", cases)
    some = [ListPartitionReassignmentsTopics(name=each, partition_indexes=[0]) for each in (name, unknown)]
    lists = {
        "all": ListPartitionReassignmentsRequest(topics=None),
        "some": ListPartitionReassignmentsRequest(topics=some),
        "none": ListPartitionReassignmentsRequest(topics=[]),
    }
    await session.ask_all("moves", lists)


async def _directories(session: AnswerSession, name: str, unknown: str) -> None:
    asked = [
        DescribableLogDirTopic(topic=name, partitions=[0, 9]),
        DescribableLogDirTopic(topic=unknown, partitions=[0]),
    ]
    for version in range(1, 6):
        await session.ask(f"directories with version {version}", DescribeLogDirsRequest(topics=asked), version)
    topics = [AlterReplicaLogDirTopic(name=name, partitions=[0])]
    moves = {
        "to an unknown directory": [AlterReplicaLogDir(path="/nowhere", topics=topics)],
        "to a relative path": [AlterReplicaLogDir(path="nowhere", topics=topics)],
        "nothing": [],
    }
    await session.ask_all(
        "directory", {step: AlterReplicaLogDirsRequest(dirs=directories) for step, directories in moves.items()}
    )


async def _cluster(session: AnswerSession) -> None:
    for version in (0, 1, 2):
        await session.ask(f"cluster with version {version}", DescribeClusterRequest(), version)
    for kind in (2, 9):
        await session.ask(f"cluster of kind {kind}", DescribeClusterRequest(endpoint_type=kind), 2)

    def feature(name: str, level: int, how: int = 1) -> UpdateFeaturesRequest:
        update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=how)
        return UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=[update], validate_only=True)

    features = {
        "that is unknown": feature("nope", 1),
        "at an unknown level": feature("metadata.version", 99),
        "at level -1": feature("metadata.version", -1),
        "without a name": feature("", 1),
        "changed in an unknown way": feature("metadata.version", 7, 9),
    }
    await session.ask_all("feature", features, 2)

    def quorum(topic: str, partition: int) -> DescribeQuorumRequest:
        partitions = [DescribeQuorumRequestPartitionData(partition_index=partition)]
        return DescribeQuorumRequest(topics=[DescribeQuorumRequestTopicData(topic_name=topic, partitions=partitions)])

    others = {
        "the quorum of partition 1": quorum("__cluster_metadata", 1),
        "the quorum of another topic": quorum("x", 0),
        "remove an unknown broker": UnregisterBrokerRequest(broker_id=9),
        "remove broker -1": UnregisterBrokerRequest(broker_id=-1),
        "a login without a mechanism": SaslHandshakeRequest(mechanism="PLAIN"),
        "a login that was not begun": SaslAuthenticateRequest(auth_bytes=b"x"),
    }
    await session.ask_all("ask for", others)
    software = {
        "usual": ApiVersionsRequest(client_software_name="a", client_software_version="1"),
        "without a name": ApiVersionsRequest(client_software_name="", client_software_version="1"),
        "with a bad name": ApiVersionsRequest(client_software_name="a b", client_software_version="1"),
        "with a bad version": ApiVersionsRequest(client_software_name="a", client_software_version="-"),
    }
    for step, request in software.items():
        answer = await session.ask(f"versions for software {step}", request, 3)
        session.answers[f"versions for software {step}"] = session.comparable(answer.error_code, "error_code")
