"""Goal: a client gives up a silent leader as soon as it can know of another one, and no answering broker earlier.

Method: the decision on made metadata, and against a naive model; then real brokers on virtual time, with the links of
a leader cut so that packets disappear and connections stay open.
"""

import math

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from moldau import Consumer, Producer, TopicPartition
from moldau.cluster.client import GROUP_COORDINATOR
from moldau.cluster.metadata import BrokerNode, ClusterMetadata, PartitionInfo, TopicInfo
from moldau.cluster.silence import ASK_INTERVAL_MS, PATIENCE_MS, Silence
from moldau.cluster.silence_watch import SilenceWatch
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import ZERO_UUID
from support.cluster.broker_cluster import run_cluster

T0 = TopicPartition("t", 0)
SESSION_MS = 3_000


def metadata(*leaders):
    """Metadata of a topic whose partitions have these (leader, epoch); brokers 1 to 3 are known."""
    partitions = tuple(
        PartitionInfo(topic="t", partition=number, leader=leader, leader_epoch=epoch)
        for number, (leader, epoch) in enumerate(leaders)
    )
    return ClusterMetadata(
        brokers={each: BrokerNode(node_id=each, host="h", port=1) for each in (1, 2, 3)},
        topics={"t": TopicInfo(name="t", topic_id=ZERO_UUID, partitions=partitions)},
    )


@pytest.mark.parametrize(
    ("leader", "epoch", "is_cut"),
    [
        (1, 5, False),  # nothing has changed
        (1, 6, False),  # it leads again
        (2, 6, True),
        (2, 5, False),  # another answer for the epoch that the client knew
        (2, 4, False),  # older metadata
        (-1, 6, False),  # no broker leads, so there is nowhere to send the records
        (9, 6, False),  # no address is known
    ],
)
def test_only_a_newer_leader_elsewhere_cuts_the_connection(leader, epoch, is_cut):
    silence = Silence()
    silence.sent("a", 1, [(T0, 5)], 0.0)
    look = silence.look(PATIENCE_MS, metadata((leader, epoch)))
    assert list(look.cut) == (["a"] if is_cut else [])
    assert list(look.doubted) == ([] if is_cut else [1])
    assert (len(silence), look.next_ms) == ((0, math.inf) if is_cut else (1, PATIENCE_MS + ASK_INTERVAL_MS))


def test_a_broker_that_answers_in_time_is_not_doubted():
    silence = Silence()
    first = silence.sent("a", 1, [(T0, 5)], 0.0)
    silence.sent("a", 1, [(T0, 5)], 700.0)
    silence.ended(first)
    silence.ended(first)
    look = silence.look(PATIENCE_MS, metadata((2, 6)))
    assert (list(look.cut), list(look.doubted), look.next_ms) == ([], [], 1_700.0)


def test_a_long_poll_may_take_its_time():
    silence = Silence()
    silence.sent("a", 1, [(T0, 5)], 0.0, wait_ms=500.0)
    assert list(silence.look(1_499.0, metadata((2, 6))).cut) == []
    assert list(silence.look(1_500.0, metadata((2, 6))).cut) == ["a"]


def test_other_requests_of_a_cut_connection_are_forgotten():
    """They fail with the connection, and their end may come later than the next look."""
    silence = Silence()
    silence.sent("a", 1, [(T0, 5)], 0.0)
    silence.sent("a", 1, [], 10.0)
    other = silence.sent("b", 2, [], 10.0)
    look = silence.look(PATIENCE_MS + 10, metadata((2, 6)))
    assert (list(look.cut), list(look.doubted), len(silence)) == (["a"], [2], 1)
    silence.ended(other)
    assert silence.look(5_000.0, metadata((2, 6))).next_ms == math.inf


@given(
    st.lists(
        st.tuples(
            st.integers(0, 700),
            st.sampled_from(["send", "end", "look"]),
            st.sampled_from("abc"),
            st.integers(1, 3),
            st.integers(0, 2),
        ),
        max_size=40,
    )
)
def test_every_silent_broker_is_asked_about_in_time(steps):
    """The model is a list: a silent broker is doubted once in a period, and cut for a newer epoch only."""
    silence, now, model = Silence(), 0.0, []
    for wait, step, key, node, epoch in steps:
        now += wait
        if step == "send":
            model.append([key, node, epoch, now, silence.sent(key, node, [(T0, epoch)], now)])
        elif step == "end" and model:
            silence.ended(model.pop(0)[4])
        elif step == "look":
            look = silence.look(now, metadata((node, epoch)))
            silent = [each for each in model if each[3] + PATIENCE_MS <= now]
            assert set(look.cut) == {each[0] for each in silent if each[1] != node and each[2] < epoch}
            model = [each for each in model if each[0] not in look.cut]
            assert set(look.doubted) <= {each[1] for each in silent if each[0] not in look.cut}
            assert look.next_ms > now
            assert look.next_ms == min((each[4].ask_ms for each in model), default=math.inf)
        assert len(silence) == len(model)


def cut_off(cluster, leader):
    """Cuts all links of a broker: packets disappear, connections stay open."""
    others = ["client", *(f"c{each}" for each in cluster.controller_ids)]
    others += [f"b{each}" for each in cluster.broker_ids if each != leader]
    cluster.world.network.cut_between([f"b{leader}"], others)


def run(scenario, *, controllers=1, **settings):
    async def prepared(cluster):
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="2")
        await scenario(cluster, await cluster.leader("t"))

    settings = {"broker_session_timeout_ms": str(SESSION_MS), **settings}
    run_cluster(prepared, brokers=3, controllers=controllers, **settings)


DEFAULTS = {
    key.replace(".", "_"): str(BROKER_CONFIG.keys[key].default)
    for key in ("broker.session.timeout.ms", "broker.heartbeat.interval.ms", "broker.session.unreachable.ms")
}


@pytest.mark.parametrize("with_controller", [False, True])
def test_a_cut_leader_is_replaced_within_the_default_times(with_controller):
    """The cut comes just after a heartbeat, which is the worst time; in one case it also hits the active controller."""
    steps = {}

    async def scenario(cluster, leader):
        servers = ",".join(f"b{broker}:9092" for broker in cluster.broker_ids)
        config = {"bootstrap.servers": servers, "acks": "all"}
        session = cluster.running[leader]._session
        async with Producer(config, environment=cluster.client_environment) as producer, trio.open_nursery() as nursery:
            await (await producer.send("t", b"0", partition=0)).wait()
            await trio.sleep(3)
            heard_ms = session.last_contact_ms
            await cluster.until(lambda: session.last_contact_ms > heard_ms)
            lost = [f"b{leader}", *([f"c{session._client.active_controller_id}"] if with_controller else [])]
            names = ["client", *(f"c{each}" for each in cluster.controller_ids)]
            names += [f"b{each}" for each in cluster.broker_ids]
            cluster.world.network.cut_between(lost, [name for name in names if name not in lost])
            begun = trio.current_time()

            async def note(step, condition):
                await cluster.until(condition)
                steps[step] = round((trio.current_time() - begun) * 1000)

            def known():
                found = producer._client.cluster_metadata.leader(T0)
                return found is not None and found[0] != leader

            nursery.start_soon(note, "fenced", lambda: cluster.image().brokers[leader].fenced)
            nursery.start_soon(note, "led", lambda: cluster._leader("t", 0, leader) is not None)
            nursery.start_soon(note, "known", known)
            await (await producer.send("t", b"1", partition=0)).wait()
            steps["acknowledged"] = round((trio.current_time() - begun) * 1000)

    run(scenario, controllers=3, **DEFAULTS)

    assert steps["fenced"] < 3_400, steps
    assert steps["led"] - steps["fenced"] < 50, steps
    assert steps["known"] - steps["led"] < ASK_INTERVAL_MS + 100, steps
    assert steps["acknowledged"] < 4_000, steps


def test_a_leader_that_is_paused_for_a_moment_stays():
    """Default settings: a pause that is shorter than the watchdog's patience moves no leadership."""

    async def scenario(cluster, leader):
        epoch = cluster.partition_image("t").leader_epoch
        await trio.sleep(3)
        cluster.world.node(f"b{leader}").pause()
        await trio.sleep(4)
        cluster.world.node(f"b{leader}").resume()
        await trio.sleep(4)
        assert cluster.partition_image("t").leader_epoch == epoch
        assert not cluster.image().brokers[leader].fenced

    run(scenario, **DEFAULTS)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_write_goes_on_when_the_leader_is_cut_off(idempotent):
    """With the default request timeout this took 30 seconds: the client waited for an answer that could not come."""

    async def scenario(cluster, leader):
        others = [broker for broker in cluster.broker_ids if broker != leader]
        config = {
            "bootstrap.servers": ",".join(f"b{broker}:9092" for broker in cluster.broker_ids),
            "acks": "all",
            "enable.idempotence": idempotent,
        }
        async with Producer(config, environment=cluster.client_environment) as producer:
            first = await (await producer.send("t", b"0", partition=0)).wait()
            cut_off(cluster, leader)
            begun = trio.current_time()
            deliveries = [await producer.send("t", b"%d" % number, partition=0) for number in range(1, 4)]
            offsets = [(await delivery.wait()).offset for delivery in deliveries]
            assert (trio.current_time() - begun) * 1000 < SESSION_MS + 2 * PATIENCE_MS
        assert offsets == sorted(offsets)
        assert first.offset < offsets[0]
        config = {"bootstrap.servers": f"b{others[0]}:9092", "auto.offset.reset": "earliest"}
        async with Consumer(config, environment=cluster.client_environment) as consumer:
            consumer.assign([T0])
            values = []
            with trio.fail_after(60):
                while len(values) < 4:
                    values += [record.value for batch in await consumer.poll(500) for record in batch.records]
            assert values == [b"0", b"1", b"2", b"3"]

    run(scenario)


def test_reading_goes_on_when_the_leader_is_cut_off():
    async def scenario(cluster, leader):
        servers = ",".join(f"b{broker}:9092" for broker in cluster.broker_ids)
        reading = {"bootstrap.servers": servers, "auto.offset.reset": "earliest"}
        async with (
            Producer({"bootstrap.servers": servers, "acks": "all"}, environment=cluster.client_environment) as producer,
            Consumer(reading, environment=cluster.client_environment) as consumer,
        ):
            consumer.assign([T0])

            async def next_value():
                while True:
                    for batch in await consumer.poll(500):
                        return batch.records[0].value

            await (await producer.send("t", b"before", partition=0)).wait()
            assert await next_value() == b"before"
            cut_off(cluster, leader)
            begun = trio.current_time()
            await (await producer.send("t", b"after", partition=0)).wait()
            assert await next_value() == b"after"
            assert (trio.current_time() - begun) * 1000 < SESSION_MS + 3 * PATIENCE_MS

    run(scenario)


@pytest.mark.parametrize(("brokers", "is_asked"), [(1, False), (2, True)])
def test_a_slow_broker_is_doubted_only_if_another_can_answer(brokers, is_asked):
    """Questions about it would only give more work to the one broker that is slow: 500 clients once stopped it."""
    updates = []

    async def scenario(cluster):
        await cluster.client(1).create_topic("t")
        leader = await cluster.leader("t")
        config = {"bootstrap.servers": f"b{leader}:9092", "acks": "all"}
        async with Producer(config, environment=cluster.client_environment) as producer, trio.open_nursery() as nursery:
            await (await producer.send("t", b"0", partition=0)).wait()
            producer._client.doubt = updates.append
            cluster.world.node(f"b{leader}").pause()
            delivery = await producer.send("t", b"1", partition=0)
            nursery.start_soon(delivery.wait)
            await trio.sleep(3.5 * PATIENCE_MS / 1000)
            cluster.world.node(f"b{leader}").resume()

    run_cluster(scenario, brokers=brokers, controllers=1)
    assert bool(updates) is is_asked


def test_a_slow_leader_keeps_its_connection():
    """A leader that needs longer than the patience to answer is asked about, and not given up."""

    async def scenario(cluster, leader):
        servers = ",".join(f"b{broker}:9092" for broker in cluster.broker_ids)
        config = {"bootstrap.servers": servers, "acks": "all"}
        async with Producer(config, environment=cluster.client_environment) as producer:
            await (await producer.send("t", b"0", partition=0)).wait()
            connection = producer._client.connection_nowait(leader)
            for broker in cluster.broker_ids:  # acks=all waits for followers, which hear nothing for two seconds
                if broker != leader:
                    cluster.world.network.cut(f"b{leader}", f"b{broker}")
            delivery = await producer.send("t", b"1", partition=0)
            await trio.sleep(2)
            for broker in cluster.broker_ids:
                cluster.world.network.heal(f"b{leader}", f"b{broker}")
            await delivery.wait()
            assert producer._client.connection_nowait(leader) is connection
            assert producer.statistics().record_retry_total == 0

    run(scenario)


@pytest.mark.parametrize("wait_ms", [500, 30_000])
def test_a_call_behind_a_long_request_is_given_up_soon(wait_ms):
    """The watch slept until the long request was due: with ``fetch.max.wait.ms`` 30000, a commit waited as long."""

    class Client:
        knows_several_servers = True
        changed, cluster_metadata, logger = Signal(), ClusterMetadata(), EventLogger("test")

        @property
        def now_ms(self):
            return trio.current_time() * 1000

        async def find_coordinator(self, key, key_type):
            return 2

    async def main():
        watch = SilenceWatch(Client())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            watch.sent(object(), 1, [], wait_ms=wait_ms)
            await trio.sleep(0.2)
            begun = trio.current_time()
            with pytest.raises(ConnectionAbortedError), watch.coordinator(1, "g", GROUP_COORDINATOR):
                await trio.sleep_forever()
            assert (trio.current_time() - begun) * 1000 == pytest.approx(PATIENCE_MS, abs=10)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
