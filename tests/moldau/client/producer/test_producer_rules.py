"""Goal: the order, bytes and requests of a producer at moments that stories with a cluster reach by chance only.

Method: the pure cores alone, and steps of the sender. Each test states one rule that an application or a broker depends
on.
"""

import itertools
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.cluster.committed import CommittedOffset
from moldau.cluster.metadata import ClusterMetadata, TopicPartition
from moldau.producer.core.accumulator import Accumulator
from moldau.producer.core.counters import ProducerCounters
from moldau.producer.core.limits import Limits
from moldau.producer.core.partitioner import RoundRobin, Sticky
from moldau.producer.core.transaction_core import CONCURRENT_BACKOFF_MS
from moldau.producer.core.transaction_values import OffsetToCommit, State
from moldau.producer.sender import Sender
from moldau.producer.topics import ProducerTopics
from moldau.producer.transactions import Transactions
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.records import encode_batch
from moldau.runtime.config import PRODUCER_CONFIG
from moldau.runtime.net.rpc import REQUESTS_IN_FLIGHT_MAX
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from support.client.asked_coordinator import GROUP, P0, P1, answer_to, ready, serve

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def accumulator(**limits):
    core = Accumulator(Limits(**{"linger_ms": 0} | limits))
    core.set_producer_id(7, 0)
    return core


def test_a_batch_of_another_log_leaves_its_numbers_there():
    """A mirrored batch has no base offset, leader epoch or producer of its own; its records stay as they are."""
    core = accumulator()
    rows = [(1, b"k", b"v", ()), (2, None, b"w", ())]
    foreign = encode_batch(
        rows,
        base_offset=1 << 60,
        partition_leader_epoch=4,
        producer_id=55,
        producer_epoch=6,
        base_sequence=77,
    )
    batch = core.append_encoded(core.queue(T0), foreign, 2, 0)
    assert bytes(batch.data) == encode_batch(rows)
    assert bytes(foreign) != bytes(batch.data), "the bytes are copied"


def test_a_partition_that_must_wait_meanwhile_is_not_drained():
    """The sender may have to wait between its look at what is ready and the request; order holds all the same."""
    core = accumulator()
    for _ in range(2):
        core.append_encoded(core.queue(T0), encode_batch([(1, None, b"v", ())]), 1, 0)
    (queues,) = core.ready(0, {T0: 1}).by_node.values()
    (first,) = core.drain(queues, 0)
    assert core.drain(queues, 0) == [], "the first batch of a partition goes alone until it is acknowledged"
    core.settle(first, ErrorCode.NONE, 1, base_offset=0)
    assert len(core.drain(queues, 1)) == 1


def in_transaction(*partitions):
    manager = ready()
    manager.begin()
    for partition in partitions:
        manager.admit(partition)
    return manager


def test_only_the_first_partitions_are_asked_again_soon():
    """The coordinator completes the last transaction within milliseconds; later it is not the cause."""
    manager = in_transaction(P0)
    call = serve(manager, until=AddPartitionsToTxnRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.CONCURRENT_TRANSACTIONS), 1_000)
    assert manager.retry_at_ms == 1_000 + CONCURRENT_BACKOFF_MS
    serve(manager)
    manager.admit(P1)
    call = serve(manager, until=AddPartitionsToTxnRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.CONCURRENT_TRANSACTIONS), 2_000)
    assert manager.retry_at_ms == 2_000 + manager.retry_backoff_ms > 2_000 + CONCURRENT_BACKOFF_MS


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
def test_an_answer_that_comes_again_changes_nothing(request_class):
    manager = in_transaction(P0)
    sent = manager.send_offsets({P0: OffsetToCommit(offset=5)}, GROUP)
    call = serve(manager, until=request_class)
    answer = answer_to(call.request)
    manager.answered(call, answer, 0)
    serve(manager)
    manager.answered(call, answer, 0)
    assert manager.state is State.IN_TRANSACTION
    assert sent.error is None
    assert list(manager.admitted) == [P0]
    assert serve(manager) == []


def test_refused_offsets_are_not_sent_again():
    """The application must abort; until it does, nothing is due."""
    manager = in_transaction()
    manager.send_offsets({P0: OffsetToCommit(offset=5)}, GROUP)
    call = serve(manager, until=TxnOffsetCommitRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.ILLEGAL_GENERATION), 0)
    assert manager.state is State.ABORTABLE_ERROR
    assert serve(manager) == []


@pytest.mark.parametrize("answered", [True, False])
def test_an_abort_sends_no_offsets(answered):
    """It asks only whether a group has joined if that is open, and ends the transaction."""
    manager = in_transaction()
    manager.send_offsets({P0: OffsetToCommit(offset=5)}, GROUP)
    manager.send_offsets({P1: OffsetToCommit(offset=6)}, GROUP)
    call = serve(manager, until=TxnOffsetCommitRequest if answered else AddOffsetsToTxnRequest)
    manager.unanswered(call, 0)
    manager.begin_abort()
    asked = [type(request) for request in serve(manager)]
    assert asked == ([EndTxnRequest] if answered else [AddOffsetsToTxnRequest, EndTxnRequest])
    assert manager.state is State.READY


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest])
def test_a_coordinator_that_gave_no_answer_is_looked_up_again(request_class):
    """It may have moved with its connection; asking the same node again could last for ever."""
    manager = in_transaction(P0)
    manager.send_offsets({P0: OffsetToCommit(offset=5)}, GROUP)
    if request_class is EndTxnRequest:
        manager.begin_commit()
    call = serve(manager, until=request_class)
    manager.unanswered(call, 0)
    again = manager.next_call(has_records=False)
    assert (again.coordinator, again.key, again.request) == (call.coordinator, call.key, None)
    manager.found(again, 2)
    assert manager.next_call(has_records=False).node_id == 2


def test_rows_are_dealt_to_the_available_partitions_in_turn():
    """Each partition is named once, with its first row; the next call goes on behind the last row."""
    chooser = RoundRobin()
    assert chooser.choose_many([1, 3], 4, lambda: 1, 5) == [(1, 0), (3, 1)]
    assert chooser.choose_many([1, 3], 4, lambda: 1, 1) == [(3, 0)]
    assert chooser.choose_many([], 3, lambda: 1, 2) == [(2, 0), (0, 1)]


def test_requests_in_flight_are_counted():
    counters = ProducerCounters()
    for _ in range(3):
        counters.sending((), 0)
    counters.ended(4.0, 4)
    counters.ended(None, 5)
    found = counters.statistics(5, total=10, used=4, waiting=0)
    assert (found.request_total, found.requests_in_flight, found.request_latency_max) == (3, 1, 4.0)
    assert found.buffer_available_bytes == 6


def add(core, value=b"v", partition=T0, now_ms=0):
    return core.append(core.queue(partition), 1, None, value, (), now_ms)


def sent(core, now_ms=0, leaders=(T0, T1)):
    ready_now = core.ready(now_ms, dict.fromkeys(leaders, 1))
    return [batch for queues in ready_now.by_node.values() for batch in core.drain(queues, now_ms)]


def test_only_partitions_of_the_transaction_are_sent_to():
    """Records of others wait until the coordinator has added their partitions."""
    core = accumulator(is_transactional=True)
    core.admitted = {T0: None}
    add(core)
    add(core, partition=T1)
    assert [batch.partition for batch in sent(core)] == [T0]
    core.admitted = {T0: None, T1: None}
    assert [batch.partition for batch in sent(core)] == [T1]


def test_a_retried_batch_is_counted_once():
    """Also without idempotence, where it takes a place in the queue again."""
    core = accumulator(is_idempotent=False)
    add(core)
    for attempt in range(3):
        (batch,) = sent(core, 5_000 * attempt)
        assert core.queue(T0).in_flight == 1
        core.settle(batch, ErrorCode.NETWORK_EXCEPTION, 5_000 * attempt)
        assert core.queue(T0).outstanding == []
    (batch,) = sent(core, 50_000)
    core.settle(batch, ErrorCode.NONE, 50_000, base_offset=0)
    assert core.queue(T0).outstanding == []


@pytest.mark.parametrize(
    ("limits", "expected_epoch"),
    [({}, 1), ({"is_transactional": True}, 0), ({"is_idempotent": False}, 0)],
    ids=["idempotent", "transactional", "neither"],
)
def test_only_an_idempotent_producer_raises_its_epoch_itself(limits, expected_epoch):
    """A transactional one asks its coordinator; without idempotence there is no sequence to lose."""
    core = accumulator(delivery_timeout_ms=100, **limits)
    add(core)
    (batch,) = sent(core)
    assert core.expire(100) == [batch]
    assert core.producer_epoch == expected_epoch
    assert not core.queue(T0).needs_new_epoch


def test_an_abort_of_unsent_batches_leaves_those_that_were_sent():
    """Batches with a sequence go on until their outcome is known, or the next transaction would meet a gap."""
    core = accumulator(is_transactional=True)
    add(core, b"sent")
    (flying,) = sent(core)
    add(core, b"queued")
    error = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED)
    (queued,) = core.abort_unsent(error)
    assert (queued.error, queued.is_settled, flying.is_settled) == (error, True, False)
    assert list(core.incomplete) == [flying]
    assert sent(core, 10_000) == []


def test_sticky_leaves_a_full_partition_for_another_one():
    """KIP-480: with others at hand the next batch goes elsewhere, whatever is drawn."""
    chooser = Sticky()
    chosen = []
    for _ in range(4):
        chosen.append(chooser.choose([0, 1], 2, lambda: 0))
        chooser.appended(10, began_batch=False, is_full=True)
    assert chosen == [0, 1, 0, 1]
    assert chooser.choose([1], 2, lambda: 0) == 1, "the only one that is available"


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_failed_look_up_is_repeated_after_a_pause(code):
    manager = in_transaction(P0)
    manager._coordinators.clear()
    call = manager.next_call(has_records=False)
    assert call.request is None
    manager.not_found(call, code, 1_000)
    assert (manager.state, manager.retry_at_ms) == (State.IN_TRANSACTION, 1_000 + manager.retry_backoff_ms)


def test_a_broker_without_batches_is_not_stuck():
    """A batch that could not be sent has expired, and the time of the next one begins with it."""
    core = accumulator(delivery_timeout_ms=100)
    client = SimpleNamespace(
        now_ms=0.0,
        environment=SimpleNamespace(clock=None),
        changed=Signal(),
        bootstrap_error=None,
        cluster_metadata=SimpleNamespace(leader=lambda _: (1, 0)),
        connection_nowait=lambda _: None,
        retry_delay_ms=lambda _: 1.0,
        request_update=lambda: None,
    )
    sender = Sender(client, core, acks=1, transactional_id=None)

    def step(now_ms):
        client.now_ms = now_ms
        sender._step()
        return sender.stuck_nodes(50)

    core.append_encoded(core.queue(T0), encode_batch([(1, None, b"v", ())]), 1, 0)
    assert (step(0), step(60)) == ([], [1])
    assert step(200) == []
    core.append_encoded(core.queue(T0), encode_batch([(1, None, b"v", ())]), 1, 300)
    assert (step(300), step(360)) == ([], [1])


@pytest.mark.parametrize(("in_flight", "most"), [(None, 5), (5, 5), (7, 5), (REQUESTS_IN_FLIGHT_MAX, 1_000)])
def test_a_full_connection_is_looked_at_again_soon(in_flight, most):
    """Requests of other parts fill it, or it is not open yet: their ends do not wake the sender."""
    core = accumulator(delivery_timeout_ms=60_000, in_flight_max=most)
    client = SimpleNamespace(
        now_ms=1_000.0,
        environment=SimpleNamespace(clock=None),
        changed=Signal(),
        bootstrap_error=None,
        cluster_metadata=SimpleNamespace(leader=lambda _: (1, 0)),
        connection_nowait=lambda _: None if in_flight is None else SimpleNamespace(in_flight=in_flight),
        retry_delay_ms=lambda _: 50.0,
        request_update=lambda: None,
    )
    sender = Sender(client, core, acks=-1, transactional_id=None)
    core.append_encoded(core.queue(T0), encode_batch([(1, None, b"v", ())]), 1, 1_000)
    assert 1_000 < sender._step() <= 1_050
    assert len(core.queue(T0).batches) == 1


def test_a_producer_that_left_its_cluster_fails_at_once():
    """Its task may wait for records or calls, which would never come."""
    manager, core = ready(), accumulator()
    client = SimpleNamespace(environment=SimpleNamespace(clock=None), changed=Signal())
    sender = Sender(client, core, acks=-1, transactional_id="tx")
    Transactions(client, core, sender, manager, 1_000.0).leave_cluster()
    assert sender.fatal_error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("failure", [ConnectionError("no broker"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_producer_id_is_asked_for_until_it_comes(failure):
    """Nothing is sent without it, so the attempt that failed must not be the last one."""
    core, answers = Accumulator(Limits()), [failure, ErrorCode.NONE]

    async def ask_any(response_class, request):
        await trio.lowlevel.checkpoint()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return response_class(error_code=answer, producer_id=7, producer_epoch=0)

    async def main():
        client = SimpleNamespace(now_ms=0.0, retry=SimpleNamespace(initial_ms=100), logger=EventLogger("test"))
        client.ask_any, client.changed, client.environment = ask_any, Signal(), SimpleNamespace(clock=None)
        sender = Sender(client, core, acks=-1, transactional_id=None)
        async with trio.open_nursery() as sender._loop._nursery:
            for _ in range(2):
                sender._fetch_producer_id()
                await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert (core.producer_id, answers) == (7, [])


def test_offsets_of_a_transaction_keep_all_that_was_given():
    """The next reader of the partition compares its leader's log with the epoch (KIP-320)."""
    manager, core = ready(), accumulator()
    client = SimpleNamespace(environment=SimpleNamespace(clock=None), changed=Signal())
    sender = Sender(client, core, acks=-1, transactional_id="tx")
    transactions = Transactions(client, core, sender, manager, 1_000.0)
    manager.begin()
    given = CommittedOffset(offset=5, leader_epoch=3, metadata="m")

    async def main():
        with trio.move_on_after(0.1):
            await transactions.send_offsets({("t", 0): given}, GROUP)

    trio.run(main)
    call = serve(manager, until=TxnOffsetCommitRequest)
    (part,) = call.request.topics[0].partitions
    assert (part.committed_offset, part.committed_leader_epoch, part.committed_metadata) == (5, 3, "m")


def test_a_call_that_waits_in_vain_says_what_was_refused():
    """Offsets of a topic that does not exist are sent again without end, because the topic may be new."""
    manager, core = ready(), accumulator()
    client = SimpleNamespace(environment=SimpleNamespace(clock=None), changed=Signal(), last_error=None)
    sender = Sender(client, core, acks=-1, transactional_id="tx")
    transactions = Transactions(client, core, sender, manager, 1_000.0)
    manager.begin()

    manager.send_offsets({TopicPartition("nope", 3): OffsetToCommit(offset=5)}, GROUP)
    call = serve(manager, until=TxnOffsetCommitRequest)
    manager.answered(call, answer_to(call.request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0)

    async def main():
        await transactions.send_offsets({("t", 0): 5}, GROUP, timeout_ms=1)

    with pytest.raises(KafkaError, match="could not send offsets") as caught:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert f"offset of nope-3 for group {GROUP.group_id}: This server does not host" in str(caught.value)


def test_a_topic_stays_known_while_its_last_batch_is_in_flight():
    """The batch may have to be sent again, and without metadata its leader would not be found."""
    core = accumulator()
    config = PRODUCER_CONFIG.parse({"bootstrap.servers": "b:9092", "metadata.max.idle.ms": "5000"})
    topics = ProducerTopics(config, core, batch_size=1000)
    queue = core.queue(T0)
    core.append_encoded(queue, encode_batch([(1, None, b"v", ())]), 1, 0)
    (batch,) = core.drain([queue], 0)
    topics.known["t"] = SimpleNamespace(sent=1, queues=[queue], keyless=RoundRobin())
    forgotten = []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topics.forget_idle, SimpleNamespace(forget_topic=forgotten.append))
            await trio.sleep(21)
            assert (forgotten, list(topics.known)) == ([], ["t"])
            core.settle(batch, ErrorCode.NONE, 21_000, base_offset=0)
            await trio.sleep(10)
            assert (forgotten, list(topics.known)) == (["t"], [])
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_topic_that_gets_records_is_not_idle():
    """Each metadata answer describes the topic again, and then its count of records must go on."""
    core = accumulator()
    config = PRODUCER_CONFIG.parse({"bootstrap.servers": "b:9092", "metadata.max.idle.ms": "5000"})
    topics = ProducerTopics(config, core, batch_size=1000)
    metadata, forgotten = ClusterMetadata(), []
    client = SimpleNamespace(cluster_metadata=metadata, add_topic=lambda _: None, forget_topic=forgotten.append)
    answer = MetadataResponse(
        cluster_id="c",
        controller_id=1,
        brokers=[],
        topics=[
            MetadataResponseTopic(name="t", partitions=[MetadataResponsePartition(partition_index=0, leader_id=1)])
        ],
    )

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topics.forget_idle, client)
            await trio.sleep(1)
            for _ in range(4):  # metadata come as often as the topics are looked at, and one record between two looks
                await trio.sleep(5)
                metadata.update(answer)
                topics.look_up(client, "t").sent += 1
            assert (forgotten, topics.known["t"].sent) == ([], 4)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


TAKEN, REFUSED, LOOK = "a record is taken", "the topic is gone, and a record is refused", "idle topics are looked for"


@pytest.mark.parametrize("first", [TAKEN, REFUSED, LOOK])
def test_only_topics_without_records_are_forgotten(first):
    """Also if a topic was gone or forgotten before. One that is not used any more is forgotten in the end."""
    config = PRODUCER_CONFIG.parse({"bootstrap.servers": "b:9092", "metadata.max.idle.ms": "5000"})
    partition = MetadataResponsePartition(partition_index=0, leader_id=1)
    present = MetadataResponseTopic(name="t", partitions=[partition])

    async def live(history):
        topics = ProducerTopics(config, accumulator(), batch_size=1000)
        metadata, forgotten = ClusterMetadata(), []

        def forget(name):
            forgotten.append(name)
            metadata.topics.pop(name, None)

        client = SimpleNamespace(cluster_metadata=metadata, forget_topic=forget, add_topic=lambda name, **_: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topics.forget_idle, client)
            await trio.sleep(1)
            for event, before in zip(history, [None, *history], strict=False):
                if event is LOOK:
                    await trio.sleep(5)
                    assert before is not TAKEN or not forgotten, history
                    continue
                answer = MetadataResponse(cluster_id="c", brokers=[], topics=[present] if event is TAKEN else [])
                metadata.update(answer, is_full=True)
                if event is TAKEN:
                    forgotten.clear()
                    topics.look_up(client, "t").sent += 1
                else:
                    with pytest.raises(LookupError):
                        topics.look_up(client, "t")
            await trio.sleep(10)
            assert (forgotten, list(topics.known)) == (["t"] if TAKEN in history else [], []), history
            nursery.cancel_scope.cancel()

    for rest in itertools.product([TAKEN, REFUSED, LOOK], repeat=4):
        trio.run(live, [first, *rest], clock=trio.testing.MockClock(autojump_threshold=0))
