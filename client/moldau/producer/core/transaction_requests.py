"""The requests of a transactional producer, built from the state of its core, and how answers are read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.transaction_values import OffsetToCommit, State
from moldau.protocol.answers import judge
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.producer.core.transaction_core import TransactionManager
    from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse


def end_request(manager: TransactionManager) -> EndTxnRequest:
    """Returns the request that ends the transaction: a commit while the producer is COMMITTING, else an abort."""
    return EndTxnRequest(
        transactional_id=manager.transactional_id,
        producer_id=manager.producer_id,
        producer_epoch=manager.producer_epoch,
        committed=manager.state is State.COMMITTING,
    )


def init_request(manager: TransactionManager) -> InitProducerIdRequest:
    """Returns the request for a producer id, or for the next epoch of the known one."""
    return InitProducerIdRequest(
        transactional_id=manager.transactional_id,
        transaction_timeout_ms=manager.timeout_ms,
        producer_id=manager.producer_id,
        producer_epoch=manager.producer_epoch,
    )


def add_partitions_request(
    manager: TransactionManager, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Returns the request that adds partitions to the transaction."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=manager.transactional_id,
        v3_and_below_producer_id=manager.producer_id,
        v3_and_below_producer_epoch=manager.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in topics.items()
        ],
    )


def add_offsets_request(manager: TransactionManager, group: GroupMetadata) -> AddOffsetsToTxnRequest:
    """Returns the request that adds the group's offsets partition to the transaction."""
    return AddOffsetsToTxnRequest(
        transactional_id=manager.transactional_id,
        producer_id=manager.producer_id,
        producer_epoch=manager.producer_epoch,
        group_id=group.group_id,
    )


def commit_offsets_request(
    manager: TransactionManager, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetToCommit]
) -> TxnOffsetCommitRequest:
    """Returns the request that commits offsets with the transaction, after the group has joined it."""
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for partition, offset in offsets.items():
        topics.setdefault(partition.topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=manager.transactional_id,
        group_id=group.group_id,
        producer_id=manager.producer_id,
        producer_epoch=manager.producer_epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )


def refused_partitions(
    asked: Iterable[TopicPartition], response: AddPartitionsToTxnResponse
) -> dict[TopicPartition, ErrorCode]:
    """Returns the error of each partition that was not added; one that the answer leaves out was not."""
    answers = (
        (
            TopicPartition(topic.name, part.partition_index),
            KafkaError(ErrorCode.of(part.partition_error_code)) if part.partition_error_code else None,
            None,
        )
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    )
    return {each: error.code for each, error in judge("partition", asked, answers).failures.items()}
