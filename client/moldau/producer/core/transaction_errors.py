"""Errors of a transactional producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition


class TransactionError(KafkaError):
    """Reports that a transaction or the producer has failed; see the subclasses."""


class AbortableTransactionError(TransactionError):
    """Reports that the transaction cannot be committed; abort it, then the next one may begin."""

    partitions: tuple[TopicPartition, ...] = ()
    """The partitions that the coordinator refused to add to the transaction; empty for other reasons."""


class FatalTransactionError(TransactionError):
    """Reports that the producer has failed for good; close it."""


class ProducerFencedError(FatalTransactionError):
    """Reports that another producer took over the transactional id, or that the transaction timed out."""


class TransactionAbortedError(KafkaError):
    """Reports that records or offsets were dropped because their transaction was aborted."""


def error_text(transactional_id: str, code: ErrorCode, detail: str) -> str:
    """Returns the text of an error of a transaction; ``detail`` names what was refused, or is empty."""
    where = f"{detail}: " if detail and detail != code.message else ""  # a broker may send the code's own text
    return f"transactional id {transactional_id!r}: {where}{code.message}"
