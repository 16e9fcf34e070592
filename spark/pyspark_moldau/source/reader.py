"""The interface that the source needs from a log, and its implementation for a real cluster.

Spark calls a source from plain threads of plain Python processes, and needs columns instead of records. So this reader
uses Kafka's protocol over blocking sockets, keeps one request ahead of the decoder, and passes batches to the column
decoder of ``moldau.records`` without creating an object per record. Topics are fetched by their id, so that records of
a topic that was deleted and created again are never taken for those of the first one.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Protocol

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.records import CorruptRecordError, iterate_batches
from pyspark_moldau.errors import DamagedBatchError, DataLossError, ReadTimeoutError
from pyspark_moldau.source.core.ends import SeenEnds
from pyspark_moldau.source.core.options import EARLIEST, LATEST, ClientOptions, OptionError, Subscription
from pyspark_moldau.wire.cluster import (
    NO_TOPIC_ID,
    Address,
    Cluster,
    RetryTimer,
    UnknownTopicError,
    id_text,
    raise_for,
    topic_uuid,
)
from pyspark_moldau.wire.decoding import Chunk, decode
from pyspark_moldau.wire.reach import reached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from pyspark_moldau.source.core.offsets import OffsetRange, Partition

logger = logging.getLogger(__name__)

LIST_OFFSETS_VERSION: Final = 7
FETCH_VERSION: Final = 13  # names topics by id
DESCRIBE_LOG_DIRS_VERSION: Final = 3
MISSING: Final = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
PREFERRED_REPLICA_S: Final = 300.0
"""How long a replica in the reader's rack is used before the leader is asked again; Kafka's ``metadata.max.age.ms``."""
LEADER_ONLY_S: Final = 60.0
"""How long a partition is read from its leader after the replica in the reader's rack could not serve it."""


class ShortLogError(ConnectionError):
    """A leader's log ends before an end that was seen."""


class LogReader(Protocol):
    """The interface of a log reader that the source uses."""

    def reach(self, limit_ms: int) -> None:
        """Waits until a broker answers, for ``limit_ms`` or as long as the options of the query say.

        Raises:
            ReadTimeoutError: none does in time; the text names each address with its cause.
            OptionError: the keys of TLS or SASL are wrong, or the broker refused the login.
        """
        ...

    def partitions(
        self, subscription: Subscription, *, missing_ok: bool = False, expected: Mapping[str, str] | None = None
    ) -> list[Partition]:
        """Returns all partitions that the subscription matches now, sorted.

        A named topic is the one with the ``expected`` id if any broker knows it.

        Raises:
            OptionError: a named topic or partition does not exist, and ``missing_ok`` is false.
        """
        ...

    def topic_ids(self, topics: Sequence[str], expected: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the ids of those of the topics that exist now; the ``expected`` one if any broker knows it."""
        ...

    def offsets(self, timestamps: Mapping[Partition, int], *, uncommitted: bool = False) -> dict[Partition, int | None]:
        """Returns for each partition the offset of a timestamp (milliseconds, ``EARLIEST`` or ``LATEST``).

        None means that no record is that late. ``uncommitted`` looks past open transactions, whatever the options of
        the query say.
        """
        ...

    def end_epoch(self, partition: Partition, end: int) -> int | None:
        """Returns the leader epoch in which a leader named an end of at least ``end`` to this reader.

        -1 means that the leader epoch is not known, None that no end as high was named.
        """
        ...

    def sizes(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Returns the bytes that each partition has on the disk of its leader."""
        ...

    def read(self, work: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Chunk]:
        """Yields the records of a range, in order.

        Raises:
            DataLossError: records are gone and ``fail_on_data_loss`` is true.
        """
        ...


class ClusterReader:
    """Reads a cluster. An instance is for one thread, and exists as long as that (see ``shared_reader``)."""

    def __init__(self, client: ClientOptions) -> None:
        self._client = client
        self._cluster = Cluster(client)
        self._preferred: dict[Partition, tuple[int, float]] = {}
        self._leader_only_until: dict[Partition, float] = {}
        self._ends = SeenEnds()

    def close(self) -> None:
        """Closes the connections that no request is using; the reader opens others when it is used again."""
        self._cluster.forget()

    def reach(self, limit_ms: int) -> None:
        """See ``LogReader``."""
        reached(self._client, self._client.reach_timeout_ms or limit_ms).forget()

    def partitions(
        self, subscription: Subscription, *, missing_ok: bool = False, expected: Mapping[str, str] | None = None
    ) -> list[Partition]:
        """See ``LogReader``."""
        ids = {topic: topic_uuid(found) for topic, found in (expected or {}).items()}
        return self._cluster.retry("look up topics", lambda: self._partitions(subscription, ids, missing_ok=missing_ok))

    def topic_ids(self, topics: Sequence[str], expected: Mapping[str, str] | None = None) -> dict[str, str]:
        """See ``LogReader``."""
        ids = {topic: topic_uuid(found) for topic, found in (expected or {}).items()}

        def ask() -> dict[str, str]:
            self._cluster.refresh(topics, missing_ok=True, expected=ids)
            return {name: id_text(found) for name, found in self._cluster.topic_ids.items() if found != NO_TOPIC_ID}

        return self._cluster.retry("look up topics", ask)

    def offsets(self, timestamps: Mapping[Partition, int], *, uncommitted: bool = False) -> dict[Partition, int | None]:
        """See ``LogReader``."""
        found = self._cluster.retry("look up offsets", lambda: self._offsets(timestamps, uncommitted=uncommitted))
        return {partition: offset for partition, (offset, _) in found.items()}

    def end_epoch(self, partition: Partition, end: int) -> int | None:
        """See ``LogReader``."""
        return self._ends.epoch_of(partition, self._cluster.topic_ids.get(partition[0]), end)

    def sizes(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """See ``LogReader``."""
        return self._cluster.retry("look up sizes", lambda: self._sizes(partitions))

    def read(self, work: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Chunk]:
        """See ``LogReader``."""
        partition = (work.topic, work.partition)
        position = work.start
        waits = RetryTimer(f"read {work.topic}-{work.partition}", self._client)
        while position < work.end:
            from_leader = partition not in self._preferred
            try:
                for chunk, reached in self._read_from_broker(work, position, waits):
                    if reached > position:  # which comes after the last chunk, when the caller has taken its time
                        waits.progress()
                    position = reached
                    if chunk is not None:
                        yield chunk
            except (OSError, KafkaError, UnknownTopicError) as error:
                self._avoid_followers(partition)
                if isinstance(error, UnknownTopicError) or (isinstance(error, KafkaError) and error.code in MISSING):
                    if self._is_gone(work):
                        text = f"{work.topic} was deleted before its records {position}..{work.end - 1} were read"
                        self._report_loss(text, fail_on_data_loss=fail_on_data_loss)
                        return
                    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                is_outside = isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE
                if is_outside and not from_leader:  # a replica may be behind, and the leader decides
                    continue
                if is_outside or isinstance(error, ShortLogError):
                    left = self._left(work, position, fail_on_data_loss=fail_on_data_loss)
                    if left is not None:
                        work = left
                        continue
                if is_outside:
                    position = self._after_loss(work, position, waits, fail_on_data_loss=fail_on_data_loss)
                    continue
                waits.failed(error)
                self._cluster.forget()
            except CorruptRecordError as error:
                raise DamagedBatchError(
                    f"{work.topic}-{work.partition} has a damaged record batch at offset {position} or after it "
                    f"({error}); a query with a new checkpoint can start after it (startingOffsets)"
                ) from error

    # -- one attempt each ---------------------------------------------------------------------------------------------

    def _partitions(
        self, subscription: Subscription, expected: Mapping[str, UUID], *, missing_ok: bool
    ) -> list[Partition]:
        cluster = self._cluster
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            cluster.refresh(None)
            return sorted(partition for partition in cluster.leaders if pattern.fullmatch(partition[0]))
        if subscription.assignment is not None:
            self._refresh("assign", sorted(subscription.assignment), expected, missing_ok=missing_ok)
            wanted = [(topic, number) for topic, numbers in subscription.assignment.items() for number in numbers]
            for topic, number in wanted:
                if (topic, number) not in cluster.leaders and not missing_ok:
                    count = sum(name == topic for name, _ in cluster.leaders)
                    raise OptionError(f"assign: topic {topic} has no partition {number}, only 0 to {count - 1}")
            return sorted(partition for partition in wanted if partition in cluster.leaders)
        assert subscription.topics is not None, "a subscription has topics, a pattern or an assignment"
        self._refresh("subscribe", subscription.topics, expected, missing_ok=missing_ok)
        return sorted(partition for partition in cluster.leaders if partition[0] in subscription.topics)

    def _refresh(self, option: str, topics: Sequence[str], expected: Mapping[str, UUID], *, missing_ok: bool) -> None:
        """Asks for the metadata of the topics that ``option`` names.

        Raises:
            UnknownTopicError: a topic does not exist, and ``missing_ok`` is false; the text has the nearest name.
        """
        cluster = self._cluster
        try:
            cluster.refresh(topics, missing_ok=missing_ok, expected=expected)
        except UnknownTopicError as error:
            cluster.refresh(None)
            known = sorted(set(cluster.topic_ids).difference(topics))
            missing = [topic for topic in topics if topic not in cluster.topic_ids]
            near = [name for topic in missing for name in get_close_matches(topic, known, 1)]
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UnknownTopicError(f"{option}: {error}{hint}") from error

    def _by_leader(self, partitions: Sequence[Partition]) -> dict[Address, list[Partition]]:
        """Groups partitions by their leaders as last known: a retry has forgotten them, and asks again."""
        if any(partition not in self._cluster.leaders for partition in partitions):
            self._cluster.refresh(sorted({topic for topic, _ in partitions}))
        by_leader: dict[Address, list[Partition]] = {}
        for partition in partitions:
            by_leader.setdefault(self._cluster.leader_address(partition), []).append(partition)
        return by_leader

    def _offsets(
        self, timestamps: Mapping[Partition, int], *, uncommitted: bool = False
    ) -> dict[Partition, tuple[int | None, int]]:
        """Returns offsets and leader epochs."""
        found: dict[Partition, tuple[int | None, int]] = {}
        for address, partitions in self._by_leader(list(timestamps)).items():
            by_topic: dict[str, list[ListOffsetsPartition]] = {}
            for topic, number in partitions:
                by_topic.setdefault(topic, []).append(
                    ListOffsetsPartition(partition_index=number, timestamp=timestamps[topic, number])
                )
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(self._client.read_committed and not uncommitted),
                topics=[ListOffsetsTopic(name=topic, partitions=parts) for topic, parts in by_topic.items()],
            )
            answer = self._cluster.ask(address, request, LIST_OFFSETS_VERSION, ListOffsetsResponse)
            for entry in answer.topics:
                for part in entry.partitions:
                    raise_for(part.error_code, f"{entry.name}-{part.partition_index}")
                    key = entry.name, part.partition_index
                    found[key] = part.offset if part.offset >= 0 else None, part.leader_epoch
                    if timestamps.get(key) == LATEST and not uncommitted:
                        self._ends.note(key, self._cluster.topic_ids.get(entry.name), part.leader_epoch, part.offset)
        missing = [partition for partition in timestamps if partition not in found]
        if missing:
            raise ConnectionError(f"the ListOffsets response lacks {missing[0][0]}-{missing[0][1]}")
        return found

    def _sizes(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        found = dict.fromkeys(partitions, 0)
        for address, led in self._by_leader(partitions).items():
            by_topic: dict[str, list[int]] = {}
            for topic, number in led:
                by_topic.setdefault(topic, []).append(number)
            request = DescribeLogDirsRequest(
                topics=[DescribableLogDirTopic(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]
            )
            answer = self._cluster.ask(address, request, DESCRIBE_LOG_DIRS_VERSION, DescribeLogDirsResponse)
            raise_for(answer.error_code, "the sizes of partitions, for maxBytesPerTrigger or maxBytesPerPartition")
            for directory in answer.results:
                for entry in directory.topics:
                    for part in entry.partitions:
                        if not part.is_future_key and (entry.name, part.partition_index) in found:
                            found[entry.name, part.partition_index] = part.partition_size
        return found

    def _read_from_broker(
        self, work: OffsetRange, position: int, waits: RetryTimer
    ) -> Iterator[tuple[Chunk | None, int]]:
        """Reads from ``position``; yields chunks with the reached position.

        The next fetch is in flight meanwhile. Returns early for a nearer replica, and before the login's session ends.

        Raises:
            ReadTimeoutError: the broker answers, but has sent no record for as long as ``waits`` allows.
        """
        partition = (work.topic, work.partition)
        if partition not in self._cluster.leaders:
            self._cluster.refresh([work.topic])
            if partition not in self._cluster.leaders:  # the present topic of that name has fewer partitions
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        address = self._address(partition)
        topic_id = topic_uuid(work.topic_id) if work.topic_id else self._cluster.topic_ids[work.topic]
        connection = self._cluster.take_connection(address)
        clean = False
        try:
            connection.send(self._fetch_request(work, topic_id, position), FETCH_VERSION)
            while position < work.end:
                answer = connection.receive(FetchResponse, FETCH_VERSION)
                data = _only_partition(answer, topic_id, work)
                raise_for(data.error_code, f"{work.topic}-{work.partition}")
                if data.preferred_read_replica >= 0 and not data.records:
                    self._preferred[partition] = (data.preferred_read_replica, time.monotonic())
                    if data.preferred_read_replica not in self._cluster.brokers:
                        self._cluster.refresh([work.topic])  # a broker that came since
                        if data.preferred_read_replica not in self._cluster.brokers:
                            self._avoid_followers(partition)
                    break
                batches = [] if data.records is None else list(iterate_batches(data.records))
                reached = max([position, *(header.next_offset for _, header in batches)])
                if reached == position and data.high_watermark < work.end:
                    raise ShortLogError(
                        f"{work.topic}-{work.partition} ends at {data.high_watermark}, {work.end} was seen before"
                    )
                if reached == position and waits.is_over:
                    raise ReadTimeoutError(self._unsent(work, position, data, waits))
                goes_on = reached < work.end and not connection.is_outdated
                if goes_on:
                    connection.send(self._fetch_request(work, topic_id, reached), FETCH_VERSION)
                for chunk in decode(
                    data,
                    batches,
                    position,
                    work.end,
                    read_committed=self._client.read_committed,
                    check_crcs=self._client.check_crcs,
                ):
                    yield chunk, position
                position = reached
                yield None, position
                if not goes_on:
                    break  # at the end, or to log in again: the broker would refuse the next fetch
            clean = True
        finally:
            if clean:
                self._cluster.give_back(address, connection)
            else:
                connection.close()

    def _unsent(self, work: OffsetRange, position: int, data: PartitionData, waits: RetryTimer) -> str:
        """Returns the error of a broker that has records of the range and does not send them."""
        cause = f"the broker sends no record from offset {position} on, although its log ends at {data.high_watermark}"
        if self._client.read_committed and data.last_stable_offset < work.end:
            at = f"{work.topic} {work.partition}"
            cause = (
                f"a transaction that is open since offset {data.last_stable_offset} hides what follows it from "
                f"kafka.isolation.level read_committed; moldau txns producers {at} shows it, and moldau txns "
                f"find-hanging --topic {work.topic} finds one that must be ended by moldau txns abort"
            )
        return waits.over(f"{cause};")

    def _address(self, partition: Partition) -> Address:
        """Returns where to fetch: from a replica in the reader's rack if the leader named one, or from the leader."""
        node, since = self._preferred.get(partition, (-1, 0.0))
        if node in self._cluster.brokers and time.monotonic() - since < PREFERRED_REPLICA_S:
            return self._cluster.brokers[node]
        self._preferred.pop(partition, None)
        return self._cluster.leader_address(partition)

    def _avoid_followers(self, partition: Partition) -> None:
        """Reads a partition from its leader for a while, if its replica in the reader's rack cannot serve it."""
        if self._preferred.pop(partition, None) is not None:
            self._leader_only_until[partition] = time.monotonic() + LEADER_ONLY_S

    def _rack(self, partition: Partition) -> str:
        """Returns the rack of the reader, or none if a leader that knew it would name the same replica again."""
        if time.monotonic() < self._leader_only_until.get(partition, 0.0):
            return ""
        self._leader_only_until.pop(partition, None)
        return self._client.rack

    def _fetch_request(self, work: OffsetRange, topic_id: UUID, position: int) -> FetchRequest:
        part = FetchPartition(
            partition=work.partition, fetch_offset=position, partition_max_bytes=self._client.partition_fetch_bytes
        )
        return FetchRequest(
            max_wait_ms=self._client.fetch_wait_ms,
            min_bytes=self._client.fetch_bytes_min,
            max_bytes=min(self._client.fetch_bytes, self._client.partition_fetch_bytes),
            isolation_level=int(self._client.read_committed),
            topics=[FetchTopic(topic_id=topic_id, partitions=[part])],
            rack_id=self._rack((work.topic, work.partition)),
        )

    # -- lost records -------------------------------------------------------------------------------------------------

    def _is_gone(self, work: OffsetRange) -> bool:
        """Returns whether the topic of a range is another one now, or does not exist."""
        expected = {work.topic: work.topic_id} if work.topic_id else None
        now = self.topic_ids([work.topic], expected).get(work.topic)
        return now is None or (bool(work.topic_id) and now != work.topic_id)

    def _left(self, work: OffsetRange, position: int, *, fail_on_data_loss: bool) -> OffsetRange | None:
        """Returns what is left of a range whose last records are gone; None if they may still be there.

        They are gone if the leader names an end before them and leads in an epoch in which it must have had them: that
        of the leader that named the end of the range, or a later one.

        Raises:
            DataLossError: records are gone, and ``fail_on_data_loss`` is true.
        """
        if work.leader_epoch < 0:
            return None
        partition = (work.topic, work.partition)
        self._cluster.forget()
        latest, epoch = self._cluster.retry("look up offsets", lambda: self._offsets({partition: LATEST}))[partition]
        if latest is None or latest >= work.end or epoch < work.leader_epoch:
            return None
        self._report_loss(
            f"{work.topic}-{work.partition} was cut at offset {latest}: its records "
            f"{max(position, latest)}..{work.end - 1} are gone",
            fail_on_data_loss=fail_on_data_loss,
        )
        return replace(work, end=max(latest, work.start))

    def _after_loss(self, work: OffsetRange, position: int, waits: RetryTimer, *, fail_on_data_loss: bool) -> int:
        """Returns where to go on after a leader has called the position out of range.

        A former leader that is cut off from the others, and does not know it, lacks what its successor has. So the
        metadata are asked for again, and only an answer that stays for as long as a failure may last is believed.

        Raises:
            DataLossError: records are gone.
        """
        partition = (work.topic, work.partition)
        self._cluster.forget()
        earliest = self.offsets({partition: EARLIEST})[partition] or 0
        if earliest <= position:
            text = f"{work.topic}-{work.partition} was cut below offset {position}"
            try:
                waits.failed(KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text))
            except ReadTimeoutError as error:
                raise DataLossError(
                    f"{text}: records {position}..{work.end - 1} are gone; start the query with a new checkpoint to "
                    "read what is there"
                ) from error
            return position
        self._report_loss(
            f"records {position}..{min(earliest, work.end) - 1} of {work.topic}-{work.partition} are gone "
            f"(the log now starts at {earliest})",
            fail_on_data_loss=fail_on_data_loss,
        )
        return min(earliest, work.end)

    def _report_loss(self, text: str, *, fail_on_data_loss: bool) -> None:
        if fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss to false to continue without them")
        logger.warning("data-loss %s", text)


def _only_partition(answer: FetchResponse, topic_id: UUID, work: OffsetRange) -> PartitionData:
    raise_for(answer.error_code, f"{work.topic}-{work.partition}")
    for entry in answer.responses:
        for data in entry.partitions:
            if entry.topic_id == topic_id and data.partition_index == work.partition:
                return data
    raise ConnectionError(f"the Fetch response lacks {work.topic}-{work.partition}")


READERS_MAX: Final = 16
"""How many readers a thread keeps; each holds a connection to some brokers."""


class _Kept(threading.local):
    """The readers of a thread. A driver may run several jobs in threads, with the same options."""

    def __init__(self) -> None:
        self.readers: dict[ClientOptions, ClusterReader] = {}


_kept = _Kept()


def shared_reader(client: ClientOptions) -> ClusterReader:
    """Returns this thread's reader for these options. Spark reuses its Python workers, so connections are reused."""
    readers = _kept.readers
    reader = readers.pop(client, None) or ClusterReader(client)
    readers[client] = reader  # now the last one in the order of use
    while len(readers) > READERS_MAX:
        readers.pop(next(iter(readers))).close()
    return reader
