"""Topics, their partitions, offsets and records."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast
from uuid import UUID

import trio

from moldau.admin.checks import checked_topics
from moldau.admin.failures import ABSENT, AdminError, error_of, first_retriable, only_passing, raise_failures
from moldau.admin.requester import Requester, by_partition, by_topic, operations_of
from moldau.admin.values import (
    CreatedTopic,
    NewTopic,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from moldau.cluster import arguments
from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.cluster.metadata import NO_TOPIC_ID, TopicPartition
from moldau.cluster.offsets import list_offsets
from moldau.protocol.answers import judge
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.runtime.net.served_versions import NeededVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


_FINAL_FOR_CREATION = (ErrorCode.REQUEST_TIMED_OUT,)
"""Codes after which a creation is not repeated: after a timeout, which may still take effect, it finds its topic."""
_FINAL_FOR_CHANGE = (*ABSENT, *_FINAL_FOR_CREATION)
"""Codes after which a deletion is not repeated, which would find no topic, nor an addition of partitions."""
_DELETED_BY_ID = NeededVersion(6, "deletion of topics by id (KIP-516, Kafka 2.8)")
_DESCRIBED_BY_ID = NeededVersion(12, "descriptions of topics by id (KIP-516, Kafka 3.1)")


class Topics:
    """Sends the requests about topics, partitions, offsets and records."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Implements ``Admin.create_topics``."""
        checked = checked_topics(topics)
        created: dict[str, CreatedTopic] = {}

        async def create(requester: Requester, names: Collection[str]) -> dict[str, KafkaError]:
            request = CreateTopicsRequest(
                topics=[_creatable(topic) for topic in checked if topic.name in names],
                timeout_ms=requester.broker_timeout_ms,
                validate_only=validate_only,
            )
            response = await requester.ask(
                CreateTopicsResponse,
                request,
                code_of=lambda each: only_passing((t.error_code for t in each.topics), final=_FINAL_FOR_CREATION),
            )
            judged = judge(
                "topic",
                names,
                ((one.name, error_of(one.error_code, one.error_message), one) for one in response.topics),
            )
            for topic in judged.done.values():
                created[topic.name] = CreatedTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=topic.num_partitions,
                    replication_factor=topic.replication_factor,
                )
            return judged.failures

        failures = await self._requester.change_each(
            (topic.name for topic in checked), create, final=_FINAL_FOR_CREATION
        )
        results = [created[name] for name in dict.fromkeys(topic.name for topic in checked) if name in created]
        raise_failures(failures, results)
        return results

    async def delete_topics(self, names: Iterable[str | UUID]) -> None:
        """Implements ``Admin.delete_topics``."""
        wanted = _names_or_ids("delete_topics", names)
        by_id = any(isinstance(each, UUID) for each in wanted)

        async def delete(requester: Requester, names: Collection[str]) -> dict[str, KafkaError]:
            left = [each for each in wanted if str(each) in names]
            request = DeleteTopicsRequest(
                topics=[
                    DeleteTopicState(topic_id=each) if isinstance(each, UUID) else DeleteTopicState(name=each)
                    for each in left
                ],
                topic_names=[each for each in left if isinstance(each, str)],
                timeout_ms=requester.broker_timeout_ms,
            )
            response = await requester.ask(
                DeleteTopicsResponse,
                request,
                code_of=lambda each: only_passing((t.error_code for t in each.responses), final=_FINAL_FOR_CHANGE),
                needed=_DELETED_BY_ID if by_id else None,
            )
            answers = (
                (name, error_of(topic.error_code, topic.error_message), None)
                for topic in response.responses
                for name in _asked_as(left, topic.name, topic.topic_id)
            )
            return judge("topic", names, answers).failures

        raise_failures(await self._requester.change_each(map(str, wanted), delete, final=_FINAL_FOR_CHANGE))

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Implements ``Admin.create_partitions``."""
        for name, count in arguments.mapping("create_partitions", "counts", counts, '{"flights": 12}').items():
            arguments.at_least("create_partitions", f"the count of {name}", count, 1, bits=arguments.INT32_BITS)
        placed = assignments or {}
        example = '{"flights": [[1, 2]]}'
        for name, replicas in arguments.mapping("create_partitions", "assignments", placed, example).items():
            shape = "a list of lists of broker ids such as [[1, 2]]"
            for brokers in arguments.elements("create_partitions", f"the assignment of {name}", shape, replicas):
                arguments.integers("create_partitions", f"the assignment of {name}", brokers)

        async def create(requester: Requester, names: Collection[str]) -> dict[str, KafkaError]:
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(
                        name=name,
                        count=count,
                        assignments=[CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in placed[name]]
                        if name in placed
                        else None,
                    )
                    for name, count in counts.items()
                    if name in names
                ],
                timeout_ms=requester.broker_timeout_ms,
                validate_only=validate_only,
            )
            response = await requester.ask(
                CreatePartitionsResponse,
                request,
                code_of=lambda each: only_passing((t.error_code for t in each.results), final=_FINAL_FOR_CHANGE),
            )
            answers = ((each.name, error_of(each.error_code, each.error_message), None) for each in response.results)
            return judge("topic", names, answers).failures

        raise_failures(await self._requester.change_each(counts, create, final=_FINAL_FOR_CHANGE))

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """Implements ``Admin.list_topics``."""
        response = await self._requester.ask(
            MetadataResponse, MetadataRequest(topics=None, allow_auto_topic_creation=False)
        )
        return [
            TopicListing(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partition_count=len(topic.partitions),
            )
            for topic in sorted(response.topics, key=lambda each: each.name or "")
            if topic.name is not None and (include_internal or not topic.is_internal)
        ]

    async def describe_topics(
        self, names: Iterable[str | UUID], *, node_id: int | None = None, include_authorized_operations: bool = False
    ) -> dict[str, TopicDescription]:
        """Implements ``Admin.describe_topics``."""
        wanted = _names_or_ids("describe_topics", names)
        if node_id is not None:
            await self._requester.ensure_broker_known(arguments.integer("describe_topics", "node_id", node_id))
        bounded = self._requester.within(self._requester.timeout_ms)
        topics = await _metadata_of(bounded, wanted, node_id, with_operations=include_authorized_operations)
        judged = judge(
            "topic",
            map(str, wanted),
            (
                (each, _description_error(name, topic.error_code), (name, topic))
                for topic in topics
                for name in [topic.name or str(topic.topic_id)]
                for each in _asked_as(wanted, topic.name, topic.topic_id)
            ),
        )
        found: dict[str, TopicDescription] = {}
        for name, topic in judged.done.values():
            found[name] = TopicDescription(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=tuple(
                    PartitionDescription(
                        partition=part.partition_index,
                        leader=part.leader_id,
                        leader_epoch=part.leader_epoch,
                        replicas=tuple(part.replica_nodes),
                        isr=tuple(part.isr_nodes),
                        offline_replicas=tuple(part.offline_replicas),
                    )
                    for part in sorted(topic.partitions, key=lambda each: each.partition_index)
                ),
                authorized_operations=operations_of(topic.topic_authorized_operations),
            )
        await _add_eligible(bounded, found, node_id)
        raise_failures(judged.failures, found)
        return found

    async def list_offsets(
        self, wanted: Mapping[tuple[str, int], int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Implements ``Admin.list_offsets``."""
        client = self._requester.client
        asked = arguments.times("list_offsets", "wanted", wanted)
        failures: dict[TopicPartition, KafkaError] = {}
        found = await list_offsets(client, asked, self._requester.timeout_ms, isolation_level, failures)
        raise_failures({str(partition): error for partition, error in failures.items()}, found)
        return found

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Implements ``Admin.delete_records``."""
        wanted = {
            partition: arguments.integer(
                "delete_records", f"the offset of {partition}", offset, bits=arguments.INT64_BITS
            )
            for partition, offset in arguments.by_partition("delete_records", "before", before, "42")
        }
        found: dict[TopicPartition, int] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        client, deadline_ms = self._requester.client, self._requester.client.now_ms + self._requester.timeout_ms
        bounded = Topics(self._requester.within(self._requester.timeout_ms))
        left, rounds = list(wanted), 0
        passing: dict[TopicPartition, KafkaError] = {}  # another leader may delete these records
        while left:
            try:
                outcomes = await bounded._delete_once({one: wanted[one] for one in left})
            except KafkaError:  # the leaders cannot be looked up
                if not rounds:
                    raise
                failures |= passing
                break
            passing = {}
            for partition, outcome in outcomes.items():
                if not isinstance(outcome, KafkaError):
                    found[partition] = outcome
                elif outcome.retriable and outcome.code not in ABSENT:
                    passing[partition] = outcome
                else:
                    failures[partition] = outcome
            left, rounds = list(passing), rounds + 1
            if left and client.now_ms >= deadline_ms:
                failures |= passing
                break
            if left:
                client.request_update()
                await client.backoff(rounds)
        raise_failures({one: failures[one] for one in [*wanted, *failures] if one in failures}, found)
        return found

    async def _delete_once(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | KafkaError]:
        """Asks all leaders once; returns the log start offset or the error of each partition."""
        by_leader, absent = await self._by_leader(before)
        outcomes: dict[TopicPartition, int | KafkaError] = dict(absent)

        async def delete(leader: int, partitions: Sequence[TopicPartition]) -> None:
            request = _deletion({one: before[one] for one in partitions}, self._requester.request_timeout_ms)
            try:
                with trio.fail_after(self._requester.limit_s()):
                    response = await self._requester.client.request(leader, DeleteRecordsResponse, request)
            except TRANSPORT_ERRORS as fault:
                text = str(fault) or f"{self._requester.broker_name(leader)} does not answer in time"
                error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, text)
                outcomes.update(dict.fromkeys(partitions, error))
                return
            answers = by_partition((topic.name, topic.partitions) for topic in response.topics)
            judged = judge("partition", partitions, answers)
            outcomes.update({partition: part.low_watermark for partition, part in judged.done.items()})
            outcomes.update(judged.failures)

        calls = {leader: partial(delete, leader, partitions) for leader, partitions in by_leader.items()}
        _, refused = await self._requester.at_once(calls)
        for leader, error in refused.items():
            outcomes.update(dict.fromkeys(by_leader[leader], error))
        return outcomes

    async def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, KafkaError]]:
        """Groups partitions by their leaders, -1 for none; returns also the errors of those that do not exist."""
        wanted = list(partitions)
        try:
            topics, unknown = await self.describe_topics(by_topic(wanted)), dict[str, KafkaError]()
        except AdminError as error:
            topics, unknown = cast("dict[str, TopicDescription]", error.results), error.failures
        by_leader: dict[int, list[TopicPartition]] = {}
        absent: dict[TopicPartition, KafkaError] = {}
        for partition in wanted:
            if partition.topic in unknown:
                absent[partition] = unknown[partition.topic]
            elif not 0 <= partition.partition < len(parts := topics[partition.topic].partitions):
                absent[partition] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                by_leader.setdefault(parts[partition.partition].leader, []).append(partition)
        if any(leader not in self._requester.client.cluster_metadata.brokers for leader in by_leader):
            await self._requester.fetch_brokers()
        return by_leader, absent


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


async def _add_eligible(requester: Requester, found: dict[str, TopicDescription], node_id: int | None) -> None:
    """Describes partitions again that may have eligible leader replicas; those of a cluster in good order have none."""
    from moldau.admin.calls.eligible_replicas import described_with_eligible, may_have_eligible

    names = [name for name, topic in found.items() if may_have_eligible(topic.partitions)]
    if not names:
        return
    parts = await described_with_eligible(requester, names, node_id)
    for name in names:
        topic = found[name]
        described = ((part, parts.get((topic.topic_id, part.partition), part)) for part in topic.partitions)
        # Metadata names no leader that the client's listener does not have.
        found[name] = replace(
            topic,
            partitions=tuple(
                replace(now, leader=before.leader) if now.leader_epoch == before.leader_epoch else now
                for before, now in described
            ),
        )


async def _metadata_of(
    requester: Requester, wanted: Sequence[str | UUID], node_id: int | None, *, with_operations: bool
) -> list[MetadataResponseTopic]:
    """Asks for topics, those with an id apart: brokers pass over the names of a request that has an id."""
    by_id = [MetadataRequestTopic(topic_id=each, name=None) for each in wanted if isinstance(each, UUID)]
    by_name = [MetadataRequestTopic(topic_id=NO_TOPIC_ID, name=each) for each in wanted if isinstance(each, str)]
    found: list[MetadataResponseTopic] = []
    for topics, needed in ((by_id, _DESCRIBED_BY_ID), (by_name, None)):
        if topics:
            response = await requester.ask(
                MetadataResponse,
                MetadataRequest(
                    topics=topics,
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=with_operations,
                ),
                node_id=node_id,
                code_of=lambda each: first_retriable((one.error_code for one in each.topics), final=ABSENT),
                needed=needed,
            )
            found.extend(response.topics)
    return found


def _description_error(name: str, code: int) -> KafkaError | None:
    return error_of(code, f"topic {name!r} does not exist" if code in ABSENT else None)


def _asked_as(wanted: Collection[str | UUID], name: str | None, topic_id: UUID) -> list[str]:
    """Returns by what a request names the topic of an answer: its name, its id, or both; else what the answer has."""
    return [str(each) for each in (name, topic_id) if each is not None and each in wanted] or [name or str(topic_id)]


def _deletion(before: Mapping[TopicPartition, int], timeout_ms: int) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=number, offset=before[TopicPartition(topic, number)])
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(before).items()
        ],
        timeout_ms=timeout_ms,
    )


def _names_or_ids(call: str, given: Iterable[str | UUID]) -> list[str | UUID]:
    """Returns topics, each by its name or its id."""
    if isinstance(given, str):
        return [*arguments.texts(call, "names", given)]  # refuses it
    found = arguments.elements(call, "names", 'a list of str such as ["flights"]', given)
    return [each if isinstance(each, UUID) else arguments.texts(call, "names", [each])[0] for each in found]
