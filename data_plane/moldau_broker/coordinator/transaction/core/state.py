"""The state of a transaction, and its record in ``__transaction_state``. Data and predicates, without decisions.

`transaction_core` and `lifecycle` make these transitions (KIP-98, KIP-890):

    Empty, CompleteCommit, CompleteAbort --add partitions--> Ongoing
    Ongoing --end--> PrepareCommit, PrepareAbort
    Ongoing --timeout, new producer--> PrepareAbort
    PrepareCommit --all markers written--> CompleteCommit
    PrepareAbort --all markers written--> CompleteAbort
    Empty, CompleteCommit, CompleteAbort --new producer--> Empty
    Empty, CompleteCommit, CompleteAbort --abort without partitions, client version 2--> PrepareAbort

With client version 2 every transaction has an epoch of its own: PrepareCommit and PrepareAbort already carry the epoch
of the next one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError, decode
from moldau.protocol.messages.internal.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from moldau_broker.coordinator.runtime.effects import StateRecord
from moldau_broker.coordinator.runtime.versioned import FIELDS_AT, decode_versioned, encode_versioned, versioned_key

if TYPE_CHECKING:
    from moldau.values import Buffer

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_MAX = 0x7FFF
EPOCH_PER_TRANSACTION = 2
"""The first level of ``transaction.version`` at which every transaction has an epoch of its own (KIP-890)."""

TopicPartition = tuple[str, int]


class TransactionStatus(enum.IntEnum):
    """States, by their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that clients see."""
        return _LABELS[self]

    @property
    def is_settled(self) -> bool:
        """True if no transaction is open, so that a new one may begin."""
        return self in (TransactionStatus.EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)

    @property
    def is_preparing(self) -> bool:
        """True if the outcome is decided and markers are being written."""
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)


_LABELS = {
    TransactionStatus.EMPTY: "Empty",
    TransactionStatus.ONGOING: "Ongoing",
    TransactionStatus.PREPARE_COMMIT: "PrepareCommit",
    TransactionStatus.PREPARE_ABORT: "PrepareAbort",
    TransactionStatus.COMPLETE_COMMIT: "CompleteCommit",
    TransactionStatus.COMPLETE_ABORT: "CompleteAbort",
    TransactionStatus.DEAD: "Dead",
    TransactionStatus.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}

TRANSITIONS: dict[TransactionStatus, tuple[TransactionStatus, ...]] = {
    TransactionStatus.EMPTY: (TransactionStatus.EMPTY, TransactionStatus.ONGOING, TransactionStatus.PREPARE_ABORT),
    TransactionStatus.ONGOING: (
        TransactionStatus.ONGOING,
        TransactionStatus.PREPARE_COMMIT,
        TransactionStatus.PREPARE_ABORT,
    ),
    TransactionStatus.PREPARE_COMMIT: (TransactionStatus.COMPLETE_COMMIT,),
    TransactionStatus.PREPARE_ABORT: (TransactionStatus.COMPLETE_ABORT,),
    TransactionStatus.COMPLETE_COMMIT: (
        TransactionStatus.EMPTY,
        TransactionStatus.ONGOING,
        TransactionStatus.PREPARE_ABORT,
    ),
    TransactionStatus.COMPLETE_ABORT: (
        TransactionStatus.EMPTY,
        TransactionStatus.ONGOING,
        TransactionStatus.PREPARE_ABORT,
    ),
    TransactionStatus.DEAD: (),
    TransactionStatus.PREPARE_EPOCH_FENCE: (),
}
"""All legal transitions. States without any are never written: fencing and aborting are one record here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The committed state of one transactional id; each record replaces it.

    The producer continues with ``next_producer_id`` and ``next_producer_epoch`` when the epochs of its id are
    exhausted. ``previous_producer_id`` is the id before the present one, until the producer uses the present one or
    another producer takes over. ``last_epoch`` is the epoch before the present one if the producer itself requested the
    bump, so that its retry is recognized. ``client_version`` is the level of ``transaction.version`` that the client
    uses, by the versions of its requests. Times are Unix milliseconds.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    last_epoch: int = field(default=NO_EPOCH, compare=False)
    start_ms: int = -1
    last_update_ms: int = -1
    client_version: int = 0

    @property
    def has_own_epoch(self) -> bool:
        """Returns whether the end of the transaction raises the epoch."""
        return self.client_version >= EPOCH_PER_TRANSACTION

    def belongs_to_next(self, producer_id: int, producer_epoch: int) -> bool:
        """Returns whether a producer was given this identity for the transaction after the one that is ending."""
        if not self.status.is_preparing or not self.has_own_epoch:
            return False
        if self.next_producer_id != NO_PRODUCER_ID:
            return (producer_id, producer_epoch) == (self.next_producer_id, self.next_producer_epoch)
        return (producer_id, producer_epoch) == (self.producer_id, self.producer_epoch)

    def moved(self, status: TransactionStatus, wall_ms: int, **changes: object) -> Transaction:
        """Returns the state after a transition along `TRANSITIONS`."""
        assert status in TRANSITIONS[self.status], f"{self.transactional_id}: {self.status.name} to {status.name}"
        return replace(self, status=status, last_update_ms=wall_ms, **changes)  # type: ignore[arg-type]


def is_epoch_exhausted(epoch: int) -> bool:
    """Returns whether a producer id has no epoch left for a producer; the last one is reserved for fencing."""
    return epoch >= EPOCH_MAX - 1


_VALUE_VERSION = 1


def transaction_record(
    transactional_id: str, transaction: Transaction | None, version: int = _VALUE_VERSION
) -> StateRecord:
    """Returns the record of a transaction's state, or its tombstone.

    Value version 0, of ``transaction.version`` 0, has no room for the other producer ids and the client's level.
    """
    key = encode_versioned(TransactionLogKey(transactional_id=transactional_id), 0)
    if transaction is None:
        return StateRecord(key, None)
    topics: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        next_producer_epoch=transaction.next_producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.status,
        transaction_partitions=[
            PartitionsSchema(topic=topic, partition_ids=partitions) for topic, partitions in topics.items()
        ]
        if topics
        else None,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )
    return StateRecord(key, encode_versioned(value, version))


def parse_transaction(key: Buffer | None, value: Buffer | None) -> tuple[str, Transaction | None] | None:
    """Parses a record into the transactional id and its state (None for a tombstone).

    Returns None for an unknown kind of record.

    Raises:
        DecodeError: the record is malformed, or contains a state that no coordinator writes.
    """
    version, key = versioned_key(key, "transaction")
    if version != 0:
        return None
    transactional_id = decode(TransactionLogKey, 0, key, FIELDS_AT).transactional_id
    if value is None:
        return transactional_id, None
    message = decode_versioned(TransactionLogValue, value)
    try:
        status = TransactionStatus(message.transaction_status)
    except ValueError as error:
        raise DecodeError(f"transaction status {message.transaction_status} is not known") from error
    if not TRANSITIONS[status]:
        # Kafka's coordinators hold these states in memory only; no transition leads out of them.
        raise DecodeError(f"transaction status {status.name} is not one of records")
    if message.producer_id < 0 or message.producer_epoch < 0:
        raise DecodeError(f"producer {message.producer_id} with epoch {message.producer_epoch} runs no transactions")
    partitions = tuple(
        (entry.topic, partition) for entry in message.transaction_partitions or () for partition in entry.partition_ids
    )
    return transactional_id, Transaction(
        transactional_id=transactional_id,
        producer_id=message.producer_id,
        producer_epoch=message.producer_epoch,
        timeout_ms=message.transaction_timeout_ms,
        status=status,
        partitions=partitions,
        previous_producer_id=message.previous_producer_id,
        next_producer_id=message.next_producer_id,
        next_producer_epoch=message.next_producer_epoch,
        start_ms=message.transaction_start_timestamp_ms,
        last_update_ms=message.transaction_last_update_timestamp_ms,
        client_version=message.client_transaction_version,
    )
