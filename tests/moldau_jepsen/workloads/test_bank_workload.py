"""Goal: money is kept while tellers are usurped and brokers die, and readers who see what was aborted are convicted by
their balances; readers that seek land where they sought.

Method: the workloads on whole brokers in a simulated world; the same once more with readers that do not ask for
committed data only, and with planted bugs, which the checkers must convict (negative controls).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.history import Kind, Status
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, planted
from moldau_jepsen.workloads.bank import BankOptions, BankWorkload
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.recording.recorder import Recorder
from support.cluster.broker_cluster import run_cluster

SESSION = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
OPTIONS = BankOptions(
    crash_every_s=2.0, usurp_share=0.6, clerks=replace(BankOptions().clerks, consumer=SESSION, crash_every_s=4.0)
)
BANK_KINDS = {kind for kind in AnomalyKind if kind.value.startswith("bank")}


async def kill_each(cluster):
    """Each broker dies once."""
    for victim in cluster.broker_ids:
        await trio.sleep(1.2)
        cluster.kill(victim)
        await trio.sleep(1)
        cluster.start_broker(victim)
        await cluster.until(lambda victim=victim: victim in cluster.running)


def history_of(make, topics, seed, *, kills=False, seconds=6):
    """The operations of a workload on three brokers. ``make`` gets environment, bootstrap and recorder."""
    operations = []

    async def scenario(cluster):
        for topic, partitions in topics.items():
            await cluster.client(1).create_topic(topic, partitions=partitions, replicas=3, min_insync_replicas="2")
        environment = cluster.client_environment
        bootstrap = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
        workload = make(environment, bootstrap, Recorder(environment.clock, operations.append))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workload.run)
            if kills:
                await kill_each(cluster)
            await trio.sleep(seconds)
            workload.stop()
        await workload.final_read(60)

    run_cluster(scenario, seed=seed, brokers=3)
    return operations


def bank_history(seed, options=OPTIONS, **more):
    return history_of(lambda *parts: BankWorkload(*parts[:2], options, parts[2]), options.sizes, seed, **more)


def judged(history, options=OPTIONS):
    return check_history(history, CheckOptions(banks=(options.bank,)))


def test_money_is_kept_while_tellers_are_usurped_and_brokers_die():
    history = bank_history(1, kills=True, seconds=1)
    verdict = judged(history)
    assert verdict.valid, [anomaly.text for anomaly in verdict.anomalies if not anomaly.allowed]
    transactions = [operation for operation in history if operation.kind is Kind.TRANSACTION]
    assert sum(one.status is Status.OK and not one.aborted for one in transactions) > 15
    assert sum(one.aborted and one.status is Status.OK for one in transactions) > 2, "by choice"
    assert any("INVALID_PRODUCER_EPOCH" in one.error or "FENCED" in one.error for one in transactions), "a zombie"
    assert any(operation.kind is Kind.CRASH for operation in history)
    clerks = [one for one in transactions if any(one.polls)]
    assert all(
        2 * sum(len(pairs) for poll in one.polls for _, pairs in poll.records) >= len([*one.sends]) for one in clerks
    )
    assert len(clerks) > 5
    audits = [operation.audit for operation in history if operation.audit is not None]
    start = OPTIONS.accounts * OPTIONS.opening
    assert len(audits) > 5
    assert any(sum(audit.balances) != start for audit in audits), "a transfer of which one leg was passed"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("bug", "kinds"),
    [("aborted-transactions-omitted-from-fetch", {AnomalyKind.BANK_ABORTED, AnomalyKind.BANK_BALANCE})],
)
def test_readers_of_aborted_records_are_convicted(bug, kinds):
    with planted(MUTANTS[bug]):
        verdict = judged(bank_history(2))
    assert kinds & verdict.counts.keys(), verdict.counts


def test_readers_of_uncommitted_data_add_up_too_much():
    options = replace(OPTIONS, abort_share=0.5, consumer={"isolation.level": "read_uncommitted"})
    verdict = judged(bank_history(3, options, seconds=1), options)
    assert AnomalyKind.BANK_ABORTED in verdict.counts
    assert not verdict.valid


LATEST = {"auto.offset.reset": "latest"}
"""As users configure the readers of a run."""


def test_balances_are_added_up_from_the_first_record():
    """Also if readers are to begin at the end: theirs would lack what came before."""
    options = replace(OPTIONS, consumer=LATEST)
    history = bank_history(5, options, seconds=1)
    assert sum(operation.audit is not None for operation in history) > 1
    verdict = judged(history, options)
    assert verdict.valid, [anomaly.text for anomaly in verdict.anomalies if not anomaly.allowed]


def test_the_final_read_begins_at_the_first_record():
    """Also if readers are to begin at the end: each record would count as lost."""
    options = replace(SEEKING, seek_share=0.0, consumer=SESSION | LATEST)
    verdict = check_history(queue_history(6, options, seconds=1), CheckOptions())
    assert verdict.figures.sends_acknowledged > 10
    assert verdict.counts == {}


SEEKING = QueueOptions(
    partitions=2,
    senders=2,
    assigned_readers=1,
    group_readers=2,
    seek_share=0.3,
    sends_per_second=40.0,
    consumer=SESSION,
)


def queue_history(seed, options, **more):
    topics = {options.topic: options.partitions}
    return history_of(lambda *parts: QueueWorkload(*parts[:2], options, parts[2]), topics, seed, **more)


def test_readers_that_seek_land_where_they_sought():
    history = queue_history(4, SEEKING, seconds=3)
    verdict = check_history(history, CheckOptions())
    assert verdict.valid, [anomaly.text for anomaly in verdict.anomalies if not anomaly.allowed]
    seeks = [seek for operation in history for seek in operation.seeks]
    assert sum(seek.offset is None for seek in seeks) > 2
    assert sum(seek.offset is not None and seek.timestamp is None for seek in seeks) > 2
    assert sum(seek.timestamp is not None for seek in seeks) > 2
    silent = [operation for operation in history if operation.kind is not Kind.SEEK]
    assert AnomalyKind.NONMONOTONIC_POLL in check_history(silent, CheckOptions()).counts, "they did go back"
