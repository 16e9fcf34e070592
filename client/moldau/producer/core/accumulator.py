"""The records to send: batches by partition, readiness, order, sequence numbers and retries. Pure.

Theory of operation: every partition has a queue of batches. Records go into the last batch; the sender takes batches
from the front. A batch is *ready* when the partition's front may be sent (``batch_is_ready`` is the whole rule) and the
order of the partition permits it. A sent batch stays in ``outstanding`` until it is settled: acknowledged, failed, or
expired.

Order and idempotence (KIP-98, KIP-360): a batch gets producer id, epoch and sequence when it is first sent, and keeps
them over retries, so that the broker can refuse gaps and recognise duplicates. A batch to retry goes back into the
queue in sequence order, and only the oldest outstanding batch of a partition is retried: one at a time until it is
settled. The outcome of a sequence is lost if a batch expired or failed for good after it was sent, or if the broker has
no state of the producer. The partition then drains, learns the outcome of uncertain batches by sending them again, and
continues with the next producer epoch and sequence 0, which fences requests still in flight. Invariant: ``outstanding``
of a partition is sorted by sequence.

A batch that the broker refuses as too large is split into parts, which take its place and its sequences (KIP-126).
Later batches of its topic are smaller (``batch_sizes``). Their memory is counted in ``batch_memory``.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.batch_memory import BatchMemory, row_at
from moldau.producer.core.batches import NO_PRODUCER_ID, ProducerBatch
from moldau.producer.core.limits import record_size_bound
from moldau.producer.core.partition_queue import PartitionQueue
from moldau.producer.core.splitting import TOO_LARGE, can_split, split
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import (
    NO_LEADER_EPOCH,
    add_sequence,
    set_base_offset,
    set_partition_leader_epoch,
    set_producer_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.producer.core.limits import Limits
    from moldau.records import RowColumns
    from moldau.values import Buffer


PRODUCER_EPOCH_MAX = 32767
BATCHES_RECOGNISED = 5
"""Batches of a producer that a broker remembers for each partition."""

_NOT_WRITTEN = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""Answers after which a batch may be sent again and is known not to lie in the log. NOT_LEADER_OR_FOLLOWER is none of
them: a leader that is deposed while it waits for its followers gives it too."""


def batch_is_ready(
    *,
    is_backing_off: bool,
    is_muted: bool,
    is_full: bool,
    has_lingered: bool,
    is_memory_exhausted: bool,
    is_closing: bool,
    is_flushing: bool,
    is_completing: bool,
) -> bool:
    """Returns whether the front batch may go: no back-off, not muted, and a reason to send now."""
    is_due = is_full or has_lingered or is_memory_exhausted or is_closing or is_flushing or is_completing
    return is_due and not is_backing_off and not is_muted


@dataclass(slots=True, kw_only=True)
class Ready:
    """The nodes to send to. ``next_check_ms`` is the time to look again without an event; infinity for never."""

    by_node: dict[int, list[PartitionQueue]] = field(default_factory=dict)
    next_check_ms: float = math.inf
    has_unknown_leader: bool = False


class Verdict(enum.Enum):
    """The result of an answered batch."""

    DONE = "done"
    RETRY = "retry"
    SPLIT = "split"
    FAILED = "failed"


class Accumulator:
    """The core of the producer. Invariant: ``memory.used`` is the sum of ``reserved_bytes`` of unsettled batches."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        self.memory = BatchMemory(limits)
        self.memory_waiters = 0  # callers that wait for memory; every batch is ready then
        self.flushes = 0  # flushes in progress
        self.is_closing = False
        self.is_completing = False  # a transaction is being committed or aborted
        self.admitted: Mapping[TopicPartition, None] | None = None  # partitions of the transaction; None: all may send
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = -1
        self.needs_producer_id = limits.is_idempotent
        self.id_refusal = ""  # why the last request for a producer id failed, for an error text
        self._turn = 0

    @property
    def memory_used(self) -> int:
        """Bytes of ``buffer.memory`` in use."""
        return self.memory.used

    # --- records in

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """Returns the queue of a partition, made on first use."""
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        return queue

    def append(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        now_ms: float,
    ) -> tuple[ProducerBatch, int, bool] | None:
        """Adds a record; returns (batch, its index in the batch, whether the sender should be woken).

        Returns None, and adds nothing, when the record needs more than is left of ``buffer.memory``.

        Raises:
            InvalidRecordError: a record cannot be encoded.
        """
        batch = queue.open_batch
        if batch is not None and batch.data is None:
            index = batch.write(timestamp, key, value, headers, batch.size_granted)
            if index >= 0:
                return batch, index, batch.builder.is_full
        return self.append_growing(queue, timestamp, key, value, headers, now_ms)

    def append_growing(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        now_ms: float,
    ) -> tuple[ProducerBatch, int, bool] | None:
        """Grows the open batch for a record that did not fit, or begins a new one; otherwise as ``append``."""
        size = record_size_bound(key, value, headers)
        open_batch = queue.open_batch
        if open_batch is not None and open_batch.data is None and open_batch.size_granted < open_batch.size_limit:
            if not self.memory.grow(queue, open_batch, size):
                return None
            index = open_batch.write(timestamp, key, value, headers, open_batch.size_granted)
            if index >= 0:
                return open_batch, index, open_batch.builder.is_full
        batch = self.memory.first_batch(queue, size, now_ms)
        if batch is None:
            return None
        index = batch.write(timestamp, key, value, headers, batch.size_granted)
        assert index == 0, "the first record of a batch always fits"
        self._begin_batch(queue, batch)
        return batch, 0, True

    def append_rows(
        self, queue: PartitionQueue, columns: RowColumns, rows: bytes, start: int, timestamp: int, now_ms: float
    ) -> tuple[ProducerBatch, int] | None:
        """Adds rows of columns to the partition's last batch, or to a new one, until that batch is full.

        ``rows`` holds row numbers (int32 each); the first one to add is element ``start``. Returns the batch and how
        many rows it took. Returns None, and adds nothing, when a row needs more than is left of ``buffer.memory``.

        Raises:
            InvalidRecordError: a record cannot be encoded.
        """
        batch: ProducerBatch | None = queue.open_batch
        if batch is not None and batch.data is None:
            taken = self.memory.fill(queue, batch, columns, rows, start, timestamp)
            if taken:
                return batch, taken
            if batch.size_granted < batch.size_limit:
                return None  # it takes no row for want of memory
        batch = self.memory.first_batch(queue, columns.size_bound(row_at(rows, start)), now_ms)
        if batch is None:
            return None
        taken = batch.writer.append_rows(columns, rows, start, timestamp, batch.size_granted)
        assert taken >= 1, "the first record of a batch always fits"
        self._begin_batch(queue, batch)
        return batch, taken + self.memory.fill(queue, batch, columns, rows, start + taken, timestamp)

    def append_encoded(self, queue: PartitionQueue, data: Buffer, count: int, now_ms: float) -> ProducerBatch | None:
        """Adds a whole batch of ``count`` records, which is copied; None, and nothing added, as in ``append``."""
        if not self.memory.fits(len(data)):
            return None
        batch = self.memory.new_batch(queue, len(data), now_ms)
        batch.data = bytearray(data)
        batch.record_count = count
        # Its leader would take the offsets, the leader epoch and the producer of another log for its own.
        set_base_offset(batch.data, 0, 0)
        set_partition_leader_epoch(batch.data, 0, NO_LEADER_EPOCH)
        set_producer_state(batch.data, 0, NO_PRODUCER_ID, -1, -1, is_transactional=self.limits.is_transactional)
        self._begin_batch(queue, batch)
        return batch

    def _begin_batch(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Puts a batch that holds its first record into the queue."""
        queue.last_size = max(queue.last_size, batch.builder.size_bytes)
        queue.batches.append(batch)
        if batch.data is None:
            queue.open(batch, batch.writer, batch.size_granted)
        else:
            queue.shut()  # records that follow an encoded batch must not go into one before it
        self.incomplete[batch] = None
        self.memory.used += batch.reserved_bytes

    # --- batches out

    def is_muted(self, queue: PartitionQueue) -> bool:
        """Returns whether the front batch must wait for others of its partition."""
        head = queue.batches[0]
        if self.admitted is not None and queue.partition not in self.admitted:
            return True
        if head.has_sequence:
            # A retry: only the oldest outstanding batch goes, alone.
            if self.producer_id == NO_PRODUCER_ID and queue.needs_new_epoch and not head.is_uncertain:
                return True  # until it has the sequence of another producer id
            return queue.outstanding[0] is not head or queue.in_flight > 0
        if not self.limits.is_idempotent:
            # With one request in flight order is kept by muting; with more, retries may overtake, as documented.
            return self.limits.in_flight_max == 1 and queue.in_flight > 0
        if self.producer_id == NO_PRODUCER_ID:
            return True
        is_stale = queue.needs_new_epoch or queue.stamp != (self.producer_id, self.producer_epoch)
        if is_stale and queue.outstanding:
            return True
        if not queue.outstanding:
            return False
        if queue.known_producer_id != self.producer_id:
            # A Kafka broker accepts any sequence from a producer without state. Until the first acknowledgement a
            # leader may have no state: if the first batch was lost with its leader, the next one would be written
            # before it. Every later leader knows the acknowledged batches.
            return True
        # The broker recognises the last five batches. Newer ones must not displace an unsettled one, even if they were
        # all acknowledged (by a new leader, while the answer of the old leader is pending).
        span = queue.next_ordinal - queue.outstanding[0].ordinal
        return span >= min(self.limits.in_flight_max, BATCHES_RECOGNISED)

    def ready(self, now_ms: float, leaders: Mapping[TopicPartition, int]) -> Ready:
        """Returns the partitions whose front batch can be sent, by the node that leads them (``leaders``)."""
        result = Ready()
        is_exhausted = self.memory_waiters > 0
        linger_ms = self.limits.linger_ms
        for partition, queue in self.queues.items():
            if not queue.batches:
                continue
            leader = leaders.get(partition)
            if leader is None:
                result.has_unknown_leader = True
                continue
            if self.is_muted(queue):
                continue
            head = queue.batches[0]
            is_backing_off = head.attempts > 0 and now_ms < head.retry_at_ms
            wait_until_ms = head.retry_at_ms if is_backing_off else head.created_ms + linger_ms
            if batch_is_ready(
                is_backing_off=is_backing_off,
                is_muted=False,
                is_full=len(queue.batches) > 1 or head.data is not None or head.builder.is_full,
                has_lingered=now_ms >= wait_until_ms,
                is_memory_exhausted=is_exhausted,
                is_closing=self.is_closing,
                is_flushing=self.flushes > 0,
                is_completing=self.is_completing,
            ):
                result.by_node.setdefault(leader, []).append(queue)
            else:
                result.next_check_ms = min(result.next_check_ms, wait_until_ms)
        return result

    def drain(self, queues: list[PartitionQueue], now_ms: float) -> list[ProducerBatch]:
        """Takes the front batch of each ready queue and marks it as in flight.

        The batches have at most ``max.request.size`` bytes together, except for a single larger one.
        """
        drained: list[ProducerBatch] = []
        size = 0
        self._turn += 1
        start = self._turn % len(queues) if queues else 0
        for queue in queues[start:] + queues[:start]:
            if not queue.batches or self.is_muted(queue):
                continue
            self._split_unsent(queue)
            batch = queue.batches[0]
            estimate = len(batch.data) if batch.data is not None else batch.builder.size_bytes
            if drained and size + estimate > self.limits.request_size_max:
                break
            queue.batches.popleft()
            data = self.memory.close(queue, batch)
            if self.limits.is_idempotent and not batch.has_sequence:
                self._assign_sequence(queue, batch)
            size += len(data)
            batch.is_in_flight = True
            batch.attempts += 1
            if batch.attempts == 1 or not batch.has_sequence:
                queue.outstanding.append(batch)  # one without a sequence left it when it went back into the queue
            drained.append(batch)
        return drained

    def _assign_sequence(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        stamp = (self.producer_id, self.producer_epoch)
        if queue.stamp != stamp:
            assert not queue.outstanding, "a partition changes its epoch only when it has nothing outstanding"
            queue.stamp = stamp
            queue.next_sequence = 0
            queue.needs_new_epoch = False
        batch.set_sequence(*stamp, queue.next_sequence, is_transactional=self.limits.is_transactional)
        queue.next_sequence = add_sequence(queue.next_sequence, batch.record_count)
        batch.ordinal = queue.next_ordinal
        queue.next_ordinal += 1

    # --- answers

    def settle(
        self,
        batch: ProducerBatch,
        code: ErrorCode,
        now_ms: float,
        *,
        base_offset: int = -1,
        append_timestamp: int = -1,
        message: str | None = None,
        jitter: float = 1.0,
    ) -> Verdict:
        """Takes the broker's answer to a batch in flight.

        NETWORK_EXCEPTION means that no answer arrived. ``jitter`` scales the back-off.
        """
        if batch.is_settled:
            return Verdict.FAILED
        assert batch.is_in_flight, f"{batch} is not in flight"
        batch.is_in_flight = False
        queue = self.queues[batch.partition]
        if code is ErrorCode.NONE or (code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and batch.has_sequence):
            batch.base_offset = base_offset
            batch.append_timestamp = append_timestamp
            if batch.has_sequence:
                queue.known_producer_id = batch.producer_id
            self.memory.sizes.accepted(batch.partition.topic, batch.builder.size_bytes)
            self._finish(queue, batch)
            return Verdict.DONE
        if code in TOO_LARGE:
            self.memory.sizes.refused(batch.partition.topic, batch.builder.size_bytes)
        if can_split(batch, code) and now_ms < batch.created_ms + self.limits.delivery_timeout_ms:
            self._split(queue, batch, code)
            return Verdict.SPLIT
        if code not in _NOT_WRITTEN:
            batch.is_uncertain = True
        if self._can_retry(queue, batch, code, now_ms):
            delay_ms = min(
                self.limits.retry_backoff_ms * 2 ** min(batch.attempts - 1, 20), self.limits.retry_backoff_max_ms
            )
            batch.retry_at_ms = now_ms + delay_ms * jitter
            batch.last_code = code
            self._requeue(queue, batch)
            return Verdict.RETRY
        self._fail(queue, batch, KafkaError(code, message))
        return Verdict.FAILED

    def _can_retry(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode, now_ms: float) -> bool:
        if batch.attempts > self.limits.retries or now_ms >= batch.created_ms + self.limits.delivery_timeout_ms:
            return False
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID) and batch.has_sequence:
            if queue.outstanding[0] is batch:
                # No older batch is missing here: the broker has lost this producer's state or an older batch. The
                # broker's log of this producer ends before this batch.
                if self.limits.is_transactional:
                    return False
                queue.needs_new_epoch = True
                for each in queue.outstanding:
                    each.is_uncertain = False
            return True
        return code.retriable

    def _split_unsent(self, queue: PartitionQueue) -> None:
        """Splits the front batch if it was never sent, and its topic has refused a smaller one meanwhile."""
        batch = queue.batches[0]
        limit = self.memory.sizes.limit(batch.partition.topic)
        if batch.data is None and batch.builder.size_bytes > limit and batch.builder.record_count > 1:
            self.memory.close(queue, batch)
            queue.batches.popleft()
            queue.batches.extendleft(reversed(self._divide(batch, ErrorCode.NONE)))

    def _split(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> None:
        """Puts the parts of a batch in its place, in front of all batches sent or created after it."""
        parts = self._divide(batch, code)
        place = queue.outstanding.index(batch)
        del queue.outstanding[place]
        for part in reversed(parts):
            queue.outstanding.insert(place, part)
            self._requeue(queue, part)

    def _divide(self, batch: ProducerBatch, code: ErrorCode) -> list[ProducerBatch]:
        parts = split(batch, self.limits, self.memory.sizes.limit(batch.partition.topic), code)
        self.incomplete = {
            part: None for each in self.incomplete for part in (parts if each is batch else (each,))
        }  # in the order of creation
        return parts

    def _requeue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Puts a batch back in front of all batches sent or created after it."""
        if not batch.has_sequence:
            queue.outstanding.remove(batch)
            batch_at = 0
            while batch_at < len(queue.batches) and queue.batches[batch_at].created_ms < batch.created_ms:
                batch_at += 1
            queue.batches.insert(batch_at, batch)
            batch.attempts = max(batch.attempts, 1)
            return
        position = queue.outstanding.index(batch)
        older = sum(not other.is_in_flight for other in queue.outstanding[:position])
        queue.batches.insert(older, batch)
        self._renumber_if_drained(queue)

    def _renumber_if_drained(self, queue: PartitionQueue) -> None:
        """Gives the outstanding batches of a partition new sequences under the next epoch, once that is safe.

        It is safe when none is in flight and the oldest is known not to be written, because later ones then cannot be
        written either. Until then the oldest is retried unchanged, and the broker's answer decides.
        """
        if not queue.needs_new_epoch or queue.in_flight or (queue.outstanding and queue.outstanding[0].is_uncertain):
            return
        if self.producer_id != NO_PRODUCER_ID and queue.stamp == (self.producer_id, self.producer_epoch):
            self._bump_epoch()
        if self.producer_id == NO_PRODUCER_ID:
            return
        queue.needs_new_epoch = False
        queue.stamp = (self.producer_id, self.producer_epoch)
        queue.next_sequence = 0
        for batch in queue.outstanding:
            batch.set_sequence(
                self.producer_id,
                self.producer_epoch,
                queue.next_sequence,
                is_transactional=self.limits.is_transactional,
            )
            queue.next_sequence = add_sequence(queue.next_sequence, batch.record_count)
            batch.ordinal = queue.next_ordinal
            queue.next_ordinal += 1

    def _bump_epoch(self) -> None:
        # Without a transactional id only this producer uses the id, so it may raise the epoch itself.
        if self.producer_epoch < PRODUCER_EPOCH_MAX:
            self.producer_epoch += 1
        else:
            self.producer_id, self.producer_epoch = NO_PRODUCER_ID, -1
            self.needs_producer_id = True

    def set_producer_id(self, producer_id: int, epoch: int) -> None:
        """Takes the answer of InitProducerId."""
        self.producer_id, self.producer_epoch = producer_id, epoch
        self.needs_producer_id = False
        for queue in self.queues.values():
            if queue.needs_new_epoch:
                self._renumber_if_drained(queue)

    def leave_cluster(self) -> None:
        """Forgets the producer id of an idempotent producer, because another cluster is in use.

        There the id may belong to another producer, whose sequences would make these batches look like duplicates. No
        batch lies in a log of the other cluster, so all get new sequences.
        """
        if self.limits.is_idempotent and not self.limits.is_transactional:
            self.producer_id, self.producer_epoch, self.needs_producer_id = NO_PRODUCER_ID, -1, True
            for queue in self.queues.values():
                queue.needs_new_epoch = queue.needs_new_epoch or bool(queue.outstanding)
                # The other cluster may assign the same id, and its leaders know nothing of this producer.
                queue.stamp, queue.known_producer_id = (NO_PRODUCER_ID, -1), NO_PRODUCER_ID
                for batch in queue.outstanding:
                    batch.is_uncertain = False

    def _finish(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch in queue.outstanding:
            queue.outstanding.remove(batch)
        batch.is_in_flight = False
        batch.settle()
        self.memory.used -= batch.reserved_bytes
        del self.incomplete[batch]
        if queue.needs_new_epoch:
            self._renumber_if_drained(queue)

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        batch.error = error
        if batch.has_sequence and not self.limits.is_transactional:
            # The sequence is unused or its outcome is unknown, so later batches need a new epoch.
            queue.needs_new_epoch = True
        self._finish(queue, batch)

    # --- time and end

    def expire(self, now_ms: float) -> list[ProducerBatch]:
        """Fails the batches whose ``delivery.timeout.ms`` is over, queued or in flight, and returns them."""
        limit_ms = self.limits.delivery_timeout_ms
        expired: list[ProducerBatch] = []
        for batch in self.incomplete:
            if now_ms < batch.created_ms + limit_ms:
                # Retries keep their place in the order of creation.
                break
            expired.append(batch)
        for batch in expired:
            progress = batch.progress()
            if batch.attempts == 0 and self.needs_producer_id:
                last = f" ({self.id_refusal})" if self.id_refusal else ""
                progress += f": brokers have sent no producer id, which they get from the controllers{last}"
            message = f"{batch.partition}: not delivered within {limit_ms:g} ms of send ({progress})"
            self._discard(batch, KafkaError(ErrorCode.REQUEST_TIMED_OUT, message))
        return expired

    def _discard(self, batch: ProducerBatch, error: KafkaError) -> None:
        queue = self.queues[batch.partition]
        if batch in queue.batches:
            queue.batches.remove(batch)
        batch.close()
        self._fail(queue, batch, error)

    def next_expiry_ms(self) -> float:
        """Returns when the oldest batch expires; infinity where there is none."""
        for batch in self.incomplete:
            return batch.created_ms + self.limits.delivery_timeout_ms
        return math.inf

    def abort(self, error: KafkaError, *, queues: Iterable[PartitionQueue] | None = None) -> list[ProducerBatch]:
        """Fails all batches, or those in ``queues``, which are not in flight, and returns them."""
        doomed = list(self.incomplete) if queues is None else [each for queue in queues for each in queue.batches]
        for batch in doomed:
            self._discard(batch, error)
        return doomed

    def abort_unsent(self, error: KafkaError) -> list[ProducerBatch]:
        """Fails and returns the batches without a sequence number; the others continue until they are settled."""
        doomed = [batch for batch in self.incomplete if not batch.has_sequence]
        for batch in doomed:
            self._discard(batch, error)
        return doomed

    def queue_sizes(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Returns the number of batches that wait for each of ``partitions``."""
        sizes: dict[int, int] = {}
        for partition in partitions:
            queue = self.queues.get(TopicPartition(topic, partition))
            sizes[partition] = 0 if queue is None else len(queue.batches)
        return sizes
