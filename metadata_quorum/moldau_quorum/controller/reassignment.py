"""Decisions about moving replicas (KIP-455): start, change, cancel, list.

A move takes a partition through three states. First, ``replicas`` becomes the target plus the replicas to remove;
``adding_replicas`` and ``removing_replicas`` name the difference. Then the leader adds new replicas to the ISR as they
catch up. When the whole target is in the ISR, the change that adds its last member also removes the leaving replicas
(``PartitionChange``). Until then no replica is removed: a redirected move keeps all present replicas, including those
of the abandoned target, because one of these may be the only one in sync.

A cancellation removes the replicas that are being added and keeps all others; after a redirect, the others are the
former replicas and those of the abandoned target. The controller refuses a cancellation if only the removed replicas
hold the acknowledged records. Kafka refuses it too, except where unclean elections are allowed: there it gives up the
records. In Moldau, the move must be redirected instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from moldau.values import BrokerId
from moldau_quorum.controller.context import SLICE_RECORDS, Context, DecisionView, RefusedError, Result
from moldau_quorum.controller.partitions import begin_change
from moldau_quorum.controller.topics import check_replicas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_quorum.controller.partition_change import PartitionChange
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage, TopicImage
    from moldau_quorum.metadata.records import MetadataRecord, PartitionChangeRecord


def alter_reassignments(
    request: AlterPartitionReassignmentsRequest, image: MetadataImage, context: Context
) -> Result[AlterPartitionReassignmentsResponse]:
    """Starts, changes or cancels moves; each partition succeeds or fails by itself."""
    responses: list[ReassignableTopicResponse] = []
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None, responses=responses
    )
    return Result(response=response, steps=lambda view: _alter_each(request, view, responses))


def _alter_each(
    request: AlterPartitionReassignmentsRequest, view: DecisionView, responses: list[ReassignableTopicResponse]
) -> Iterator[list[MetadataRecord]]:
    records: list[MetadataRecord] = []
    done: dict[tuple[str, int], None] = {}
    for entry in request.topics:
        outcomes: list[ReassignablePartitionResponse] = []
        for wanted in entry.partitions:
            code, message = ErrorCode.NONE, None
            try:
                if (entry.name, wanted.partition_index) in done:
                    raise RefusedError(ErrorCode.INVALID_REQUEST, "the partition appears twice in the request")
                done[entry.name, wanted.partition_index] = None
                topic = view.image.topics_by_name.get(entry.name)
                may_change_factor = request.allow_replication_factor_change
                record = _alter_one(entry.name, topic, wanted, view.image, view.context, may_change_factor)
                if record is not None:
                    records.append(record)
            except RefusedError as refusal:
                code, message = refusal.code, refusal.message
            outcomes.append(
                ReassignablePartitionResponse(
                    partition_index=wanted.partition_index, error_code=code, error_message=message
                )
            )
            if len(records) >= SLICE_RECORDS:
                yield records
                records = []
        responses.append(ReassignableTopicResponse(name=entry.name, partitions=outcomes))
    yield records


def _alter_one(
    name: str,
    topic: TopicImage | None,
    wanted: ReassignablePartition,
    image: MetadataImage,
    context: Context,
    factor_may_change: bool,
) -> PartitionChangeRecord | None:
    partition = None if topic is None else topic.partitions.get(wanted.partition_index)
    if topic is None or partition is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{wanted.partition_index}"
        )
    change = begin_change(image, context, topic, wanted.partition_index, partition)
    if wanted.replicas is None:
        _cancel(change, partition)
    else:
        target = tuple(BrokerId(replica) for replica in wanted.replicas)
        check_replicas(target, image, present=partition.replicas)
        factor = len(partition.replicas) - len(partition.removing_replicas)
        if not factor_may_change and len(target) != factor:
            raise RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR, f"the replication factor is {factor} and must not change"
            )
        _start(change, partition, target)
    return change.build()


def original_replicas(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """Returns the replicas without those that a move is adding."""
    return tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)


def _start(change: PartitionChange, partition: PartitionImage, target: tuple[BrokerId, ...]) -> None:
    """Moves the partition from its present state towards ``target``; all replicas stay until the target is in sync."""
    original = original_replicas(partition)
    removing = tuple(replica for replica in partition.replicas if replica not in target)
    change.replicas = (*target, *removing)
    change.adding = tuple(replica for replica in target if replica not in original)
    change.removing = removing


def _cancel(change: PartitionChange, partition: PartitionImage) -> None:
    if not partition.reassigning:
        raise RefusedError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being moved")
    back = original_replicas(partition)
    # By the order of elections, one of these leads next. Removing all of them would lose acknowledged records.
    holders = partition.isr or partition.elr or partition.last_known_elr
    if not any(replica in back for replica in holders):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "none of the former replicas is in sync: a cancellation would lose records",
        )
    change.replicas = back
    change.adding = ()
    change.removing = ()


def list_reassignments(
    request: ListPartitionReassignmentsRequest, image: MetadataImage, context: Context
) -> Result[ListPartitionReassignmentsResponse]:
    """Lists the moves in progress, of all topics or of the named ones; each once, however often it is named."""
    if request.topics is None:
        wanted = [
            (name, list(range(len(image.topics_by_name[name].partitions)))) for name in sorted(image.topics_by_name)
        ]
    else:
        named: dict[str, dict[int, None]] = {}
        for asked in request.topics:
            named.setdefault(asked.name, {}).update(dict.fromkeys(asked.partition_indexes))
        wanted = [(name, list(indexes)) for name, indexes in named.items()]
    ongoing: list[OngoingTopicReassignment] = []
    for name, partition_ids in wanted:
        topic = image.topics_by_name.get(name)
        if topic is None:
            continue
        moving: list[OngoingPartitionReassignment] = []
        for partition_id in partition_ids:
            partition = topic.partitions.get(partition_id)
            if partition is not None and partition.reassigning:
                moving.append(
                    OngoingPartitionReassignment(
                        partition_index=partition_id,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding_replicas),
                        removing_replicas=list(partition.removing_replicas),
                    )
                )
        if moving:
            ongoing.append(OngoingTopicReassignment(name=name, partitions=moving))
    return Result(response=ListPartitionReassignmentsResponse(error_message=None, topics=ongoing))
