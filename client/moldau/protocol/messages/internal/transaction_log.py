"""Records of ``__transaction_state`` (KIP-98, KIP-890)."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Data, Struct


class TransactionLogKey(Data, versions="0"):
    """Key of the state of one transactional id."""

    transactional_id: str = field.string("0")


class PartitionsSchema(Struct):
    """An element of ``transaction_partitions`` in ``TransactionLogValue``."""

    topic: str = field.string("0+")
    partition_ids: Sequence[int] = field.int32_array("0+")


class TransactionLogValue(Data, versions="0-1", flexible="1+"):
    """The state of a transaction and the partitions it has touched; a null value deletes it."""

    producer_id: int = field.int64("0+")
    previous_producer_id: int = field.int64("1+", default=-1, tag=0)
    next_producer_id: int = field.int64("1+", default=-1, tag=1)
    producer_epoch: int = field.int16("0+")
    next_producer_epoch: int = field.int16("1+", default=-1, tag=3)
    transaction_timeout_ms: int = field.int32("0+")
    transaction_status: int = field.int8("0+")
    transaction_partitions: Sequence[PartitionsSchema] | None = field.array(PartitionsSchema, "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = field.int64("0+")
    transaction_start_timestamp_ms: int = field.int64("0+")
    client_transaction_version: int = field.int16("1+", tag=2)
