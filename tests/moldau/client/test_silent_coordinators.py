"""Goal: clients leave a silent coordinator soon after another broker has taken its place, and no slow one earlier.

Method: the decision on made answers; then real brokers on virtual time with default settings, with the links of a
coordinator cut so that packets disappear and connections stay open.
"""

import math
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau import Consumer, Producer, ShareConsumer, TopicPartition
from moldau.admin.requester import Requester
from moldau.cluster.client import GROUP_COORDINATOR, TRANSACTION_COORDINATOR
from moldau.cluster.metadata import ClusterMetadata
from moldau.cluster.silence import ASK_INTERVAL_MS, COORDINATOR_ASK_INTERVAL_MS_MAX, PATIENCE_MS, Silence
from moldau.cluster.silence_watch import SilenceWatch
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from support.cluster.broker_cluster import run_cluster

T0 = TopicPartition("t", 0)
GROUP = ("g", GROUP_COORDINATOR)
LIMIT_MS = 4_000
"""For the next answered call after the cut, with default settings of brokers and clients."""


def test_another_coordinator_cuts_the_silent_calls_only():
    silence = Silence()
    silence.asked("early", 1, GROUP, 0.0)
    silence.asked("elsewhere", 1, ("g", TRANSACTION_COORDINATOR), 0.0)
    silence.asked("late", 1, GROUP, 500.0)
    look = silence.look(PATIENCE_MS, ClusterMetadata())
    assert (list(look.cut), list(look.doubted)) == ([], [])
    assert list(look.lookups) == [GROUP, ("g", TRANSACTION_COORDINATOR)]
    assert silence.found(GROUP, 1, PATIENCE_MS) == []  # it is still the coordinator
    assert silence.found(GROUP, 2, PATIENCE_MS) == ["early"]
    assert len(silence) == 2


def test_a_long_held_call_is_asked_about_less_and_less():
    """A rebalance may take minutes."""
    silence = Silence()
    silence.asked("join", 1, GROUP, 0.0)
    asked, now = [], PATIENCE_MS
    while now < 300_000:
        look = silence.look(now, ClusterMetadata())
        asked += [now] * len(look.lookups)
        assert now < look.next_ms <= now + COORDINATOR_ASK_INTERVAL_MS_MAX
        now = look.next_ms
    assert asked[:3] == [PATIENCE_MS, PATIENCE_MS + ASK_INTERVAL_MS, PATIENCE_MS + 2 * ASK_INTERVAL_MS]
    assert len(asked) < 80
    assert silence.look(math.inf, ClusterMetadata()).next_ms == math.inf


class AskingClient:
    """The part of a client that a watch uses; its first question about a coordinator fails."""

    knows_several_servers = True

    def __init__(self):
        self.changed, self.cluster_metadata = Signal(), ClusterMetadata()
        self.logger = EventLogger("test")
        self.asked_ms = []

    @property
    def now_ms(self):
        return trio.current_time() * 1000

    async def find_coordinator(self, key, key_type):
        self.asked_ms.append(self.now_ms)
        if len(self.asked_ms) == 1:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return 2


def test_a_question_that_failed_is_asked_again():
    """The successor of a silent coordinator may not be elected yet when it is first asked for."""

    async def main():
        client = AskingClient()
        watch = SilenceWatch(client)
        begun_ms = client.now_ms
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            with trio.fail_after(60), pytest.raises(ConnectionAbortedError), watch.coordinator(1, *GROUP):
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()
        assert len(client.asked_ms) == 2
        assert client.now_ms - begun_ms < PATIENCE_MS + 2 * ASK_INTERVAL_MS

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_reason_outlasts_an_attempt_that_is_cut_short():
    """The end of a call names the refusal before it; it said only that no broker answered."""

    class Client(AskingClient):
        asks_controllers = False

        async def find_coordinator(self, key, key_type):
            self.asked_ms.append(self.now_ms)
            if len(self.asked_ms) == 1:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "its log is being read")
            await trio.sleep_forever()

        async def backoff(self, failures):
            await trio.sleep(0.1)

    async def main():
        requester = Requester(SimpleNamespace(check=lambda: None), timeout_ms=5_000, retries=9)
        client = requester.cluster_client = Client()
        with pytest.raises(KafkaError, match=r": its log is being read$"):
            await requester.group_coordinator("g").find(client.now_ms + 5_000)
        assert client.now_ms - client.asked_ms[0] == pytest.approx(5_000)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def run(scenario, seed=1):
    """Runs ``scenario(cluster, servers)`` with a topic ``t`` and default times."""

    async def prepared(cluster):
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="2")
        await cluster.leader("t")
        with trio.fail_after(120):
            await scenario(cluster, ",".join(f"b{broker}:9092" for broker in cluster.broker_ids))

    times = {"broker_session_timeout_ms": "9000", "broker_heartbeat_interval_ms": "2000"}
    run_cluster(prepared, seed=seed, brokers=3, controllers=1, **times)


def cut_off(cluster, broker):
    """Cuts all links of a broker."""
    others = ["client", *(f"c{each}" for each in cluster.controller_ids)]
    others += [f"b{each}" for each in cluster.broker_ids if each != broker]
    cluster.world.network.cut_between([f"b{broker}"], others)


async def took_ms(call):
    begun = trio.current_time()
    await call()
    return (trio.current_time() - begun) * 1000


async def next_values(consumer, count):
    values = []
    while len(values) < count:
        values += [record.value for batch in await consumer.poll(200) for record in batch.records]
    return values


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_with_another_coordinator(protocol):
    async def scenario(cluster, servers):
        config = {
            "bootstrap.servers": servers,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        environment = cluster.client_environment
        async with Producer({"bootstrap.servers": servers}, environment=environment) as producer:
            for number in range(3):
                await (await producer.send("t", b"%d" % number, partition=0)).wait()
        async with Consumer(config, environment=environment) as consumer:
            consumer.subscribe(["t"])
            assert await next_values(consumer, 3) == [b"0", b"1", b"2"]
            await consumer.commit({T0: 1})
            coordinator = consumer._group._node_id
            cut_off(cluster, coordinator)
            assert await took_ms(lambda: consumer.commit({T0: 2})) < LIMIT_MS
            assert consumer._group._node_id != coordinator
            assert (await consumer.committed([T0]))[T0].offset == 2
            with trio.fail_after(10):  # it is a member, and stays one
                while not consumer.assignment:
                    await consumer.poll(200)

    run(scenario)


def test_a_share_group_goes_on_with_another_coordinator():
    async def scenario(cluster, servers):
        config = {"bootstrap.servers": servers, "group.id": "g"}
        environment = cluster.client_environment
        async with ShareConsumer(config, environment=environment) as consumer:
            consumer.subscribe(["t"])
            while not consumer.assignment:
                await consumer.poll(200)
            group = consumer._group
            coordinator = group._coordinator
            cut_off(cluster, coordinator)
            group.wake()
            begun = trio.current_time()
            await cluster.until(lambda: group._coordinator not in (coordinator, None))
            assert (trio.current_time() - begun) * 1000 < LIMIT_MS

    run(scenario)


@pytest.mark.parametrize("step", ["begin", "offsets", "end"])
def test_a_transaction_goes_on_with_another_coordinator(step):
    """Each record and offset takes effect once, although a request may have been carried out before it was repeated."""

    async def scenario(cluster, servers):
        environment = cluster.client_environment
        config = {"bootstrap.servers": servers, "transactional.id": "x"}
        reading = {"bootstrap.servers": servers, "group.id": "g", "isolation.level": "read_committed"}
        reading |= {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        async with (
            Producer(config, environment=environment) as producer,
            Consumer(reading, environment=environment) as reader,
        ):
            reader.assign([T0])
            await producer.init_transactions()

            async def one(value, offset, silence_at=None):
                times = []
                for name, call in (
                    ("begin", lambda: produce(value)),
                    ("offsets", lambda: producer.send_offsets_to_transaction({T0: offset}, reader.group_metadata())),
                    ("end", producer.commit_transaction),
                ):
                    if name == silence_at:
                        cut_off(cluster, coordinator())
                    times.append(await took_ms(call))
                return times

            async def produce(value):
                producer.begin_transaction()
                await (await producer.send("t", value, partition=0)).wait()

            def coordinator():
                manager = producer._transactions.manager
                return manager._coordinators[(TRANSACTION_COORDINATOR, "x")]

            await one(b"0", 1)
            before = coordinator()
            times = await one(b"1", 2, step)
            assert coordinator() != before
            assert max(times) < LIMIT_MS, times
            await one(b"2", 3)
            assert await next_values(reader, 3) == [b"0", b"1", b"2"]
            assert (await reader.committed([T0]))[T0].offset == 3

    run(scenario)


def test_a_slow_coordinator_is_not_left():
    """Its commits wait for followers for two seconds."""

    async def scenario(cluster, servers):
        config = {"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False}
        async with Consumer(config, environment=cluster.client_environment) as consumer:
            consumer.assign([T0])
            await consumer.commit({T0: 1})
            coordinator = consumer._group._node_id
            connection = consumer._client.connection_nowait(coordinator)
            others = [broker for broker in cluster.broker_ids if broker != coordinator]
            for broker in others:
                cluster.world.network.cut(f"b{coordinator}", f"b{broker}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.commit, {T0: 2})
                await trio.sleep(2)
                for broker in others:
                    cluster.world.network.heal(f"b{coordinator}", f"b{broker}")
            assert consumer._client.connection_nowait(coordinator) is connection

    run(scenario)
