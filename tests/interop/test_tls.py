"""Goal: unmodified Kafka clients use a cluster over TLS, with and without certificates of their own, and refuse one
that they do not trust. Method: two real nodes whose links all speak TLS; confluent-kafka, kafka-python, aiokafka and
Moldau's own clients.
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import ssl
import subprocess
import time

import pytest

from moldau_jepsen.chaos.folder import HISTORY, VERDICT
from moldau_jepsen.history import HistoryFile, Kind, Status
from moldau_jepsen.launcher.ports import take_free_ports
from support.certificates import authority
from support.commands import run_command
from support.interop.clients import WAIT_S, wait_until
from support.started import Command, run_started

pytestmark = [
    pytest.mark.interop,
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves the socket pairs of its wake-ups to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KIT_TIMEOUT_S = 600.0
"""Far more than such a run takes on a busy machine."""
VALUES = [b"value-%d" % number for number in range(200)]


@pytest.fixture(autouse=True)
def _garbage_is_collected_where_it_is_made():
    """Clients that could not connect leave sockets behind: the marks above excuse them here, and nowhere else."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """PEM files: what to trust, a client's certificate with its key, and those of a stranger."""
    directory = tmp_path_factory.mktemp("certificates")
    (directory / "trust.pem").write_text(authority().trust)
    (directory / "foreign-trust.pem").write_text(authority(1).trust)
    for name, issuer in (("client", authority()), ("stranger", authority(1)), ("node", authority())):
        chain, key = issuer.issue("127.0.0.1" if name == "node" else f"{name}.example")
        (directory / f"{name}.pem").write_text(key + chain)
        (directory / f"{name}-chain.pem").write_text(chain)
        (directory / f"{name}-key.pem").write_text(key)
    return directory


@pytest.fixture(scope="module")
def cluster(files, tmp_path_factory):
    """Two nodes, the first one also the controller; yields the addresses of the open and of the mutual listeners."""
    directory = tmp_path_factory.mktemp("nodes")
    controller, *ports = take_free_ports(7)
    nodes, open_addresses, mutual_addresses = [], [], []
    for node_id in (1, 2):
        open_port, mutual_port, inside_port = ports[3 * (node_id - 1) : 3 * node_id]
        open_addresses.append(f"127.0.0.1:{open_port}")
        mutual_addresses.append(f"127.0.0.1:{mutual_port}")
        listeners = [f"OPEN://127.0.0.1:{open_port}", f"MUTUAL://127.0.0.1:{mutual_port}"]
        listeners.append(f"INSIDE://127.0.0.1:{inside_port}")
        if node_id == 1:
            listeners.append(f"CONTROLLER://127.0.0.1:{controller}")
        settings = {
            "node.id": node_id,
            "process.roles": "broker,controller" if node_id == 1 else "broker",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "OPEN:SSL,MUTUAL:SSL,INSIDE:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "INSIDE",
            "log.dirs": directory / str(node_id),
            "ssl.keystore.location": files / "node.pem",
            "ssl.truststore.location": files / "trust.pem",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.inside.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "default.replication.factor": 2,
            "num.partitions": 1,
            "offsets.topic.replication.factor": 2,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 2,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        path = directory / f"{node_id}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with (directory / f"{node_id}.log").open("w") as log:
            nodes.append(Command("server", str(path), "--with-parent", stderr=log))
    try:

        def ready():
            logs = [(directory / f"{node_id}.log").read_text() for node_id in (1, 2)]
            for node, log in zip(nodes, logs, strict=True):
                assert node.poll() is None, log
            return all(" ready " in log for log in logs)

        wait_until(ready, "the nodes start")
        yield ",".join(open_addresses), ",".join(mutual_addresses)
    finally:
        for node in nodes:
            node.kill()
            node.wait()


class Confluent:
    """librdkafka."""

    def __init__(self, bootstrap, trust, certificate=None):
        self.config = {
            "bootstrap.servers": bootstrap,
            "security.protocol": "ssl",
            "ssl.ca.location": str(trust),
        }
        if certificate is not None:
            self.config["ssl.certificate.location"] = str(certificate).replace(".pem", "-chain.pem")
            self.config["ssl.key.location"] = str(certificate).replace(".pem", "-key.pem")

    def produce(self, topic):
        from confluent_kafka import Producer

        failures = []
        producer = Producer({**self.config, "enable.idempotence": True})
        for value in VALUES:
            producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(WAIT_S) == 0
        assert failures == []

    def consume(self, topic):
        from confluent_kafka import Consumer, KafkaError

        group = {"group.id": f"group-{topic}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**self.config, **group})
        consumer.subscribe([topic])
        found = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value())
            else:  # producing created the topic; librdkafka reports once that a node has no metadata of it yet
                assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, message.error()
        consumer.close()
        return found

    def refused(self, word=""):
        """Returns the errors reported while no broker is reachable, up to the first that contains ``word``."""
        from confluent_kafka.admin import AdminClient

        reported = []
        admin = AdminClient({**self.config, "error_cb": reported.append})
        deadline = time.monotonic() + WAIT_S
        while not any(word in error.str() for error in reported) and time.monotonic() < deadline:
            admin.poll(0.2)
        return " ".join(error.str() for error in reported)


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap, trust, certificate=None):
        self.config = {
            "bootstrap_servers": bootstrap.split(","),
            "security_protocol": "SSL",
            "ssl_cafile": str(trust),
            "ssl_certfile": None if certificate is None else str(certificate),
            "ssl_keyfile": None if certificate is None else str(certificate),
        }

    def produce(self, topic):
        from kafka import KafkaProducer

        producer = KafkaProducer(**self.config, acks="all")
        try:
            for sent in [producer.send(topic, value) for value in VALUES]:
                sent.get(timeout=WAIT_S)
        finally:
            producer.close()

    def consume(self, topic):
        from kafka import KafkaConsumer, TopicPartition

        # Assigned by hand: a member whose metadata came before the topic's would wait five minutes for the next.
        consumer = KafkaConsumer(**self.config, group_id=None, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic, 0)])
        found = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=200).values():
                found += [message.value for message in messages]
        consumer.close()
        return found


class Aiokafka:
    """aiokafka."""

    def __init__(self, bootstrap, trust, certificate=None):
        context = ssl.create_default_context(cafile=str(trust))
        if certificate is not None:
            context.load_cert_chain(str(certificate))
        self.config = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": context}

    def produce(self, topic):
        from aiokafka import AIOKafkaProducer

        async def run():
            producer = AIOKafkaProducer(**self.config, enable_idempotence=True)
            try:
                await producer.start()
                for sent in [await producer.send(topic, value) for value in VALUES]:
                    await asyncio.wait_for(sent, WAIT_S)
            finally:
                await producer.stop()

        asyncio.run(run())

    def consume(self, topic):
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def run():
            consumer = AIOKafkaConsumer(**self.config, auto_offset_reset="earliest")
            await consumer.start()
            consumer.assign([TopicPartition(topic, 0)])
            try:
                found = []
                deadline = time.monotonic() + WAIT_S
                while len(found) < len(VALUES) and time.monotonic() < deadline:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        found += [message.value for message in messages]
                return found
            finally:
                await consumer.stop()

        return asyncio.run(run())


CLIENTS = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_write_and_read_over_tls_and_each_others_records(name, cluster, files):
    plain, mutual = cluster
    trust = files / "trust.pem"
    CLIENTS[name](plain, trust).produce(f"open-{name}")
    CLIENTS[name](mutual, trust, files / "client.pem").produce(f"mutual-{name}")
    assert CLIENTS[name](mutual, trust, files / "client.pem").consume(f"open-{name}") == VALUES
    other = Aiokafka if name == "confluent-kafka" else Confluent
    assert other(plain, trust).consume(f"mutual-{name}") == VALUES


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian package kcat)")
def test_kcat_shows_its_certificate(cluster, files):
    _, mutual = cluster
    settings = {
        "security.protocol": "ssl",
        "ssl.ca.location": files / "trust.pem",
        "ssl.certificate.location": files / "client-chain.pem",
        "ssl.key.location": files / "client-key.pem",
    }
    words = [
        "kcat",
        "-b",
        mutual,
        "-t",
        "kcat",
        *(word for pair in settings.items() for word in ("-X", "=".join(map(str, pair)))),
    ]
    limits = {"capture_output": True, "text": True, "timeout": WAIT_S, "check": True}
    subprocess.run([*words, "-P"], input="one\n", **limits)
    assert subprocess.run([*words, "-C", "-e", "-q"], **limits).stdout == "one\n"


def test_librdkafka_refuses_and_is_refused_without_trust(cluster, files):
    """librdkafka refuses a cluster that it does not trust, and is refused without a certificate."""
    plain, mutual = cluster
    reason = "certificate verify failed"
    assert reason in Confluent(plain, files / "foreign-trust.pem").refused(reason)
    # TLS 1.3: the server learns that there is no certificate after the client has finished.
    assert Confluent(mutual, files / "trust.pem").refused() != ""
    assert Confluent(mutual, files / "trust.pem", files / "stranger.pem").refused() != ""


def test_python_clients_refuse_an_untrusted_cluster(cluster, files):
    """kafka-python and aiokafka refuse a cluster that they do not trust."""
    from aiokafka.errors import KafkaConnectionError
    from kafka.errors import KafkaError

    plain, _ = cluster
    with pytest.raises((KafkaConnectionError, ssl.SSLError)):
        Aiokafka(plain, files / "foreign-trust.pem").produce("never")
    client = KafkaPython(plain, files / "foreign-trust.pem")
    client.config["max_block_ms"] = client.config["bootstrap_timeout_ms"] = 3_000
    with pytest.raises((KafkaError, ssl.SSLError)):
        client.produce("never")


def test_moldaus_own_clients(cluster, files):
    from moldau.blocking import Consumer, Producer

    plain, mutual = cluster
    settings = {"security.protocol": "SSL", "ssl.truststore.location": str(files / "trust.pem")}
    own = {"ssl.keystore.location": str(files / "client.pem")}
    with Producer({**settings, **own, "bootstrap.servers": mutual}) as producer:
        for sent in [producer.send("own", value) for value in VALUES]:
            sent.result(1000 * WAIT_S)
    reading = {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    with Consumer({**settings, **reading, "bootstrap.servers": plain}) as consumer:
        consumer.assign([("own", 0)])
        found = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            for consumed in consumer.poll(200):
                found += [bytes(record.value) for record in consumed.records]
    assert found == VALUES


def test_the_command_line(cluster, files, tmp_path):
    """All commands take the client's keys from one file; what is wrong with it is one line."""
    _, mutual = cluster
    config = tmp_path / "client.properties"
    config.write_text(
        f"bootstrap.servers={mutual}\nsecurity.protocol=SSL\nssl.truststore.location={files / 'trust.pem'}\n"
        f"ssl.keystore.location={files / 'client.pem'}\n"
    )

    def run(*arguments, given="", config=config):
        return run_command(*arguments, "--command-config", str(config), given=given)

    for arguments, given, reported in (
        (("topics", "create", "by-command"), "", ""),
        (("produce", "by-command"), "one\ntwo\n", ""),
        (("consume", "by-command", "--exit"), "", "one\ntwo\n"),
        (("quorum", "status"), "", "leader"),
    ):
        done = run(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        assert reported in done.stdout
    wrong = tmp_path / "wrong.properties"
    wrong.write_text("security.protokol=SSL\n")
    done = run("topics", "list", config=wrong)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean security.protocol?" in done.stderr
    assert "cannot read" in run("topics", "list", config=tmp_path / "none").stderr


@pytest.mark.proof
def test_the_kit_judges_a_cluster_that_asks_for_certificates(cluster, files, tmp_path):
    """Every client of all workloads, the control's, and the questions to single nodes use the keys of the file."""
    _, mutual = cluster
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SSL\nssl.truststore.location={files / 'trust.pem'}\n"
        f"ssl.keystore.location={files / 'client.pem'}\n"
    )
    folder = tmp_path / "run"
    words = ["chaos", "run", "--json", "--bootstrap", mutual, "--brokers", "2", "--workload", "all", "--duration", "4"]
    words += ["--seed", "2", "--dir", str(folder), "--command-config", str(config)]
    done = run_started(*words, timeout=KIT_TIMEOUT_S)
    verdict = json.loads((folder / VERDICT).read_text())
    assert (done.returncode, verdict["valid"], verdict["deaths"]) == (0, True, []), done.stderr
    (control,) = verdict["controls"]
    assert (control["name"], control["convicted"]) == ("read-uncommitted", True)
    history = list(HistoryFile(folder / HISTORY))
    written = {send.partition.topic for one in history if one.status is Status.OK for send in one.sends}
    assert {name.partition("-queue")[2] for name in written if "-queue" in name} == {""}
    assert {name.rsplit("-", 2)[-2:][0] for name in written} >= {"pipe", "bank"}
    claimed = {lead.leader for one in history if one.kind is Kind.CLAIM for lead in one.leads}
    assert claimed == {1, 2}, "both nodes were asked, over TLS"
