"""Goal: the transaction workload finds nothing where transactions hold, and convicts readers that see aborted records.

Method: the workload with its readers on whole brokers in a simulated world, clients and brokers dying; the same once
more with readers that do not ask for committed data only, which the checkers must tell apart (a negative control).
"""

from __future__ import annotations

import pytest
import trio

from broker_cluster import run_cluster
from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.history import Kind, Status
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.recorder import Recorder
from moldau_jepsen.workloads.transactions import TransactionOptions, TransactionWorkload

PROMISED = CheckOptions(read_committed=True, idempotent=True, subscribe=False)


def history_of(seed, isolation, *, seconds=6, kills=False):
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
            environment, bootstrap, TransactionOptions(partitions=2, clients=2, crash_every_s=3.0), recorder
        )

        async def kill():
            for victim in cluster.broker_ids:
                await trio.sleep(3)
                cluster.kill(victim)
                await trio.sleep(2)
                cluster.start_broker(victim)
                await cluster.until(lambda victim=victim: victim in cluster.running)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.run)
            nursery.start_soon(writers.run)
            if kills:
                await kill()
            await trio.sleep(seconds)
            writers.stop()
            readers.stop()
        await readers.final_read(60)

    run_cluster(scenario, seed=seed, brokers=3)
    return operations


@pytest.mark.parametrize("seed", [1, 2])
def test_transactions_hold_while_clients_and_brokers_die(seed):
    history = history_of(seed, "read_committed", kills=True)
    verdict = check_history(history, PROMISED)
    assert verdict.valid, [anomaly.text for anomaly in verdict.anomalies if not anomaly.allowed]
    transactions = [operation for operation in history if operation.kind is Kind.TRANSACTION]
    assert sum(one.status is Status.OK and not one.aborted for one in transactions) > 15
    assert sum(one.aborted for one in transactions) > 5
    assert any(operation.kind is Kind.CRASH for operation in history)


def test_readers_of_uncommitted_data_are_convicted():
    verdict = check_history(history_of(3, "read_uncommitted"), PROMISED)
    assert not verdict.valid
    assert AnomalyKind.G1A in verdict.counts
