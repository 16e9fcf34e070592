"""Decisions about topics: create, delete, add partitions (KIP-4, KIP-195, KIP-516)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from moldau.protocol.refusals import refusal_of
from moldau.runtime.config import TOPIC_CONFIG
from moldau.values import ZERO_UUID, BrokerId
from moldau_quorum.controller.context import SLICE_RECORDS, Context, DecisionView, RefusedError, Result
from moldau_quorum.controller.entities.config_checks import check_tiered_topic, check_topic_config
from moldau_quorum.controller.entities.config_kinds import check_elements
from moldau_quorum.controller.entities.configs import topic_values
from moldau_quorum.controller.partitions import acceptable_leader, new_directory
from moldau_quorum.controller.placement import UsableBroker, place_replicas
from moldau_quorum.controller.topic_names import check_topic_name
from moldau_quorum.metadata.image import RESOURCE_TOPIC, MetadataImage, TopicImage
from moldau_quorum.metadata.internal_topics import INTERNAL_TOPICS, METADATA_TOPIC
from moldau_quorum.metadata.records import (
    NO_LEADER,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

T = TypeVar("T")
TOPICS_PER_REQUEST_MAX: Final = 10_000
"""Number of topics that one request may create, enlarge or delete; the controller decides nothing else meanwhile."""


def _collision_key(name: str) -> str:
    """Returns a key that is equal for names whose metrics would have the same name (KIP-4)."""
    return name.replace(".", "_")


def _is_mergeable(name: str) -> bool:
    return "." in name or "_" in name


def too_many_topics(count: int) -> str | None:
    """Returns why a request cannot name so many topics; None if it can."""
    if count <= TOPICS_PER_REQUEST_MAX:
        return None
    return f"a request names at most {TOPICS_PER_REQUEST_MAX} topics, not {count}: split it"


def create_topics(request: CreateTopicsRequest, image: MetadataImage, context: Context) -> Result[CreateTopicsResponse]:
    """Creates each valid topic; every other topic gets its own error."""
    too_many = too_many_topics(len(request.topics))
    if too_many is not None:
        return Result(response=refusal_of(CreateTopicsResponse, request, ErrorCode.POLICY_VIOLATION, too_many))
    results: list[CreatableTopicResult] = []
    return Result(
        response=CreateTopicsResponse(topics=results), steps=lambda view: _create_each(request, view, results)
    )


def _create_each(
    request: CreateTopicsRequest, view: DecisionView, results: list[CreatableTopicResult]
) -> Iterator[list[MetadataRecord]]:
    """Yields whole topics: a topic becomes visible with all of its partitions and its configuration."""
    image, context = view.image, view.context
    records: list[MetadataRecord] = []
    work = 0
    wanted = {topic.name: topic for topic in request.topics}
    repeated = _repeated(topic.name for topic in request.topics)
    taken: dict[str, str] = {}
    if any(_is_mergeable(name) for name in wanted):
        taken = {_collision_key(name): name for name in image.topics_by_name if _is_mergeable(name)}
    described = _DescribedConfigs(image, context)
    budget = context.settings.partitions_per_request_max
    for name, topic in wanted.items():
        if work >= SLICE_RECORDS:
            yield records
            records, work = [], 0
        work += 1
        try:
            if name in repeated:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"topic {name!r} appears twice in the request")
            check_topic_name(name)
            if name == METADATA_TOPIC:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"{name!r} is the name of the metadata log")
            if name in image.topics_by_name:
                raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
            other = taken.get(_collision_key(name))
            if other is not None:
                raise RefusedError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with {other!r} ('.' and '_' are alike)"
                )
            created, result = _create_one(topic, image, context, budget, described)
            context.charge_mutations(result.num_partitions)  # a dry run too, as in Kafka
        except RefusedError as refusal:
            results.append(
                CreatableTopicResult(name=name, error_code=refusal.code, error_message=refusal.message, configs=None)
            )
            continue
        budget -= result.num_partitions
        work += result.num_partitions
        if _is_mergeable(name):
            taken[_collision_key(name)] = name
        if not request.validate_only:
            records.extend(created)
        results.append(result)
    yield records


def _repeated(names: Iterable[T]) -> set[T]:
    """Returns the names, or other keys, that appear more than once."""
    seen: set[T] = set()
    repeated: set[T] = set()
    for name in names:
        (repeated if name in seen else seen).add(name)
    return repeated


class _DescribedConfigs:
    """Configurations of new topics, checked and described once for all topics of a request with the same overrides."""

    def __init__(self, image: MetadataImage, context: Context) -> None:
        self._image = image
        self._context = context
        self._known: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}

    def of(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        """Describes a topic with these overrides.

        Raises:
            RefusedError: the overrides are not valid on one of the brokers.
        """
        key = tuple(overrides.items())
        described = self._known.get(key)
        if described is None:
            for name, value in overrides.items():
                check_elements(TOPIC_CONFIG, name, value)
            check_topic_config(overrides, self._image, self._context)
            described = self._known[key] = [
                CreatableTopicConfigs(
                    name=value.name,
                    value=value.value,
                    read_only=False,
                    config_source=value.source,
                    is_sensitive=TOPIC_CONFIG.key(value.name).is_sensitive,
                )
                for value in topic_values(overrides, self._image, self._context)
            ]
        return described


def _create_one(
    topic: CreatableTopic, image: MetadataImage, context: Context, budget: int, described: _DescribedConfigs
) -> tuple[list[MetadataRecord], CreatableTopicResult]:
    overrides = _overrides(topic)
    configs = described.of(overrides)
    check_tiered_topic(topic.name, {}, overrides, image)
    if topic.assignments:
        assignment = _manual_assignment(topic, image)
    else:
        count = context.settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions
        factor = context.settings.default_replication_factor
        factor = factor if topic.replication_factor == -1 else topic.replication_factor
        if count < 1:
            raise RefusedError(ErrorCode.INVALID_PARTITIONS, f"a topic needs at least one partition, not {count}")
        _check_count(count, context, budget)
        assignment = _place(image, context, count, factor)
    _check_count(len(assignment), context, budget)
    topic_id = context.new_uuid()
    records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records.extend(_partition_records(topic_id, 0, assignment, image, context))
    records.extend(
        ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in overrides.items()
    )
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=configs,
    )
    return records, result


def _check_count(count: int, context: Context, budget: int) -> None:
    if count > budget:
        limit = context.settings.partitions_per_request_max
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"the request may create {limit} partitions, of which {budget} are left: {count} are too many",
        )


def _overrides(topic: CreatableTopic) -> dict[str, str]:
    if len(topic.configs) > len(TOPIC_CONFIG.keys):
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"a topic has {len(TOPIC_CONFIG.keys)} keys at most")
    overrides: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
        if config.name in overrides:
            raise RefusedError(ErrorCode.INVALID_CONFIG, f"{config.name} is given twice")
        if config.name not in TOPIC_CONFIG.keys:
            raise RefusedError(ErrorCode.INVALID_CONFIG, TOPIC_CONFIG.unknown(config.name))
        overrides[config.name] = config.value
    return overrides


def _manual_assignment(topic: CreatableTopic, image: MetadataImage) -> list[tuple[BrokerId, ...]]:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "with an assignment, the partition count and replication factor must be -1"
        )
    by_index = {
        entry.partition_index: tuple(BrokerId(broker_id) for broker_id in entry.broker_ids)
        for entry in topic.assignments
    }
    if sorted(by_index) != list(range(len(topic.assignments))):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assigned partitions must be numbered from 0 without gaps"
        )
    assignment = [by_index[index] for index in range(len(by_index))]
    for replicas in assignment:
        check_replicas(replicas, image, expected=len(assignment[0]))
    return assignment


def check_replicas(
    replicas: Sequence[int], image: MetadataImage, *, expected: int | None = None, present: Sequence[int] = ()
) -> None:
    """Checks one partition's replica assignment; ``present`` are the brokers that hold a replica already.

    Raises:
        RefusedError: INVALID_REPLICA_ASSIGNMENT.
    """
    if not replicas:
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an assignment needs at least one broker")
    if len(set(replicas)) != len(replicas):
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"a broker is assigned twice in {list(replicas)}")
    unknown = sorted(replica for replica in replicas if replica not in image.brokers)
    if unknown:
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"brokers {unknown} are not registered")
    for replica in replicas:
        if replica not in present and not image.brokers[BrokerId(replica)].takes_replicas:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"all log directories of broker {replica} are cordoned"
            )
    if expected is not None and len(replicas) != expected:
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"all partitions need the same replication factor: {len(replicas)} is not {expected}",
        )


def _place(image: MetadataImage, context: Context, count: int, factor: int) -> list[tuple[BrokerId, ...]]:
    acceptable = acceptable_leader(image, context)
    brokers = [
        UsableBroker(
            broker_id=broker.broker_id,
            rack=broker.rack,
            machine=broker.machine,
            fenced=not acceptable(broker.broker_id),
        )
        for broker in image.brokers.values()
        if broker.takes_replicas
    ]
    if not brokers:
        reason = "all log directories of all brokers are cordoned" if image.brokers else "no broker is registered"
        raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
    start = context.draw_below(len(brokers))
    cordoned = len(image.brokers) - len(brokers)
    return place_replicas(brokers, partitions=count, replication_factor=factor, start=start, cordoned_brokers=cordoned)


def _partition_records(
    topic_id: UUID, first: int, assignment: list[tuple[BrokerId, ...]], image: MetadataImage, context: Context
) -> list[MetadataRecord]:
    acceptable = acceptable_leader(image, context)
    records: list[MetadataRecord] = []
    for index, replicas in enumerate(assignment):
        isr = tuple(replica for replica in replicas if acceptable(replica))
        if not isr:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"all brokers of {list(replicas)} are fenced or shutting down"
            )
        leader = isr[0] if isr else NO_LEADER
        records.append(
            PartitionRecord(
                topic_id=topic_id,
                partition_id=first + index,
                replicas=replicas,
                isr=isr,
                leader=leader,
                directories=tuple(new_directory(image, replica) for replica in replicas)
                if image.records_directories
                else (),
            )
        )
    return records


def delete_topics(request: DeleteTopicsRequest, image: MetadataImage, context: Context) -> Result[DeleteTopicsResponse]:
    """Deletes topics by name or id."""
    too_many = too_many_topics(len(request.topics) + len(request.topic_names))
    if too_many is not None:
        return Result(response=refusal_of(DeleteTopicsResponse, request, ErrorCode.POLICY_VIOLATION, too_many))
    if not context.settings.delete_topic_enable:
        reason = "delete.topic.enable is false"
        return Result(response=refusal_of(DeleteTopicsResponse, request, ErrorCode.TOPIC_DELETION_DISABLED, reason))
    responses: list[DeletableTopicResult] = []
    return Result(
        response=DeleteTopicsResponse(responses=responses), steps=lambda view: _delete_each(request, view, responses)
    )


def _delete_each(
    request: DeleteTopicsRequest, view: DecisionView, responses: list[DeletableTopicResult]
) -> Iterator[list[MetadataRecord]]:
    image = view.image  # as of the beginning, so that a topic that appears twice is refused and not unknown
    records: list[MetadataRecord] = []
    states = [*request.topics, *[DeleteTopicState(name=name) for name in request.topic_names]]
    repeated = _repeated((state.name, state.topic_id) for state in states)
    wanted = {(state.name, state.topic_id): state for state in states}
    found = [topic for state in wanted.values() if (topic := _lookup(state, image)) is not None]
    by_name_and_id = _repeated(topic.topic_id for topic in found)  # found is one of each name and of each id
    for number, (key, state) in enumerate(wanted.items(), start=1):
        if number % SLICE_RECORDS == 0:
            yield records
            records = []
        try:
            topic = _find(state, image) if key not in repeated else None
            if topic is None or topic.topic_id in by_name_and_id:
                named = state.topic_id if state.name is None else repr(state.name)
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"topic {named} appears twice in the request")
            view.context.charge_mutations(len(topic.partitions))
        except RefusedError as refusal:
            responses.append(
                DeletableTopicResult(
                    name=state.name,
                    topic_id=state.topic_id,
                    error_code=refusal.code,
                    error_message=refusal.message,
                )
            )
            continue
        records.append(RemoveTopicRecord(topic_id=topic.topic_id))
        responses.append(DeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
    yield records


def _lookup(state: DeleteTopicState, image: MetadataImage) -> TopicImage | None:
    if state.name is None:
        return image.topics_by_id.get(state.topic_id)
    return image.topics_by_name.get(state.name) if state.topic_id == ZERO_UUID else None


def _find(state: DeleteTopicState, image: MetadataImage) -> TopicImage:
    if state.name is not None and state.topic_id != ZERO_UUID:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
    if state.name is not None:
        topic = image.topics_by_name.get(state.name)
        if topic is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {state.name!r} does not exist")
        return topic
    if state.topic_id == ZERO_UUID:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "neither a topic's name nor its id is given")
    topic = image.topics_by_id.get(state.topic_id)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {state.topic_id}")
    return topic


def create_partitions(
    request: CreatePartitionsRequest, image: MetadataImage, context: Context
) -> Result[CreatePartitionsResponse]:
    """Adds partitions to topics; existing partitions stay where they are."""
    too_many = too_many_topics(len(request.topics))
    if too_many is not None:
        return Result(response=refusal_of(CreatePartitionsResponse, request, ErrorCode.POLICY_VIOLATION, too_many))
    results: list[CreatePartitionsTopicResult] = []
    return Result(
        response=CreatePartitionsResponse(results=results), steps=lambda view: _enlarge_each(request, view, results)
    )


def _enlarge_each(
    request: CreatePartitionsRequest, view: DecisionView, results: list[CreatePartitionsTopicResult]
) -> Iterator[list[MetadataRecord]]:
    image, context = view.image, view.context
    records: list[MetadataRecord] = []
    work = 0
    repeated = _repeated(topic.name for topic in request.topics)
    budget = context.settings.partitions_per_request_max
    for name, wanted in {topic.name: topic for topic in request.topics}.items():
        if work >= SLICE_RECORDS:
            yield records
            records, work = [], 0
        work += 1
        try:
            if name in repeated:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"topic {name!r} appears twice in the request")
            added = _add_partitions(wanted, image, context, budget)
            context.charge_mutations(len(added))
        except RefusedError as refusal:
            results.append(
                CreatePartitionsTopicResult(name=name, error_code=refusal.code, error_message=refusal.message)
            )
            continue
        budget -= len(added)
        work += len(added)
        if not request.validate_only:
            records.extend(added)
        results.append(CreatePartitionsTopicResult(name=name))
    yield records


def _add_partitions(
    wanted: CreatePartitionsTopic, image: MetadataImage, context: Context, budget: int
) -> list[MetadataRecord]:
    topic = image.topics_by_name.get(wanted.name)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {wanted.name!r} does not exist")
    present = len(topic.partitions)
    if wanted.name in INTERNAL_TOPICS:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {wanted.name!r} keeps its {present} partitions: with others, coordinators would not find what they "
            "have stored",
        )
    added = wanted.count - present
    if added <= 0:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS, f"topic {wanted.name!r} has {present} partitions; {wanted.count} is not more"
        )
    _check_count(added, context, budget)
    factor = len(topic.partitions[0].replicas)
    if any(topic.partitions[partition_id].reassigning for partition_id in range(present)):
        first = topic.partitions[0]
        factor = len(first.replicas) - len(first.removing_replicas)
    if wanted.assignments is None:
        assignment = _place(image, context, added, factor)
    else:
        if len(wanted.assignments) != added:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions are added, but {len(wanted.assignments)} are assigned",
            )
        assignment = [tuple(BrokerId(broker_id) for broker_id in entry.broker_ids) for entry in wanted.assignments]
        for replicas in assignment:
            check_replicas(replicas, image, expected=factor)
    return _partition_records(topic.topic_id, present, assignment, image, context)
