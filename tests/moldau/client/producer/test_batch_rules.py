"""Goal: memory, order and retries of batches at their limits; choices of partitions; what the metrics count.

Method: the pure cores alone. Each test states one rule that an application or a broker depends on.
"""

from array import array

import pytest

from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.accumulator import Accumulator, Verdict
from moldau.producer.core.counters import ProducerCounters
from moldau.producer.core.limits import Limits, record_size_bound
from moldau.producer.core.partitioner import RoundRobin, Sticky, UniformSticky
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import decode_records, encode_batch, parse_batch_header
from support.client.columns import rows

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
LEADERS = {P0: 1, P1: 1, P2: 1}
GONE = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED)


def accumulator(**limits):
    core = Accumulator(Limits(**{"batch_size": 200, "linger_ms": 0, "buffer_memory": 2000} | limits))
    core.set_producer_id(7, 0)
    return core


def add(core, value=b"v", partition=P0, now_ms=0):
    return core.append(core.queue(partition), 1, None, value, (), now_ms)


def sent(core, now_ms=0):
    found = core.ready(now_ms, LEADERS)
    return [batch for queues in found.by_node.values() for batch in core.drain(queues, now_ms)]


def acknowledged(core, partition=P0):
    """The leader knows the producer: several batches may be in flight from now on."""
    core.queue(partition).known_producer_id = core.producer_id
    return core


def values(batch):
    return [record.value for record in decode_records(batch.data, 0, parse_batch_header(batch.data))]


# Memory


def test_a_batch_that_fits_exactly_is_taken():
    size = record_size_bound(None, b"v")
    core = accumulator(buffer_memory=2 * size)
    assert add(core) is not None
    assert add(core, partition=P1) is not None
    assert core.memory_used == 2 * size
    assert add(core, partition=P2) is None


def test_a_new_batch_wakes_the_sender():
    core = accumulator(linger_ms=10)
    assert [add(core)[1:], add(core)[1:], add(core, b"x" * 150)[1:]] == [(0, True), (1, False), (0, True)]


@pytest.mark.parametrize("end", [lambda core: core.abort(GONE), lambda core: core.expire(1_000_000)])
def test_no_record_goes_into_a_batch_that_has_failed(end):
    """It would wait for ever: nothing sends or fails that batch again."""
    core = accumulator(linger_ms=10)
    (old, _, _) = add(core)
    assert end(core) == [old]
    new, index, _ = add(core, b"later", now_ms=1_000_000)
    assert new is not old
    assert index == 0
    (batch,) = sent(core, 1_000_010)
    assert values(batch) == [b"later"]


def test_the_bound_of_a_records_size_holds_and_is_close():
    for key, value, headers in (
        (None, None, ()),
        (b"k" * 300, None, ()),
        (None, b"v" * 300, ()),
        (b"k", b"v", (("\U0001f600" * 100, b"x" * 500),)),
        (b"k", b"v", (("h", None), ("i", b"y" * 70))),
    ):
        size = len(encode_batch([(1 << 40, key, value, headers)]))
        bound = record_size_bound(key, value, headers)
        assert size <= bound <= size + 36 + 14 * len(headers)


def test_rows_fill_the_open_batch_then_a_new_one():
    core = acknowledged(accumulator(batch_size=210, buffer_memory=500))
    columns = rows([b"%d" % number * 60 for number in range(9)])
    numbers = array("i", [8, 0, 1, 2, 3, 4]).tobytes()
    queue = core.queue(P0)
    first, taken = core.append_rows(queue, columns, numbers, 1, 5, 0)
    assert (taken, core.memory_used) == (2, 210)
    assert add(core, b"s")[:2] == (first, 2), "a record between the rows goes into the same batch"
    second, taken = core.append_rows(queue, columns, numbers, 3, 5, 0)
    assert second is not first
    assert (taken, core.memory_used) == (2, 420)
    assert core.append_rows(queue, columns, numbers, 5, 5, 0) is None, "buffer.memory is full"
    assert [values(batch) for batch in sent(core) + sent(core)] == [
        [b"0" * 60, b"1" * 60, b"s"],
        [b"2" * 60, b"3" * 60],
    ]
    assert core.append_rows(queue, columns, numbers, 5, 5, 0) is None, "sent batches count until they are settled"


def test_rows_join_records_in_the_open_batch_once():
    core = accumulator(linger_ms=10, batch_size=210)
    batch, _, _ = add(core, b"record")
    columns = rows([b"%d" % number * 40 for number in range(4)])
    numbers = array("i", [0, 1, 2, 3]).tobytes()
    assert core.append_rows(core.queue(P0), columns, numbers, 0, 5, 0) == (batch, 2)
    assert core.memory_used == 210
    assert [values(each) for each in sent(core, 10)] == [[b"record", b"0" * 40, b"1" * 40]]


def test_a_row_larger_than_a_batch_needs_its_own_size():
    columns = rows([b"small" * 10, b"x" * 450])
    small, large = array("i", [1, 0]).tobytes(), array("i", [0, 1]).tobytes()
    sizes = [columns.size_bound(0), columns.size_bound(1)]
    for memory, fits in ((sum(sizes), True), (sum(sizes) - 1, False)):
        core = accumulator(batch_size=100, buffer_memory=memory)
        assert core.append_rows(core.queue(P0), columns, small, 1, 5, 0)[1] == 1
        assert core.memory_used == sizes[0]
        assert (core.append_rows(core.queue(P1), columns, large, 1, 5, 0) is not None) is fits
        assert core.memory_used == (sum(sizes) if fits else sizes[0])
    alone = accumulator(batch_size=100, buffer_memory=200)
    assert alone.append_rows(alone.queue(P0), columns, large, 1, 5, 0)[1] == 1
    assert alone.memory_used == sizes[1], "alone, any size is taken"


def test_an_encoded_batch_that_fits_exactly_is_taken():
    data = encode_batch([(1, None, b"v" * 100, ())])
    core = accumulator(buffer_memory=2 * len(data))
    assert core.append_encoded(core.queue(P0), data, 1, 0) is not None
    assert core.append_encoded(core.queue(P1), data, 1, 0) is not None
    assert core.append_encoded(core.queue(P2), data, 1, 0) is None
    alone = accumulator(buffer_memory=10)
    assert alone.append_encoded(alone.queue(P0), data, 1, 0) is not None, "alone, any size is taken"


# Sending


def test_a_batch_larger_than_a_request_is_sent_alone():
    core = accumulator(request_size_max=50)
    add(core, b"x" * 100)
    add(core, b"y" * 100, P1)
    assert [[values(batch)[0][:1] for batch in sent(core)] for _ in range(2)] in ([[b"x"], [b"y"]], [[b"y"], [b"x"]])


def test_partitions_share_a_request_as_far_as_it_holds_them():
    core = accumulator(request_size_max=180)
    for partition in (P0, P1, P2):
        add(core, b"v", partition)
    assert len(sent(core)) == 2
    assert len(sent(core)) == 1


def test_each_partition_has_its_turn_to_be_first():
    core = accumulator(request_size_max=50, is_idempotent=False)
    firsts = []
    for _ in range(4):
        for partition in (P0, P1):
            add(core, b"x" * 100, partition)
        found = core.ready(0, LEADERS)
        firsts += [batch.partition for batch in core.drain(found.by_node[1], 0)]
    assert {P0, P1} <= set(firsts)
    assert firsts[:2] in ([P0, P1], [P1, P0])


def test_a_partition_that_waits_is_not_ready():
    """Else the sender would look again and again without a pause."""
    core = accumulator()
    add(core)
    (first,) = sent(core)
    add(core, b"waits")
    found = core.ready(0, LEADERS)
    assert (found.by_node, found.next_check_ms) == ({}, float("inf"))
    core.settle(first, ErrorCode.NONE, 0, base_offset=0)
    assert core.ready(0, LEADERS).by_node


def test_a_queue_that_was_emptied_meanwhile_is_passed_over():
    core = accumulator()
    add(core)
    (queues,) = core.ready(0, LEADERS).by_node.values()
    core.abort(GONE)
    assert core.drain(queues, 0) == []


def test_batches_fill_a_request_exactly():
    data = encode_batch([(1, None, b"v" * 100, ())])
    for spare, expected in ((0, 2), (-1, 1)):
        core = accumulator(request_size_max=2 * len(data) + spare)
        for partition in (P0, P1):
            core.append_encoded(core.queue(partition), data, 1, 0)
        assert len(sent(core)) == expected


def test_without_idempotence_several_batches_are_in_flight():
    core = accumulator(is_idempotent=False, in_flight_max=2)
    for value in (b"a" * 150, b"b" * 150):
        add(core, value)
    assert len(sent(core) + sent(core)) == 2


def test_an_encoded_batch_ends_the_batch_before_it():
    """A record that is sent afterwards must not get an offset before it."""
    core = acknowledged(accumulator(linger_ms=1_000))
    add(core, b"first")
    core.append_encoded(core.queue(P0), encode_batch([(1, None, b"second", ())]), 1, 0)
    add(core, b"third")
    assert [values(batch) for batch in sent(core) + sent(core) + sent(core, 1_000)] == [
        [b"first"],
        [b"second"],
        [b"third"],
    ]


@pytest.mark.parametrize("in_flight_max", [1, 2, 5, 9])
def test_as_many_batches_are_in_flight_as_configured(in_flight_max):
    """But at most five, of which the broker recognises repetitions."""
    core = acknowledged(accumulator(buffer_memory=10_000, in_flight_max=in_flight_max))
    for _ in range(12):
        add(core, b"x" * 150)
    flying = []
    while batches := sent(core):
        flying += batches
    assert len(flying) == min(in_flight_max, 5)


def test_full_and_encoded_batches_do_not_linger():
    core = accumulator(linger_ms=1_000)
    core.append_encoded(core.queue(P0), encode_batch([(1, None, b"v", ())]), 1, 0)
    assert len(sent(core)) == 1
    full = accumulator(linger_ms=1_000, batch_size=100)
    add(full, b"x" * 200)
    assert len(sent(full)) == 1
    add(full, b"x", P1)
    assert sent(full) == []


# Retries and sequences


def test_encoded_batches_count_their_records():
    """The next batch's sequence follows the last record, or the broker would take it for a repetition."""
    core = acknowledged(accumulator())
    queue = core.queue(P0)
    for count in (3, 2, 1):
        core.append_encoded(queue, encode_batch([(1, None, b"v", ())] * count), count, 0)
    found = sent(core) + sent(core) + sent(core)
    assert [parse_batch_header(batch.data).base_sequence for batch in found] == [0, 3, 5]


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_pauses_between_attempts_double_and_are_scattered(is_idempotent):
    core = accumulator(retry_backoff_ms=100, retry_backoff_max_ms=500, is_idempotent=is_idempotent, retries=4)
    add(core)
    pauses, now_ms = [], 0
    for jitter in (1.0, 1.0, 1.2, 1.0):
        (batch,) = sent(core, now_ms)
        assert core.settle(batch, ErrorCode.NETWORK_EXCEPTION, now_ms, jitter=jitter) is Verdict.RETRY
        pauses.append(batch.retry_at_ms - now_ms)
        now_ms = batch.retry_at_ms
    assert pauses == pytest.approx([100, 200, 480, 500])
    (batch,) = sent(core, now_ms)
    assert core.settle(batch, ErrorCode.NETWORK_EXCEPTION, now_ms) is Verdict.FAILED, "that was the last one"


@pytest.mark.parametrize(("age_ms", "verdict"), [(99, Verdict.RETRY), (100, Verdict.FAILED)])
def test_no_attempt_begins_after_the_delivery_timeout(age_ms, verdict):
    core = accumulator(delivery_timeout_ms=100)
    add(core)
    (batch,) = sent(core)
    assert core.settle(batch, ErrorCode.NETWORK_EXCEPTION, age_ms) is verdict


def test_the_next_expiry_is_that_of_the_oldest_batch():
    core = accumulator(delivery_timeout_ms=7_000, retry_backoff_ms=30)
    assert core.next_expiry_ms() == float("inf")
    add(core, now_ms=5)
    add(core, partition=P1, now_ms=9)
    assert core.next_expiry_ms() == 7_005


def test_a_retry_waits_for_the_one_batch_in_flight():
    core = acknowledged(accumulator())
    add(core, b"a")
    (first,) = sent(core)
    add(core, b"b")
    (second,) = sent(core)
    core.settle(first, ErrorCode.NETWORK_EXCEPTION, 0)
    assert sent(core, 5_000) == []
    core.settle(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 5_000)
    assert sent(core, 10_000) == [first]


def test_a_transaction_with_a_gap_fails_instead_of_a_new_epoch():
    """Only its coordinator may raise the epoch of a transactional producer."""
    core = accumulator(is_transactional=True)
    add(core)
    (batch,) = sent(core)
    assert core.settle(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.FAILED
    assert (core.producer_epoch, core.queue(P0).needs_new_epoch) == (0, False)


def test_a_lost_state_settles_what_was_uncertain():
    """An answer was lost, but now the broker says that its log ends before this batch."""
    core = accumulator()
    add(core)
    (batch,) = sent(core)
    core.settle(batch, ErrorCode.NETWORK_EXCEPTION, 0)
    assert sent(core, 5_000) == [batch]
    core.settle(batch, ErrorCode.UNKNOWN_PRODUCER_ID, 5_000)
    assert sent(core, 10_000) == [batch]
    assert (batch.producer_epoch, batch.base_sequence) == (1, 0)


def test_a_refusal_that_passes_costs_no_epoch():
    """The batch was not written, and is sent again as it was."""
    core = accumulator()
    add(core)
    (batch,) = sent(core)
    core.settle(batch, ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert sent(core, 5_000) == [batch]
    assert (batch.producer_epoch, batch.base_sequence, core.producer_epoch) == (0, 0, 0)


def test_a_batch_that_was_not_written_moves_on_at_once():
    """The one before it failed for good, so its own sequence can never be accepted."""
    core = acknowledged(accumulator())
    add(core, b"bad")
    (bad,) = sent(core)
    add(core, b"good")
    (good,) = sent(core)
    core.settle(bad, ErrorCode.MESSAGE_TOO_LARGE, 0)
    core.settle(good, ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert sent(core, 5_000) == [good]
    assert (good.producer_epoch, good.base_sequence) == (1, 0)


REFUSED_BEFORE_THE_APPEND = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


@pytest.mark.parametrize(
    "code",
    [code for code in ErrorCode if code.retriable and code not in REFUSED_BEFORE_THE_APPEND],
    ids=lambda code: code.name,
)
def test_a_batch_that_may_be_written_keeps_its_sequence(code):
    """Under a new sequence the broker would not know it again, and would write it twice.

    Its leader may be deposed, lose its disk or its followers after the append.
    """
    core = acknowledged(accumulator())
    add(core, b"bad")
    (bad,) = sent(core)
    add(core, b"good")
    (good,) = sent(core)
    core.settle(bad, ErrorCode.MESSAGE_TOO_LARGE, 0)
    core.settle(good, code, 0)
    assert sent(core, 5_000) == [good]
    assert (good.producer_epoch, good.base_sequence) == (0, 1)


def test_a_refusal_does_not_settle_an_attempt_without_an_answer():
    """The leader refuses the second attempt before it looks at sequences, so the first one may be written."""
    core = acknowledged(accumulator())
    add(core, b"bad")
    (bad,) = sent(core)
    add(core, b"good")
    (good,) = sent(core)
    core.settle(good, ErrorCode.NETWORK_EXCEPTION, 0)
    core.settle(bad, ErrorCode.MESSAGE_TOO_LARGE, 0)
    assert sent(core, 5_000) == [good]
    core.settle(good, ErrorCode.NOT_ENOUGH_REPLICAS, 5_000)
    assert sent(core, 10_000) == [good]
    assert (good.producer_epoch, good.base_sequence) == (0, 1)


def test_a_new_epoch_waits_for_what_a_partition_has_in_flight():
    """Another partition has raised it; batches of the old epoch that arrive later would be refused."""
    core = acknowledged(acknowledged(accumulator()), P1)
    add(core, b"old")
    (old,) = sent(core)
    add(core, b"forgotten", P1)
    (forgotten,) = sent(core)
    core.settle(forgotten, ErrorCode.UNKNOWN_PRODUCER_ID, 0)
    assert core.producer_epoch == 1
    add(core, b"new")
    assert [batch.partition for batch in sent(core, 5_000)] == [P1]
    core.settle(old, ErrorCode.NONE, 5_000, base_offset=0)
    (new,) = sent(core, 5_000)
    assert (new.producer_epoch, new.base_sequence) == (1, 0)


def test_a_batch_that_was_never_sent_costs_no_epoch():
    core = accumulator(linger_ms=1_000, delivery_timeout_ms=1_100)
    add(core)
    (batch,) = sent(core, 1_000)
    core.settle(batch, ErrorCode.NONE, 1_000, base_offset=0)
    add(core, b"waits", now_ms=1_000)
    assert len(core.expire(2_100)) == 1
    assert (core.producer_epoch, core.queue(P0).needs_new_epoch) == (0, False)


def test_batches_with_new_sequences_count_among_the_five():
    """The broker recognises five; a sixth would displace one whose answer is open."""
    core = acknowledged(accumulator(buffer_memory=10_000))
    batches = []
    for number in range(3):
        add(core, b"%d" % number)
        batches += sent(core)
    for batch in reversed(batches):
        core.settle(batch, ErrorCode.UNKNOWN_PRODUCER_ID, 0)
    assert core.producer_epoch == 1
    for batch in batches[:2]:
        assert sent(core, 5_000) == [batch]
        core.settle(batch, ErrorCode.NONE, 5_000, base_offset=0)
    assert sent(core, 5_000) == [batches[2]]
    flying = 1
    for number in range(7):
        add(core, b"%d" % number, now_ms=5_000)
        flying += len(sent(core, 5_000))
    assert flying == 5


def test_without_idempotence_retries_keep_the_order_of_creation():
    core = accumulator(is_idempotent=False, batch_size=100)
    batches = []
    for number in range(3):
        add(core, b"%d" % number * 80, now_ms=number)
        batches += sent(core, number)
    for number in (0, 2, 1):
        core.settle(batches[number], ErrorCode.NETWORK_EXCEPTION, 10)
    assert sent(core, 5_000) + sent(core, 5_000) + sent(core, 5_000) == batches


def test_a_producer_id_is_asked_for_once():
    core = Accumulator(Limits())
    assert core.needs_producer_id
    core.set_producer_id(7, 0)
    assert not core.needs_producer_id


def test_reports_have_the_offset_and_the_time_of_the_broker():
    core = accumulator()
    add(core)
    (batch,) = sent(core)
    core.settle(batch, ErrorCode.NONE, 1, base_offset=40, append_timestamp=77)
    assert (batch.base_offset, batch.append_timestamp, batch.is_settled) == (40, 77, True)


def test_a_duplicate_needs_a_sequence_to_be_a_success():
    core = accumulator(is_idempotent=False)
    add(core)
    (batch,) = sent(core)
    assert core.settle(batch, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0) is Verdict.FAILED


# Partitioners


def test_loads_of_two_partitions_count():
    chooser = UniformSticky(1)
    chooser.set_load({0: 0, 1: 3})
    assert chooser.cumulative_weights == [4, 5]
    chooser.set_load({0: 2})
    assert chooser.cumulative_weights == []
    chooser.set_load({})
    assert chooser.choose([1], 2, lambda: 0) == 1
    assert chooser.choose([0], 2, lambda: 0) == 0, "partition 1 has lost its leader"


def test_uniform_sticky_counts_each_byte():
    chooser = UniformSticky(100)
    draws = iter(range(9))
    assert chooser.choose([], 9, lambda: next(draws)) == 0
    assert chooser.bytes_to_stay() == 200
    for size_bytes, is_full, then in ((99, True, 0), (100, False, 0), (1, False, 1), (99, True, 1), (1, True, 2)):
        chooser.appended(size_bytes, began_batch=False, is_full=is_full)
        assert chooser.choose([], 9, lambda: next(draws)) == then
    assert chooser.choose([], 2, lambda: next(draws)) == 1, "partition 2 is gone"


def test_sticky_stays_until_a_second_batch_begins():
    """Also on partition 0, and where no leader is known."""
    for available in ([0, 1], []):
        chooser = Sticky()
        draws = iter([0, 1, 0, 1])
        assert chooser.bytes_to_stay() == 0, "the first record must be reported"
        chosen = []
        for began_batch in (True, False, False, True, True, False):
            chosen.append(chooser.choose(available, 2, lambda draws=draws: next(draws)))
            chooser.appended(10, began_batch=began_batch, is_full=False)
            assert chooser.bytes_to_stay() in (0, float("inf"))
        assert chosen == [0, 0, 0, 0, 1, 1]
        assert chooser.choose(available[:1], 1, lambda: 0) == 0, "partition 1 is gone"


def test_round_robin_is_asked_for_each_record():
    assert RoundRobin().bytes_to_stay() == 0


# Metrics


def test_metrics_count_records_bytes_and_times():
    core, counters = accumulator(), ProducerCounters()
    add(core, b"a", now_ms=10)
    add(core, b"b", now_ms=10)
    add(core, b"c", P1, now_ms=10)
    batches = sent(core, 30)
    counters.sending(batches, 30)
    pair, single = sorted(batches, key=lambda batch: batch.partition)
    sizes = [len(pair.data), len(single.data)]
    core.settle(pair, ErrorCode.NETWORK_EXCEPTION, 40)
    counters.retried(pair)
    core.settle(single, ErrorCode.NONE, 40, base_offset=0)
    counters.settled(single)
    counters.ended(10.0, 40)
    again = sent(core, 5_000)
    counters.sending(again, 5_000)
    core.abort(GONE)
    counters.settled(pair)
    counters.ended(None, 5_010)
    found = counters.statistics(5_010, total=10, used=11, waiting=2)
    assert (found.record_send_total, found.record_retry_total, found.record_error_total) == (1, 2, 2)
    assert found.byte_total == sum(sizes) + sizes[0]
    assert (found.batch_size_max, found.record_queue_time_max, found.record_queue_time_avg) == (max(sizes), 20, 20)
    assert (found.records_per_request_avg, found.request_total) == (2.5, 2)
    assert (found.buffer_available_bytes, found.waiting_threads, found.requests_in_flight) == (0, 2, 0)
    assert found.topics["t"].record_error_total == 2


def test_records_that_were_never_sent_count_as_errors():
    core, counters = accumulator(linger_ms=10), ProducerCounters()
    add(core)
    add(core)
    (batch,) = core.abort(GONE)
    counters.settled(batch)
    assert counters.statistics(0, total=1, used=0, waiting=0).record_error_total == 2


def test_waiting_batches_are_counted_by_partition():
    core = accumulator()
    for _ in range(2):
        add(core, b"x" * 150)
    assert core.queue_sizes("t", (0, 1)) == {0: 2, 1: 0}


def test_a_former_producer_id_makes_no_new_one_known():
    """The leader has no state of the new id: until it has acknowledged a batch of it, batches go one by one."""
    core = accumulator()
    batch, _, _ = add(core)
    assert sent(core) == [batch]
    core.set_producer_id(9, 0)  # the epochs of the former id are used up
    core.settle(batch, ErrorCode.NONE, 0, base_offset=0)
    for value in (b"1", b"2"):
        add(core, value)
        core.queue(P0).shut()
    (first,) = sent(core)
    assert sent(core) == []
    core.settle(first, ErrorCode.NONE, 0, base_offset=1)
    assert len(sent(core)) == 1
