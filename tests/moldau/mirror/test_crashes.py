"""Crashes of the mirror and of both clusters, and a second mirror.

Goal: at least once loses no record, and exactly once neither loses nor repeats one. Method: for several seeds, the
mirror's machine and the brokers are killed at drawn times while records are produced; the target is read at the end.
"""

import random
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau import ErrorCode, KafkaError, Producer, ProducerFencedError
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.flow import SourceFlow
from moldau.mirror.reading import FIRST_RETRY_MS
from support.mirror.clusters import duplicates, numbers, run_clusters
from support.proof import proof_beyond

SETTINGS = (
    'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n[sources.e]'
)
MODES = ["disabled", "enabled"]
PARTITIONS = 2
BATCHES = 12
PER_BATCH = 20


async def crash_story(clusters, mode, seed):
    """Produces while machines are killed at drawn times; returns what the target holds of each partition."""
    draw = random.Random(seed)
    aborts = random.Random(f"aborts {seed}")
    await clusters.create("east", "orders", PARTITIONS)
    keys = {
        "offset.flush.interval.ms": aborts.choice([300, 5000]),
        "transaction.boundary.interval.ms": draw.choice([1, 50, 400]),
    }
    settings = clusters.settings(["east"], "hub", exactly_once_source_support=mode, **keys)
    clusters.start(settings)
    ended = trio.Event()

    async def crash():
        while not ended.is_set():
            await trio.sleep(draw.uniform(0.2, 4))
            victim = draw.choice(["mirror", "mirror", "mirror", "east", "hub"])
            if victim == "mirror":
                clusters.kill()
                await trio.sleep(draw.uniform(0, 1))
                clusters.start(settings)
                continue
            cluster = clusters[victim]
            (broker_id,) = cluster.broker_ids
            cluster.kill(broker_id)
            await trio.sleep(draw.uniform(0.1, 2))
            cluster.start_broker(broker_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(crash)
        async with clusters.producer("east") as producer, clusters.producer("east", transactional_id="t") as aborting:
            await aborting.init_transactions()
            for number in range(BATCHES):
                for partition in range(PARTITIONS):
                    first = (number * PARTITIONS + partition) * PER_BATCH
                    for value in numbers(first, first + PER_BATCH):
                        await producer.send("orders", value, partition=partition)
                await producer.flush()
                if aborts.random() < 0.5:
                    # Records that the mirror passes without copying them: its position moves by itself.
                    aborting.begin_transaction()
                    await aborting.send("orders", b"aborted", partition=aborts.randrange(PARTITIONS))
                    await aborting.flush()
                    await aborting.abort_transaction()
                await trio.sleep(draw.uniform(0.1, 1.5))
        ended.set()
    sent = [
        [
            value
            for number in range(BATCHES)
            for value in numbers((number * PARTITIONS + p) * PER_BATCH, (number * PARTITIONS + p + 1) * PER_BATCH)
        ]
        for p in range(PARTITIONS)
    ]
    found = [await clusters.wait_values("hub", "east.orders", sent[p], p, timeout_s=300) for p in range(PARTITIONS)]
    await trio.sleep(3)
    return sent, [await clusters.values("hub", "east.orders", p) for p in range(PARTITIONS)] if found else []


def check_story(mode, seed):
    async def scenario(clusters):
        sent, found = await crash_story(clusters, mode, seed)
        for wanted, got in zip(sent, found, strict=True):
            if mode == "enabled":
                assert got == wanted, f"repeated: {duplicates(got)}"
            else:
                first_copies = list(dict.fromkeys(got))
                assert first_copies == wanted, "no record is lost, and first copies are in order"
        return sum(map(len, found)) - sum(map(len, sent))

    return run_clusters(scenario, seed=seed)


@pytest.mark.parametrize(
    ("mode", "seed"),
    proof_beyond(
        2, [("disabled", 1), ("enabled", 2), ("enabled", 1), ("disabled", 2), ("disabled", 3), ("enabled", 3)]
    ),
)
def test_crashes_lose_nothing(mode, seed):
    check_story(mode, seed)


@pytest.mark.proof
@pytest.mark.parametrize("mode", MODES)
def test_many_crashes_lose_nothing(mode):
    """Forty seeds; at least once must have repeated records in some of them, or the crashes came too late."""
    repeated = sum(check_story(mode, seed) for seed in range(100, 140))
    assert (repeated > 0) == (mode == "disabled")


def test_a_second_mirror_fences_the_first():
    """Both have the same name, so they cannot write the same records; the first one ends and says why."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        settings = clusters.settings(["east"], "hub", exactly_once_source_support="enabled")
        clusters.start(settings, "first")
        await clusters.fill("east", "orders", numbers(0, 50))
        await clusters.wait_values("hub", "east.orders", numbers(0, 50))
        clusters.start(settings, "second")
        await clusters.fill("east", "orders", numbers(50, 100))
        await clusters.wait_values("hub", "east.orders", numbers(50, 100))
        await clusters.fill("east", "orders", numbers(100, 150))
        found = await clusters.wait_values("hub", "east.orders", numbers(100, 150))
        assert found == numbers(0, 150)
        with trio.fail_after(60):
            await clusters.world.node("first").wait_ended()
        failure = str(clusters.world.node("first").failure)
        assert "another mirror uses the transactional id moldau-mirror.east.hub" in failure
        assert clusters.world.node("second").is_running

    run_clusters(scenario, fails=True)


def test_a_mirror_that_is_stopped_stores_its_positions():
    """A mirror that ends in order repeats nothing at its next start, at least once or not."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        settings = clusters.settings(["east"], "hub", offset_flush_interval_ms=3_600_000)
        for first in range(0, 150, 50):
            clusters.start(settings)
            await clusters.fill("east", "orders", numbers(first, first + 50))
            await clusters.wait_values("hub", "east.orders", numbers(first, first + 50))
            await clusters.stop()
        assert await clusters.values("hub", "east.orders") == numbers(0, 150)

    run_clusters(scenario)


def test_a_position_behind_aborted_records_replaces_no_later_one():
    """Exactly once, a transaction stores the positions behind its records, not those that were noted before them."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        keys = {"exactly_once_source_support": "enabled", "offset_flush_interval_ms": 3_600_000}
        settings = clusters.settings(["east"], "hub", **keys)
        clusters.start(settings)
        await trio.sleep(3)
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert statistics.transactions == 1, "it stores where it began"
        async with clusters.producer("east", transactional_id="t") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("orders", b"aborted")
            await producer.flush()
            await producer.abort_transaction()
        await trio.sleep(3)
        assert (statistics.lag, statistics.transactions) == (0, 1), "the position is noted, not stored"
        await clusters.fill("east", "orders", numbers(0, 10))
        await clusters.wait_values("hub", "east.orders", numbers(0, 10))
        clusters.kill()
        clusters.start(settings)
        await clusters.fill("east", "orders", numbers(10, 20))
        assert await clusters.wait_values("hub", "east.orders", numbers(10, 20)) == numbers(0, 20)

    run_clusters(scenario)


def test_modes_share_their_positions():
    """A mirror may change from one mode to the other between two starts."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        for number, mode in enumerate(["disabled", "enabled", "disabled"]):
            clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support=mode))
            await clusters.fill("east", "orders", numbers(number * 50, number * 50 + 50))
            await clusters.wait_values("hub", "east.orders", numbers(number * 50, number * 50 + 50))
            await clusters.stop()
        assert await clusters.values("hub", "east.orders") == numbers(0, 150)

    run_clusters(scenario)


@pytest.mark.parametrize("away_s", proof_beyond(1, [20, 130]))
@pytest.mark.parametrize("what", ["target", "mirror"])
def test_a_transaction_that_times_out_ends_no_mirror(what, away_s):
    """The target's broker is down, or the mirror's process stands still, in the middle of a transaction.

    The coordinator aborts the transaction after its timeout and fences the producer, as if a second mirror had come.
    """

    async def scenario(clusters):
        keys = {"exactly.once.source.support": "enabled", "transaction.boundary.interval.ms": 2_000}
        await clusters.create("east", "orders")
        clusters.start(clusters.settings(["east"], "hub", **keys))
        await clusters.fill("east", "orders", numbers(0, 50))
        await clusters.wait_values("hub", "east.orders", numbers(0, 50))
        await clusters.fill("east", "orders", numbers(50, 100))
        await trio.sleep(0.7)
        hub, node = clusters["hub"], clusters.world.node("mirror")
        if what == "target":
            hub.kill(hub.broker_ids[0])
            await trio.sleep(away_s)
            hub.start_broker(hub.broker_ids[0])
            await hub.until(lambda: hub.running)
        else:
            node.pause()
            await trio.sleep(away_s)
            node.resume()
        await clusters.fill("east", "orders", numbers(100, 150))
        found = await clusters.wait_values("hub", "east.orders", numbers(0, 150), timeout_s=200)
        assert found == numbers(0, 150)
        assert node.is_running

    run_clusters(scenario)


@pytest.mark.proof
def test_a_commit_that_comes_too_late_ends_no_mirror(monkeypatch):
    """The transaction times out between its last record and its commit; a Kafka broker then fences the producer."""
    commit = Producer.commit_transaction
    delays = iter([0, 0, 130])

    async def late(self, timeout_ms=None):
        delay_s = next(delays, 0)
        await trio.sleep(delay_s)
        if delay_s:
            raise ProducerFencedError(ErrorCode.PRODUCER_FENCED)
        await commit(self, timeout_ms)

    async def scenario(clusters):
        monkeypatch.setattr(Producer, "commit_transaction", late)
        await clusters.create("east", "orders")
        clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support="enabled"))
        for first in range(0, 200, 50):
            await clusters.fill("east", "orders", numbers(first, first + 50))
            found = await clusters.wait_values("hub", "east.orders", numbers(0, first + 50), timeout_s=300)
        assert found == numbers(0, 200)
        assert clusters.world.node("mirror").is_running
        assert clusters.mirrors["mirror"].statistics[0].restarts > 0

    run_clusters(scenario)


def test_failures_far_apart_do_not_lengthen_the_wait():
    """The source is mirrored for hours between two failures; each restart comes soon, also after months."""
    (given,) = parse_settings(SETTINGS, "mirror.toml").sources
    began, failed = [], []

    async def run_once():
        assert not flow.statistics.is_running, "between two runs nothing is mirrored"
        flow.statistics.is_running = True
        began.append(trio.current_time())
        await trio.sleep(3_600)
        failed.append(trio.current_time())
        if len(failed) == 12:
            flow._stop.set()
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION)

    async def main():
        await flow.run()

    clock = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1_000)
    flow = SourceFlow(SimpleNamespace(clock=clock, random=random.Random(1)), given, trio.Event())
    flow._run_once = run_once
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    waits = [begun - ended for begun, ended in zip(began[1:], failed[:-1], strict=True)]
    assert len(waits) == 11
    assert max(waits) < 2 * FIRST_RETRY_MS / 1_000
