"""Moves of partitions between brokers and directories, elections, and requests that only brokers send."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
)
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.answers.administration import election, move
from support.answers.records import batch, fetch, produce
from support.answers.session import PATIENCE_S
from support.answers.several.leaders import NONE, epochs
from support.answers.several.topics import placed
from support.answers.topics import WAIT_MS

if TYPE_CHECKING:
    from uuid import UUID

    from support.answers.several.session import ClusterSession

PAUSE_S: Final = 0.1


async def moves(cluster: ClusterSession) -> None:
    """Moves, elects, and asks for what a client must not have."""
    await _reassigned(cluster)
    await _refused(cluster)
    await _elected(cluster)
    await _enlarged(cluster)
    await _directories(cluster)
    await _of_brokers(cluster)


async def _metadata(cluster: ClusterSession, step: str, name: str) -> None:
    for node in cluster.cluster.addresses:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        await cluster.at(node).ask(f"{step}, by broker {node}", asked, transient=NONE)


async def _moved(cluster: ClusterSession, name: str, replicas: list[int], leader: int) -> None:
    """Waits until a move is over, and known to all brokers."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    for node in cluster.cluster.addresses:
        with trio.fail_after(PATIENCE_S):
            while True:
                [topic] = (await cluster.at(node).ask("settling", asked)).topics
                cluster.answers.pop("settling")
                [part] = topic.partitions
                found = (list(part.replica_nodes), sorted(part.isr_nodes), part.leader_id)
                if found == (replicas, sorted(replicas), leader):
                    break
                await trio.sleep(PAUSE_S)


async def _reassigned(cluster: ClusterSession) -> None:
    name, topic_id = await placed(cluster, "moved", [[1, 2]])
    await cluster.at(1).ask("moved: produce", produce(name, (0, batch(3))), 12)
    for step, replicas, leader in (("to one more", [1, 2, 3], 1), ("to another", [3, 2], 3), ("to one", [2], 2)):
        await cluster.at(3).ask(f"move: {step}", move(name, replicas))
        await _moved(cluster, name, replicas, leader)
        await _metadata(cluster, f"moved {step}", name)
        await _asked_everywhere(cluster, step, name, topic_id)
    some = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 1])]
    await cluster.at(2).ask("moves of a topic", ListPartitionReassignmentsRequest(topics=some))


async def _asked_everywhere(cluster: ClusterSession, step: str, name: str, topic_id: UUID) -> None:
    """Old and new leaders are asked with old, present and future epochs."""
    for node in cluster.cluster.addresses:
        session = cluster.at(node)
        for epoch in (-1, 0, 1, 2, 9):
            where = f"moved {step}: broker {node}, epoch {epoch}"
            for version in (12, 18):
                request = fetch(name, topic_id, (0, epoch, 0, -1), max_wait_ms=0)
                await session.ask(f"{where}: fetch, version {version}", request, version, transient=NONE)
            await session.ask(f"{where}: end of epoch 0", epochs(name, epoch, 0), 4, transient=NONE)
            await session.ask(f"{where}: end of epoch 1", epochs(name, epoch, 1), 4, transient=NONE)
        for version in (9, 12):
            where = f"moved {step}: broker {node}, version {version}"
            await session.ask(f"{where}: produce", produce(name, (0, batch())), version, transient=NONE)


async def _refused(cluster: ClusterSession) -> None:
    name, _ = await placed(cluster, "stays", [[1, 2]])
    cases = {
        "to an unknown broker": move(name, [1, 9]),
        "to one twice": move(name, [1, 2, 2]),
        "to nothing": move(name, []),
        "to where it is": move(name, [1, 2]),
        "to another number": move(name, [1, 2, 3], allow_replication_factor_change=False),
        "to the same number": move(name, [1, 3], allow_replication_factor_change=False),
        "cancelled that was not begun": move(name, None),
        "of an unknown partition": move(name, [1], 5),
    }
    await cluster.at(1).ask_all("refused move", {k: v for k, v in cases.items() if k != "to the same number"})
    await cluster.at(1).ask("refused move: to the same number", cases["to the same number"])
    await _moved(cluster, name, [1, 3], 1)
    await _metadata(cluster, "moved with the same number", name)


async def _elected(cluster: ClusterSession) -> None:
    name, topic_id = await placed(cluster, "elected", [[1, 2, 3]])
    await cluster.at(1).ask("elected: produce", produce(name, (0, batch())), 12)
    await cluster.at(1).ask("election: not needed", election(0, (name, [0])))
    await cluster.at(1).ask("election: unclean, not needed", election(1, (name, [0])))
    await cluster.at(1).ask("move: another preferred leader", move(name, [2, 1, 3]))
    await _moved(cluster, name, [2, 1, 3], 1)
    await _metadata(cluster, "another preferred leader", name)
    await cluster.at(1).ask("election: unclean, with a leader", election(1, (name, [0])))
    await cluster.at(3).ask("election: needed", election(0, (name, [0]), (name, [7])))
    await _moved(cluster, name, [2, 1, 3], 2)
    await _metadata(cluster, "elected", name)
    await _asked_everywhere(cluster, "by election", name, topic_id)
    await cluster.at(1).ask("election: again", election(0, (name, [0, 1]), (cluster.at(1).name("unknown"), [0])))
    await cluster.at(1).ask("election: of kind 5", election(5, (name, [0])))
    await cluster.at(1).ask("election: one twice", election(0, (name, [0, 0])))


async def _enlarged(cluster: ClusterSession) -> None:
    name, _ = await placed(cluster, "enlarged", [[1, 2]])

    def to(count: int, *places: list[int], validate: bool = False) -> CreatePartitionsRequest:
        assigned = [CreatePartitionsAssignment(broker_ids=each) for each in places] or None
        topic = CreatePartitionsTopic(name=name, count=count, assignments=assigned)
        return CreatePartitionsRequest(topics=[topic], timeout_ms=WAIT_MS, validate_only=validate)

    cases = {
        "to 3, with places, only checked": to(3, [2, 3], [3, 1], validate=True),
        "to 3, with bad places, only checked": to(3, [2, 9], [3, 1], validate=True),
        "to 3, with one place": to(3, [2, 3]),
        "to 3, with three places": to(3, [2, 3], [3, 1], [1, 2]),
        "to 2, with another number of replicas": to(2, [1, 2, 3]),
        "to 3, with different numbers": to(3, [1, 2], [3]),
        "to 2, with one broker twice": to(2, [1, 1]),
        "to 2, with an unknown broker": to(2, [1, 9]),
        "to 2, with broker -1": to(2, [1, -1]),
        "to 1, only checked": to(1, validate=True),
        "to 0": to(0),
        "to 2, without places, only checked": to(2, validate=True),
        "to 3, with places": to(3, [2, 3], [3, 1]),
        "to 3 again, with places": to(3, [2, 3]),
    }
    await cluster.at(2).ask_all("enlarge", cases)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    while True:
        [topic] = (await cluster.at(2).ask("enlarged", asked)).topics
        if len(topic.partitions) == 3 and all(each.leader_id > 0 for each in topic.partitions):
            return
        cluster.answers.pop("enlarged")


async def _directories(cluster: ClusterSession) -> None:
    name, _ = await placed(cluster, "stored", [[1, 2]])
    unknown = cluster.at(1).name("unknown")
    await cluster.at(1).ask("stored: produce", produce(name, (0, batch(5))), 12)

    async def described(step: str) -> None:
        topics = [DescribableLogDirTopic(topic=each, partitions=[0, 5]) for each in (name, unknown)]
        request = DescribeLogDirsRequest(topics=topics)
        for node, version in itertools.product(cluster.cluster.addresses, (1, 4)):
            await cluster.at(node).ask(f"{step}, broker {node}, version {version}", request, version)

    await described("directories")
    for node in cluster.cluster.addresses:
        home = cluster.cluster.homes[node]

        def to(path: str, *wanted: tuple[str, list[int]]) -> AlterReplicaLogDirsRequest:
            topics = [AlterReplicaLogDirTopic(name=topic, partitions=parts) for topic, parts in wanted]
            return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])

        cases = {
            "to the second": to(f"{home}/second", (name, [0, 5]), (unknown, [0])),
            "to the second again": to(f"{home}/second", (name, [0])),
            "to the first": to(f"{home}/first", (name, [0])),
            "to the home of both": to(str(home), (name, [0])),
            "to one with a slash": to(f"{home}/first/", (name, [0])),
            "to a relative one": to("second", (name, [0])),
            "to no path": to("", (name, [0])),
            "of nothing": to(f"{home}/first"),
        }
        await cluster.at(node).ask_all(f"directory of broker {node}", cases, transient=NONE)


async def _of_brokers(cluster: ClusterSession) -> None:
    name, topic_id = await placed(cluster, "guarded", [[1, 2, 3]])
    part = AlterPartitionRequestPartitionData(partition_index=0, leader_epoch=0, partition_epoch=0)
    altered = [AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[part])]
    cases: dict[str, tuple[Any, int]] = {
        "AlterPartition": (AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=altered), 2),
        "AllocateProducerIds": (AllocateProducerIdsRequest(broker_id=1, broker_epoch=1), 0),
        "BrokerHeartbeat": (
            BrokerHeartbeatRequest(
                broker_id=1, broker_epoch=1, current_metadata_offset=1, want_fence=True, want_shut_down=True
            ),
            0,
        ),
    }
    for step, (request, version) in cases.items():
        await cluster.at(2).ask(f"sent to a broker: {step}", request, version, transient=NONE)
    await _metadata(cluster, "after requests of brokers", name)
