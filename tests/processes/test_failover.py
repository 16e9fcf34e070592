"""Goal: kill -9 of a partition leader under load loses, repeats and reorders nothing that was acknowledged. Method: an
idempotent librdkafka producer with acks=all writes numbered records all the while; a leader is killed, and comes back;
afterwards everything is read and compared.
"""

import itertools
import threading
import time
from collections import Counter

import pytest

from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.testing import cluster as local_cluster
from support.interop.clients import WAIT_S, ConfluentClient, create_topic, wait_for, wait_until

pytestmark = pytest.mark.processes

PARTITIONS = 3
_numbers = itertools.count(1)


class Load(threading.Thread):
    """Produces numbered records, one key per partition stream, until its stop is requested."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self._address = bootstrap
        self.topic = topic
        self._halt = threading.Event()
        self._abandoned = False
        self.acknowledged = []  # (partition, offset or None, number) in order of acknowledgement
        self.failed = []
        self.sent = 0
        self.left = None

    def run(self):
        from confluent_kafka import Producer

        def delivered(error, message):
            if error is None:
                self.acknowledged.append((message.partition(), message.offset(), int(message.value())))
            else:
                self.failed.append(str(error))

        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "retry.backoff.ms": 50,
            }
        )
        while not self._halt.is_set():
            number = self.sent
            try:
                producer.produce(
                    self.topic,
                    key=b"%d" % number,
                    value=b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=delivered,
                )
            except BufferError:  # the queue is full while no broker leads
                producer.poll(0.1)
                continue
            self.sent += 1
            producer.poll(0)
            if number % 10 == 0:
                time.sleep(0.01)  # more records would only cost processor time
        if not self._abandoned:
            self.left = producer.flush(WAIT_S)

    def halt(self):
        self._halt.set()
        self.join(2 * WAIT_S)
        assert not self.is_alive()

    def abandon(self):
        """Ends it without waiting for what is under way."""
        self._abandoned = True
        self.halt()


@pytest.fixture(scope="module")
def started():
    with local_cluster(brokers=3, controllers=3, links=False) as running:
        yield running


@pytest.fixture
def cluster(started):
    """The cluster of all tests, with every node running again."""
    for node in started.nodes:
        if started.state(node.node_id) is ProcessState.PAUSED:
            started.resume(node.node_id)
    started.start_all()
    return started


@pytest.fixture
def load(cluster):
    """Records under way until the test halts it; a test that fails leaves no thread behind for the tests after it."""
    topic = f"load-{next(_numbers)}"
    create_topic(cluster.bootstrap, topic, PARTITIONS, 3)
    running = Load(cluster.bootstrap, topic)
    running.start()
    yield running
    running.abandon()


def check_all_read_once(cluster, load):
    """Fails if a record is lost, repeated or reordered, or is not where its acknowledgement says.

    librdkafka reports no offset for a batch whose fate it concludes from a later one: the leader died after the append,
    the next leader refused the batch a moment before it took over, and accepted the following batch a moment after.
    That the log holds the batch is then what is to be checked, and the other comparisons check it.
    """
    assert load.failed == []
    assert load.left == 0
    found = ConfluentClient(cluster.bootstrap).consume(load.topic, PARTITIONS, load.sent)
    assert Counter(int(value) for _, _, _, value, _ in found) == Counter(range(load.sent))
    places = {(partition, offset): int(value) for partition, offset, _, value, _ in found}
    placed = [item for item in load.acknowledged if item[1] is not None]
    assert [item for item in placed if places.get(item[:2]) != item[2]] == []
    assert len(load.acknowledged) == load.sent
    assert len(placed) > load.sent // 2, "most acknowledgements say where the record is"
    for partition in range(PARTITIONS):
        numbers = [int(value) for where, _, _, value, _ in found if where == partition]
        assert numbers == sorted(numbers)


def leader_of(cluster, load):
    """Returns the leader of partition 0, once a broker has answered."""
    return wait_for(lambda: cluster.partition_leader(load.topic, 0), "partition 0 has a leader")


def leader_besides(cluster, load, dead):
    """Leader of partition 0 as a living broker sees it, once it is another one than ``dead``."""
    alive = next(node.node_id for node in cluster.brokers if node.node_id != dead)
    leader = cluster.partition_leader(load.topic, 0, ask=alive)
    return leader if leader not in (None, dead) else None


def test_a_killed_leader_costs_no_acknowledged_record(cluster, load):
    wait_until(lambda: len(load.acknowledged) > 500, "records are acknowledged")
    victim = leader_of(cluster, load)
    cluster.kill(victim)
    wait_until(lambda: leader_besides(cluster, load, victim) is not None, "another broker leads")
    before = len(load.acknowledged)
    wait_until(lambda: len(load.acknowledged) > before + 300, "records are acknowledged without the killed broker")
    cluster.start_node(victim)
    before = len(load.acknowledged)
    wait_until(lambda: len(load.acknowledged) > before + 300, "records are acknowledged with the broker back")
    load.halt()
    check_all_read_once(cluster, load)


def test_each_broker_killed_in_turn_and_a_controller_too(cluster, load):
    wait_until(lambda: len(load.acknowledged) > 500, "records are acknowledged")
    quorum = wait_for(cluster.quorum, "the quorum has a leader")
    for victim in (*[node.node_id for node in cluster.brokers], quorum.leader_id):
        cluster.kill(victim)
        before = len(load.acknowledged)
        wait_until(lambda before=before: len(load.acknowledged) > before + 300, f"writes go on without node {victim}")
        cluster.start_node(victim)
    load.halt()
    check_all_read_once(cluster, load)


@pytest.mark.proof
def test_a_paused_leader_is_replaced_and_wakes_harmless(cluster, load):
    """A paused leader is replaced and loses no record when it resumes."""
    wait_until(lambda: len(load.acknowledged) > 500, "records are acknowledged")
    victim = leader_of(cluster, load)
    cluster.pause(victim)
    assert cluster.state(victim) is ProcessState.PAUSED
    wait_until(lambda: leader_besides(cluster, load, victim) is not None, "another broker leads")
    cluster.resume(victim)
    before = len(load.acknowledged)
    wait_until(lambda: len(load.acknowledged) > before + 500, "writes go on")
    load.halt()
    check_all_read_once(cluster, load)


def test_a_stopped_broker_hands_over_and_ends_by_itself(cluster, load):
    wait_until(lambda: len(load.acknowledged) > 500, "records are acknowledged")
    victim = leader_of(cluster, load)
    assert cluster.stop_node(victim), "the broker had to be killed"
    wait_until(lambda: leader_besides(cluster, load, victim) is not None, "another broker leads")
    cluster.start_node(victim)
    load.halt()
    check_all_read_once(cluster, load)
    assert cluster.stop_all() == []


@pytest.mark.proof
def test_writes_go_on_without_a_majority_of_controllers(cluster, load):
    """Without a majority of controllers writes go on, and metadata changes wait."""
    wait_until(lambda: len(load.acknowledged) > 500, "records are acknowledged")
    for controller in (101, 102):
        cluster.kill(controller)
    before = len(load.acknowledged)
    wait_until(lambda: len(load.acknowledged) > before + 1000, "writes go on without a quorum")
    with pytest.raises(Exception, match=r"TIMED_OUT|timed out|NOT_CONTROLLER|BROKER_NOT_AVAILABLE"):
        create_topic(cluster.bootstrap, "impossible", 1, 1, timeout_s=3)
    for controller in (101, 102):
        cluster.start_node(controller)
    wait_until(lambda: cluster.quorum() is not None, "the quorum has a leader again")
    create_topic(cluster.bootstrap, "possible", 1, 1)
    load.halt()
    check_all_read_once(cluster, load)
