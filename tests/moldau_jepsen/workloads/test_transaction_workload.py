"""Goal: the transaction workload finds nothing where transactions hold, and convicts readers that see what they must
not: aborted records, a transaction its own, two transactions each other's.

Method: the workload with its readers on whole brokers in a simulated world, clients and brokers dying; the same once
more with readers that do not ask for committed data only, and with planted bugs, which the checkers must convict
(negative controls).
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.history import Kind, Send, Status, TopicPartition
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, planted
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.workloads.recording.transaction_recorder import OpenTransaction, TransactionRecorder
from moldau_jepsen.workloads.transactions import TransactionOptions, TransactionWorkload
from support.cluster.broker_cluster import run_cluster
from support.proof import proof_beyond

P0 = TopicPartition("queue", 0)
PROMISED = CheckOptions(read_committed=True, idempotent=True, subscribe=False)


def history_of(seed, isolation="read_committed", *, seconds=6, kills=0, **transactions):
    """The operations of a run on three brokers."""
    operations = []

    async def scenario(cluster):
        await cluster.client(1).create_topic("queue", partitions=2, replicas=3, min_insync_replicas="2")
        environment = cluster.client_environment
        recorder = Recorder(environment.clock, operations.append)
        bootstrap = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
        readers = QueueWorkload(
            environment,
            bootstrap,
            QueueOptions(
                partitions=2, senders=0, assigned_readers=1, group_readers=1, consumer={"isolation.level": isolation}
            ),
            recorder,
        )
        writers = TransactionWorkload(
            environment,
            bootstrap,
            TransactionOptions(**{"partitions": 2, "clients": 2, "crash_every_s": 3.0, **transactions}),
            recorder,
        )

        async def kill():
            for victim in cluster.broker_ids[:kills]:
                await trio.sleep(3)
                cluster.kill(victim)
                await trio.sleep(2)
                cluster.start_broker(victim)
                await cluster.until(lambda victim=victim: victim in cluster.running)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.run)
            nursery.start_soon(writers.run)
            await kill()
            await trio.sleep(seconds)
            writers.stop()
            readers.stop()
        await readers.final_read(60)

    run_cluster(scenario, seed=seed, brokers=3)
    return operations


def transactions_of(history):
    return [operation for operation in history if operation.kind is Kind.TRANSACTION]


def polled_in(transaction):
    """Returns the results of its polls: partition, offset and value of each record, in order."""
    return [
        (partition, offset, value)
        for poll in transaction.polls
        for partition, pairs in poll.records
        for offset, value in pairs
    ]


def committed_sends(history):
    """Partition and value of what was sent in transactions that committed."""
    return {
        (send.partition, send.value)
        for transaction in transactions_of(history)
        if transaction.status is Status.OK and not transaction.aborted
        for send in transaction.sends
    }


BUSY = {"clients": 3, "transactions_per_second": 20.0, "crash_every_s": 0.0}
"""Transactions that are open side by side most of the time."""
BUSY_SECONDS = 1.5


@pytest.fixture(scope="module")
def mixed():
    """The history of transactions that send and poll."""
    return history_of(4, seconds=BUSY_SECONDS, **BUSY)


@pytest.mark.parametrize(("seed", "kills"), proof_beyond(1, [(1, 1), (1, 3), (2, 3)]))
def test_transactions_hold_while_clients_and_brokers_die(seed, kills):
    history = history_of(seed, "read_committed", seconds=3, kills=kills)
    verdict = check_history(history, PROMISED)
    assert verdict.valid, [anomaly.text for anomaly in verdict.anomalies if not anomaly.allowed]
    transactions = transactions_of(history)
    assert sum(one.status is Status.OK and not one.aborted for one in transactions) > 15
    assert sum(one.aborted for one in transactions) > 5
    assert any(operation.kind is Kind.CRASH for operation in history)


def test_readers_of_uncommitted_data_are_convicted():
    verdict = check_history(history_of(3, "read_uncommitted", seconds=2), PROMISED)
    assert not verdict.valid
    assert AnomalyKind.G1A in verdict.counts


def test_transactions_mix_sends_and_polls(mixed):
    assert check_history(mixed, PROMISED).valid
    transactions = transactions_of(mixed)
    orders = {tuple(isinstance(part, Send) for part in one.operations) for one in transactions}
    assert {(True, False), (False, True)} <= orders  # a poll behind a send, and a send behind a poll
    assert max(map(len, orders)) == 4
    seen = {(partition, value) for one in transactions for partition, _, value in polled_in(one)}
    assert len(seen) > 15
    assert seen <= committed_sends(mixed)
    for one in transactions:
        assert {(partition, value) for partition, _, value in polled_in(one)}.isdisjoint(
            (send.partition, send.value) for send in one.sends
        )


def test_offsets_of_sends_are_recorded_beside_polls(mixed):
    """A send reports its own offset, whatever stands between it and the next one."""
    polled = {
        (partition, value): offset for one in transactions_of(mixed) for partition, offset, value in polled_in(one)
    }
    reported = {
        (send.partition, send.value): send.offset
        for one in transactions_of(mixed)
        if any(one.polls)
        for send in one.sends
        if send.offset is not None
    }
    both = reported.keys() & polled.keys()
    assert len(both) > 10
    assert all(reported[one] == polled[one] for one in both)


def test_clients_that_only_send_have_no_reader():
    history = history_of(6, seconds=0.8, poll_share=0.0, **BUSY)
    transactions = transactions_of(history)
    assert transactions
    assert not any(any(one.polls) for one in transactions)
    senders = {one.process for one in transactions}
    assert not any(operation.kind is Kind.ASSIGN and operation.process in senders for operation in history)


@pytest.mark.parametrize(("rewind_share", "goes_back"), proof_beyond(1, [(1.0, True), (0.0, False)]))
def test_positions_after_an_abort(rewind_share, goes_back):
    """A client that goes back reads the same records again, and says so; one that goes on skips nothing."""
    history = history_of(7, seconds=2, rewind_share=rewind_share, **BUSY)
    assert check_history(history, PROMISED).valid
    clients = {one.process for one in transactions_of(history)}
    reported = back = aborted_reads = 0
    for process in clients:
        mine = [operation for operation in history if operation.process == process]
        assert mine[0].kind is Kind.ASSIGN
        reached = {}
        rewound = {}
        last = None
        for operation in mine[1:]:
            if operation.kind is Kind.SEEK:
                reported += 1
                assert last.aborted
                assert polled_in(last)
                rewound |= first_of(last)
                continue
            if operation.kind is not Kind.TRANSACTION:
                continue
            aborted_reads += operation.aborted and bool(polled_in(operation))
            for partition, offset in first_of(operation).items():
                if partition in rewound:
                    assert offset == rewound.pop(partition)
                    back += 1
                else:
                    assert offset > reached.get(partition, -1)
            reached |= {partition: offset for partition, offset, _ in polled_in(operation)}
            last = operation
    assert aborted_reads > 5
    assert (reported > 5, back > 5) == (goes_back, goes_back)
    assert reported in (0, aborted_reads)
    # Reads of aborted transactions are judged like all others: to go back without an error is an anomaly.
    silent = [operation for operation in history if operation.kind is not Kind.SEEK]
    assert (AnomalyKind.NONMONOTONIC_POLL in check_history(silent, PROMISED).counts) == goes_back


def first_of(transaction):
    """The first offset that it polled in each partition."""
    return {partition: offset for partition, offset, _ in reversed(polled_in(transaction))}


@pytest.mark.parametrize(
    ("bug", "poll_share", "kinds"),
    proof_beyond(
        1,
        [
            ("newest-transaction-holds-back", 0.4, {AnomalyKind.PRECOMMITTED_READ}),
            ("last-stable-offset-ignored", 0.6, {AnomalyKind.PRECOMMITTED_READ, AnomalyKind.G1C}),
        ],
    ),
)
def test_transactions_that_read_open_records_are_convicted(bug, poll_share, kinds):
    """Nothing is aborted, so only the polls within transactions can show it, not an outside reader. Where two
    transactions happen to read from each other, which the seed decides, that is a cycle besides.
    """
    found = set()
    for seed in range(1, 13):
        with planted(MUTANTS[bug]):
            history = history_of(seed, seconds=1, abort_share=0.0, poll_share=poll_share, **BUSY)
        found |= {anomaly.kind for anomaly in check_history(history, PROMISED).anomalies if not anomaly.allowed}
        if kinds <= found:
            break
    assert kinds <= found <= kinds | {AnomalyKind.G1C}


@pytest.mark.parametrize(("is_committing", "outcome"), [(True, (Status.INFO, False)), (False, (Status.FAIL, True))])
def test_only_a_commit_that_was_asked_for_may_take_effect(is_committing, outcome):
    """A client crashes in its transaction: without a commit it is aborted for certain."""
    reported = []
    recorder = TransactionRecorder(Recorder(SimpleNamespace(monotonic_ms=lambda: 5.0), reported.append))
    open_ = OpenTransaction(1.0, [Send(P0, 0, None)], committing=is_committing)
    recorder.record_unfinished(3, [open_], "the client crashed")
    assert [(one.status, one.aborted, one.error) for one in reported] == [(*outcome, "the client crashed")]
