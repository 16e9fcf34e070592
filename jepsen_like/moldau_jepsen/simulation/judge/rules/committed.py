"""Reads the committed records of coordinators, and the markers of transactions, off the leaders' logs.

Each partition is read once, in the order of its offsets, as its high watermark moves. The reader reads the current
leader, because below the high watermark all replicas hold the same records. It reads cleaned logs as far as possible.
Records that a leader's failing disk withholds are read from the next leader; until then the coordinator's decision is
unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.group_bytes import decode_assignment
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.records import decode_records, iterate_batches
from moldau_broker.coordinator.group.consumer.core.state import Current
from moldau_broker.coordinator.group.core.records import GroupRecord, OffsetRecord, parse_record
from moldau_broker.coordinator.transaction.core.state import parse_transaction
from moldau_broker.log.errors import LogError
from moldau_broker.log.files.batches import CONTROL_BIT, TRANSACTIONAL_BIT
from moldau_broker.log.producers.end_markers import decode_marker
from moldau_jepsen.simulation.judge.rules.coordinators import GroupRules, TransactionRules
from moldau_jepsen.workloads.administered import GROUP as ADMINISTERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.simulation.judge.invariants import PartitionKey

READ_BYTES_MAX = 1 << 30
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"


class CommittedReader:
    """Reports newly committed records to the judges of groups and transactions."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._groups = GroupRules(violated)
        self._transactions = TransactionRules(violated)
        self._read: dict[PartitionKey, int] = {}
        self._pending: dict[tuple[PartitionKey, int], list[OffsetRecord]] = {}
        self._withheld: dict[PartitionKey, int] = {}
        """Where the committed part of a log ended that could not be read so far (exclusive)."""
        self._coordinated: dict[int, PartitionKey] = {}
        """By producer id: the partition that its coordinator writes to."""

    def look(self, key: PartitionKey, partition: Partition) -> None:
        """The high watermark of a leader has moved."""
        position = max(self._read.get(key, 0), partition.log.local_log_start_offset)
        end = min(partition.replica.high_watermark, partition.log.log_end_offset)
        if position >= end:
            return
        if partition.log.failed:
            self._withhold(key, end)
            return
        try:
            for header, data in committed_batches(partition, position, end):
                self._take(key, header, data)
                self._read[key] = header.next_offset
        except OSError:
            self._withhold(key, end)  # its disk fails, which is a fault and no finding
        else:
            if end >= self._withheld.get(key, end):
                self._withheld.pop(key, None)

    def _withhold(self, key: PartitionKey, end: int) -> None:
        self._withheld[key] = max(end, self._withheld.get(key, end))

    def _take(self, key: PartitionKey, header: BatchHeader, data: bytes) -> None:
        if header.attributes & CONTROL_BIT:
            self._take_marker(key, header, data)
        elif key.topic == TRANSACTIONS_TOPIC:
            for record in decode_records(data, 0, header):
                self._take_transaction(key, record.key, record.value)
        elif key.topic == OFFSETS_TOPIC:
            for record in decode_records(data, 0, header):
                self._take_group(key, header, record.key, record.value)

    def _take_marker(self, key: PartitionKey, header: BatchHeader, data: bytes) -> None:
        marker = decode_marker(header, data)
        if marker is None:
            return
        is_late = header.base_offset < self._withheld.get(key, 0)  # the next transaction may have begun since
        if not is_late and self._coordinated.get(header.producer_id) not in self._withheld:
            where = f"{key} at offset {header.base_offset}"
            self._transactions.marker(where, header.producer_id, is_commit=marker.commit)
        for record in self._pending.pop((key, header.producer_id), ()):
            if marker.commit:
                self._take_offset(record)

    def _take_transaction(self, key: PartitionKey, record_key: Buffer | None, value: Buffer | None) -> None:
        parsed = parse_transaction(record_key, value)
        if parsed is None:
            return
        transactional_id, state = parsed
        if state is None:
            self._transactions.forgotten(transactional_id)
        else:
            self._coordinated[state.producer_id] = key
            self._transactions.state(
                transactional_id,
                state.status.label,
                state.producer_id,
                state.producer_epoch,
                has_own_epoch=state.has_own_epoch,
            )

    def _take_group(
        self, key: PartitionKey, header: BatchHeader, record_key: Buffer | None, value: Buffer | None
    ) -> None:
        record = parse_record(record_key, value)
        if isinstance(record, GroupRecord):
            if record.value is None:
                self._groups.ended(record.group_id)
                return
            owned = {
                member.member_id: [TopicPartition(*owned) for owned in decode_assignment(bytes(member.assignment))]
                for member in record.value.members
                if member.assignment
            }
            instances = {
                member.member_id: member.group_instance_id
                for member in record.value.members
                if member.group_instance_id is not None
            }
            self._groups.generation(record.group_id, record.value.generation, owned, instances)
        elif isinstance(record, Current):
            held = frozenset() if record.member is None else record.member.owned
            self._groups.holds(record.group_id, record.member_id, held)
        elif isinstance(record, OffsetRecord):
            self._drop_former(key, record)
            if header.attributes & TRANSACTIONAL_BIT:
                self._pending.setdefault((key, header.producer_id), []).append(record)
            else:
                self._take_offset(record)

    def _drop_former(self, key: PartitionKey, record: OffsetRecord) -> None:
        """Drops pending offsets of open transactions for a topic that was deleted.

        A tombstone, or an offset of another topic with that name, shows the deletion.
        """
        for (where, _), pending in self._pending.items():
            if where == key:
                pending[:] = [each for each in pending if not _is_former(each, record)]

    def _take_offset(self, record: OffsetRecord) -> None:
        partition = TopicPartition(record.topic, record.partition)
        committed = record.committed
        if record.group_id == ADMINISTERED:
            return  # an administrator sets its offsets back, which its own checker judges
        if committed is None:
            self._groups.offset(record.group_id, partition, None)
        else:
            self._groups.offset(record.group_id, partition, committed.offset, committed.topic_id)


def _is_former(pending: OffsetRecord, record: OffsetRecord) -> bool:
    """Returns whether ``record``, which comes later, says that the topic of ``pending`` is gone."""
    if (pending.group_id, pending.topic, pending.partition) != (record.group_id, record.topic, record.partition):
        return False
    before, after = pending.committed, record.committed
    if before is None or after is None:
        return True
    return before.topic_id is not None and after.topic_id is not None and before.topic_id != after.topic_id


def committed_batches(partition: Partition, start: int, end: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yields the batches of a log from offset ``start`` to ``end`` (exclusive).

    Raises:
        OSError: A file could not be read.
    """
    position = start
    while position < end:
        data = read_log(partition, position, end)
        before = position
        for at, header in iterate_batches(data):
            if header.next_offset > end:
                return
            position = header.next_offset
            yield header, data[at : at + header.size_bytes]
        if position == before:
            return


def read_log(partition: Partition, start: int, end: int) -> bytes:
    """Returns batches of a log from offset ``start`` on, of one segment, empty if there are none below ``end``.

    Raises:
        OSError: The disk failed or has rotted.
        LogError: The log is damaged, though the disk is not.
    """
    try:
        result = partition.log.read(start, max_bytes=READ_BYTES_MAX, upper_bound_offset=end)
    except LogError as error:
        if error.code is ErrorCode.CORRUPT_MESSAGE:
            _ask_all(partition)
        raise
    if result.segment_base_offset > start:
        _ask_all(partition)
    return b"".join(part.file.read(part.position, part.count) for part in result.ranges)


def _ask_all(partition: Partition) -> None:
    """Checks that no segment has rotted; the log reads nothing beyond the end of a file that was cut.

    Raises:
        OSError: A segment has rotted.
    """
    for segment in partition.log.segments:
        segment.file.read(0, 1)
