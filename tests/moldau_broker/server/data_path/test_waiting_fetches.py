"""Goal: a fetch waits for what it reads, within its bound, and leaves nothing behind when it is answered.

Method: the service of fetches alone, over one partition with a real replica and a log that consists of its offsets.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch, Offset
from moldau_broker.log.errors import LogError, LogStorageError
from moldau_broker.log.values import TopicPartition
from moldau_broker.replication.fetch_session import FetchContext, FetchPartition, FetchSession
from moldau_broker.replication.replica import PartitionState, Replica
from moldau_broker.server.data_path.fetch import WAIT_MS_MAX, FetchOperation, FetchService
from moldau_broker.server.data_path.fetch_query import READ_COMMITTED, FetchQuery
from moldau_broker.server.remote_reading.reads import ReadKey, RemoteRead
from moldau_broker.server.replicas.partition import Partition

END, EPOCH = 5, 7
NOW_MS = 1_000.0


def led() -> Any:
    """Returns a partition that this broker leads alone, with ``END`` records, all committed and stable."""
    replica: Any = Replica(1, high_watermark=0, log_end_offset=END, lag_time_max_ms=1e9, min_insync_replicas=1)
    numbers: Any = {"leader": 1, "leader_epoch": EPOCH, "partition_epoch": 1, "isr": (1,)}
    replica.apply(PartitionState(replicas=(1,), **numbers), END, 0)
    replica.reconsider(0, {})
    log: Any = SimpleNamespace(
        log_start_offset=0,
        local_log_start_offset=0,
        log_end_offset=END,
        last_stable_offset=END,
        storage=SimpleNamespace(log_start_offset=0, log_end_offset=END),
    )
    return Partition(TopicPartition("t", 0), UUID(int=1), log, replica)


def service_of(partition: Any, deadlines: list[float] | None = None) -> FetchService:
    def watch(_: object, __: object, deadline_ms: float) -> None:
        if deadlines is not None:
            deadlines.append(deadline_ms)

    replicas: Any = SimpleNamespace(
        by_raw_name={partition.name_key: partition},
        is_offline=lambda *_, **__: False,
        waits=SimpleNamespace(fetches=SimpleNamespace(watch=watch)),
    )
    hints: Any = SimpleNamespace(
        leader_hint=lambda *_, **__: (1, EPOCH), endpoint_hint=lambda _: None, topic_exists=lambda *_, **__: True
    )
    clock: Any = SimpleNamespace(monotonic_ms=lambda: NOW_MS)
    return FetchService(clock, replicas, hints, max_bytes=1 << 20, early_watermarks=False, close_session=lambda _: None)


def query(**fields: Any) -> FetchQuery:
    known = {"version": 12, "replica_id": -1, "isolation_level": 0, "max_wait_ms": 500, **fields}
    return FetchQuery(correlation_id=1, replica_epoch=-1, min_bytes=1, max_bytes=1 << 20, rack_id="", **known)


def wanted(offset: int = END, epoch: int = -1) -> FetchPartition:
    return FetchPartition(b"t", 0, offset, 1 << 20, LeaderEpoch(epoch))


def waiting(partition: Any, **fields: Any) -> FetchOperation:
    context = FetchContext(partitions=[wanted()])
    _, operation = service_of(partition).start(query(**fields), context, NOW_MS)
    assert operation is not None
    return operation


@pytest.mark.parametrize("asked_ms", [1, 500, 299_999, 300_000, 300_001, 2**31 - 1])
def test_no_fetch_waits_longer_than_the_bound(asked_ms: int) -> None:
    partition, deadlines = led(), list[float]()
    service_of(partition, deadlines).start(query(max_wait_ms=asked_ms), FetchContext(partitions=[wanted()]), NOW_MS)
    assert deadlines == [NOW_MS + min(asked_ms, WAIT_MS_MAX)]


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_records_of_an_open_transaction_end_no_wait(isolation: int) -> None:
    """The answer would be empty, and its consumer would ask again at once, as long as the transaction is open."""
    partition = led()
    operation = waiting(partition, isolation_level=isolation)
    assert not operation.ready(partition)
    partition.replica.log_end_moved(Offset(END + 2), 0, {})
    assert partition.replica.high_watermark == END + 2
    assert operation.ready(partition) is (isolation != READ_COMMITTED)
    partition.log.last_stable_offset = END + 1
    assert operation.ready(partition)


def test_a_consumer_at_rest_is_refused_in_a_former_leader_epoch() -> None:
    """It has all records, but learns at once that they may not be those of the new leader (KIP-320)."""
    for epoch, error in ((-1, None), (EPOCH, None), (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH + 1, 75)):
        partition, asked = led(), wanted(epoch=epoch)
        asked.sent_high_watermark, asked.sent_log_start_offset = END, 0
        session = FetchSession(1, privileged=False, uses_topic_ids=False, now_ms=0)
        session.add(asked)
        plan = service_of(partition).plan(query(), [asked], {}, session)
        assert [result.error_code for _, result in plan.results] == ([] if error is None else [error])
        assert plan.urgent is bool(error)
        assert bool(session.due) is bool(error), "what is refused is not at rest"


def test_local_records_end_no_wait_for_those_below_them() -> None:
    """Local records of the same partition come after the remote ones, so they are no reason to answer now."""
    partition = led()
    operation = waiting(partition)
    partition.replica.log_end_moved(Offset(END + 2), 0, {})
    operation.wait_for([RemoteRead(ReadKey(partition, EPOCH, END, False), 100)])
    for local_start, is_ready in ((END + 1, False), (END, True), (0, True)):
        partition.log.local_log_start_offset = local_start
        assert operation.ready(partition) is is_ready


def test_an_answered_fetch_waits_for_no_read_any_more() -> None:
    """The store may take minutes; until then the read would hold the memory of the request."""
    partition = led()
    operation = waiting(partition)
    reads = [RemoteRead(ReadKey(partition, EPOCH, offset, False), 100) for offset in (1, 2)]
    operation.wait_for(reads)
    assert [list(read._waiters) for read in reads] == [[operation]] * 2
    operation.answer_now()
    assert [list(read._waiters) for read in reads] == [[]] * 2


@pytest.mark.parametrize(
    "error", [OSError(5, "EIO"), LogStorageError("/d1", "gone"), LogError(ErrorCode.CORRUPT_MESSAGE, "")]
)
def test_a_disk_that_cannot_be_read_is_given_up(error: Exception) -> None:
    """Its replicas would stay leaders that answer nothing; damaged records are no reason to do so."""
    partition, failed = led(), list[Exception]()
    partition.log.parent_directory = "/d1"

    def read(*_: object, **__: object) -> None:
        raise error

    partition.log.storage.read = read
    service = service_of(partition)
    replicas: Any = service._replicas
    replicas.directory_failed = failed.append
    plan = service.plan(query(), [wanted(0)], {}, None)
    is_storage = type(error) is not LogError
    assert [getattr(each, "directory", None) for each in failed] == ["/d1"] * is_storage
    expected = ErrorCode.KAFKA_STORAGE_ERROR if is_storage else ErrorCode.CORRUPT_MESSAGE
    assert [result.error_code for _, result in plan.results] == [expected]
    assert plan.urgent
