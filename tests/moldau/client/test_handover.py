"""Goal: the hand-over between threads loses no record, stays bounded, and takes no lock for a record.

Method: a hand-over with a trio token and a producer of the test; real threads only where they must block.
"""

import sys
import threading

import pytest
import trio
import trio.testing

from moldau.blocking import Producer
from moldau.blocking.handover import HANDOVER_BYTES_MAX, HANDOVER_RECORDS_MAX, Handover, PendingDelivery
from moldau.producer import AbortableTransactionError, BufferExhaustedError, TransactionAbortedError
from moldau.protocol.errors import ErrorCode, KafkaError

WAIT_S = 60


class Token:
    """Counts calls; ``action`` runs instead of the call."""

    def __init__(self, action=lambda: None):
        self.calls = 0
        self.action = action

    def run_sync_soon(self, function):
        del function
        self.calls += 1
        self.action()


class Lock:
    """A condition that nothing may use."""

    def __enter__(self):
        raise AssertionError("a record takes no lock")


class TrioProducer:
    """Takes records into a list; refuses values of ``refused``, and waits where ``is_full`` is set."""

    interceptors = ()
    max_block_ms = 60_000
    is_transactional = True
    is_in_transaction = True

    def __init__(self):
        self.intake = self.appender = self
        self.taken = []
        self.is_full = False
        self.refused = ()
        self.room = trio.Event()

    def wall_ms(self):
        return 1000

    def append_handed(self, popleft, count, now_ms):
        del count, now_ms
        return 1, popleft()

    def append(self, topic, value, key, headers, partition, timestamp):
        del topic, key, headers, partition
        if value in self.refused:
            raise ValueError("refused")
        if self.is_full:
            raise BufferExhaustedError("full")
        self.taken.append((value, timestamp))
        return f"delivery of {value}"

    async def send_bytes(self, topic, value, key, *, headers, partition, timestamp):
        await self.room.wait()
        self.is_full = False
        return self.append(topic, value, key, headers, partition, timestamp)


def record(value, timestamp=None):
    return ("t", value, None, (), None, timestamp, PendingDelivery(None))


def test_burst_of_records_takes_one_call_and_no_lock():
    handover, token = Handover(TrioProducer()), Token()
    handover._room = Lock()
    for number in range(1000):
        handover.put(record(number), token)
    assert token.calls == 1
    assert len(handover.queue) == 1000


def test_record_that_meets_the_end_fails():
    """``end`` runs in the trio thread between the caller's look and its record."""
    handover = Handover(TrioProducer())
    handed = record(b"late")
    handover.put(handed, Token(handover.end))
    with pytest.raises(KafkaError, match="closed before it took the record") as raised:
        handed[6].outcome()
    assert raised.value.code is ErrorCode.OPERATION_NOT_ATTEMPTED
    with pytest.raises(RuntimeError, match="the producer is closed"):
        handover.put(record(b"later"), Token())


def test_record_behind_an_interrupted_call_is_called_for():
    handover = Handover(TrioProducer())

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handover.put(record(1), Token(interrupt))
    token = Token()
    handover.put(record(2), token)
    assert token.calls == 1


def test_an_interrupted_call_is_made_for_other_threads():
    """Another thread adds a record while the call is under way, and sees that one is."""
    handover = Handover(TrioProducer())
    token = Token()

    def interrupt():
        token.action = lambda: None
        handover.put(record(2), token)
        raise KeyboardInterrupt

    token.action = interrupt
    with pytest.raises(KeyboardInterrupt):
        handover.put(record(1), token)
    assert [each[1] for each in handover.queue] == [1, 2]
    assert token.calls == 2, "the first one had no effect"


async def passed_on(handover, script):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handover.empty_forever)
        await script()
        nursery.cancel_scope.cancel()


def test_flush_passes_on_what_an_interrupt_left():
    handover = Handover(producer := TrioProducer())

    async def main():
        async def script():
            await trio.testing.wait_all_tasks_blocked()
            handover.queue.append(record(1))  # its caller was interrupted before the call
            await handover.wait_empty()

        await passed_on(handover, script)

    trio.run(main)
    assert producer.taken == [(1, 1000)]


def test_order_holds_around_a_wait_and_a_refusal():
    """Later records wait behind one that waits for memory; a refused one fails alone."""
    handover = Handover(producer := TrioProducer())
    producer.refused = (7,)
    handed = [record(number, number) for number in range(600)]

    async def main():
        async def script():
            producer.is_full = True
            for each in handed:
                handover.put(each, trio.lowlevel.current_trio_token())
            await trio.testing.wait_all_tasks_blocked()
            assert producer.taken == []
            producer.room.set()
            await handover.wait_empty()

        await passed_on(handover, script)

    trio.run(main)
    assert producer.taken == [(number, number) for number in range(600) if number != 7]
    assert handed[8][6].taken == "delivery of 8"
    with pytest.raises(ValueError, match="refused"):
        handed[7][6].outcome()


def test_records_behind_a_wait_are_not_older_than_it():
    """They kept the time from before the wait, so that timestamps of a partition went back after its first record."""
    producer = TrioProducer()
    producer.is_full = True
    clock = iter((1000, 6000, 7000))
    producer.wall_ms = clock.__next__
    handover = Handover(producer)
    for number in range(3):
        handover.put(record(number), Token())

    async def script():
        await trio.testing.wait_all_tasks_blocked()
        producer.room.set()
        await trio.testing.wait_all_tasks_blocked()

    async def send_bytes(topic, value, key, *, headers, partition, timestamp):
        await producer.room.wait()
        producer.is_full = False
        return producer.append(topic, value, key, headers, partition, 5000 if timestamp is None else timestamp)

    producer.send_bytes = send_bytes
    trio.run(passed_on, handover, script)
    assert [timestamp for _, timestamp in producer.taken] == [5000, 6000, 6000]


def test_outcomes_do_not_wait_for_records_behind():
    """Both records are passed on in one step, and the second one waits for the metadata of its topic."""
    handover = Handover(producer := TrioProducer())
    first, second = record(1), record(2)
    append = producer.append

    def append_known(topic, value, *others):
        if value == 2 and not producer.room.is_set():
            raise LookupError("no metadata yet")
        return append(topic, value, *others)

    producer.append = append_known
    waited = []

    async def main():
        async def wait_taken(delivery):
            await handover.taken.wait_until(lambda: delivery.is_resolved)
            waited.append(delivery)

        async def script():
            async with trio.open_nursery() as nursery:
                for each in (first, second):
                    nursery.start_soon(wait_taken, each[6])
                await trio.testing.wait_all_tasks_blocked()
                for each in (first, second):
                    handover.put(each, trio.lowlevel.current_trio_token())
                await trio.testing.wait_all_tasks_blocked()
                assert waited == [first[6]]
                producer.room.set()

        await passed_on(handover, script)

    trio.run(main)
    assert waited == [first[6], second[6]]


def test_transaction_does_not_fail_by_earlier_records():
    """A record that was sent before the transaction is refused while its begin waits for the queue."""
    handover = Handover(producer := TrioProducer())
    producer.refused = (b"early",)
    committed = []

    async def commit(timeout_ms):
        await trio.lowlevel.checkpoint()
        committed.append(timeout_ms)

    producer.begin_transaction, producer.commit_transaction = (lambda: None), commit
    early = record(b"early")

    async def main():
        async def script():
            handover.put(early, trio.lowlevel.current_trio_token())
            await handover.begin_transaction()
            await handover.commit_transaction(7)

        await passed_on(handover, script)

    trio.run(main, clock=trio.testing.MockClock())
    assert committed == [7]
    with pytest.raises(ValueError, match="refused"):
        early[6].outcome()


def test_a_commit_without_time_left_can_be_repeated():
    handover = Handover(producer := TrioProducer())
    producer.is_full = True
    committed = []

    async def commit(timeout_ms):
        await trio.lowlevel.checkpoint()
        committed.append(timeout_ms)

    producer.commit_transaction = commit

    async def main():
        async def script():
            handover.put(record(b"a"), trio.lowlevel.current_trio_token())
            with pytest.raises(KafkaError, match="after 0 ms; call again"):
                await handover.commit_transaction(0)
            producer.room.set()
            await handover.commit_transaction(7)
            await handover.commit_transaction(0)

        await passed_on(handover, script)

    trio.run(main, clock=trio.testing.MockClock())
    assert committed == [7, 0]


def test_a_record_sent_during_a_commit_fails_alone():
    """The commit has timed out, and its repetition returns the outcome of the transaction."""
    handover = Handover(producer := TrioProducer())
    producer.refused = (b"late",)
    outcomes = [KafkaError(ErrorCode.REQUEST_TIMED_OUT), None]

    async def commit(timeout_ms):
        await trio.lowlevel.checkpoint()
        producer.is_in_transaction = False
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    producer.commit_transaction = commit
    late = record(b"late")

    async def main():
        async def script():
            with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
                await handover.commit_transaction(7)
            handover.put(late, trio.lowlevel.current_trio_token())
            await handover.commit_transaction(7)

        await passed_on(handover, script)

    trio.run(main, clock=trio.testing.MockClock())
    assert outcomes == []
    with pytest.raises(ValueError, match="refused"):
        late[6].outcome()


class MissingTopics(TrioProducer):
    """Knows topic ``t`` alone, and waits a minute in vain for the metadata of any other."""

    def __init__(self):
        super().__init__()
        self.aborts = []

    def append(self, topic, value, *others):
        if topic != "t":
            raise LookupError("no metadata")
        return super().append(topic, value, *others)

    async def send_bytes(self, topic, value, key, **others):
        del value, key, others
        await trio.sleep(self.max_block_ms / 1000)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)

    async def abort_transaction(self, timeout_ms):
        await trio.lowlevel.checkpoint()
        self.aborts.append(timeout_ms)


def waiting_script(producer, script):
    """Runs ``script(handover)`` on virtual time, while records are passed on."""
    handover = Handover(producer)
    trio.run(passed_on, handover, lambda: script(handover), clock=trio.testing.MockClock(autojump_threshold=0))


def queued(handover, *topics):
    """Hands records over, one for each topic, and returns their deliveries."""
    records = [(topic, topic, None, (), None, None, PendingDelivery(None)) for topic in topics]
    for each in records:
        handover.put(each, trio.lowlevel.current_trio_token())
    return [each[6] for each in records]


def test_records_wait_together_for_a_missing_topic():
    """Each waited for ``max.block.ms`` of its own, one after the other, and held up all behind it."""

    async def script(handover):
        deliveries = queued(handover, "no", "no", "other", "no", "t", "no")
        await trio.sleep(1)
        later = queued(handover, "no")
        await handover.taken.wait_until(lambda: deliveries[-1].is_resolved)
        assert trio.current_time() == 120, "two topics are missing"
        assert deliveries[4].taken == "delivery of t"
        for delivery, topic in zip(deliveries, ("no", "no", "other", "no", None, "no"), strict=True):
            if topic is not None:
                with pytest.raises(KafkaError, match=f"UNKNOWN_TOPIC_OR_PARTITION: {topic}"):
                    delivery.outcome()
        await handover.wait_empty()
        assert trio.current_time() == 180, "a record that came later waits for itself"
        assert later[0].is_resolved

    waiting_script(MissingTopics(), script)


class ForbiddenTopics(MissingTopics):
    """Is refused each topic but ``t`` at its first look, and has the others later."""

    def __init__(self, error):
        super().__init__()
        self.error = error
        self.asked = []

    async def send_bytes(self, topic, value, key, **others):
        await trio.sleep(1)
        self.asked.append(topic)
        if self.asked.count(topic) == 1:
            raise self.error
        return f"delivery of {topic}"


@pytest.mark.parametrize(
    ("error", "repeats"),
    [
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"), True),
        (ValueError("no"), True),
        (KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no"), False),
        (BufferExhaustedError("full"), True),
    ],
    ids=["final", "invalid", "awaited", "memory"],
)
def test_only_what_was_awaited_in_vain_fails_the_rest(error, repeats):
    """A final refusal is of one record: it says nothing of how long others would wait, nor does another resource."""
    producer = ForbiddenTopics(error)

    async def script(handover):
        first, second, other = queued(handover, "no", "no", "t")
        await handover.wait_empty()
        assert producer.asked == ["no"] * (1 + repeats)
        with pytest.raises(type(error)):
            first.outcome()
        assert (second.taken is not None) is repeats
        assert other.taken == "delivery of t"

    waiting_script(producer, script)


class Outcomes(MissingTopics):
    """A producer with an interceptor; it knows which deliveries are watched, and how long a flush may take."""

    def __init__(self):
        super().__init__()
        self.interceptors = (self,)
        self.watched, self.failed, self.limits = [], [], []

    def watch(self, taken, record):
        self.watched.append((taken, record))

    def on_acknowledgement(self, record, metadata, error):
        self.failed.append((record, metadata, type(error)))

    async def flush(self, timeout_ms):
        await trio.lowlevel.checkpoint()
        self.limits.append(timeout_ms)


def intercepted(handover, topic, value):
    record = (topic, value, None, (), None, None, PendingDelivery(None))
    record[6].intercepted = f"record {value}"
    handover.put(record, trio.lowlevel.current_trio_token())


@pytest.mark.parametrize("ends", ["closed", "aborted"])
def test_an_interceptor_gets_one_outcome_of_each_record(ends):
    """Records that were taken are watched; those that are refused, waited in vain, or were never taken have failed."""
    producer = Outcomes()
    producer.refused = ("refused",)

    async def script(handover):
        for topic, value in (("t", "taken"), ("t", "refused"), ("no", "awaited")):
            intercepted(handover, topic, value)
        await handover.wait_empty()
        intercepted(handover, "other", "in hand")
        intercepted(handover, "t", "behind")
        await trio.sleep(1)
        if ends == "closed":
            handover.end()
        else:
            await handover.abort_transaction(None)
        await trio.sleep(1)
        missing = KafkaError if ends == "closed" else TransactionAbortedError
        assert producer.watched == [("delivery of taken", "record taken")]
        assert sorted(producer.failed, key=str) == [
            ("record awaited", None, KafkaError),
            ("record behind", None, missing),
            ("record in hand", None, missing),
            ("record refused", None, ValueError),
        ]

    waiting_script(producer, script)


def test_a_flush_takes_no_longer_than_asked():
    """The wait for the queue and that for the deliveries share the limit."""
    producer = Outcomes()

    async def script(handover):
        queued(handover, "no")
        await handover.flush(100_000)
        assert trio.current_time() == 60
        assert producer.limits == [40_000]
        queued(handover, "other")
        with pytest.raises(trio.TooSlowError, match="records wait for metadata or memory after 5000 ms"):
            await handover.flush(5_000)
        assert trio.current_time() == 65

    waiting_script(producer, script)


def test_waits_in_vain_are_forgotten():
    """A producer that runs for months meets many topics that are missing."""

    async def script(handover):
        for number in range(10):
            queued(handover, f"missing {number}", f"also missing {number}")
            await handover.wait_empty()
        assert len(handover._given_up) <= 2

    waiting_script(MissingTopics(), script)


def test_a_closing_producer_waits_once_for_missing_topics():
    """Records behind them whose topic is known are delivered."""

    async def script(handover):
        missing = queued(handover, "no", "other")
        await trio.sleep(10)
        missing += queued(handover, "another", "further")
        (last,) = queued(handover, "t")
        await handover.drain()
        assert trio.current_time() == 70
        assert last.taken == "delivery of t"
        for delivery, text in zip(
            missing, ("UNKNOWN_TOPIC_OR_PARTITION", *["the producer was closed"] * 3), strict=True
        ):
            with pytest.raises(KafkaError, match=text):
                delivery.outcome()

    waiting_script(MissingTopics(), script)


def test_a_full_buffer_fails_all_that_have_waited_for_it():
    producer = TrioProducer()
    producer.is_full = True

    async def wait(*_, **__):
        await trio.sleep(60)
        raise BufferExhaustedError("full")

    producer.send_bytes = wait

    async def script(handover):
        deliveries = queued(handover, *"tttt")
        await handover.wait_empty()
        assert trio.current_time() == 60
        for delivery in deliveries:
            with pytest.raises(BufferExhaustedError, match="full"):
                delivery.outcome()
        producer.is_full = False
        assert queued(handover, "t")
        await handover.wait_empty()

    waiting_script(producer, script)


@pytest.mark.parametrize("call", ["commit_transaction", "prepare_transaction"])
@pytest.mark.parametrize("timeout_ms", [5_000, None])
def test_calls_of_a_transaction_wait_no_longer_than_asked(call, timeout_ms):
    producer = MissingTopics()
    given = []

    async def end(timeout_ms):
        await trio.lowlevel.checkpoint()
        given.append(timeout_ms)

    producer.commit_transaction = producer.prepare_transaction = end

    async def script(handover):
        queued(handover, "no", "other")
        limit = 60 if timeout_ms is None else 5
        with pytest.raises(KafkaError, match="call again") as caught:
            await getattr(handover, call)(timeout_ms)
        assert (caught.value.code, trio.current_time()) == (ErrorCode.REQUEST_TIMED_OUT, limit)
        await handover.wait_empty()
        with pytest.raises(AbortableTransactionError, match="a record of the transaction could not be sent"):
            await getattr(handover, call)(timeout_ms)
        handover._refused = None
        await getattr(handover, call)(timeout_ms)
        assert given == [timeout_ms]

    waiting_script(producer, script)


def test_an_abort_does_not_wait_for_the_queue():
    producer = MissingTopics()

    async def script(handover):
        deliveries = queued(handover, "no", "no", "t")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handover.wait_empty)  # of another thread, which flushes
                await trio.sleep(1)
                await handover.abort_transaction(7)
        await handover.wait_empty()
        assert (trio.current_time(), producer.aborts, producer.taken) == (1, [7], [])
        for delivery in deliveries:
            with pytest.raises(TransactionAbortedError):
                delivery.outcome()

    waiting_script(producer, script)


def test_an_abort_with_a_negative_limit_drops_nothing():
    producer = MissingTopics()

    async def script(handover):
        (delivery,) = queued(handover, "no")
        with pytest.raises(ValueError, match=r"^abort_transaction: timeout_ms must be 0 or more, not -1$"):
            await handover.abort_transaction(-1)
        assert (producer.aborts, delivery.is_done) == ([], False)

    waiting_script(producer, script)


def test_an_abort_without_transactions_drops_nothing():
    producer = MissingTopics()
    producer.is_transactional = False

    async def refuse(_):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("no transactions")

    producer.abort_transaction = refuse

    async def script(handover):
        (kept,) = queued(handover, "t")
        with pytest.raises(RuntimeError, match="no transactions"):
            await handover.abort_transaction(7)
        await handover.wait_empty()
        assert kept.taken == "delivery of t"

    waiting_script(producer, script)


def test_waiting_for_the_queue_ends_while_others_send():
    """A thread that never stops to send must not keep another one from its flush, or from closing."""
    producer = TrioProducer()
    append = producer.append

    def append_and_send(*record):
        assert len(producer.taken) < 1_000, "the wait never ends"
        queued(producer.handover, "t")
        return append(*record)

    producer.append = append_and_send

    async def script(handover):
        producer.handover = handover
        queued(handover, *"ttt")
        await handover.wait_empty()
        assert len(producer.taken) < 10

    waiting_script(producer, script)


def test_cancelled_wait_fails_its_record():
    handover = Handover(producer := TrioProducer())
    producer.is_full = True
    handed = record(1)

    async def main():
        async def script():
            handover.put(handed, trio.lowlevel.current_trio_token())
            await trio.testing.wait_all_tasks_blocked()

        await passed_on(handover, script)

    trio.run(main)
    with pytest.raises(KafkaError, match="closed before it took the record"):
        handed[6].outcome()


@pytest.mark.parametrize("ending", ["room", "end"])
def test_full_queue_blocks_callers(ending):
    """Callers go on when the trio thread has made room, and are refused when the producer ends."""
    handover, token = Handover(TrioProducer()), Token()
    for number in range(HANDOVER_RECORDS_MAX):
        handover.put(record(number), token)
    failures = []

    def call():
        try:
            handover.put(record(b"last"), token)
        except RuntimeError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    while handover._waiting < 3:
        threads[0].join(0.001)
    assert len(handover.queue) == HANDOVER_RECORDS_MAX
    if ending == "end":
        handover.end()
    else:
        handover.queue.clear()
        handover._announce_room()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert failures == (["the producer is closed"] * 3 if ending == "end" else [])
    assert len(handover.queue) == (0 if ending == "end" else 3)


def test_full_queue_calls_back_when_there_is_room():
    handover, token, called = Handover(TrioProducer()), Token(), []
    for number in range(HANDOVER_RECORDS_MAX):
        assert handover.put_nowait(record(number), token, lambda: called.append(True))
    assert not handover.put_nowait(record(b"last"), token, lambda: called.append(True))
    handover.queue.popleft()
    handover._announce_room()
    assert called == [], "half the queue is to be empty"
    handover.queue.clear()
    handover._announce_room()
    handover._announce_room()
    assert called == [True]


def test_send_of_a_blocking_producer_makes_one_call_of_its_own():
    """A plain record costs ``send`` itself: the queue is appended to in place."""
    producer = Producer({"bootstrap.servers": "b:9092"})
    producer._handover, token = Handover(TrioProducer()), Token()
    producer._portal.open_token = token
    producer.send("t", b"first")
    calls = []

    def note(frame, event, _):
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        deliveries = [producer.send("t", b"value", b"key") for _ in range(100)]
    finally:
        sys.setprofile(None)
    assert len(calls) <= 102, "one more for the list and one for the end of the count"
    assert calls.count("send") == 100
    assert [record[6] for record in producer._handover.queue][1:] == deliveries
    assert token.calls == 1, "the trio thread is called once"
    producer._handover.end()
    with pytest.raises(RuntimeError, match="not open"):
        producer.send("t", b"late")


def test_waits_for_the_queue_end_with_the_producer():
    async def main():
        handover = Handover(MissingTopics())
        with trio.fail_after(5):
            async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
                nursery.start_soon(handover.empty_forever)
                queued(handover, "no", "no")
                await trio.sleep(1)
                outer.start_soon(handover.wait_empty)
                await trio.testing.wait_all_tasks_blocked()
                handover.end()
                nursery.cancel_scope.cancel()
        return trio.current_time()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == 1


def test_an_end_fails_the_commit_of_what_it_drops():
    """Otherwise the transaction would be committed without these records, while another thread closes the producer."""
    producer = MissingTopics()
    committed = []

    async def commit(timeout_ms):
        await trio.lowlevel.checkpoint()
        committed.append(timeout_ms)

    producer.commit_transaction = commit

    async def script(handover):
        async def refused():
            with pytest.raises(AbortableTransactionError, match="closed before it took the record"):
                await handover.commit_transaction(None)

        for topics in (("no",), ("no", "t")):
            handover.is_ended, handover._refused = False, None
            deliveries = queued(handover, *topics)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused)
                await trio.sleep(1)
                handover.end()
            await trio.testing.wait_all_tasks_blocked()
            for delivery in deliveries:
                with pytest.raises(KafkaError, match="closed before it took the record"):
                    delivery.outcome()
        assert committed == []

    waiting_script(producer, script)


@pytest.mark.parametrize("timeout_ms", [5_000, 0])
def test_closing_takes_no_longer_than_asked(timeout_ms):
    """The queued records count as pending; the producer has the rest of the time."""
    producer = MissingTopics()
    given = []

    async def close(left_ms):
        await trio.sleep(1)
        given.append(left_ms)

    producer.close = close

    async def script(handover):
        deliveries = queued(handover, "no", "t")
        await handover.close(timeout_ms)
        assert (given, trio.current_time()) == ([0], timeout_ms / 1000 + 1)
        for delivery in deliveries:
            with pytest.raises(KafkaError, match="closed before it took the record"):
                delivery.outcome()

    waiting_script(producer, script)


def test_closing_passes_the_rest_of_its_time_on():
    producer = MissingTopics()
    given = []

    async def close(left_ms):
        await trio.lowlevel.checkpoint()
        given.append(left_ms)

    producer.close = close

    async def script(handover):
        (delivery,) = queued(handover, "t")
        await handover.close(5_000)
        assert (given, delivery.taken) == ([5_000], "delivery of t")

    waiting_script(producer, script)


def test_large_records_wait_for_room():
    """Ten thousand records of a megabyte each would fill the memory of most machines."""
    handover = Handover(TrioProducer())
    token, called = Token(), []
    value = bytes(1024 * 1024)

    def put(value):
        return handover.put_nowait(record(value), token, lambda: called.append(True))

    assert [put(value) for _ in range(33)] == [True] * 32 + [False]
    assert put(memoryview(value).cast("q")) is False
    assert put(b"small")
    assert put(bytes(4095))
    handover.queue.popleft()[6].resolve("delivery", None)
    assert put(value)
    assert not put(bytearray(4096))
    while handover.queue:
        handover.queue.popleft()[6].resolve(None, ValueError("refused"))
    handover._announce_room()
    assert called == [True]
    assert [put(value) for _ in range(33)] == [True] * 32 + [False]
    handover.end()
    with pytest.raises(RuntimeError, match="the producer is closed"):
        put(value)


def test_threads_with_large_records_go_on():
    handover = Handover(producer := TrioProducer())
    values = [bytes(HANDOVER_BYTES_MAX // 4)] * 5

    async def main():
        token = trio.lowlevel.current_trio_token()

        def send_all():
            for value in values:
                handover.put(record(value), token)

        async def script():
            with trio.fail_after(WAIT_S):
                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(trio.to_thread.run_sync, send_all)
                await handover.wait_empty()

        await passed_on(handover, script)

    trio.run(main)
    assert len(producer.taken) == 10
