"""The producer against a small cluster on virtual time: delivery, faults, limits, closing."""

import math

import pytest
import trio

from moldau import KafkaError, Producer
from moldau.cluster.troubles import InvalidTopicError
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.records import Compression, InvalidRecordError, parse_batch_header
from moldau.runtime.config import CONSUMER_CONFIG, ConfigError
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster, batch_count, whole_log
from support.proof import proof_beyond


def simulate(scenario, seed=1, brokers=2):
    """Runs ``scenario(cluster, open_producer)`` in a simulated world."""

    async def main(world):
        cluster = FakeCluster(world, brokers)
        cluster.start()
        environment = world.node("client").environment

        def producer(**config):
            given = {"bootstrap.servers": cluster.bootstrap} | {k.replace("_", "."): v for k, v in config.items()}
            return Producer(given, environment=environment)

        return await scenario(cluster, producer)

    return run_world(main, seed)


def test_records_arrive_where_their_metadata_says():
    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 3)
        async with open_producer() as producer:
            deliveries = [
                await producer.send("t", b"%d" % i, key=b"k%d" % i, headers=[("h", b"x")], timestamp=i)
                for i in range(100)
            ]
            for i, delivery in enumerate(deliveries):
                metadata = await delivery
                record = parts[metadata.partition].records()[metadata.offset]
                assert (record.key, record.value, record.headers) == (b"k%d" % i, b"%d" % i, (("h", b"x"),))
                assert (metadata.topic, metadata.timestamp, record.timestamp) == ("t", i, i)
                assert delivery.is_done
                assert (delivery.topic, delivery.partition) == ("t", metadata.partition)
        assert len(whole_log(parts)) == 100
        assert sum(map(batch_count, parts)) < 20, "records travel in batches"

    simulate(scenario)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_is_end_to_end(codec):
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer(compression_type=codec, batch_size=10_000) as producer:
            for i in range(50):
                await producer.send("t", b"value %d" % i)
        assert part.values() == [b"value %d" % i for i in range(50)]
        assert parse_batch_header(part.batches[0]).compression is Compression.from_config_name(codec)

    simulate(scenario)


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION])
def test_a_refused_topic_is_asked_for_again_by_each_send(code):
    """A right may be granted meanwhile; what the client remembers is up to ``metadata.max.age.ms`` old."""

    async def scenario(cluster, open_producer):
        cluster.add_topic("other")
        (part,) = cluster.add_topic("t")
        async with open_producer() as producer:
            await producer.partitions_for("other")
            cluster.fail_next(ApiKey.METADATA, code, code)
            for _ in range(2):
                with pytest.raises(KafkaError, match=code.name):
                    await producer.send("t", b"refused")
            begun = trio.current_time()
            await producer.send("t", b"sent")
            assert trio.current_time() - begun < 1
        assert part.values() == [b"sent"]

    simulate(scenario)


@pytest.mark.parametrize("name", ["a b", "x" * 40_000, "\ud800"])
def test_a_wrong_topic_name_stops_no_other_topic(name):
    """A name that fits into no request must not get into the requests for metadata of all topics."""

    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer() as producer:
            for call in (lambda: producer.send(name, b"wrong"), lambda: producer.partitions_for(name)):
                with pytest.raises(InvalidTopicError, match="invalid topic name"):
                    await call()
            with pytest.raises(InvalidTopicError):
                producer.send_nowait(name, b"wrong")
            await (await producer.send("t", b"sent"))
        assert part.values() == [b"sent"]
        assert trio.current_time() < 5

    simulate(scenario)


def test_leaving_the_block_delivers_and_an_exception_gives_up():
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer(linger_ms=1000) as producer:
            kept = await producer.send("t", b"kept")
        assert kept.result().offset == 0
        lost = []

        async def fail() -> None:
            async with open_producer(linger_ms=10_000) as producer:
                lost.append(await producer.send("t", b"lost"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(KafkaError, match="closed before"):
            lost[0].result()
        assert part.values() == [b"kept"]

    simulate(scenario)


def test_flush_sends_what_lingers():
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer(linger_ms=60_000, delivery_timeout_ms=200_000) as producer:
            started = trio.current_time()
            delivery = await producer.send("t", b"x")
            await producer.flush()
            assert delivery.is_done
            assert trio.current_time() - started < 5
            assert part.values() == [b"x"]
            assert producer.pending_bytes == 0

    simulate(scenario)


@pytest.mark.parametrize("seed", proof_beyond(3, range(8)))
def test_lost_answers_errors_and_moving_leaders_change_nothing(seed):
    """Retries never lose, double or reorder, with five requests in flight."""

    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 2)
        drawn = cluster.world.random("faults")
        async with open_producer(batch_size=200, linger_ms=1) as producer, trio.open_nursery() as nursery:

            async def harm() -> None:
                while True:
                    await trio.sleep(drawn.random() * 0.4)
                    cluster.errors.clear()
                    match drawn.randrange(4):
                        case 0:
                            cluster.lost_answers[ApiKey.PRODUCE] = 1
                        case 1:
                            cluster.fail_next(ApiKey.PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS)
                        case 2:
                            cluster.move("t", drawn.randrange(2), 1 + drawn.randrange(2))
                        case 3:
                            cluster.fail_next(ApiKey.METADATA, ErrorCode.LEADER_NOT_AVAILABLE)

            nursery.start_soon(harm)
            for i in range(300):
                await producer.send("t", b"%04d" % i, partition=i % 2)
                await trio.sleep(drawn.random() * 0.02)
            nursery.cancel_scope.cancel()
        assert len([1 for _, key, _ in cluster.requests if key == ApiKey.PRODUCE]) > 30, "batches were in flight"
        for number, part in enumerate(parts):
            assert part.values() == [b"%04d" % i for i in range(300) if i % 2 == number]

    simulate(scenario, seed)


def test_leader_that_times_out_is_doubted():
    """The producer refreshes metadata for a leader that times out without NOT_LEADER_OR_FOLLOWER."""

    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")

        def cut_off(broker, request):
            """The old leader, which only clients reach, takes records, and no follower acknowledges them in time."""
            answer = cluster.on_produce(broker, request)
            if broker == old:
                answer.responses[0].partition_responses[0].error_code = ErrorCode.REQUEST_TIMED_OUT
            return answer

        async with open_producer() as producer:
            await (await producer.send("t", b"1"))
            old, asked = part.leader, len(cluster.requests)
            cluster.move("t", 0, 3 - old)
            cluster.handlers[ApiKey.PRODUCE] = cut_off
            await (await producer.send("t", b"2"))
        assert [broker for broker, key, _ in cluster.requests[asked:] if key == ApiKey.PRODUCE] == [old, 3 - old]
        assert part.values() == [b"1", b"2"]

    simulate(scenario)


def test_a_killed_broker_is_replaced_by_the_new_leader():
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer() as producer:
            await (await producer.send("t", b"a"))
            cluster.kill_broker(1)
            waiting = await producer.send("t", b"b")
            await trio.sleep(1)
            assert not waiting.is_done
            cluster.move("t", 0, 2)
            started = trio.current_time()
            await waiting
            assert trio.current_time() - started < 2
        assert part.values() == [b"a", b"b"]

    simulate(scenario)


def test_errors_belong_to_the_records_they_hit():
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer(linger_ms=0) as producer:
            cluster.fail_next(ApiKey.PRODUCE, ErrorCode.INVALID_RECORD)
            bad = await producer.send("t", b"bad")
            with pytest.raises(KafkaError, match="INVALID_RECORD"):
                await bad
            good = await producer.send("t", b"good")
            assert (await good).offset == 0
            with pytest.raises(RuntimeError, match="not been delivered"):
                (await producer.send("t", b"later")).result()
        assert part.values() == [b"good", b"later"]
        assert parse_batch_header(part.batches[0]).producer_epoch == 1, "the refused sequence is fenced off"

    simulate(scenario)


def test_unknown_topics_are_reported_after_max_block_ms():
    """The producer reports unknown topics and partitions after max.block.ms."""

    async def scenario(cluster, open_producer):
        cluster.add_topic("t")
        async with open_producer(max_block_ms=500) as producer:
            started = trio.current_time()
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic nope"):
                await producer.send("nope", b"")
            assert 0.49 < trio.current_time() - started < 1.5
            with pytest.raises(KafkaError, match="has partitions 0 to 0, not 7, after max"):
                await producer.send("t", b"", partition=7)
            with pytest.raises(LookupError, match="is missing; await"):
                producer.send_nowait("other", b"")
            assert [info.leader for info in await producer.partitions_for("t")] == [1]
            assert producer.has_leader("t", 0)
            cluster.auto_create = True
            await producer.send("made", b"x")
        assert cluster.topics["made"][0].values() == [b"x"]

    simulate(scenario)


def test_a_full_buffer_blocks_then_fails():
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        config = {"buffer_memory": 3000, "batch_size": 1000, "max_block_ms": 2000}
        async with open_producer(**config) as producer:
            await producer.partitions_for("t")
            part.leader = -1
            for _ in range(3):
                await producer.send("t", b"x" * 900)
            with pytest.raises(KafkaError, match=r"buffer\.memory"):
                producer.send_nowait("t", b"x" * 900)
            started = trio.current_time()
            with pytest.raises(KafkaError, match=r"stayed full for max\.block\.ms = 2000"):
                await producer.send("t", b"x" * 900)
            assert trio.current_time() - started == pytest.approx(2, abs=0.1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, "t", b"y" * 900)
                await trio.sleep(0.5)
                cluster.move("t", 0, 1)
            await producer.flush()
            assert len(part.values()) == 4
            assert producer.pending_bytes == 0

    simulate(scenario)


def test_delivery_timeout_bounds_everything():
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        config = {"delivery_timeout_ms": 3000, "request_timeout_ms": 1000, "linger_ms": 0}
        async with open_producer(**config) as producer:
            await producer.partitions_for("t")
            part.leader = -1
            started = trio.current_time()
            doomed = await producer.send("t", b"x")
            with pytest.raises(KafkaError, match="not delivered within 3000 ms"):
                await doomed
            assert trio.current_time() - started == pytest.approx(3, abs=0.2)
            part.leader = 2
            assert (await (await producer.send("t", b"y"))).offset == 0

    simulate(scenario)


@pytest.mark.parametrize(("acks", "offset"), [("0", -1), ("1", 0), ("all", 0)])
def test_acks(acks, offset):
    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        async with open_producer(acks=acks) as producer:
            assert (await (await producer.send("t", b"x"))).offset == offset
            await trio.sleep(1)
        assert part.values() == [b"x"]
        assert parse_batch_header(part.batches[0]).has_producer_id == (acks == "all"), "idempotence needs acks=all"

    simulate(scenario)


def test_invalid_records_are_refused_at_once():
    async def scenario(cluster, open_producer):
        cluster.add_topic("t", 2)
        async with open_producer(max_request_size=1000) as producer:
            await producer.partitions_for("t")
            with pytest.raises(
                KafkaError, match=r"MESSAGE_TOO_LARGE: a record of 2\d+ bytes is larger than max.request.size"
            ):
                await producer.send("t", b"x" * 2000)
            with pytest.raises(InvalidRecordError, match="negative"):
                await producer.send("t", b"", timestamp=-5)
            for _ in range(2):  # the second time into a batch that is open
                with pytest.raises(InvalidRecordError, match=r"timestamp 9223372036854775808 is above 2\*\*63 - 1"):
                    await producer.send("t", b"", timestamp=1 << 63, partition=0)
                await producer.send("t", b"", partition=0)
            with pytest.raises(TypeError, match="each header's name must be a str"):
                await producer.send("t", b"", headers=[(b"k", b"")])
        with pytest.raises(RuntimeError, match="closed"):
            producer.send_nowait("t", b"")
        with pytest.raises(RuntimeError, match="not open"):
            open_producer().send_nowait("t", b"")
        with pytest.raises(ConfigError, match=r"did you mean linger\.ms"):
            open_producer(linger_mz=1)
        with pytest.raises(ConfigError, match="cannot use a consumer configuration"):
            Producer(CONSUMER_CONFIG.parse({"bootstrap.servers": "a:1"}))

    simulate(scenario)


def test_partitioners_of_the_producer():
    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 3)
        async with open_producer(partitioner_class="round-robin") as producer:
            for i in range(9):
                await producer.send("t", b"%d" % i)
        assert [len(part.values()) for part in parts] == [3, 3, 3]
        environment = cluster.world.node("client").environment
        config = {"bootstrap.servers": cluster.bootstrap}
        async with Producer(config, environment=environment, partitioner=lambda t, k, v, n: v[0] % n) as producer:
            assert (await (await producer.send("t", b"\x05"))).partition == 2
        async with Producer(config, environment=environment, partitioner=lambda t, k, v, n: n) as producer:
            with pytest.raises(ValueError, match="the partitioner chose 3, but t has partitions 0 to 2"):
                await producer.send("t", b"")

    simulate(scenario)


def test_an_unreachable_cluster_is_named():
    async def scenario(cluster, open_producer):
        environment = cluster.world.node("client").environment
        async with Producer(
            {"bootstrap.servers": "broker1:1", "max.block.ms": 1000}, environment=environment
        ) as producer:
            with pytest.raises(KafkaError, match=r"no metadata within 1000 ms: no broker of broker1:1"):
                await producer.send("t", b"")

    simulate(scenario)


def test_equal_seeds_give_equal_runs():
    async def scenario(cluster, open_producer):
        parts = cluster.add_topic("t", 3)
        async with open_producer(batch_size=300) as producer:
            for i in range(100):
                await producer.send("t", b"%d" % i)
        return [part.values() for part in parts], trio.current_time()

    assert simulate(scenario, 5) == simulate(scenario, 5)


def test_cancellation_anywhere_leaves_nothing_behind():
    """The block is cancelled while it opens, sends, closes; a background task fails; trio stays in order."""

    async def scenario(cluster, open_producer):
        (part,) = cluster.add_topic("t")
        for delay in (0.0, 0.001, 0.01, 0.5, 1.5):
            part.leader = -1
            with trio.move_on_after(delay) as scope:
                async with open_producer(linger_ms=1000) as producer:
                    await producer.send("t", b"x")
            assert scope.cancelled_caught
        part.leader = 1
        async with open_producer() as producer:
            with trio.move_on_after(0.001):
                await producer.close()
        with pytest.raises(ExceptionGroup) as caught:
            await fail_in_background(open_producer)
        assert caught.group_contains(ZeroDivisionError)

    async def fail_in_background(open_producer):
        async with open_producer() as producer:
            producer._background.nursery.start_soon(divide_by_zero)
            await trio.sleep_forever()

    async def divide_by_zero() -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    simulate(scenario)


def test_no_task_polls_while_a_connection_opens():
    """Loops wait for the end of the attempt, which notifies them; they used to poll each millisecond."""

    async def scenario(cluster, open_producer):
        cluster.add_topic("t")
        network = cluster.world.network
        brokers = [name for name in network.host_names if name != "client"]
        async with open_producer() as producer:
            await (await producer.send("t", b"first"))
            client = producer._client
            node_id = next(iter(client.cluster_metadata.brokers))
            network.cut_between(["client"], brokers)
            assert client.connection_nowait(node_id, "test") is None
            assert client.retry_delay_ms(node_id, "test") == math.inf
            with trio.fail_after(60):
                while client.retry_delay_ms(node_id, "test") == math.inf:
                    await client.changed.wait()
            assert client.retry_delay_ms(node_id, "test") > 0, "the back-off holds after a failure"
            network.heal_all()
            with trio.fail_after(60):
                while client.connection_nowait(node_id, "test") is None:
                    with trio.move_on_after(client.retry_delay_ms(node_id, "test") / 1000):
                        await client.changed.wait()

    simulate(scenario)
