"""One step of consume, transform and produce, with a producer and a consumer that record the calls.

Goal: positions go back whenever the transaction did not commit, and no step follows a commit without a known outcome:
its offsets would cover records whose effect may be lost.
"""

import contextlib
from dataclasses import replace
from functools import partial

import pytest
import trio
import trio.testing

from moldau import ErrorCode, KafkaError, TransactionError, blocking
from moldau.consumer import ConsumedBatch
from moldau.producer import AbortableTransactionError, FatalTransactionError, OutputRecord
from moldau.producer.steps import Steps, transaction
from moldau.records import Record

BATCH = ConsumedBatch(
    topic="in", partition=0, records=[Record(4, 0, None, b"x")], next_offset=5, leader_epoch=3, high_watermark=5
)


class Client:
    """Both clients in one; ``errors`` names calls that raise."""

    commits_automatically = False
    clusters_left = 0

    abort_seconds = 0

    def __init__(self, **errors):
        self.calls = []
        self.limits = []
        self.errors = errors

    def note(self, name):
        self.calls.append(name)
        if name in self.errors:
            raise self.errors[name]

    async def poll(self, timeout_ms, max_records):
        return [BATCH]

    def begin_transaction(self):
        self.note("begin")

    async def send(self, topic, value, key, **rest):
        self.note(f"send {topic}")

    def offsets_to_commit(self):
        return {}

    def group_metadata(self):
        return "g"

    async def send_offsets_to_transaction(self, offsets, group):
        self.note("offsets")

    async def commit_transaction(self):
        self.note("commit")

    async def abort_transaction(self, timeout_ms=None):
        self.note("abort")
        self.limits.append(timeout_ms)
        await trio.sleep(self.abort_seconds)

    def seek(self, partition, offset, *, leader_epoch, cluster):
        if cluster != self.clusters_left:
            raise LookupError
        self.note(f"seek {offset} {leader_epoch}")


def step(steps, client):
    return trio.run(steps.run, client, client, lambda _: [OutputRecord("out", b"y")], 10, None, contextlib.nullcontext)


def test_a_step_commits_output_and_offsets():
    client = Client()
    assert step(Steps(), client) == 1
    assert client.calls == ["begin", "send out", "offsets", "commit"]


@pytest.mark.parametrize("at", ["send out", "offsets", "commit"])
def test_a_failed_step_aborts_and_goes_back(at):
    client = Client(**{at: AbortableTransactionError(ErrorCode.INVALID_RECORD, "refused")})
    steps = Steps()
    with pytest.raises(AbortableTransactionError):
        step(steps, client)
    assert client.calls[-3:] == [at, "seek 4 3", "abort"]
    client.errors.clear()
    assert step(steps, client) == 1


@pytest.mark.parametrize("answer", [None, OutputRecord("out", b"x"), "out"])
def test_a_step_sends_a_list_of_records(answer):
    client = Client()
    with pytest.raises(TypeError, match=r"^transform: the function must return a list of OutputRecord, not "):
        trio.run(partial(Steps().run, client, client, lambda _: answer, 0, None, contextlib.nullcontext))
    assert client.calls == ["begin", "seek 4 3", "abort"]


def test_hidden_records_keep_no_step_from_its_abort():
    """An interceptor has hidden all records of the first batch."""
    client = Client(offsets=AbortableTransactionError(ErrorCode.INVALID_RECORD, "refused"))
    client.poll = partial(polled_with_hidden, client)
    with pytest.raises(AbortableTransactionError):
        step(Steps(), client)
    assert client.calls[-3:] == ["offsets", "seek 4 3", "abort"]


async def polled_with_hidden(client, *arguments):
    return [replace(BATCH, partition=1, records=[]), BATCH]


def test_a_closed_consumer_keeps_no_step_from_its_abort():
    """Another thread or task has closed it, as programs do to stop a worker."""
    client = Client(offsets=RuntimeError("the client is closed"))
    client.errors["seek 4 3"] = RuntimeError("the client is closed")
    with pytest.raises(RuntimeError, match="closed"):
        step(Steps(), client)
    assert client.calls[-1] == "abort"


def test_positions_of_another_cluster_stay():
    """The producer fails for good when the servers lead to another cluster, and the consumer begins again there."""
    client = Client()
    client.send = partial(went_elsewhere, client)
    with pytest.raises(FatalTransactionError):
        step(Steps(), client)
    assert client.calls == ["begin"]


async def polled_before_it_went(client, *arguments):
    client.clusters_left += 1
    return [BATCH]


def test_a_step_tells_the_cluster_of_its_records():
    """The consumer goes to another cluster as soon as the poll has returned; positions there are of other records."""
    client = Client()
    client.poll = partial(polled_before_it_went, client)
    with pytest.raises(KafkaError, match="gone to another cluster"):
        step(Steps(), client)
    assert client.calls == ["begin", "send out", "abort"]


def test_a_thread_tells_the_cluster_of_its_records():
    producer = blocking.Producer({"bootstrap.servers": "b:1", "transactional.id": "x"})
    client = Client()
    client.poll = lambda *_: [BATCH]
    client.clusters_left = 1
    for name in ("begin", "abort"):
        setattr(producer, f"{name}_transaction", lambda *_, name=name: client.note(name))
    producer.send_offsets_to_transaction = lambda *_: client.note("offsets")
    with pytest.raises(KafkaError, match="gone to another cluster"):
        producer.transform(client, lambda _: [])
    assert client.calls == ["begin", "abort"]


async def went_elsewhere(client, *arguments, **rest):
    client.clusters_left += 1
    raise FatalTransactionError(ErrorCode.INVALID_TXN_STATE, "works with another cluster")


def test_a_fatal_error_is_not_followed_by_an_abort():
    client = Client(offsets=FatalTransactionError(ErrorCode.PRODUCER_FENCED, "fenced"))
    with pytest.raises(TransactionError):
        step(Steps(), client)
    assert client.calls[-1] == "seek 4 3"


def test_an_abort_that_fails_is_noted_at_the_first_error():
    error = AbortableTransactionError(ErrorCode.INVALID_RECORD, "refused")
    client = Client(offsets=error, abort=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"))
    with pytest.raises(AbortableTransactionError):
        step(Steps(), client)
    assert "could not be aborted either" in error.__notes__[0]


def test_no_step_follows_an_unknown_outcome():
    client = Client(commit=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"))
    steps = Steps()
    with pytest.raises(KafkaError):
        step(steps, client)
    assert client.calls[-1] == "commit"
    client.errors.clear()
    with pytest.raises(RuntimeError, match="without a known outcome"):
        step(steps, client)


CALLS = ["begin", "send out", "offsets", "commit"]
ERRORS = {
    "refused": AbortableTransactionError(ErrorCode.INVALID_RECORD, "refused"),
    "timed out": KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"),
    "interrupted": KeyboardInterrupt(),
}


class HeldClient(Client):
    """A client of which one call never returns."""

    def __init__(self, held):
        super().__init__()
        self.held = held

    async def wait(self, name):
        if name == self.held:
            await trio.sleep_forever()

    async def send(self, topic, value, key, **rest):
        await self.wait("send out")

    async def send_offsets_to_transaction(self, offsets, group):
        await self.wait("offsets")

    async def commit_transaction(self):
        await self.wait("commit")


async def cancelled_step(steps, client):
    with trio.move_on_after(1) as scope:
        await steps.run(client, client, lambda _: [OutputRecord("out", b"y")], 10, None, contextlib.nullcontext)
    assert scope.cancelled_caught


def check_no_record_is_left(client, another_step):
    """The records of a step that has failed come again, or no step follows it."""
    client.errors.clear()
    if "seek 4 3" not in client.calls:
        with pytest.raises(RuntimeError, match="without a known outcome"):
            another_step()


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("at", CALLS)
def test_no_failed_step_leaves_records_behind(at, error):
    steps, client = Steps(), Client(**{at: error})
    with pytest.raises(type(error)):
        step(steps, client)
    check_no_record_is_left(client, lambda: step(steps, client))


@pytest.mark.parametrize("at", CALLS[1:])
def test_no_cancelled_step_leaves_records_behind(at):
    steps, client = Steps(), HeldClient(at)
    trio.run(cancelled_step, steps, client, clock=trio.testing.MockClock(autojump_threshold=0))
    check_no_record_is_left(client, lambda: step(steps, Client()))


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("at", CALLS)
def test_no_step_of_a_thread_leaves_records_behind(at, error):
    producer = blocking.Producer({"bootstrap.servers": "b:1", "transactional.id": "x"})
    client = Client(**{at: error})
    client.poll = lambda *_: [BATCH]
    for name in ("begin", "commit", "abort"):
        setattr(producer, f"{name}_transaction", lambda *_, name=name: client.note(name))
    producer.send = lambda *_, **rest: client.note("send out")
    producer.send_offsets_to_transaction = lambda *_: client.note("offsets")

    def transform():
        producer.transform(client, lambda _: [OutputRecord("out", b"y")])

    with pytest.raises(type(error)):
        transform()
    check_no_record_is_left(client, transform)


def farewell():
    return trio.move_on_after(2, shield=True)


@pytest.mark.parametrize(("error", "aborts", "seconds"), [(ValueError, 2, 12), (KeyboardInterrupt, 1, 2)])
def test_only_a_cancellation_gives_an_abort_up(error, aborts, seconds):
    """The next transaction cannot begin while the abort goes on: its caller would get an error of this one."""
    client = Client()
    client.abort_seconds = 10

    async def main():
        async with transaction(client, farewell):
            raise error

    async def timed():
        with pytest.raises(error):
            await main()
        return trio.current_time()

    assert trio.run(timed, clock=trio.testing.MockClock(autojump_threshold=0)) == seconds
    assert client.calls == ["begin", *["abort"] * aborts]
    assert client.limits[0] == (2_000 if error is KeyboardInterrupt else None)


def test_a_cancelled_block_is_left_soon():
    client = Client()
    client.abort_seconds = 10

    async def main():
        with trio.move_on_after(1) as scope:
            async with transaction(client, farewell):
                await trio.sleep(100)
        assert scope.cancelled_caught
        return trio.current_time()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == 3


@pytest.mark.parametrize(("error", "limit"), [(ValueError, None), (KeyboardInterrupt, 2_000)])
def test_a_thread_gives_an_abort_up_after_ctrl_c_only(error, limit):
    producer = blocking.Producer({"bootstrap.servers": "b:1", "transactional.id": "x"})
    limits = []
    producer.begin_transaction, producer.abort_transaction = (lambda: None), limits.append
    with pytest.raises(error), producer.transaction():
        raise error
    assert limits == [limit]
