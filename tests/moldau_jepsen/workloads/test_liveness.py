"""Goal: a healthy cluster that serves no client is convicted; one that serves costs hardly any time.

Method: operations by hand on virtual time; then whole simulated runs, one of them with a partition that takes nothing
from the moment the cluster is healthy.
"""

import dataclasses

import pytest
import trio
import trio.testing

from moldau.consumer import Consumer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.ports.real import real_environment
from moldau_broker.server.replicas.replica_manager import ReplicaManager
from moldau_jepsen.chaos import run as chaos_run
from moldau_jepsen.chaos.clients import ClientOptions, RunClients, Workload
from moldau_jepsen.chaos.controls import CONTROLS
from moldau_jepsen.chaos.options import ChaosOptions
from moldau_jepsen.cluster.simulated import SimulatedCluster
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition
from moldau_jepsen.simulation import RunOptions, run_seed
from moldau_jepsen.simulation.campaign.profiles import PROFILES
from moldau_jepsen.workloads.phases.liveness import Liveness
from moldau_jepsen.workloads.queue import QueueOptions
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.workloads.transactions import TransactionOptions
from support.cluster.broker_cluster import BROKER_PORT, run_cluster
from support.proof import proof_beyond

PLACES = [TopicPartition("queue", number) for number in range(2)]
NOTHING = "for 30 s after the cluster was healthy"


def operation(kind, *parts, begun_ms=1000.0, status=Status.OK, aborted=False):
    return Operation(
        index=0,
        process=0,
        kind=kind,
        status=status,
        begun_ms=begun_ms,
        ended_ms=9000.0,
        operations=parts,
        aborted=aborted,
    )


def sent(place, **changes):
    return operation(Kind.SEND, Send(place, 1, 1), **changes)


def missing_after(liveness, *operations):
    """Returns the missing progress after these operations, and the time of the check."""
    for one in operations:
        liveness.saw(one)

    async def wait():
        began = trio.current_time()
        text = await liveness.wait(30)
        return text, trio.current_time() - began

    return in_virtual_time(wait)


def in_virtual_time(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_record_in_every_partition_is_enough():
    liveness = Liveness(1000.0, PLACES)
    assert missing_after(liveness, sent(PLACES[0]), sent(PLACES[1])) == ("", 0)


def test_waiting_ends_with_the_last_record():
    liveness = Liveness(1000.0, PLACES)
    liveness.saw(sent(PLACES[0]))

    async def later():
        await trio.sleep(3)
        liveness.saw(sent(PLACES[1]))

    async def wait():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            return await liveness.wait(30), trio.current_time()

    text, ended = in_virtual_time(wait)
    assert (text, round(ended)) == ("", 3)


@pytest.mark.parametrize(
    "changes",
    [{"begun_ms": 999.0}, {"status": Status.INFO}, {"status": Status.FAIL}, {"aborted": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_old_or_unacknowledged_sends_do_not_count(changes):
    liveness = Liveness(1000.0, PLACES)
    found = missing_after(liveness, sent(PLACES[0]), sent(PLACES[1], **changes))
    assert found == (f"no record was acknowledged in queue-1 {NOTHING}", 30)


def test_a_transaction_of_the_topic_must_be_committed():
    other = TopicPartition("pipe-target", 0)
    not_enough = (
        operation(Kind.TRANSACTION, Send(other, 1, 1)),
        operation(Kind.TRANSACTION, Send(PLACES[0], 1, None), aborted=True),
        operation(Kind.TRANSACTION, Send(PLACES[0], 2, None), status=Status.INFO),
        sent(PLACES[0]),
    )
    liveness = Liveness(1000.0, [], "queue")
    assert missing_after(liveness, *not_enough) == (f"no transaction was committed in queue {NOTHING}", 30)
    reads = operation(Kind.TRANSACTION, Poll(((PLACES[0], ((0, 0),)),)))
    assert missing_after(liveness, reads) == ("", 0)


def polled_in_group(place, *offsets, group="readers", **changes):
    one = operation(Kind.POLL, Poll(((place, tuple((offset, 7) for offset in offsets)),)), **changes)
    return dataclasses.replace(one, group=group)


def test_a_group_must_read_what_was_acknowledged_since():
    acknowledged = operation(Kind.SEND, Send(PLACES[0], 1, 5))

    def owing():
        return Liveness(1000.0, PLACES[:1], read_by_group=PLACES[:1])

    unread = f"no member of a group read what was acknowledged in queue-0 {NOTHING}"
    assert missing_after(owing(), acknowledged) == (unread, 30)
    assert missing_after(owing(), acknowledged, polled_in_group(PLACES[0], 3, 4)) == (unread, 30), "older records"
    assert missing_after(owing(), acknowledged, polled_in_group(PLACES[1], 5)) == (unread, 30), "another partition"
    assert missing_after(owing(), acknowledged, polled_in_group(PLACES[0], 5, group="")) == (unread, 30), "no member"
    early = polled_in_group(PLACES[0], 5, begun_ms=999.0)
    assert missing_after(owing(), acknowledged, early) == (unread, 30), "begun under faults"
    assert missing_after(owing(), acknowledged, polled_in_group(PLACES[0], 4, 5)) == ("", 0)
    another = operation(Kind.SEND, Send(PLACES[0], 2, 9))
    assert missing_after(owing(), acknowledged, another, polled_in_group(PLACES[0], 5)) == ("", 0), (
        "the first is enough"
    )


@pytest.mark.parametrize(
    ("reads_until_s", "text", "passed_s"), [(100, "", 95), (25, "for 60 s", 60), (200, "for 90 s", 90)]
)
def test_a_group_that_reads_older_records_gets_bounded_more_time(reads_until_s, text, passed_s):
    """Stretches of 30 s, 90 in all, or 120; the new record is read after 95 s, unless the reading ended before."""
    liveness = Liveness(1000.0, PLACES[:1], read_by_group=PLACES[:1])
    liveness.saw(operation(Kind.SEND, Send(PLACES[0], 1, 500)))

    async def read():
        for offset in range(0, reads_until_s, 5):
            await trio.sleep(5)
            liveness.saw(polled_in_group(PLACES[0], 500 if offset == 90 and reads_until_s == 100 else offset))

    async def wait():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            found = await liveness.wait(30, at_most_s=90 if reads_until_s == 200 else 120)
            passed = trio.current_time()
            nursery.cancel_scope.cancel()
        return found, passed

    found, passed = in_virtual_time(wait)
    assert (text in found, bool(text), passed) == (True, bool(found), pytest.approx(passed_s))


def test_clients_without_sends_need_no_acknowledgement():
    assert missing_after(Liveness(0.0, [])) == ("", 0)


@pytest.mark.parametrize(
    ("workload", "senders", "owed"),
    [
        (Workload.QUEUE, 1, "no record was acknowledged in queue-0, queue-1"),
        (Workload.QUEUE, 0, ""),
        (
            Workload.TRANSACTIONS,
            0,
            "no record was acknowledged in queue-0, queue-1 and no transaction was committed in",
        ),
        (Workload.PIPE, 1, "no record was acknowledged in pipe-source-0, pipe-source-1 for"),
        (Workload.REGISTER, 1, ""),
    ],
)
def test_chaos_clients_need_progress_in_their_workload(workload, senders, owed):
    options = ClientOptions(workload=workload, queue=QueueOptions(partitions=2, senders=senders))
    environment = real_environment(seed=1)
    recorder = Recorder(environment.clock, lambda _: None)
    text, _ = missing_after(RunClients(environment, "127.0.0.1:1", options, recorder, None).liveness())
    assert text.startswith(owed)
    assert bool(text) == bool(owed)


@pytest.mark.parametrize(
    ("hangs", "workload"),
    proof_beyond(
        2,
        [
            (True, Workload.QUEUE),
            (False, Workload.TRANSACTIONS),
            (True, Workload.TRANSACTIONS),
            (False, Workload.QUEUE),
        ],
    ),
)
def test_a_group_of_a_chaos_run_that_never_polls_again_is_stuck(workload, hangs, monkeypatch):
    """Its members live and own their partitions; only the unread records show the failure."""
    hanging = trio.Event()
    poll = Consumer.poll

    async def hang(self, timeout_ms, *more):
        if hanging.is_set() and self._group_id is not None:
            await trio.sleep_forever()
        return await poll(self, timeout_ms, *more)

    monkeypatch.setattr(Consumer, "poll", hang)
    options = ClientOptions(
        workload=workload,
        queue=QueueOptions(partitions=2, senders=1, sends_per_second=20.0, crash_every_s=0),
        transactions=TransactionOptions(clients=1, transactions_per_second=5.0, crash_every_s=0),
    )

    async def scenario(cluster):
        environment = cluster.client_environment
        bootstrap = f"b1:{BROKER_PORT}"
        kept = []
        recorder = Recorder(environment.clock, lambda one: [liveness.saw(one) for liveness in kept])
        clients = RunClients(environment, bootstrap, options, recorder, None)
        await clients.create_topics(1, {})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.run)
            await trio.sleep(5)
            if hangs:
                hanging.set()
            kept.append(clients.liveness())
            began = trio.current_time()
            text = await kept[0].wait(20)
            nursery.cancel_scope.cancel()
        return text, trio.current_time() - began

    (text, seconds), _ = run_cluster(scenario)
    if hangs:
        assert text.startswith("no member of a group read what was acknowledged in queue-0, queue-1 for 20 s")
    else:
        assert (text, seconds < 10) == ("", True)


class FakeClients:
    """Clients of a chaos run that must get a record acknowledged in one partition."""

    def liveness(self):
        return Liveness(0.0, PLACES[:1])


def chaos_deaths(tmp_path, acknowledged, control=None, deaths=()):
    run = chaos_run._Run(ChaosOptions(directory=tmp_path, control=control), lambda _: None)
    run.deaths += deaths

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run._await_liveness, FakeClients())
            await trio.sleep(5)
            if acknowledged:
                run.liveness.saw(sent(PLACES[0]))
        return trio.current_time()

    return run.deaths, in_virtual_time(main)


def test_a_chaos_run_fails_if_the_cluster_serves_no_client(tmp_path):
    text = "stuck: no record was acknowledged in queue-0 for 60 s after the cluster was healthy"
    assert chaos_deaths(tmp_path, acknowledged=False) == ([text], pytest.approx(60))
    assert chaos_deaths(tmp_path, acknowledged=True) == ([], pytest.approx(5))
    # A control is judged by its history, and a node that did not come back has failed the run already.
    assert chaos_deaths(tmp_path, False, control=CONTROLS["acks-1"]) == ([], pytest.approx(5))
    assert chaos_deaths(tmp_path, False, deaths=["broker 1 is gone"])[1] == pytest.approx(5)


@pytest.fixture
def dead_partition(monkeypatch):
    """From the moment the cluster is healthy again, its leaders take nothing for one partition."""
    healthy = []
    wait_healthy, stage = SimulatedCluster.wait_healthy, ReplicaManager.stage

    async def waited(self, seconds):
        await wait_healthy(self, seconds)
        healthy.append(trio.current_time())

    def refuse(self, partition, *given, **options):
        if len(healthy) >= 2 and partition.key == TopicPartition("queue", 1):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return stage(self, partition, *given, **options)

    monkeypatch.setattr(SimulatedCluster, "wait_healthy", waited)
    monkeypatch.setattr(ReplicaManager, "stage", refuse)


OPTIONS = RunOptions(faults=(), fault_seconds=2.0, healing_seconds=20.0, transactions=False, pipe=False)


@pytest.mark.proof
def test_a_healthy_cluster_that_takes_no_records_is_stuck(dead_partition):
    found = run_seed(3, OPTIONS).violations
    assert found == ("at the end: stuck: no record was acknowledged in queue-1 for 20 s after the cluster was healthy",)


def test_a_cluster_that_serves_is_not_and_costs_hardly_any_time():
    result = run_seed(1, OPTIONS)
    assert result.violations == ()
    assert result.virtual_seconds < 10


@pytest.mark.proof
def test_slow_senders_have_the_time_they_need():
    result = run_seed(1, PROFILES["elections"].of_seed(1))
    assert result.violations == ()
