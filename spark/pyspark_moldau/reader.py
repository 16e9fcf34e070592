"""The interface that the source needs from a log, and its implementation for a real cluster.

Spark calls a source from plain threads of plain Python processes, and needs columns instead of records. So this reader
uses Kafka's protocol over blocking sockets, keeps one request ahead of the decoder, and passes batches to the column
decoder of ``moldau.records`` without creating an object per record. After a leader change or the death of a broker it
retries until ``kafka.default.api.timeout.ms`` has passed since the last progress, because Spark ends a query at the
first exception.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.schema import Response
from moldau.records import (
    BatchHeader,
    ColumnBuilder,
    Columns,
    ControlRecordType,
    check_batch_crc,
    control_record_type,
    decode_columns,
    decode_records,
    iterate_batches,
)
from pyspark_moldau.options import EARLIEST, LATEST, ClientOptions, OptionError, Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from moldau.protocol.schema import Request
    from pyspark_moldau.offsets import OffsetRange, Offsets, Partition

logger = logging.getLogger(__name__)

# Versions that every Kafka 4 broker serves and that name topics, not ids.
METADATA_VERSION = 9
LIST_OFFSETS_VERSION = 7
FETCH_VERSION = 12

FETCH_WAIT_MS = 500
FRAME_BYTES_MAX = 512 * 1024 * 1024
BACKOFF_FIRST_S = 0.1
BACKOFF_LAST_S = 1.0
CHUNK_ROWS = 65_536
CHUNK_BYTES = 16 * 1024 * 1024

T = TypeVar("T")
R = TypeVar("R", bound=Response)


class DataLossError(RuntimeError):
    """Records that the query should have read are gone."""


class ReadTimeoutError(RuntimeError):
    """The cluster did not answer, or had no leader, for ``kafka.default.api.timeout.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Decoded records of one partition, all of one timestamp type (0 create time, 1 log append time)."""

    columns: Columns
    timestamp_type: int


class LogReader(Protocol):
    """The interface of a log reader that the source uses."""

    def partitions(self, subscription: Subscription) -> list[Partition]:
        """Returns all partitions that the subscription matches now, sorted.

        Raises:
            OptionError: a named topic does not exist.
        """
        ...

    def offsets(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Returns for each partition the offset of a timestamp (milliseconds, ``EARLIEST`` or ``LATEST``).

        None means that no record is that late.
        """
        ...

    def read(self, work: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Chunk]:
        """Yields the records of a range, in order.

        Raises:
            DataLossError: records are gone and ``fail_on_data_loss`` is true.
        """
        ...


class BrokerConnection:
    """One blocking connection. Close it after any exception, because requests and responses may be out of step."""

    def __init__(self, host: str, port: int, client: ClientOptions) -> None:
        """Connects to a broker.

        Raises:
            OSError: the connection failed.
        """
        self._timeout_s = client.request_timeout_ms / 1000
        self._client_id = client.client_id
        self._socket = socket.create_connection((host, port), timeout=self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def close(self) -> None:
        """Closes the connection; idempotent."""
        self._socket.close()

    def send(self, request: Request, version: int) -> None:
        """Sends a request; responses arrive in the order of the requests."""
        self._correlation_id += 1
        self._socket.sendall(encode_request(request, version, self._correlation_id, self._client_id))

    def receive(self, response_class: type[R], version: int) -> R:
        """Reads the next response into a buffer of its own; ``records`` fields borrow from it."""
        size = int.from_bytes(self._read_exactly(4), "big", signed=True)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise ConnectionError(f"a response has {size} bytes; the limit is {FRAME_BYTES_MAX}")
        frame = self._read_exactly(size)
        try:
            _, message = decode_response(response_class, version, frame)
        except ProtocolError as error:
            raise ConnectionError(f"a response is not a {response_class.__name__}: {error}") from error
        return message

    def _read_exactly(self, count: int) -> memoryview:
        view = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            received = self._socket.recv_into(view[filled:])
            if received == 0:
                raise ConnectionResetError("the broker closed the connection")
            filled += received
        return view


class ClusterReader:
    """Reads a cluster. An instance is for one thread, and exists as long as its process (see ``shared_reader``)."""

    def __init__(self, client: ClientOptions) -> None:
        self._client = client
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Partition, tuple[int, int]] = {}

    # -- LogReader ----------------------------------------------------------------------------------------------------

    def partitions(self, subscription: Subscription) -> list[Partition]:
        """See ``LogReader``."""
        return self._retry("look up topics", lambda: self._partitions(subscription))

    def offsets(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """See ``LogReader``."""
        return self._retry("look up offsets", lambda: self._offsets(timestamps))

    def read(self, work: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[Chunk]:
        """See ``LogReader``."""
        position = work.start
        waits = _RetryTimer(f"read {work.topic}-{work.partition}", self._client.api_timeout_ms)
        while position < work.end:
            try:
                for chunk, reached in self._read_from_leader(work, position):
                    position = reached
                    waits.progress()
                    if chunk is not None:
                        yield chunk
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    position = self._after_loss(work, position, fail_on_data_loss=fail_on_data_loss)
                    continue
                waits.failed(error)
                self._forget()

    # -- one attempt each ---------------------------------------------------------------------------------------------

    def _partitions(self, subscription: Subscription) -> list[Partition]:
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            self._refresh(None)
            return sorted(partition for partition in self._leaders if pattern.fullmatch(partition[0]))
        if subscription.assignment is not None:
            self._refresh(sorted(subscription.assignment))
            wanted = [(topic, number) for topic, numbers in subscription.assignment.items() for number in numbers]
            for topic, number in wanted:
                if (topic, number) not in self._leaders:
                    raise OptionError(f"assign: topic {topic} has no partition {number}")
            return sorted(wanted)
        assert subscription.topics is not None, "a subscription has topics, a pattern or an assignment"
        self._refresh(subscription.topics)
        return sorted(partition for partition in self._leaders if partition[0] in subscription.topics)

    def _offsets(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int | None]:
        self._refresh(sorted({topic for topic, _ in timestamps}))
        by_leader: dict[tuple[str, int], list[Partition]] = {}
        for partition in timestamps:
            by_leader.setdefault(self._leader_address(partition), []).append(partition)
        found: dict[Partition, int | None] = {}
        for address, partitions in by_leader.items():
            by_topic: dict[str, list[ListOffsetsPartition]] = {}
            for topic, number in partitions:
                by_topic.setdefault(topic, []).append(
                    ListOffsetsPartition(partition_index=number, timestamp=timestamps[topic, number])
                )
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(self._client.read_committed),
                topics=[ListOffsetsTopic(name=topic, partitions=parts) for topic, parts in by_topic.items()],
            )
            answer = self._ask(address, request, LIST_OFFSETS_VERSION, ListOffsetsResponse)
            for entry in answer.topics:
                for part in entry.partitions:
                    _raise_for(part.error_code)
                    found[entry.name, part.partition_index] = part.offset if part.offset >= 0 else None
        missing = [partition for partition in timestamps if partition not in found]
        if missing:
            raise ConnectionError(f"the ListOffsets response lacks {missing[0][0]}-{missing[0][1]}")
        return found

    def _read_from_leader(self, work: OffsetRange, position: int) -> Iterator[tuple[Chunk | None, int]]:
        """Reads from ``position``; yields chunks with the reached position.

        The next fetch is in flight while the caller handles a chunk.
        """
        partition = (work.topic, work.partition)
        if partition not in self._leaders:
            self._refresh([work.topic])
        address = self._leader_address(partition)
        connection = self._connections.pop(address, None) or BrokerConnection(*address, self._client)
        clean = False
        try:
            connection.send(self._fetch_request(work, position), FETCH_VERSION)
            while position < work.end:
                data = _only_partition(connection.receive(FetchResponse, FETCH_VERSION), work)
                _raise_for(data.error_code)
                batches = [] if data.records is None else list(iterate_batches(data.records))
                reached = max([position, *(header.next_offset for _, header in batches)])
                if reached == position and data.high_watermark < work.end:
                    raise ConnectionError(
                        f"{work.topic}-{work.partition} ends at {data.high_watermark}, {work.end} was seen before"
                    )
                if reached < work.end:
                    connection.send(self._fetch_request(work, reached), FETCH_VERSION)
                for chunk in self._decode(data, batches, position, work.end):
                    yield chunk, position
                position = reached
                yield None, position
            clean = True
        finally:
            if clean:
                self._connections.setdefault(address, connection)
            else:
                connection.close()

    def _decode(
        self, data: PartitionData, batches: Sequence[tuple[int, BatchHeader]], first: int, end: int
    ) -> Iterator[Chunk]:
        """Decodes batches into as few chunks as the limits allow, without transaction markers and aborted records."""
        assert data.records is not None or not batches, "batches come from records"
        aborted = _AbortedFilter(data.aborted_transactions or () if self._client.read_committed else ())
        builder = ColumnBuilder()
        timestamp_type = 0
        for position, header in batches:
            if header.next_offset <= first or header.base_offset >= end:
                continue
            assert data.records is not None, "batches come from records"
            check_batch_crc(data.records, position, header)
            if aborted.hides(data.records, position, header):
                continue
            full = builder.length >= CHUNK_ROWS or builder.size_bytes >= CHUNK_BYTES
            if builder.length and (full or header.timestamp_type != timestamp_type):
                yield Chunk(columns=builder.finish(), timestamp_type=timestamp_type)
            timestamp_type = int(header.timestamp_type)
            decode_columns(builder, data.records, position, header, first_offset=first, end_offset=end)
        if builder.length:
            yield Chunk(columns=builder.finish(), timestamp_type=timestamp_type)

    def _fetch_request(self, work: OffsetRange, position: int) -> FetchRequest:
        part = FetchPartition(
            partition=work.partition, fetch_offset=position, partition_max_bytes=self._client.partition_fetch_bytes
        )
        return FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=self._client.partition_fetch_bytes,
            isolation_level=int(self._client.read_committed),
            topics=[FetchTopic(topic=work.topic, partitions=[part])],
            rack_id=self._client.rack,
        )

    def _after_loss(self, work: OffsetRange, position: int, *, fail_on_data_loss: bool) -> int:
        partition = (work.topic, work.partition)
        earliest = self.offsets({partition: EARLIEST})[partition] or 0
        text = (
            f"records {position}..{min(earliest, work.end) - 1} of {work.topic}-{work.partition} are gone "
            f"(the log now starts at {earliest})"
        )
        if earliest <= position:
            raise DataLossError(f"{work.topic}-{work.partition} was cut below offset {position}: records are gone")
        if fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss to false to continue without them")
        logger.warning("data-loss %s", text)
        return min(earliest, work.end)

    # -- metadata and connections -------------------------------------------------------------------------------------

    def _refresh(self, topics: Sequence[str] | None) -> None:
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self._ask_any(request)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._leaders.clear()
        for entry in answer.topics:
            if entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise OptionError(f"topic {entry.name} does not exist")
            _raise_for(entry.error_code)
            assert entry.name is not None, "version 9 names topics"
            for part in entry.partitions:
                self._leaders[entry.name, part.partition_index] = (part.leader_id, part.leader_epoch)

    def _leader_address(self, partition: Partition) -> tuple[str, int]:
        leader = self._leaders.get(partition)
        if leader is None or leader[0] not in self._brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition[0]}-{partition[1]} has no leader now")
        return self._brokers[leader[0]]

    def _ask_any(self, request: MetadataRequest) -> MetadataResponse:
        """Asks the brokers known from metadata, then the bootstrap addresses, until one answers."""
        addresses = list(dict.fromkeys([*self._brokers.values(), *self._client.bootstrap]))
        failure: OSError | None = None
        for address in addresses:
            try:
                return self._ask(address, request, METADATA_VERSION, MetadataResponse)
            except OSError as error:
                failure = error
        names = ", ".join(f"{host}:{port}" for host, port in addresses)
        raise ConnectionError(f"no broker answers at {names}: {failure}") from failure

    def _ask(self, address: tuple[str, int], request: Request, version: int, response_class: type[R]) -> R:
        connection = self._connections.pop(address, None) or BrokerConnection(*address, self._client)
        try:
            connection.send(request, version)
            answer = connection.receive(response_class, version)
        except BaseException:
            connection.close()
            raise
        self._connections[address] = connection
        return answer

    def _forget(self) -> None:
        """Drops connections and leaders, which may be outdated after a failure."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._leaders.clear()

    def _retry(self, what: str, attempt: Callable[[], T]) -> T:
        waits = _RetryTimer(what, self._client.api_timeout_ms)
        while True:
            try:
                return attempt()
            except (OSError, KafkaError) as error:
                waits.failed(error)
                self._forget()


class _RetryTimer:
    """Backs off between attempts, and gives up if there is no progress within the timeout."""

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout_s = timeout_ms / 1000
        self.progress()

    def progress(self) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        self._backoff_s = BACKOFF_FIRST_S

    def failed(self, error: OSError | KafkaError) -> None:
        """Waits before the next attempt.

        Raises:
            KafkaError: the given error is final.
            ReadTimeoutError: the timeout has passed.
        """
        if isinstance(error, KafkaError) and not (error.code.retriable or error.code.refreshes_metadata):
            raise error
        if time.monotonic() + self._backoff_s > self._deadline:
            raise ReadTimeoutError(f"could not {self._what} for {self._timeout_s:g} s: {error}") from error
        logger.info("retry what=%r error=%r", self._what, error)
        time.sleep(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_LAST_S)


class _AbortedFilter:
    """Decides which batches a read_committed reader must skip (KIP-98). It skips control batches always."""

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=lambda one: one.first_offset, reverse=True)
        self._open: dict[int, int] = {}

    def hides(self, records: bytes | bytearray | memoryview, position: int, header: BatchHeader) -> bool:
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            transaction = self._coming.pop()
            self._open[transaction.producer_id] = transaction.first_offset
        if header.is_control:
            if header.producer_id in self._open:
                markers = decode_records(records, position, header)
                if any(control_record_type(marker) is ControlRecordType.ABORT for marker in markers):
                    del self._open[header.producer_id]
            return True
        return header.is_transactional and header.producer_id in self._open


def _only_partition(answer: FetchResponse, work: OffsetRange) -> PartitionData:
    _raise_for(answer.error_code)
    for entry in answer.responses:
        for data in entry.partitions:
            if entry.topic == work.topic and data.partition_index == work.partition:
                return data
    raise ConnectionError(f"the Fetch response lacks {work.topic}-{work.partition}")


def _raise_for(code: int) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(code))


_shared: dict[ClientOptions, ClusterReader] = {}


def shared_reader(client: ClientOptions) -> ClusterReader:
    """Returns this process's reader for these options. Spark reuses its Python workers, so connections are reused."""
    if client not in _shared:
        _shared[client] = ClusterReader(client)
    return _shared[client]


def latest_of(reader: LogReader, partitions: Sequence[Partition]) -> Offsets:
    """Returns end offsets (high watermark, or last stable offset for read_committed)."""
    return _all_found(reader.offsets(dict.fromkeys(partitions, LATEST)))


def earliest_of(reader: LogReader, partitions: Sequence[Partition]) -> Offsets:
    """Returns log start offsets."""
    return _all_found(reader.offsets(dict.fromkeys(partitions, EARLIEST)))


def _all_found(offsets: Mapping[Partition, int | None]) -> Offsets:
    return {partition: offset if offset is not None else 0 for partition, offset in offsets.items()}
