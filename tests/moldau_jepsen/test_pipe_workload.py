"""Goal: the exactly-once pipe finds nothing where transactions hold, and convicts a pipe that does not use them.

Method: the workload on whole brokers in a simulated world, workers and brokers dying; then once more with brokers
that take offsets of transactions for committed at once, which the checker must tell apart.
"""

from __future__ import annotations

import pytest
import trio

from broker_cluster import run_cluster
from moldau_broker.coordinator.offsets import OffsetStore
from moldau_jepsen.checkers import CheckOptions, check_history
from moldau_jepsen.history import Kind, Status
from moldau_jepsen.workloads.pipe import PipeOptions, PipeWorkload
from moldau_jepsen.workloads.recorder import Recorder

OPTIONS = PipeOptions(
    crash_every_s=4.0, consumer={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}, abort_share=0.2
)


def history_of(seed, *, kills):
    """The operations of a run on three brokers."""
    operations = []

    async def scenario(cluster):
        for topic in (OPTIONS.source, OPTIONS.target):
            await cluster.client(1).create_topic(topic, partitions=2, replicas=3, min_insync_replicas="2")
        environment = cluster.client_environment
        bootstrap = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
        pipe = PipeWorkload(environment, bootstrap, OPTIONS, Recorder(environment.clock, operations.append))

        async def kill():
            for victim in cluster.broker_ids:
                await trio.sleep(3)
                cluster.kill(victim)
                await trio.sleep(2)
                cluster.start_broker(victim)
                await cluster.until(lambda victim=victim: victim in cluster.running)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe.run)
            if kills:
                await kill()
            await trio.sleep(10)
            pipe.stop()
        await pipe.final_read(60)

    run_cluster(scenario, seed=seed, brokers=3)
    return operations


def judged(history):
    return check_history(history, CheckOptions(pipes=((OPTIONS.source, OPTIONS.target),)))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_pipe_holds_while_workers_and_brokers_die(seed):
    history = history_of(seed, kills=True)
    verdict = judged(history)
    assert verdict.valid, [anomaly.text for anomaly in verdict.anomalies if not anomaly.allowed]
    transactions = [operation for operation in history if operation.kind is Kind.TRANSACTION]
    assert sum(one.status is Status.OK and not one.aborted for one in transactions) > 15
    assert any(one.aborted for one in transactions)
    assert any(operation.kind is Kind.CRASH for operation in history)
    assert any(operation.kind is Kind.SUBSCRIBE and operation.generation > 1 for operation in history)


def test_offsets_that_count_before_the_commit_lose_records(monkeypatch):
    replay = OffsetStore.replay_offset
    monkeypatch.setattr(OffsetStore, "replay_offset", lambda self, record, producer_id: replay(self, record, None))
    verdict = judged(history_of(3, kills=False))
    assert {"pipe-lost"} <= {kind.value for kind in verdict.counts}, verdict.counts
