"""A log in memory for tests of the Spark source: real record batches behind the source's port."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moldau.records import ColumnBuilder, Record, decode_columns, encode_batch, iterate_batches
from pyspark_moldau.errors import DataLossError
from pyspark_moldau.source.core.ends import SeenEnds
from pyspark_moldau.source.core.options import EARLIEST, LATEST
from pyspark_moldau.wire.cluster import UnknownTopicError
from pyspark_moldau.wire.decoding import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark_moldau.source.core.offsets import OffsetRange, Partition
    from pyspark_moldau.source.core.options import Subscription

    Appended = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
    """Timestamp, key, value and headers of a record."""


class MemoryLog:
    """Partitions as lists of records; implements ``LogReader``."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.starts = dict.fromkeys(partitions, 0)
        self.records: dict[Partition, list[Record[bytes, bytes]]] = {partition: [] for partition in partitions}
        self.ids = {topic: "id-1" for topic, _ in partitions}
        self.bytes_of_record = 100
        self.limits_ms: list[int] = []
        self.forget_ends()

    def forget_ends(self) -> None:
        """Forgets the ends that were looked up, as a new process of a query has seen none."""
        self._ends = SeenEnds()

    def append(self, partition: Partition, *pairs: Appended) -> None:
        log = self.records[partition]
        for timestamp, key, value, headers in pairs:
            log.append(Record(self.starts[partition] + len(log), timestamp, key, value, headers))

    def drop_before(self, partition: Partition, offset: int) -> None:
        kept = [record for record in self.records[partition] if record.offset >= offset]
        self.records[partition] = kept
        self.starts[partition] = offset

    def delete(self, topic: str) -> None:
        """Deletes a topic."""
        self.records = {partition: log for partition, log in self.records.items() if partition[0] != topic}
        self.starts = {partition: self.starts[partition] for partition in self.records}
        del self.ids[topic]

    def create(self, topic: str, partitions: int, topic_id: str) -> None:
        """Creates a topic."""
        self.ids[topic] = topic_id
        for number in range(partitions):
            self.records[topic, number] = []
            self.starts[topic, number] = 0

    def reach(self, limit_ms: int) -> None:
        """Notes how long the source would wait for a first answer."""
        self.limits_ms.append(limit_ms)

    def partitions(
        self, subscription: Subscription, *, missing_ok: bool = False, expected: Mapping[str, str] | None = None
    ) -> list[Partition]:
        if subscription.pattern is not None:
            return sorted(partition for partition in self.records if re.fullmatch(subscription.pattern, partition[0]))
        missing = [topic for topic in subscription.topics or () if topic not in self.ids]
        if missing and not missing_ok:
            raise UnknownTopicError(f"topic {missing[0]} does not exist")
        return sorted(partition for partition in self.records if partition[0] in (subscription.topics or ()))

    def topic_ids(self, topics: Iterable[str], expected: Mapping[str, str] | None = None) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def end_epoch(self, partition: Partition, end: int) -> int | None:
        return self._ends.epoch_of(partition, self.ids.get(partition[0]), end)

    def sizes(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: self.bytes_of_record * len(self.records[partition]) for partition in partitions}

    def offsets(self, timestamps: Mapping[Partition, int], *, uncommitted: bool = False) -> dict[Partition, int | None]:
        result: dict[Partition, int | None] = {}
        for partition, timestamp in timestamps.items():
            log = self.records[partition]
            if timestamp == EARLIEST:
                result[partition] = self.starts[partition]
            elif timestamp == LATEST:
                result[partition] = end = self.starts[partition] + len(log)
                self._ends.note(partition, self.ids[partition[0]], 0, end)
            else:
                result[partition] = next((r.offset for r in log if r.timestamp >= timestamp), None)
        return result

    def read(self, work: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Chunk]:
        partition = (work.topic, work.partition)
        if work.start < self.starts[partition] and fail_on_data_loss:
            raise DataLossError("gone")
        log = self.records[partition]
        first = self.starts[partition]
        for start in range(0, len(log), 3):  # small batches, so that ranges begin and end inside of them
            some = log[start : start + 3]
            data = encode_batch([(r.timestamp, r.key, r.value, r.headers) for r in some], base_offset=first + start)
            builder = ColumnBuilder()
            for position, header in iterate_batches(data):
                decode_columns(builder, data, position, header, first_offset=work.start, end_offset=work.end)
            if builder.length:
                yield Chunk(columns=builder.finish(), timestamp_type=0)
