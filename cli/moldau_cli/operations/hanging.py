"""Finds transactions that no coordinator will end, and that keep ``read_committed`` consumers of a partition waiting.

A partition says which producers have an open transaction there; the coordinators say which transactions are open in
which partitions (KIP-664). A transaction that only the partition knows hangs. While a coordinator does not answer, only
the producers that the others know are judged: any other one may be that coordinator's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from moldau.admin import AdminError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau_cli.operations.partial import LISTING_S, OFFSETS_S, ask_transactions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class Hanging(NamedTuple):
    """Transactions that hang, and the errors of partitions, brokers and transactional ids that did not answer."""

    found: list[OpenTransaction]
    failures: Mapping[str, KafkaError]


async def find_hanging(admin: Admin, leaders: Mapping[TopicPartition, int], *, silent_before_ms: float) -> Hanging:
    """Returns the hanging transactions among those whose last record is older than ``silent_before_ms``.

    ``leaders`` names the partitions, each with its leader.

    Raises:
        AdminError: no partition answered; it names the first.
        KafkaError: no coordinator answered.
    """
    failures: dict[str, KafkaError] = {}
    found = await _open_transactions(admin, leaders, failures)
    if failures and len(failures) == len(leaders):
        first = min(failures)
        raise AdminError({first: failures[first]})
    suspects = [one for one in found if one.producer.last_timestamp_ms < silent_before_ms]
    if not suspects:
        return Hanging([], failures)
    known, unheard = await _known_transactions(admin, {one.producer.producer_id for one in suspects})
    if unheard:
        suspects = [one for one in suspects if one.producer.producer_id in known]
    failures |= unheard
    hanging = unknown_to_coordinators(suspects, known)
    # A transaction that was being ended meanwhile is unknown to its coordinator before its partition knows the end.
    still = await _open_transactions(admin, {one.partition: leaders[one.partition] for one in hanging}, failures)
    starts = {(one.partition, one.producer.producer_id, one.producer.transaction_start_offset) for one in still}
    confirmed = [
        one
        for one in hanging
        if (one.partition, one.producer.producer_id, one.producer.transaction_start_offset) in starts
    ]
    return Hanging(confirmed, failures)


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


async def _open_transactions(
    admin: Admin, leaders: Mapping[TopicPartition, int], failures: dict[str, KafkaError]
) -> list[OpenTransaction]:
    """Returns what is open in the partitions; adds those that did not answer to ``failures``.

    A leader that has not answered in time for one partition is not waited for again.
    """
    found: list[OpenTransaction] = []
    limit = trio.CapacityLimiter(AT_ONCE_MAX)
    silent: dict[int, KafkaError] = {}

    async def ask(partition: TopicPartition, leader: int) -> None:
        async with limit:
            if leader in silent:
                failures[str(partition)] = silent[leader]
                return
            try:
                producers = await admin.within(round(OFFSETS_S * 1000)).describe_producers(partition)
            except KafkaError as error:
                failures[str(partition)] = error
                if error.code is ErrorCode.REQUEST_TIMED_OUT:
                    silent[leader] = error
                return
            found.extend(
                OpenTransaction(partition=partition, producer=producer)
                for producer in producers
                if producer.transaction_start_offset >= 0
            )

    async with trio.open_nursery() as nursery:
        for partition, leader in leaders.items():
            nursery.start_soon(ask, partition, leader)
    for error in failures.values():
        if isinstance(error, SaslAuthenticationError):
            raise error
    return sorted(found, key=lambda one: (one.partition, one.producer.producer_id))


async def _known_transactions(
    admin: Admin, producer_ids: set[int]
) -> tuple[dict[int, TransactionDescription], dict[str, KafkaError]]:
    """Returns what the coordinators know of these producers, by producer id, and the errors of the others."""
    found: dict[int, TransactionDescription] = {}
    transactions, missing = await ask_transactions(admin, producer_ids=sorted(producer_ids))
    failures = dict(missing)
    for listed in transactions:
        name = listed.transactional_id
        try:
            described = await admin.within(round(LISTING_S * 1000)).describe_transactions([name])
        except SaslAuthenticationError:
            raise
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                failures[f"transactional id {name}"] = getattr(error, "failures", {}).get(name, error)
            continue  # if it was removed meanwhile, it has no transaction
        found[listed.producer_id] = described[name]
    return found, failures
