"""A batch of the producer: its records, its sequence number, and what has become of it. Pure.

The accumulator decides when a batch is sent, and settles it. The shell builds delivery reports from the settled batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.records import set_producer_state
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.cluster.metadata import TopicPartition
    from moldau.protocol.errors import KafkaError
    from moldau.records import BatchBuilder

NO_PRODUCER_ID = -1


class Wakeable(Protocol):
    """An object that the shell sets on a batch to wake waiting tasks (a ``trio.Event``)."""

    def set(self) -> None:
        """Wakes the waiting tasks."""


class ProducerBatch:
    """One batch of one partition. ``data`` is built at the first send, so that retries send the same bytes."""

    __slots__ = (
        "append_timestamp",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "created_ms",
        "data",
        "error",
        "first_index",
        "is_in_flight",
        "is_settled",
        "is_uncertain",
        "last_code",
        "leader",
        "ordinal",
        "partition",
        "parts",
        "producer_epoch",
        "producer_id",
        "record_count",
        "reserved_bytes",
        "retry_at_ms",
        "size_granted",
        "size_limit",
        "topic_id",
        "waiter",
        "watchers",
        "whole",
        "write",
        "writer",
    )

    def __init__(self, partition: TopicPartition, builder: BatchBuilder, now_ms: float, reserved_bytes: int) -> None:
        """Invariant: ``size_granted`` <= ``size_limit``; records go in while the batch has at most ``size_granted``."""
        self.partition = partition
        self.builder = builder
        self.created_ms = now_ms
        self.retry_at_ms = now_ms
        self.reserved_bytes = reserved_bytes  # of buffer.memory
        self.size_limit = builder.size_limit  # bytes at which it is full, before compression
        self.size_granted = min(reserved_bytes, builder.size_limit)
        self.record_count = 0  # final once data exists
        self.attempts = 0
        self.data: bytearray | None = None
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = -1
        self.base_sequence = -1
        self.ordinal = -1  # in the order in which the partition's batches got their sequences
        self.is_in_flight = False
        self.is_settled = False
        self.is_uncertain = False  # the broker may have written it although no answer confirmed it
        self.last_code = ErrorCode.NONE  # of the last attempt that failed and is repeated
        self.leader: tuple[int, int] | None = None  # broker and leader epoch of the last attempt that is answered
        self.topic_id = ZERO_UUID  # of its topic at the last attempt; zero where it is not known
        self.base_offset = -1
        self.append_timestamp = -1
        self.error: KafkaError | None = None
        self.waiter: Wakeable | None = None
        self.watchers: list[Callable[[], None]] | None = None  # to call when the outcome is known
        self.whole: ProducerBatch | None = None  # the batch that was split; deliveries refer to it
        self.parts: list[ProducerBatch] | None = None  # of a batch that was split: the present ones, in order
        self.first_index = 0  # of a part: the index in ``whole`` of its first record
        self.writer = builder.writer  # both for the hot path of ``send``
        self.write = builder.writer.append

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.partition}, records={self.builder.record_count}, attempts={self.attempts}, "
            f"sequence={self.base_sequence}, settled={self.is_settled}, error={self.error})"
        )

    def progress(self) -> str:
        """Returns what became of the attempts to deliver the batch, for an error text."""
        if self.is_in_flight:
            return "its answer did not come"
        if self.last_code is ErrorCode.NONE:
            return "no attempt could be made" if self.attempts == 0 else f"attempts: {self.attempts}"
        return f"attempts: {self.attempts}, the last failed with {self.last_code.name}"

    @property
    def has_sequence(self) -> bool:
        """Whether the batch has its sequence number."""
        return self.base_sequence >= 0

    @property
    def delivered(self) -> ProducerBatch:
        """The batch that deliveries refer to: this one, or the one of which it is a part."""
        return self if self.whole is None else self.whole

    def part(self, index: int) -> ProducerBatch:
        """Returns the batch that carries the record at ``index``: this one, or a part of it."""
        found = self
        for each in self.parts or ():
            if each.first_index > index:
                break
            found = each
        return found

    def settle(self) -> None:
        """Notes that the outcome is known. A batch that was split has the first error of its parts."""
        self.is_settled = True
        whole = self.whole
        if whole is not None and whole.parts is not None:
            whole.is_settled = all(each.is_settled for each in whole.parts)
            whole.error = next((each.error for each in whole.parts if each.error is not None), None)

    def close(self) -> bytearray:
        """Builds the bytes once; later calls return the same."""
        if self.data is None:
            self.record_count = self.builder.record_count
            self.data = self.builder.build()
        return self.data

    def set_sequence(self, producer_id: int, epoch: int, sequence: int, *, is_transactional: bool) -> None:
        """Stamps the producer's fields into the bytes."""
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence
        set_producer_state(self.close(), 0, producer_id, epoch, sequence, is_transactional=is_transactional)
