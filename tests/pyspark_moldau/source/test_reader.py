"""Goal: the reader returns exactly the records of a range, for any batches in the log, and gives up in time.

Method: its decoder on real batches (plain, transactional, aborted, control, both timestamp types); a misbehaving fake
broker.
"""

import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.fetch import AbortedTransaction, PartitionData
from moldau.records import (
    CorruptRecordError,
    TimestampType,
    encode_batch,
    encode_end_txn_marker,
    iterate_batches,
    set_max_timestamp,
)
from pyspark_moldau.errors import DamagedBatchError, ReadTimeoutError
from pyspark_moldau.source import reader
from pyspark_moldau.source.core.offsets import OffsetRange
from pyspark_moldau.source.core.options import ClientOptions, OptionError, Subscription
from pyspark_moldau.source.reader import ClusterReader
from pyspark_moldau.wire import cluster
from pyspark_moldau.wire.cluster import RetryTimer
from pyspark_moldau.wire.decoding import decode
from support.spark.misbehaving_broker import MisbehavingBroker


def batch(first, count, *, producer=None, log_append_ms=None):
    owner = {} if producer is None else {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    made = bytearray(
        encode_batch(
            [(1000 + n, None, b"%d" % n, ()) for n in range(first, first + count)],
            base_offset=first,
            is_transactional=producer is not None,
            **owner,
        )
    )
    if log_append_ms is not None:
        set_max_timestamp(made, 0, log_append_ms, TimestampType.LOG_APPEND_TIME)
    return bytes(made)


def marker(at, producer, *, commit):
    return bytes(
        encode_end_txn_marker(
            commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=at
        )
    )


def decoded(records, first, end, *, committed=False, aborted=()):
    """(timestamp type, values) of each chunk."""
    data = PartitionData(
        records=records,
        aborted_transactions=[AbortedTransaction(producer_id=who, first_offset=at) for who, at in aborted],
    )
    batches = list(iterate_batches(records))
    chunks = decode(data, batches, first, end, read_committed=committed)
    return [(chunk.timestamp_type, values_of(chunk.columns)) for chunk in chunks]


def values_of(columns):
    bounds = memoryview(columns.values.offsets).cast("i")
    data = columns.values.data
    return [int(bytes(data[bounds[i] : bounds[i + 1]])) for i in range(columns.length)]


def test_a_range_may_begin_and_end_inside_of_batches():
    log = batch(0, 5) + batch(5, 5) + batch(10, 5)
    assert decoded(log, 3, 12) == [(0, [3, 4, 5, 6, 7, 8, 9, 10, 11])]
    assert decoded(log, 5, 5) == []


def test_chunks_change_with_the_kind_of_timestamp():
    log = batch(0, 2) + batch(2, 2, log_append_ms=77) + batch(4, 1)
    assert decoded(log, 0, 5) == [(0, [0, 1]), (1, [2, 3]), (0, [4])]


def test_control_records_are_never_shown():
    log = batch(0, 2, producer=9) + marker(2, 9, commit=True) + batch(3, 1)
    assert decoded(log, 0, 4) == [(0, [0, 1, 3])]
    assert decoded(log, 0, 4, committed=True) == [(0, [0, 1, 3])]


def test_committed_reads_skip_what_was_aborted_and_nothing_else():
    log = (
        batch(0, 2, producer=7)
        + batch(2, 2, producer=8)
        + batch(4, 1)
        + marker(5, 7, commit=False)
        + batch(6, 2, producer=7)
        + marker(8, 8, commit=True)
        + marker(9, 7, commit=True)
    )
    aborted = [(7, 0)]
    assert decoded(log, 0, 10, committed=True, aborted=aborted) == [(0, [2, 3, 4, 6, 7])]
    assert decoded(log, 0, 10, aborted=aborted) == [(0, [0, 1, 2, 3, 4, 6, 7])]


def test_a_flipped_bit_is_an_error_not_a_record():
    log = bytearray(batch(0, 3))
    log[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        decoded(bytes(log), 0, 3)


@pytest.mark.parametrize(
    "answer",
    [b"", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x0a\0\0\0\x01", b"\0\0\0\x0c" + b"\xff" * 12],
    ids=["closed", "endless", "negative", "cut", "garbage"],
)
def test_malformed_responses_are_retried_until_the_timeout(answer, monkeypatch):
    """The reader retries after malformed responses, and gives up when the timeout has passed."""
    broker = MisbehavingBroker(answer)
    # The reader's clock advances only during its waits between attempts, so that a slow machine gives it no less time.
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(cluster, "time", clock)
    client = ClientOptions(bootstrap=(("127.0.0.1", broker.port),), api_timeout_ms=800)
    try:
        with pytest.raises(ReadTimeoutError, match=r"could not look up topics for 0\.8 s"):
            ClusterReader(client).partitions(Subscription(topics=("t",)))
        assert broker.met > 1
    finally:
        broker.close()


def test_final_errors_are_not_retried():
    waits = RetryTimer("read t-0", ClientOptions(bootstrap=(("h", 1),)))
    with pytest.raises(OptionError, match=r"TOPIC_AUTHORIZATION_FAILED.*grant its principal READ"):
        waits.failed(KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError, match="INVALID_REQUEST"):
        waits.failed(KafkaError(ErrorCode.INVALID_REQUEST))


def test_threads_have_readers_of_their_own():
    """A driver may run jobs in threads; the metadata that one asks for replace those of the other."""
    client = ClientOptions(bootstrap=(("h", 1),))
    with ThreadPoolExecutor(1) as other:
        assert other.submit(reader.shared_reader, client).result() is not reader.shared_reader(client)


def test_a_process_keeps_a_bounded_number_of_readers():
    """Spark's workers live on and serve many queries; the readers used last stay."""
    clients = [ClientOptions(bootstrap=(("h", port),)) for port in range(1, reader.READERS_MAX + 3)]
    first = reader.shared_reader(clients[0])
    for client in clients[1 : reader.READERS_MAX]:
        reader.shared_reader(client)
    assert reader.shared_reader(clients[0]) is first
    for client in clients[reader.READERS_MAX :]:
        reader.shared_reader(client)
    assert reader.shared_reader(clients[0]) is first
    assert len(reader._kept.readers) == reader.READERS_MAX


def test_a_damaged_batch_is_named_by_its_place(monkeypatch):
    one = ClusterReader(ClientOptions(bootstrap=(("h", 1),)))

    def damaged(work, position, waits):
        yield None, position + 2
        raise CorruptRecordError("the checksum is wrong")

    monkeypatch.setattr(one, "_read_from_broker", damaged)
    work = OffsetRange(topic="t", partition=3, start=5, end=9)
    with pytest.raises(DamagedBatchError, match=r"t-3 has a damaged record batch at offset 7 .*the checksum is wrong"):
        list(one.read(work, fail_on_data_loss=True))
