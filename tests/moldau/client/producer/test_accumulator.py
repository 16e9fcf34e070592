"""The producer's core on a clock of the test: when batches are ready, order and sequences through failures, memory.

The random walk at the end plays a broker that loses, delays and refuses at will, and checks that what the log holds is
exactly what was acknowledged or given up, in order, once.
"""

import itertools
import random

import pytest

from moldau.cluster.metadata import TopicPartition
from moldau.producer.core.accumulator import Accumulator, Verdict, batch_is_ready
from moldau.producer.core.limits import Limits
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import decode_records, parse_batch_header
from support.proof import proof_beyond

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LEADERS = {P0: 1, P1: 1}


def accumulator(**limits):
    core = Accumulator(Limits(**{"batch_size": 200, "linger_ms": 10, "buffer_memory": 2000} | limits))
    if core.limits.is_idempotent:
        core.set_producer_id(7, 0)
    return core


def add(core, value=b"v", partition=P0, now=0):
    return core.append(core.queue(partition), 1, None, value, (), now)


def sent(core, now=0):
    """Drains all that is ready; returns the batches."""
    ready = core.ready(now, LEADERS)
    return [batch for queues in ready.by_node.values() for batch in core.drain(queues, now)]


def known(core, partition=P0):
    """As after the first acknowledgement in the partition: from then on batches go out without waiting for others."""
    core.queue(partition).known_producer_id = core.producer_id
    return core


def values(batch):
    return [record.value for record in decode_records(batch.data, 0, parse_batch_header(batch.data))]


def sequence(batch):
    header = parse_batch_header(batch.data)
    return header.producer_id, header.producer_epoch, header.base_sequence


def test_truth_table_of_readiness():
    """Every combination of the eight facts: sendable for any reason, unless backing off or muted."""
    names = ["is_backing_off", "is_muted", "is_full", "has_lingered", "is_memory_exhausted"]
    names += ["is_closing", "is_flushing", "is_completing"]
    for row in itertools.product([False, True], repeat=8):
        facts = dict(zip(names, row, strict=True))
        assert batch_is_ready(**facts) == (any(row[2:]) and not row[0] and not row[1])


def test_linger_full_flush_close_and_exhaustion_make_ready():
    core = accumulator()
    add(core)
    ready = core.ready(4, LEADERS)
    assert (ready.by_node, ready.next_check_ms) == ({}, 10)
    assert core.ready(10, LEADERS).by_node == {1: [core.queue(P0)]}
    for attribute in ("is_closing", "is_completing"):
        setattr(core, attribute, True)
        assert core.ready(0, LEADERS).by_node
        setattr(core, attribute, False)
    for attribute in ("flushes", "memory_waiters"):
        setattr(core, attribute, 1)
        assert core.ready(0, LEADERS).by_node
        setattr(core, attribute, 0)
    assert not core.ready(0, LEADERS).by_node
    add(core, b"x" * 150)
    assert core.ready(0, LEADERS).by_node, "a second batch began: the first is full"


def test_the_next_check_is_the_smallest_time_left():
    core = accumulator()
    add(core, now=3)
    add(core, partition=P1, now=1)
    assert core.ready(5, LEADERS).next_check_ms == 11
    (first,) = sent(core, 11)
    assert first.partition == P1
    core.settle(first, ErrorCode.NOT_LEADER_OR_FOLLOWER, 12, jitter=1.0)
    (other,) = sent(core, 13)
    assert other.partition == P0
    assert core.ready(13, LEADERS).next_check_ms == 112, "backing off for retry.backoff.ms"
    assert not core.ready(111, LEADERS).by_node
    assert core.ready(112, LEADERS).by_node


def test_a_partition_without_leader_asks_for_metadata():
    core = accumulator()
    add(core)
    ready = core.ready(100, {})
    assert ready.has_unknown_leader
    assert not ready.by_node


def test_memory_is_bounded_and_given_back():
    core = accumulator(buffer_memory=500)
    assert add(core, b"x" * 150) is not None
    assert add(core, b"x" * 150) is not None
    assert core.memory_used == 2 * 247
    assert add(core, b"x" * 150) is None, "a third batch does not fit"
    (batch,) = sent(core)
    core.settle(batch, ErrorCode.NONE, 1, base_offset=0)
    assert core.memory_used == 247
    assert add(core, b"x" * 150) is not None
    assert add(accumulator(buffer_memory=10), b"large") is not None, "alone, any size is taken"


def test_request_takes_one_batch_per_partition():
    """One request takes one batch of each partition, up to max.request.size."""
    core = accumulator(request_size_max=300)
    for partition in (P0, P1):
        add(core, b"x" * 100, partition)
        add(core, b"y" * 100, partition)
    first = sent(core)
    assert len(first) == 1, "two batches would exceed max.request.size"
    second = sent(core)
    assert {first[0].partition, second[0].partition} == {P0, P1}, "partitions take turns"


def test_one_batch_in_flight_until_first_acknowledgement():
    """Found by a seed: the first batch was lost with its leader, and the next one reached the new leader first."""
    core = accumulator(linger_ms=0)
    add(core, b"first")
    (first,) = sent(core)
    add(core, b"second")
    assert sent(core) == [], "a leader that has not seen the first would take the second as well"
    assert core.settle(first, ErrorCode.NETWORK_EXCEPTION, 1) is Verdict.RETRY
    assert sent(core, 500) == [first]
    assert core.settle(first, ErrorCode.NONE, 501, base_offset=0) is Verdict.DONE
    add(core, b"x" * 150)
    second, third = sent(core, 502) + sent(core, 520)
    assert [sequence(batch)[2] for batch in (second, third)] == [1, 2]
    core.settle(second, ErrorCode.NONE, 521, base_offset=1)
    core.settle(third, ErrorCode.NONE, 521, base_offset=2)
    core.set_producer_id(8, 0)
    add(core, b"of another producer id")
    (fourth,) = sent(core, 600)
    assert sequence(fourth) == (8, 0, 0)
    add(core, b"waits again")
    assert sent(core, 700) == []
    add(core, b"elsewhere", P1)
    assert [batch.partition for batch in sent(core, 700)] == [P1]


def test_sequences_follow_each_other_and_survive_retries():
    core = known(accumulator(linger_ms=0))
    batches = []
    for value in (b"a", b"b", b"c"):
        add(core, value)
        add(core, value)
        batches += sent(core)
    assert [sequence(batch) for batch in batches] == [(7, 0, 0), (7, 0, 2), (7, 0, 4)]
    assert core.settle(batches[0], ErrorCode.NETWORK_EXCEPTION, 0) is Verdict.RETRY
    add(core, b"d")
    assert sent(core, 500) == [], "while two are in flight the retry waits"
    assert core.settle(batches[2], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.RETRY
    assert core.settle(batches[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.RETRY
    order = []
    for _ in range(4):
        (batch,) = sent(core, 5000)
        order.append(values(batch)[0])
        core.settle(batch, ErrorCode.NONE, 5000, base_offset=0)
    assert order == [b"a", b"b", b"c", b"d"]
    assert [sequence(batch) for batch in batches] == [(7, 0, 0), (7, 0, 2), (7, 0, 4)]


def test_at_most_five_batches_of_a_partition_are_outstanding():
    core = known(accumulator(linger_ms=0, buffer_memory=10_000))
    for _ in range(7):
        add(core, b"x" * 150)
    drained = []
    while batch := sent(core):
        drained += batch
    assert len(drained) == 5
    core.settle(drained[0], ErrorCode.NONE, 0, base_offset=0)
    assert len(sent(core)) == 1


def test_a_duplicate_is_a_success():
    core = accumulator(linger_ms=0)
    add(core)
    (batch,) = sent(core)
    assert core.settle(batch, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0, base_offset=40) is Verdict.DONE
    assert (batch.error, batch.base_offset) == (None, 40)


def test_a_lost_fate_moves_the_partition_to_the_next_epoch():
    """One batch is refused for good while a later one is in flight: the later one is sent again under a new epoch."""
    core = known(accumulator(linger_ms=0))
    add(core, b"bad")
    first = sent(core)[0]
    add(core, b"good")
    second = sent(core)[0]
    assert core.settle(first, ErrorCode.MESSAGE_TOO_LARGE, 0) is Verdict.FAILED
    add(core, b"later")
    assert sent(core) == [], "nothing new before the partition has drained"
    assert core.settle(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.RETRY
    assert core.producer_epoch == 1
    (again,) = sent(core, 5000)
    assert again is second
    assert sequence(second) == (7, 1, 0)
    (later,) = sent(core, 5000)
    assert sequence(later) == (7, 1, 1)


def test_broker_that_forgot_the_producer_gets_a_new_epoch():
    """The producer bumps its epoch if a broker has no state of it."""
    core = accumulator(linger_ms=0)
    add(core)
    (batch,) = sent(core)
    assert core.settle(batch, ErrorCode.UNKNOWN_PRODUCER_ID, 0) is Verdict.RETRY
    (again,) = sent(core, 5000)
    assert sequence(again) == (7, 1, 0)
    # Another partition takes the new epoch when it has nothing outstanding.
    add(core, b"x", P1)
    assert sequence(sent(core, 5000)[0]) == (7, 1, 0)


def test_the_last_epoch_asks_for_a_new_producer_id():
    core = accumulator(linger_ms=0)
    core.set_producer_id(7, 32767)
    add(core)
    (batch,) = sent(core)
    core.settle(batch, ErrorCode.UNKNOWN_PRODUCER_ID, 0)
    assert core.needs_producer_id
    core.set_producer_id(8, 0)
    (again,) = sent(core, 5000)
    assert sequence(again) == (8, 0, 0)


def test_a_retry_in_another_cluster_waits_for_its_producer_id():
    """Whether the old cluster wrote the batch is not known; the other one has not."""
    core = known(accumulator())
    add(core, b"1")
    (first,) = sent(core, 10)
    assert core.settle(first, ErrorCode.NETWORK_EXCEPTION, 10) is Verdict.RETRY
    core.leave_cluster()
    add(core, b"2", partition=P1, now=10)
    assert (core.needs_producer_id, sent(core, 1000)) == (True, [])
    core.set_producer_id(8, 0)
    assert [sequence(batch) for batch in sent(core, 1000)] == [(8, 0, 0), (8, 0, 0)]


def test_the_same_producer_id_in_another_cluster_begins_again():
    """Each cluster counts its ids from the same number, and leaders there know nothing of this producer."""
    core = known(accumulator(linger_ms=0))
    core.leave_cluster()
    core.set_producer_id(7, 0)
    for value in (b"1", b"2"):
        add(core, value)
        core.queue(P0).shut()
    (first,) = sent(core)
    assert (sequence(first), sent(core)) == ((7, 0, 0), []), "it goes alone until a leader has acknowledged it"
    core.settle(first, ErrorCode.NONE, 1, base_offset=0)
    assert [sequence(batch) for batch in sent(core)] == [(7, 0, 1)]


def test_only_idempotent_producers_leave_their_id_behind():
    """The coordinator of the other cluster refuses the transactions of an unknown producer id."""
    for limits in ({"is_idempotent": False}, {"is_idempotent": True, "is_transactional": True}):
        core = accumulator(**limits)
        core.leave_cluster()
        assert not core.needs_producer_id


def test_nothing_is_sent_before_there_is_a_producer_id():
    core = Accumulator(Limits(linger_ms=0))
    add(core)
    assert core.needs_producer_id
    assert sent(core) == []
    core.set_producer_id(1, 0)
    assert len(sent(core)) == 1


def test_delivery_timeout_fails_queued_and_flying_batches():
    core = accumulator(linger_ms=0, delivery_timeout_ms=100)
    add(core, b"flying")
    (flying,) = sent(core)
    add(core, b"queued", now=50)
    assert core.next_expiry_ms() == 100
    assert core.expire(99) == []
    assert core.expire(100) == [flying]
    assert flying.error is not None
    assert "its answer did not come" in str(flying.error)
    assert core.settle(flying, ErrorCode.NONE, 101) is Verdict.FAILED, "a late answer changes nothing"
    assert core.next_expiry_ms() == 150
    (queued,) = sent(core, 120)
    assert sequence(queued) == (7, 1, 0), "the lost batch may still arrive: the new epoch fences it"


def test_an_expired_batch_says_why_it_was_not_delivered():
    core = accumulator(linger_ms=0, delivery_timeout_ms=1_000)
    add(core)
    (batch,) = sent(core)
    assert core.settle(batch, ErrorCode.NOT_ENOUGH_REPLICAS, 10) is Verdict.RETRY
    assert core.expire(1_000) == [batch]
    assert "(attempts: 1, the last failed with NOT_ENOUGH_REPLICAS)" in str(batch.error)
    add(core, now=1_000)
    (unsent,) = core.expire(2_000)
    assert "(no attempt could be made)" in str(unsent.error)


def test_a_batch_without_a_producer_id_says_so():
    """Brokers have none for new producers while a majority of the controllers is down."""
    core = Accumulator(Limits(linger_ms=0, delivery_timeout_ms=1_000))
    words = "no attempt could be made: brokers have sent no producer id, which they get from the controllers"
    for number, refusal in enumerate(("", "COORDINATOR_LOAD_IN_PROGRESS")):
        core.id_refusal = refusal
        add(core, now=number * 1_000)
        assert sent(core, number * 1_000) == []
        (unsent,) = core.expire((number + 1) * 1_000)
        assert f"({words}{f' ({refusal})' if refusal else ''})" in str(unsent.error)


def test_retries_end():
    core = accumulator(linger_ms=0, retries=1)
    add(core)
    (batch,) = sent(core)
    assert core.settle(batch, ErrorCode.NETWORK_EXCEPTION, 0) is Verdict.RETRY
    sent(core, 5000)
    assert core.settle(batch, ErrorCode.NETWORK_EXCEPTION, 5000) is Verdict.FAILED
    assert batch.error is not None
    assert batch.error.code is ErrorCode.NETWORK_EXCEPTION


def test_without_idempotence_one_in_flight_keeps_the_order():
    core = accumulator(linger_ms=0, is_idempotent=False, in_flight_max=1, batch_size=100)
    for value in (b"a" * 60, b"b" * 60, b"c" * 60):
        add(core, value)
    order = []
    (first,) = sent(core)
    assert sent(core) == [], "muted while one is in flight"
    core.settle(first, ErrorCode.NETWORK_EXCEPTION, 0)
    for _ in range(3):
        (batch,) = sent(core, 5000)
        order.append(values(batch)[0][:1])
        core.settle(batch, ErrorCode.NONE, 0, base_offset=0)
    assert order == [b"a", b"b", b"c"]


def test_without_idempotence_a_batch_may_fail_again_and_again():
    core = accumulator(linger_ms=0, is_idempotent=False)
    add(core)
    for attempt in range(5):
        (batch,) = sent(core, 5000 * attempt)
        assert core.settle(batch, ErrorCode.NETWORK_EXCEPTION, 5000 * attempt) is Verdict.RETRY
    (batch,) = sent(core, 50_000)
    assert core.settle(batch, ErrorCode.NONE, 0, base_offset=3) is Verdict.DONE
    assert (core.memory_used, core.incomplete) == (0, {})


def test_abort_fails_all_or_what_waits_for_partitions():
    core = accumulator(linger_ms=0)
    add(core, b"flying")
    (flying,) = sent(core)
    add(core, b"queued")
    error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert core.abort(error, queues=()) == []
    (queued,) = core.abort(error, queues=core.queues.values())
    assert (queued.error, flying.is_settled) == (error, False)
    assert core.abort(error) == [flying]
    assert (core.memory_used, core.incomplete) == (0, {})


class Broker:
    """One partition's leader as far as idempotence goes: dedups the last five batches, refuses gaps and old epochs.

    It takes at most ``records_max`` records in one batch.
    """

    def __init__(self, records_max: int) -> None:
        self.records_max = records_max
        self.log: list[bytes] = []
        self.state: tuple[int, int, int] = (-1, -1, -1)  # producer id, epoch, last sequence
        self.recent: list[tuple[int, int, int, int]] = []

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        header = parse_batch_header(data)
        producer, epoch, last = self.state
        if header.record_count > self.records_max:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        identity = (header.producer_id, header.producer_epoch, header.base_sequence)
        for *known, offset in self.recent:
            if tuple(known) == identity:
                return ErrorCode.NONE, offset
        if header.producer_id == producer and header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        expected = last + 1 if (header.producer_id, header.producer_epoch) == (producer, epoch) else 0
        if header.base_sequence != expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = len(self.log)
        self.log += [record.value for record in decode_records(data, 0, header)]
        self.state = (header.producer_id, header.producer_epoch, header.last_sequence)
        self.recent = [*self.recent[-4:], (*identity, offset)]
        return ErrorCode.NONE, offset


@pytest.mark.parametrize("seed", proof_beyond(50, range(150)))
def test_random_faults_never_lose_double_or_reorder(seed):
    """Requests and answers get lost, answers come late and in any order; the log must hold each acknowledged record
    once and in order, and of the others at most one copy each. Some brokers take small batches only."""
    drawn = random.Random(seed)
    core = accumulator(linger_ms=0, buffer_memory=100_000, delivery_timeout_ms=drawn.choice([400, 10**9]))
    broker = Broker(drawn.choice([1000, 1000, 3, 1]))
    wire: list[tuple[object, bytes]] = []
    answers: list[tuple[object, ErrorCode, int]] = []
    acknowledged: dict[bytes, int] = {}
    handed: list[tuple[bytes, object, int]] = []
    now = 0
    for step in range(400):
        now += drawn.randrange(20)
        core.expire(now)
        if step < 250 and drawn.random() < 0.6:
            value = b"%d" % len(handed)
            added = add(core, value, now=now)
            handed.append((value, added[0], added[1]))
        wire += [(batch, bytes(batch.data)) for batch in sent(core, now)]
        if wire and drawn.random() < 0.7:
            batch, data = wire.pop(0)
            fate = drawn.random()
            if step > 330 or fate < 0.6:
                answers.append((batch, *broker.append(data)))
            elif fate < 0.75:
                broker.append(data)
                answers.append((batch, ErrorCode.NETWORK_EXCEPTION, -1))
            elif fate < 0.9:
                answers.append((batch, ErrorCode.NETWORK_EXCEPTION, -1))
            else:
                answers.append((batch, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))
        while answers and drawn.random() < 0.6:
            batch, code, offset = answers.pop(drawn.randrange(len(answers)))
            if not batch.is_settled:
                core.settle(batch, code, now, base_offset=offset, jitter=drawn.random())
    while core.incomplete:
        now += 2000
        core.expire(now)
        for batch, code, offset in answers:
            if not batch.is_settled:
                core.settle(batch, code, now, base_offset=offset)
        answers.clear()
        wire += [(batch, bytes(batch.data)) for batch in sent(core, now)]
        for batch, data in wire:
            answers.append((batch, *broker.append(data)))
        wire.clear()
    for value, batch, index in handed:
        part = batch.part(index)
        assert batch.is_settled
        assert part.is_settled
        if part.error is None:
            acknowledged[value] = part.base_offset + index - part.first_index
    assert len(set(broker.log)) == len(broker.log), "a record was written twice"
    for value, offset in acknowledged.items():
        assert broker.log[offset] == value, "an acknowledged record is not where it was acknowledged"
    kept = [value for value in broker.log if value in acknowledged]
    assert kept == sorted(kept, key=int), "acknowledged records are out of order"
    assert core.memory_used == 0
    if core.limits.delivery_timeout_ms > 10**8 and broker.records_max == 1000:
        assert broker.log == [value for value, _, _ in handed]
