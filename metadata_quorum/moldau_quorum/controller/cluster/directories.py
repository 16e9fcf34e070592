"""Decisions about log directories: their replicas, failures (KIP-858) and cordons (KIP-1066)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import assign_replicas_to_dirs as m
from moldau.protocol.refusals import refusal_of
from moldau_quorum.controller.context import SLICE_RECORDS, Context, DecisionView, RefusedError, Result
from moldau_quorum.controller.partitions import begin_change
from moldau_quorum.controller.walks import walk
from moldau_quorum.metadata.directory_ids import LOST, is_online, is_reserved
from moldau_quorum.metadata.records import BrokerRegistrationChangeRecord, MetadataRecord, PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from uuid import UUID

    from moldau_quorum.controller.partition_change import PartitionChange
    from moldau_quorum.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage

ASSIGNMENTS_MAX: Final = 2_250
"""Number of partitions that one request may assign, as in Kafka; brokers never send more."""


def newly_offline(broker: BrokerImage, reported: Collection[UUID]) -> tuple[UUID, ...]:
    """Returns the directories that are registered as working and that the broker reports as failed."""
    return tuple(directory for directory in broker.log_dirs if directory in reported)


def cordons_changed(broker: BrokerImage, reported: Sequence[UUID] | None) -> tuple[MetadataRecord, ...]:
    """Returns the record of a broker's cordoned directories; empty if it reports none, or the recorded ones."""
    if reported is None or set(reported) == set(broker.cordoned_log_dirs):
        return ()
    cordoned = tuple(dict.fromkeys(reported))
    return (
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, cordoned_log_dirs=cordoned
        ),
    )


def directories_failed(
    view: DecisionView, broker: BrokerImage, failed: Collection[UUID]
) -> Iterator[list[MetadataRecord]]:
    """Removes the replicas in failed directories from ISRs and leaderships.

    Each partition's record is valid by itself. The registration changes last: if only a part of the records is
    committed, the broker's next heartbeat leads to the rest.
    """

    def change(topic: TopicImage, partition_id: int, partition: PartitionImage) -> PartitionChange | None:
        if broker.broker_id not in partition.replicas or partition.directory(broker.broker_id) not in failed:
            return None
        if broker.broker_id not in partition.isr and partition.leader != broker.broker_id:
            return None
        change = begin_change(view.image, view.context, topic, partition_id, partition)
        may_lead = change.acceptable
        change.acceptable = lambda replica: replica != broker.broker_id and may_lead(replica)
        change.isr = tuple(replica for replica in partition.isr if replica != broker.broker_id)
        return change

    records = yield from walk(view, change)
    records.append(
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            log_dirs=tuple(directory for directory in broker.log_dirs if directory not in failed),
        )
    )
    yield records


def assign_replicas(
    request: m.AssignReplicasToDirsRequest, image: MetadataImage, context: Context
) -> Result[m.AssignReplicasToDirsResponse]:
    """Records which directories hold a broker's replicas; each partition succeeds or fails by itself."""
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.broker_epoch != request.broker_epoch:
        return Result(response=refusal_of(m.AssignReplicasToDirsResponse, request, ErrorCode.STALE_BROKER_EPOCH))
    if not image.records_directories:
        return Result(response=refusal_of(m.AssignReplicasToDirsResponse, request, ErrorCode.UNSUPPORTED_VERSION))
    if sum(len(topic.partitions) for entry in request.directories for topic in entry.topics) > ASSIGNMENTS_MAX:
        return Result(response=refusal_of(m.AssignReplicasToDirsResponse, request, ErrorCode.INVALID_REQUEST))
    directories: list[m.DirectoryResult] = []
    return Result(
        response=m.AssignReplicasToDirsResponse(directories=directories),
        steps=lambda view: _assign_each(request, view, broker, directories),
    )


def _assign_each(
    request: m.AssignReplicasToDirsRequest,
    view: DecisionView,
    broker: BrokerImage,
    directories: list[m.DirectoryResult],
) -> Iterator[list[MetadataRecord]]:
    records: list[MetadataRecord] = []
    done: dict[tuple[UUID, int], None] = {}
    for entry in request.directories:
        topics: list[m.TopicResult] = []
        for topic in entry.topics:
            results: list[m.PartitionResult] = []
            for wanted in topic.partitions:
                key = (topic.topic_id, wanted.partition_index)
                code = ErrorCode.NONE
                try:
                    if key in done or (is_reserved(entry.id) and entry.id != LOST):
                        raise RefusedError(ErrorCode.INVALID_REQUEST, "named twice, or a reserved directory id")
                    done[key] = None
                    record = _assign_one(broker, entry.id, *key, view.image, view.context)
                    if record is not None:
                        records.append(record)
                except RefusedError as refusal:
                    code = refusal.code
                results.append(m.PartitionResult(partition_index=wanted.partition_index, error_code=code))
                if len(records) >= SLICE_RECORDS:
                    yield records
                    records = []
            topics.append(m.TopicResult(topic_id=topic.topic_id, partitions=results))
        directories.append(m.DirectoryResult(id=entry.id, topics=topics))
    yield records


def _assign_one(
    broker: BrokerImage, directory: UUID, topic_id: UUID, partition_id: int, image: MetadataImage, context: Context
) -> PartitionChangeRecord | None:
    """Assigns one replica to a directory.

    A replica in a directory that does not work leaves ISR and leadership; one in a working directory may be elected.
    """
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "the topic does not exist")
    partition: PartitionImage | None = topic.partitions.get(partition_id)
    if partition is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has no such partition")
    if broker.broker_id not in partition.replicas:
        raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker.broker_id} holds no replica")
    change = begin_change(image, context, topic, partition_id, partition)
    change.assigned[broker.broker_id] = directory
    if not is_online(directory, broker.log_dirs):
        change.isr = tuple(replica for replica in partition.isr if replica != broker.broker_id)
    return change.build()
