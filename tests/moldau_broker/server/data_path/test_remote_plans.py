"""Goal: the plan of a fetch takes remote records that have been read, and begins reads of those that have not.

Method: the reader of one partition alone, over a log that begins at offset 50 on this disk, and a table of reads whose
outcomes the test sets.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import OffsetInRemoteStorageError, OffsetOutOfRangeError
from moldau_broker.replication.fetch_session import FetchContext, FetchPartition
from moldau_broker.server.data_path.fetch import FetchOperation, FetchPlan, FetchService
from moldau_broker.server.data_path.partition_reader import PartitionReader
from moldau_broker.server.remote_reading.reads import RemoteRead
from moldau_broker.server.remote_reading.values import RemoteRange, RemoteRecords
from support.cluster.broker_cluster import batch, values_of

START, LOCAL_START, STABLE, HIGH_WATERMARK = 5, 50, 90, 99
ONE, TWO = batch(b"one"), batch(b"two", base_offset=1)


class Log:
    """Reads nothing but the offsets asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.storage = self
        self.log_start_offset = START
        self.local_log_start_offset = LOCAL_START
        self.log_end_offset = HIGH_WATERMARK
        self.last_stable_offset = STABLE

    def read(self, offset: int, **_: Any) -> Any:
        self.asked.append(offset)
        if offset < START:
            raise OffsetOutOfRangeError(offset, START, HIGH_WATERMARK)
        if offset < LOCAL_START:
            raise OffsetInRemoteStorageError(offset, LOCAL_START)
        return SimpleNamespace(size_bytes=0, ranges=())

    def aborted_transactions(self, *_: Any) -> list[Any]:
        return []


class Table:
    """One read, whose outcome is set."""

    def __init__(self, records: RemoteRecords | None = None, error: ErrorCode | None = None) -> None:
        self.read: Any = SimpleNamespace(records=records, error=error)
        self.asked: list[RemoteRange] = []

    def ask(self, partition: Any, wanted: RemoteRange) -> Any:
        self.asked.append(wanted)
        return self.read


def plan(
    table: Table | None, *, offset: int = 7, replica_id: int = -1, isolation_level: int = 0, **limits: Any
) -> tuple[Any, PartitionReader, Log]:
    """Returns the result of one partition, the reader and the log."""
    unused: Any = SimpleNamespace(directory_failed=None)
    remote: Any = table
    log = Log()
    reader = PartitionReader(unused, unused, unused, unused, remote)
    partition: Any = SimpleNamespace(
        key="t-0", log=log, replica=SimpleNamespace(high_watermark=HIGH_WATERMARK, is_leader=True)
    )
    query: Any = SimpleNamespace(replica_id=replica_id, isolation_level=isolation_level)
    wanted = FetchPartition(b"t", 0, offset, limits.get("max_bytes", 1 << 20))
    upper = STABLE if isolation_level else HIGH_WATERMARK
    remaining, first = limits.get("remaining", 1 << 20), limits.get("first", True)
    return reader._read_log(query, wanted, partition, upper, STABLE, remaining, first=first), reader, log


def test_records_that_were_read_are_the_answer() -> None:
    table = Table(RemoteRecords(ONE + TWO, [(4, 7)]))
    result, reader, _ = plan(table)
    assert values_of(b"".join(result.records)) == [b"one", b"two"]
    assert (result.records_size, result.error_code) == (len(ONE + TWO), ErrorCode.NONE)
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (99, 90, 5)
    assert result.aborted_transactions is None
    assert table.asked == [RemoteRange(7, 1 << 20, HIGH_WATERMARK, False)]
    assert reader.reads == [table.read]
    result, _, _ = plan(table, isolation_level=1)
    assert list(result.aborted_transactions) == [(4, 7)]
    assert table.asked[1] == RemoteRange(7, 1 << 20, STABLE, True)


def test_a_read_in_progress_leaves_the_partition_empty() -> None:
    for isolation_level, aborted in ((0, None), (1, [])):
        table = Table()
        result, reader, _ = plan(table, isolation_level=isolation_level)
        assert (result.error_code, result.records_size, result.records) == (ErrorCode.NONE, 0, ())
        assert (result.high_watermark, result.log_start_offset) == (HIGH_WATERMARK, START)
        assert result.aborted_transactions == aborted
        assert reader.reads == [table.read]


def test_no_room_for_a_read_leaves_the_partition_empty_too() -> None:
    table = Table()
    table.read = None
    result, reader, _ = plan(table)
    assert (result.error_code, result.records_size, reader.reads) == (ErrorCode.NONE, 0, [])


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE])
def test_an_error_of_the_read_is_that_of_the_partition(error: ErrorCode) -> None:
    result, reader, _ = plan(Table(error=error))
    assert (result.error_code, result.records_size) == (error, 0)
    assert reader.reads, "the answer takes the error, so that the next fetch reads again"


def test_an_offset_below_the_log_start_says_where_the_log_begins() -> None:
    for table, offset in ((Table(error=ErrorCode.OFFSET_OUT_OF_RANGE), 7), (Table(), 4)):
        result, _, _ = plan(table, offset=offset)
        assert (result.error_code, result.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, START)


def test_records_that_do_not_fit_now_stay_for_the_next_fetch() -> None:
    """The first partition of an answer gets one batch at least; others get what is left (KIP-74)."""
    table = Table(RemoteRecords(ONE + TWO, ()))
    result, reader, _ = plan(table, remaining=len(ONE) - 1, first=False)
    assert (result.records_size, reader.reads) == (0, [])
    result, reader, _ = plan(table, remaining=len(ONE), first=False)
    assert (result.records_size, reader.reads) == (len(ONE), [table.read])
    result, reader, _ = plan(table, max_bytes=1)
    assert result.records_size == len(ONE)
    result, reader, log = plan(table, remaining=0, first=False)
    assert (result.records_size, reader.reads, log.asked) == (0, [], [])


def test_a_gap_behind_the_remote_records_is_passed() -> None:
    _, reader, log = plan(Table(RemoteRecords(b"", (), gap_end=LOCAL_START)))
    assert log.asked == [7, LOCAL_START]
    assert reader.reads


def test_a_gap_whose_end_has_left_the_disk_passes_no_record() -> None:
    end = LOCAL_START - 10

    class Reads(Table):
        def ask(self, partition: Any, wanted: RemoteRange) -> Any:
            super().ask(partition, wanted)
            return self.read if wanted.offset < end else None

    table = Reads(RemoteRecords(b"", (), gap_end=end))
    _, _, log = plan(table)
    assert log.asked == [7, end]
    assert [wanted.offset for wanted in table.asked] == [7, end]


def test_followers_are_sent_to_the_store() -> None:
    table = Table()
    result, _, _ = plan(table, replica_id=2)
    assert result.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert result.log_start_offset == START, "from there on their logs begin"
    assert table.asked == []


def test_a_broker_without_tiered_storage_refuses() -> None:
    result, _, _ = plan(None)
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_local_offsets_ask_no_table() -> None:
    table = Table()
    result, reader, log = plan(table, offset=LOCAL_START)
    assert (result.error_code, reader.reads, table.asked, log.asked) == (ErrorCode.NONE, [], [], [LOCAL_START])


def test_an_answer_that_quotas_empty_keeps_what_was_read() -> None:
    """The client asks again after its pause, and the records need not be read again."""
    released: list[Any] = []
    unused: Any = None
    remote: Any = SimpleNamespace(release=released.extend)
    service = FetchService(
        unused, unused, unused, max_bytes=1, early_watermarks=False, close_session=lambda _: None, remote=remote
    )
    query: Any = SimpleNamespace(version=12, correlation_id=1)
    for pause_ms, expected in ((100, []), (0, ["read"])):
        plan_of: Any = FetchPlan()
        plan_of.reads = ["read"]
        toll: Any = SimpleNamespace(due_for_fetch=lambda _, pause_ms=pause_ms: pause_ms)
        service.encode(query, FetchContext(), plan_of, toll)
        assert released == expected


def test_a_wait_ends_with_the_last_read_that_has_records() -> None:
    """Without this a client would ask again at once, and again, while there is nothing for it in the store."""
    stopped: list[Any] = []
    found: Any = FetchPlan()
    service: Any = SimpleNamespace(plan=lambda *_: found, stop_waiting=stopped.append)
    query: Any = SimpleNamespace(replica_id=-1)
    key: Any = "a place"
    reads = [RemoteRead(key, 1) for _ in range(2)]
    for size_bytes, urgent, ends in ((0, False, False), (5, False, True), (0, True, True)):
        operation = FetchOperation(service, query, FetchContext(), None, None)
        operation.delayed = found
        operation.wait_for(reads)
        found.size_bytes, found.urgent = size_bytes, urgent
        operation.read_ended(reads[0])
        assert stopped == []
        operation.read_ended(reads[1])
        assert stopped == [operation] * ends
        stopped.clear()
    operation.delayed = None  # the client has left
    operation.read_ended(reads[1])
    assert stopped == []
