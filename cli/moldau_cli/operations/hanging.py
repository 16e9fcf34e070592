"""Finds transactions that no coordinator will end, and that keep ``read_committed`` consumers of a partition waiting.

A partition says which producers have an open transaction there; the coordinators say which transactions are open in
which partitions (KIP-664). A transaction that only the partition knows hangs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import ProducerDescription, TransactionDescription
    from moldau.cluster.metadata import TopicPartition

AT_ONCE_MAX: Final = 16
"""Partitions that are asked for at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that a partition holds open."""

    partition: TopicPartition
    producer: ProducerDescription


async def find_hanging(
    admin: Admin, partitions: Iterable[TopicPartition], *, silent_before_ms: float
) -> list[OpenTransaction]:
    """Returns the hanging transactions among those whose last record is older than ``silent_before_ms``.

    Raises:
        KafkaError: a partition or a coordinator did not answer.
    """
    found = await _open_transactions(admin, partitions)
    suspects = [one for one in found if one.producer.last_timestamp_ms < silent_before_ms]
    if not suspects:
        return []
    known = await _known_transactions(admin, {one.producer.producer_id for one in suspects})
    hanging = unknown_to_coordinators(suspects, known)
    # A transaction that was being ended meanwhile is unknown to its coordinator before its partition knows the end.
    still = await _open_transactions(admin, {one.partition: None for one in hanging})
    starts = {(one.partition, one.producer.producer_id, one.producer.transaction_start_offset) for one in still}
    return [
        one
        for one in hanging
        if (one.partition, one.producer.producer_id, one.producer.transaction_start_offset) in starts
    ]


def unknown_to_coordinators(
    suspects: Sequence[OpenTransaction], known: Mapping[int, TransactionDescription]
) -> list[OpenTransaction]:
    """Returns the transactions that are not in progress by their coordinator; ``known`` has them by producer id."""

    def is_known(one: OpenTransaction) -> bool:
        transaction = known.get(one.producer.producer_id)
        return (
            transaction is not None
            and one.partition in transaction.partitions
            and transaction.producer_epoch >= one.producer.producer_epoch
        )

    return [one for one in suspects if not is_known(one)]


async def _open_transactions(admin: Admin, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    found: list[OpenTransaction] = []
    limit = trio.CapacityLimiter(AT_ONCE_MAX)

    async def ask(partition: TopicPartition) -> None:
        async with limit:
            found.extend(
                OpenTransaction(partition=partition, producer=producer)
                for producer in await admin.describe_producers(partition)
                if producer.transaction_start_offset >= 0
            )

    async with trio.open_nursery() as nursery:
        for partition in partitions:
            nursery.start_soon(ask, partition)
    return sorted(found, key=lambda one: (one.partition, one.producer.producer_id))


async def _known_transactions(admin: Admin, producer_ids: set[int]) -> dict[int, TransactionDescription]:
    """Returns what the coordinators know of these producers, by producer id."""
    from moldau.admin import AdminError
    from moldau.protocol.errors import ErrorCode

    found: dict[int, TransactionDescription] = {}
    for listed in await admin.list_transactions(producer_ids=sorted(producer_ids)):
        try:
            described = await admin.describe_transactions([listed.transactional_id])
        except AdminError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue  # it was removed meanwhile, so it has no transaction
        found[listed.producer_id] = described[listed.transactional_id]
    return found
