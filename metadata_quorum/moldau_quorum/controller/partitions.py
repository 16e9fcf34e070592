"""Decisions about partitions: AlterPartition, leader elections, and the changes after brokers come and go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from moldau.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from moldau.values import BrokerId
from moldau_quorum.controller.context import (
    SLICE_RECORDS,
    Context,
    DecisionView,
    RefusedError,
    Result,
    elr_enabled,
    min_insync_replicas,
    unclean_election_enabled,
)
from moldau_quorum.controller.partition_change import RECOVERED, RECOVERING, Election, PartitionChange
from moldau_quorum.metadata.directory_ids import UNASSIGNED, is_online
from moldau_quorum.metadata.image import MetadataImage, PartitionImage, TopicImage, changed_partition
from moldau_quorum.metadata.records import NO_LEADER, MetadataRecord, PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID


PREFERRED_ELECTION = 0
UNCLEAN_ELECTION = 1


def acceptable_leader(image: MetadataImage, context: Context) -> Callable[[BrokerId], bool]:
    """Returns a predicate that says whether a broker may become a leader."""

    def acceptable(broker_id: BrokerId) -> bool:
        broker = image.brokers.get(broker_id)
        return broker is not None and broker.active and context.usable(broker_id)

    return acceptable


def new_directory(image: MetadataImage, broker_id: BrokerId) -> UUID:
    """Returns the directory of a new replica: the broker's only one, else UNASSIGNED (KIP-858).

    A broker with several directories chooses one and reports it with AssignReplicasToDirs.
    """
    broker = image.brokers.get(broker_id)
    return broker.log_dirs[0] if broker is not None and len(broker.log_dirs) == 1 else UNASSIGNED


def begin_change(
    image: MetadataImage,
    context: Context,
    topic: TopicImage,
    partition_id: int,
    partition: PartitionImage,
    *,
    unfencing: BrokerId | None = None,
) -> PartitionChange:
    """Begins a change of one partition under the topic's configuration.

    ``unfencing`` is a broker that the same decision unfences.
    """
    unclean = unclean_election_enabled(image, context, topic.name)
    live = acceptable_leader(image, context)

    def acceptable(broker_id: BrokerId) -> bool:
        broker = image.brokers.get(broker_id)
        return (
            broker is not None
            and (broker_id == unfencing or live(broker_id))
            and is_online(change.directory(broker_id), broker.log_dirs)
        )

    change = PartitionChange(
        topic_id=topic.topic_id,
        partition_id=partition_id,
        partition=partition,
        acceptable=acceptable,
        min_isr=min_insync_replicas(image, context, topic.name),
        elr_enabled=elr_enabled(image),
        election=Election.UNCLEAN if unclean else Election.ONLINE,
        new_directory=partial(new_directory, image) if image.records_directories else None,
    )
    return change


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alteration:
    """The response for one partition, and its record if something changes."""

    response: AlterPartitionResponsePartitionData
    record: PartitionChangeRecord | None = None


def alter_partition(
    request: AlterPartitionRequest, image: MetadataImage, context: Context
) -> Result[AlterPartitionResponse]:
    """Changes the ISR of partitions as their leader asks (KIP-497), after epoch checks (KIP-841, KIP-903).

    INELIGIBLE_REPLICA is answered together with a new partition epoch, and only once that epoch is committed, so it is
    final for all attempts.
    """
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.broker_epoch != request.broker_epoch:
        return Result(response=AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    topics: list[AlterPartitionResponseTopicData] = []
    return Result(response=AlterPartitionResponse(topics=topics), steps=lambda view: _alter_each(request, view, topics))


def _alter_each(
    request: AlterPartitionRequest, view: DecisionView, topics: list[AlterPartitionResponseTopicData]
) -> Iterator[list[MetadataRecord]]:
    records: list[MetadataRecord] = []
    done: dict[tuple[UUID, int], None] = {}
    for topic_data in request.topics:
        partitions: list[AlterPartitionResponsePartitionData] = []
        for data in topic_data.partitions:
            key = (topic_data.topic_id, data.partition_index)
            try:
                if key in done:
                    raise RefusedError(ErrorCode.INVALID_REQUEST, "the partition appears twice in the request")
                done[key] = None
                topic = view.image.topics_by_id.get(topic_data.topic_id)
                alteration = _alter_one(BrokerId(request.broker_id), topic, data, view.image, view.context)
            except RefusedError as refusal:
                partitions.append(
                    AlterPartitionResponsePartitionData(partition_index=data.partition_index, error_code=refusal.code)
                )
                continue
            if alteration.record is not None:
                records.append(alteration.record)
            partitions.append(alteration.response)
            if len(records) >= SLICE_RECORDS:
                yield records
                records = []
        topics.append(AlterPartitionResponseTopicData(topic_id=topic_data.topic_id, partitions=partitions))
    yield records


def _alter_one(
    broker_id: BrokerId,
    topic: TopicImage | None,
    data: AlterPartitionRequestPartitionData,
    image: MetadataImage,
    context: Context,
) -> _Alteration:
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "the topic does not exist")
    partition = topic.partitions.get(data.partition_index)
    if partition is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has no such partition")
    _check_epochs(broker_id, partition, data)
    epochs = {state.broker_id: state.broker_epoch for state in data.new_isr_with_epochs}
    proposed = [state.broker_id for state in data.new_isr_with_epochs] or data.new_isr
    isr = tuple(BrokerId(replica) for replica in proposed)
    _check_isr(broker_id, partition, isr, data.leader_recovery_state)
    try:
        _check_eligible(partition, isr, epochs, image)
    except RefusedError as refusal:
        # The replica may become eligible again while an earlier attempt of this change is still in flight. The leader
        # counts the replica until a newer partition epoch shows that no earlier attempt can succeed. A controller that
        # was deposed without knowing it cannot commit such an epoch, so it cannot give this answer.
        return _Alteration(
            record=PartitionChangeRecord(
                topic_id=topic.topic_id,
                partition_id=data.partition_index,
                partition_epoch=partition.partition_epoch + 1,
            ),
            response=AlterPartitionResponsePartitionData(partition_index=data.partition_index, error_code=refusal.code),
        )
    change = begin_change(image, context, topic, data.partition_index, partition)
    change.isr = tuple(replica for replica in partition.replicas if replica in isr)
    change.recovery_state = data.leader_recovery_state
    record = change.build()
    after = partition if record is None else changed_partition(partition, record)
    if after.leader != broker_id:
        # The change completed a reassignment that moved the leadership, so the old leader must not apply the new state.
        return _Alteration(
            record=record,
            response=AlterPartitionResponsePartitionData(
                partition_index=data.partition_index, error_code=ErrorCode.NEW_LEADER_ELECTED
            ),
        )
    return _Alteration(
        record=record,
        response=AlterPartitionResponsePartitionData(
            partition_index=data.partition_index,
            error_code=ErrorCode.NONE,
            leader_id=after.leader,
            leader_epoch=after.leader_epoch,
            isr=list(after.isr),
            leader_recovery_state=after.leader_recovery_state,
            partition_epoch=after.partition_epoch,
        ),
    )


def _check_epochs(broker_id: BrokerId, partition: PartitionImage, data: AlterPartitionRequestPartitionData) -> None:
    if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
        # The leader has seen newer metadata than this controller, so this controller is deposed or about to be.
        raise RefusedError(ErrorCode.NOT_CONTROLLER, "the leader is ahead of this controller")
    if data.leader_epoch < partition.leader_epoch:
        raise RefusedError(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {partition.leader_epoch}")
    if broker_id != partition.leader:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"the leader is {partition.leader}")
    if data.partition_epoch < partition.partition_epoch:
        raise RefusedError(ErrorCode.INVALID_UPDATE_VERSION, f"the partition epoch is {partition.partition_epoch}")


def _check_isr(broker_id: BrokerId, partition: PartitionImage, isr: tuple[BrokerId, ...], recovery_state: int) -> None:
    unique = dict.fromkeys(isr)
    if len(unique) != len(isr) or not all(replica in partition.replicas for replica in isr):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"the ISR must be a part of {partition.replicas}")
    if broker_id not in unique:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the leader must be in the ISR")
    if recovery_state not in (RECOVERED, RECOVERING):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"leader recovery state {recovery_state} is unknown")
    if recovery_state == RECOVERING and len(isr) > 1:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a recovering leader must be alone in the ISR")
    if recovery_state == RECOVERING and partition.leader_recovery_state == RECOVERED:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a recovered leader cannot be recovering again")


def _check_eligible(
    partition: PartitionImage, isr: tuple[BrokerId, ...], epochs: dict[int, int], image: MetadataImage
) -> None:
    """Checks that each member of the new ISR is alive and has the epoch that the leader saw (KIP-841, KIP-903).

    A broker in controlled shutdown may not join the ISR. One that is already a member may stay in the request: the
    controller removes it.
    """
    for replica in isr:
        broker = image.brokers.get(replica)
        if broker is None:
            raise RefusedError(ErrorCode.INELIGIBLE_REPLICA, f"broker {replica} is not registered")
        if epochs.get(replica, -1) not in (-1, broker.broker_epoch):
            raise RefusedError(ErrorCode.INELIGIBLE_REPLICA, f"broker {replica} has epoch {broker.broker_epoch}")
        if replica in partition.isr:
            continue
        if broker.fenced:
            raise RefusedError(ErrorCode.INELIGIBLE_REPLICA, f"broker {replica} is fenced")
        if broker.in_controlled_shutdown:
            raise RefusedError(ErrorCode.INELIGIBLE_REPLICA, f"broker {replica} is shutting down")
        if not image.replica_online(partition, replica):
            raise RefusedError(ErrorCode.INELIGIBLE_REPLICA, f"the log directory of broker {replica} is offline")


def refresh_eligible(image: MetadataImage, context: Context, topic_names: dict[str, None]) -> list[MetadataRecord]:
    """Removes replicas from ELRs that are no longer justified because ``min.insync.replicas`` was lowered.

    ``image`` already has the new configuration.
    """
    records: list[MetadataRecord] = []
    for name in sorted(topic_names):
        topic = image.topics_by_name.get(name)
        if topic is None:
            continue
        for partition_id in range(len(topic.partitions)):
            partition = topic.partitions[partition_id]
            if partition.elr:
                record = begin_change(image, context, topic, partition_id, partition).build()
                if record is not None:
                    records.append(record)
    return records


def elect_leaders(request: ElectLeadersRequest, image: MetadataImage, context: Context) -> Result[ElectLeadersResponse]:
    """Runs preferred or unclean elections on request (KIP-183, KIP-460).

    A request without a list means all partitions that need an election.
    """
    if request.election_type not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        return Result(response=ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
    results: list[ReplicaElectionResult] = []
    return Result(
        response=ElectLeadersResponse(replica_election_results=results),
        steps=lambda view: _elect_each(request, view, results),
    )


def _elect_each(
    request: ElectLeadersRequest, view: DecisionView, results: list[ReplicaElectionResult]
) -> Iterator[list[MetadataRecord]]:
    records: list[MetadataRecord] = []
    examined = 0
    everything = request.topic_partitions is None
    wanted = _wanted_partitions(view.image) if request.topic_partitions is None else request.topic_partitions
    done: dict[tuple[str, int], None] = {}
    for entry in wanted:
        outcomes: list[PartitionResult] = []
        for partition_id in entry.partitions:
            if (entry.topic, partition_id) in done:
                continue
            done[entry.topic, partition_id] = None
            code, message = ErrorCode.NONE, None
            try:
                records.append(_elect_one(entry.topic, partition_id, request.election_type, view.image, view.context))
            except RefusedError as refusal:
                code, message = refusal.code, refusal.message
            if not (everything and code == ErrorCode.ELECTION_NOT_NEEDED):
                outcomes.append(PartitionResult(partition_id=partition_id, error_code=code, error_message=message))
            examined += 1
            if examined >= SLICE_RECORDS:
                yield records
                records, examined = [], 0
        if outcomes:
            results.append(ReplicaElectionResult(topic=entry.topic, partition_result=outcomes))
    yield records


def _wanted_partitions(image: MetadataImage) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic=name, partitions=list(range(len(image.topics_by_name[name].partitions))))
        for name in sorted(image.topics_by_name)
    ]


def _elect_one(
    name: str, partition_id: int, election_type: int, image: MetadataImage, context: Context
) -> PartitionChangeRecord:
    topic = image.topics_by_name.get(name)
    partition = None if topic is None else topic.partitions.get(partition_id)
    if topic is None or partition is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition_id}")
    if election_type == PREFERRED_ELECTION and partition.leader == partition.preferred_leader:
        raise RefusedError(ErrorCode.ELECTION_NOT_NEEDED, "the preferred replica is already the leader")
    if election_type == UNCLEAN_ELECTION and partition.leader != NO_LEADER:
        raise RefusedError(ErrorCode.ELECTION_NOT_NEEDED, "the partition has a leader")
    change = begin_change(image, context, topic, partition_id, partition)
    change.election = Election.PREFERRED if election_type == PREFERRED_ELECTION else Election.UNCLEAN
    record = change.build()
    if record is None or (
        election_type == PREFERRED_ELECTION
        and changed_partition(partition, record).leader != partition.preferred_leader
    ):
        if election_type == PREFERRED_ELECTION:
            raise RefusedError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"the preferred replica {partition.preferred_leader} is not alive and in sync",
            )
        raise RefusedError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is alive")
    return record
