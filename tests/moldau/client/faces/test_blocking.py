"""The blocking clients against a small cluster on real sockets: caller threads and one trio thread each."""

import contextlib
import signal
import threading

import pytest

from moldau import KafkaError
from moldau.blocking import Admin, Consumer, Producer
from moldau.runtime.config import ConfigError
from support.client.fake_cluster import whole_log
from support.client.socket_cluster import WAIT_S, cluster


def threads_of_clients():
    """Trio starts other threads on demand and ends those that were idle for ten seconds."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("moldau-")}


def test_threads_share_a_producer_and_a_consumer_reads_it_all():
    with cluster() as fake:
        parts = fake.add_topic("t", 2)
        config = {"bootstrap.servers": fake.bootstrap}
        with Producer(config) as producer:

            def send(start: int) -> None:
                for number in range(start, start + 500):
                    producer.send("t", b"%d" % number, key=b"%d" % number)

            threads = [threading.Thread(target=send, args=(start,)) for start in (0, 500, 1000)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            last = producer.send("t", b"last", partition=0)
            metadata = last.result(1000 * WAIT_S)
            assert (metadata.topic, metadata.partition) == ("t", 0)
            assert parts[0].records()[metadata.offset].value == b"last"
            assert last.is_done
            producer.flush(1000 * WAIT_S)
            assert len(whole_log(parts)) == 1501
            assert len(producer.partitions_for("t")) == 2
        with Consumer(config | {"group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["t"])
            values = []
            for record in consumer:
                values.append(record.value)
                if len(values) >= 1501:
                    break
            assert sorted(values) == whole_log(parts)
            consumer.commit()
            assert {p: c.offset for p, c in consumer.committed(consumer.assignment).items()} == {
                ("t", number): part.end for number, part in enumerate(parts)
            }
            consumer.seek_to_beginning(("t", 0))
            assert consumer.position(("t", 0)) == 0
            assert consumer.poll_columns(1000 * WAIT_S)[0].columns.length > 0


class Interrupt(Exception):
    """A signal handler of the application raises this."""


@pytest.mark.parametrize("call", ["poll", "poll_columns", "iteration"])
def test_an_interrupted_poll_loses_no_record_and_commits_none(call):
    """The signal comes when the records are taken already, and the thread that polls does not receive them."""

    def handler(*_: object) -> None:
        raise Interrupt

    with cluster() as fake:
        (part,) = fake.add_topic("t")
        config = {"bootstrap.servers": fake.bootstrap}
        with Producer(config) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            group = {"group.id": "g", "auto.offset.reset": "earliest"}
            with Consumer(config | group) as consumer:
                consumer.assign([("t", 0)])
                (first,) = consumer.poll(1000 * WAIT_S, max_records=3)
                assert [record.offset for record in first.records] == [0, 1, 2]
                name = "poll" if call == "iteration" else call
                original = getattr(consumer._consumer, name)
                taken = []

                async def interrupted(*args: object, **kwargs: object) -> object:
                    answer = await original(*args, **kwargs)
                    taken.append(consumer._consumer.position_nowait(("t", 0)))
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                    return answer

                setattr(consumer._consumer, name, interrupted)
                with pytest.raises(Interrupt):
                    next(iter(consumer)) if call == "iteration" else getattr(consumer, call)(1000 * WAIT_S)
                setattr(consumer._consumer, name, original)
                assert taken == [part.end]
                assert consumer.position(("t", 0)) == 3
                consumer.commit()
                assert [each.offset for each in consumer.committed([("t", 0)]).values()] == [3]
                (second,) = consumer.poll(1000 * WAIT_S)
                assert [record.value for record in second.records] == [b"%d" % number for number in range(3, 10)]
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_errors_come_out_of_the_call_they_belong_to():
    with cluster() as fake:
        fake.add_topic("t")
        config = {"bootstrap.servers": fake.bootstrap}
        with Producer(config | {"max.block.ms": 200}) as producer:
            delivery = producer.send("nope", b"")
            with pytest.raises(KafkaError, match="nope"):
                delivery.result()
            with pytest.raises(KafkaError, match="nope"):
                producer.send("nope", b"").result()
            while True:  # the answer about a topic that exists may take longer than this producer waits, too
                with contextlib.suppress(KafkaError):
                    assert producer.send("t", b"fine").result().offset == 0
                    break
        with pytest.raises(RuntimeError, match="the client is closed"):
            producer.send("t", b"")
        with Admin(config) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["t"]
            with pytest.raises(KafkaError, match="x: UNKNOWN_TOPIC"):
                admin.describe_topics(["x"])
        with pytest.raises(RuntimeError, match="the client is closed"):
            admin.list_topics()
        with Consumer(config) as consumer, pytest.raises(ConfigError, match=r"group\.id"):
            consumer.subscribe(["t"])


def test_exception_in_the_block_ends_the_thread_at_once():
    """An exception in the block ends the thread without waiting."""
    with cluster() as fake:
        (part,) = fake.add_topic("t")
        before = threads_of_clients()

        def fail() -> None:
            config = {"bootstrap.servers": fake.bootstrap, "linger.ms": 60_000, "delivery.timeout.ms": 120_000}
            with Producer(config) as producer:
                producer.send("t", b"given up")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert threads_of_clients() == before
        assert part.values() == []


def test_wrong_configuration_starts_no_thread():
    before = threads_of_clients()
    with pytest.raises(ConfigError, match=r"did you mean linger\.ms"):
        Producer({"bootstrap.servers": "a:1", "linger": 5})
    assert threads_of_clients() == before


def test_rebalance_callbacks_may_commit_and_seek():
    """As with Kafka's clients: what was processed is committed before the partitions go to another member."""
    seen = []

    def on_assigned(partitions):
        consumer.seek(("t", 0), 1)
        with pytest.raises(RuntimeError, match="being polled already"):
            consumer.poll(0)
        with pytest.raises(RuntimeError, match="a callback cannot close the client"):
            consumer.close()
        seen.append(("assigned", partitions))

    def on_revoked(partitions):
        consumer.commit()
        seen.append(("revoked", {partition: each.offset for partition, each in consumer.committed(partitions).items()}))

    with cluster() as fake:
        fake.add_topic("t")
        with Producer({"bootstrap.servers": fake.bootstrap}) as producer:
            for value in (b"0", b"1"):
                producer.send("t", value)
        given = {"bootstrap.servers": fake.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        given["enable.auto.commit"] = False
        for leave in (Consumer.unsubscribe, Consumer.close):
            with Consumer(given, on_assigned=on_assigned, on_revoked=on_revoked) as consumer:
                consumer.subscribe(["t"])
                (batch,) = consumer.poll(1000 * WAIT_S)
                assert [record.value for record in batch.records] == [b"1"]
                leave(consumer)
    assert seen == 2 * [("assigned", [("t", 0)]), ("revoked", {("t", 0): 2})]


def test_an_error_of_a_callback_comes_out_of_the_poll():
    def on_assigned(partitions):
        raise LookupError("no place for the partitions")

    with cluster() as fake:
        fake.add_topic("t")
        given = {"bootstrap.servers": fake.bootstrap, "group.id": "g"}
        with Consumer(given, on_assigned=on_assigned) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(LookupError, match="no place for the partitions"):
                consumer.poll(1000 * WAIT_S)
