"""Goal: packets that a slow link holds back change nothing after their transaction, at ``transaction.version`` 2.

Method: stories on whole simulated clusters. A request of a transactional producer stays in the network while the client
gives it up, sends it again, ends the transaction and begins the next one; then it arrives. At level 1, whose
transactions share an epoch, the same packets end or open a wrong transaction, and the checkers convict that
(KAFKA-17754, KIP-890). It is the negative control.
"""

from __future__ import annotations

import contextlib

import pytest
import trio

from moldau.producer import Producer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.history import Status, TopicPartition
from moldau_jepsen.workloads.recording.transaction_recorder import (
    Content,
    OpenTransaction,
    TransactionRecorder,
    persist,
)
from support.cluster.story import TOPIC, run_story
from support.proof import proof_beyond

PRODUCER = {
    "transactional.id": "writer",
    "transaction.timeout.ms": 60_000,
    "request.timeout.ms": 1_000,
    "delivery.timeout.ms": 2_000,
    "socket.connection.setup.timeout.ms": 1_000,
    "linger.ms": 0,
    "max.block.ms": 60_000,
}
HELD_S = 8.0
"""The delay of the packets that are held back."""
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "broker.session.timeout.ms": "9000",
    "replica.lag.time.max.ms": "10000",
}


class Writer:
    """A transactional client on its own machine, whose transactions the history has."""

    def __init__(self, scene):
        self.scene = scene
        self.recording = TransactionRecorder(scene.recorder)
        self.process = scene.recorder.new_process()
        self.environment = scene.world.node("writer").environment
        self.config = {"bootstrap.servers": scene.cluster.bootstrap, **PRODUCER}

    @contextlib.asynccontextmanager
    async def producer(self):
        """Opens a producer. What a fatal error says about the transaction is in the history by then."""
        async with Producer(self.config, environment=self.environment) as producer:
            await producer.init_transactions()
            yield producer

    async def begin(self, producer, *partitions):
        """Begins a transaction and writes a record to each partition."""
        transaction = OpenTransaction(self.scene.recorder.now_ms())
        producer.begin_transaction()
        for number in partitions:
            await self.recording.send(producer, transaction, Content(TopicPartition(TOPIC, number)))
        return transaction

    async def commit(self, producer, transaction):
        transaction.committing = True
        await persist(producer.commit_transaction)
        self.recording.report(self.process, transaction, Status.OK)

    async def abort(self, producer, transaction):
        """Aborts; whatever the answer is, the client never asked for a commit."""
        error = ""
        try:
            await persist(producer.abort_transaction)
        except KafkaError as failure:
            error = failure.code.name
        self.recording.report(self.process, transaction, Status.OK, aborted=True, error=error)

    @contextlib.asynccontextmanager
    async def held_back(self, host):
        """Delays the packets that the client sends to a host within the block, its resets included."""
        network = self.scene.world.network
        network.slow_link("writer", host, extra_delay=HELD_S)
        try:
            yield
        finally:
            network.slow_link("writer", host, extra_delay=0.0)


def late_commit(level):
    """A commit is held back and sent again; the first copy arrives in the next transaction, which is then aborted."""

    async def story(scene):
        await scene.cluster.set_transaction_level(scene.client, level)
        writer = Writer(scene)
        async with writer.producer() as producer:
            first = await writer.begin(producer, 0)
            await producer.flush()
            coordinator = scene.cluster.host(scene.partition(0, "__transaction_state").leader)
            sent = trio.current_time()
            async with trio.open_nursery() as nursery, writer.held_back(coordinator):
                nursery.start_soon(writer.commit, producer, first)
                await trio.sleep(1.5)  # the reset of the given-up request is held back too
            scene.reported["committed after"] = trio.current_time() - sent
            second = await writer.begin(producer, 0)
            await producer.flush()
            await trio.sleep(HELD_S)
            await writer.abort(producer, second)
            await trio.sleep(1)
        scene.reported["open"] = open_transactions(scene)

    return story


def late_record(level):
    """A record is held back until its transaction is aborted, and arrives at a leader that asks no coordinator."""

    async def story(scene):
        await scene.cluster.set_transaction_level(scene.client, level)
        writer = Writer(scene)
        async with writer.producer() as producer:
            coordinator = scene.partition(0, "__transaction_state").leader
            held = next(number for number in (0, 1) if scene.partition(number).leader != coordinator)
            await writer.commit(producer, await writer.begin(producer, 0, 1))
            transaction = await writer.begin(producer, 1 - held)
            await producer.flush()
            async with writer.held_back(scene.cluster.host(scene.partition(held).leader)):
                await writer.recording.send(producer, transaction, Content(TopicPartition(TOPIC, held)))
                await trio.sleep(3)
            await writer.abort(producer, transaction)
            await trio.sleep(HELD_S)
        scene.reported["open"] = open_transactions(scene) == [held]
        scene.reported["others"] = sum(number != held for number in open_transactions(scene))

    return story


def open_transactions(scene):
    """Returns the partitions whose leader holds readers of committed data back."""
    found = []
    for number in (0, 1):
        broker = scene.cluster.brokers[scene.partition(number).leader]
        log = broker.context.replicas.partitions[TOPIC, number].log
        if log.last_stable_offset < log.high_watermark:
            found.append(number)
    return found


def run(story, **settings):
    async def bounded(scene):
        with trio.fail_after(90):
            await story(scene)

    return run_story(bounded, controllers=1, partitions=2, settings={**SETTINGS, **settings}, final_read_s=15.0)


def test_a_late_commit_commits_what_was_aborted_at_level_1():
    outcome = run(late_commit(1))
    assert "G1a" in outcome.anomalies, (outcome.invariants, outcome.anomalies, outcome.reported)


def test_a_late_commit_changes_nothing_at_level_2():
    outcome = run(late_commit(2))
    assert outcome.clean, (outcome.invariants, outcome.anomalies)
    assert outcome.reported["open"] == []


UNVERIFIED = {"transaction.partition.verification.enable": "false"}


@pytest.mark.parametrize(("level", "hanging"), proof_beyond(1, [(2, False), (1, True)]))
def test_a_late_record_hangs_at_level_1_unverified(level, hanging):
    """Without verification, level 1 opens a transaction that no marker ends; level 2 refuses the record's epoch."""
    outcome = run(late_record(level), **UNVERIFIED)
    assert outcome.reported == {"open": hanging, "others": 0}
    assert outcome.anomalies == ({"stuck": 1} if hanging else {})
