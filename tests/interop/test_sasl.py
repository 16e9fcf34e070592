"""Goal: unmodified Kafka clients authenticate with every mechanism, and are refused with a wrong secret.

Method: one real node whose links all use SASL; confluent-kafka, kafka-python, aiokafka and Moldau's own clients, on a
listener without and one with TLS. SCRAM users are made over the wire by an admin client that logs in with the first
credential.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import time

import pytest

from support import tokens
from support.commands import run_command
from support.interop.clients import WAIT_S, wait_until
from support.interop.secured_node import MECHANISMS, SESSION_S, USERS, SecuredNode

pytestmark = [
    pytest.mark.interop,
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves the socket pairs of its wake-ups to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
VALUES = [b"value-%d" % number for number in range(50)]


@pytest.fixture(autouse=True)
def _garbage_is_collected_where_it_is_made():
    """Clients that could not connect leave sockets behind: the marks above excuse them here, and nowhere else."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    running = SecuredNode(tmp_path_factory.mktemp("node"))
    try:
        wait_until(running.is_ready, "the node starts")
        from confluent_kafka.admin import (
            AdminClient,
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialUpsertion,
        )

        admin = AdminClient(
            {
                "bootstrap.servers": running.plain,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "node",
                "sasl.password": "node-s3cret",
            }
        )
        user, password = USERS["SCRAM-SHA-256"]
        # librdkafka takes one change of a user in a request.
        for mechanism, iterations in ((ScramMechanism.SCRAM_SHA_256, 4096), (ScramMechanism.SCRAM_SHA_512, 8192)):
            info = ScramCredentialInfo(mechanism, iterations)
            change = UserScramCredentialUpsertion(user, info, password.encode())
            for changed in admin.alter_user_scram_credentials([change]).values():
                changed.result(WAIT_S)
        described = admin.describe_user_scram_credentials([user])[user].result(WAIT_S)
        assert sorted(each.iterations for each in described.scram_credential_infos) == [4096, 8192]
        yield running
    finally:
        running.process.kill()
        running.process.wait()


class Login:
    """A login of one mechanism; ``wrong`` spoils the secret."""

    def __init__(self, node, mechanism, *, tls=False, wrong=False):
        self.mechanism, self.tls, self.trust = mechanism, tls, node.trust
        self.bootstrap = node.secured if tls else node.plain
        self.user, password = USERS[mechanism]
        self.password = "wr0ng" if wrong else password
        self.wrong = wrong

    @property
    def protocol(self):
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    def token(self):
        return tokens.token(time.time(), life_s=-600 if self.wrong else 600)


def confluent_config(login, **more):
    config = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": login.protocol,
        "sasl.mechanism": login.mechanism,
        **more,
    }
    if login.tls:
        config["ssl.ca.location"] = str(login.trust)
    if login.mechanism == "OAUTHBEARER":
        config["oauth_cb"] = lambda _: (login.token(), time.time() + 600)
    else:
        config |= {"sasl.username": login.user, "sasl.password": login.password}
    return config


class Confluent:
    """librdkafka."""

    def exchange(self, login, topic):
        from confluent_kafka import Consumer, Producer, TopicPartition

        failures = []
        producer = Producer(confluent_config(login))
        for value in VALUES:
            producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(WAIT_S) == 0
        assert failures == []
        consumer = Consumer(confluent_config(login, **{"group.id": "g", "auto.offset.reset": "earliest"}))
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value())
        consumer.close()
        return found

    def refusal(self, login):
        from confluent_kafka.admin import AdminClient

        reported = []
        admin = AdminClient(confluent_config(login, error_cb=reported.append))
        deadline = time.monotonic() + WAIT_S
        while not any("uthentication" in error.str() for error in reported) and time.monotonic() < deadline:
            admin.poll(0.2)
        return " ".join(error.str() for error in reported)


class KafkaPython:
    """kafka-python."""

    def config(self, login):
        config = {
            "bootstrap_servers": [login.bootstrap],
            "security_protocol": login.protocol,
            "sasl_mechanism": login.mechanism,
        }
        if login.tls:
            config["ssl_cafile"] = str(login.trust)
        if login.mechanism == "OAUTHBEARER":
            from kafka.net.sasl.oauth import AbstractTokenProvider

            class Provider(AbstractTokenProvider):
                def token(self):
                    return login.token()

            config["sasl_oauth_token_provider"] = Provider()
        else:
            config |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
        return config

    def exchange(self, login, topic):
        from kafka import KafkaConsumer, KafkaProducer, TopicPartition

        producer = KafkaProducer(**self.config(login), acks="all")
        try:
            for sent in [producer.send(topic, value) for value in VALUES]:
                sent.get(timeout=WAIT_S)
        finally:
            producer.close()
        consumer = KafkaConsumer(**self.config(login), group_id=None, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic, 0)])
        found = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=200).values():
                found += [message.value for message in messages]
        consumer.close()
        return found

    def refusal(self, login):
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        with pytest.raises((KafkaError, ValueError)) as raised:
            KafkaAdminClient(**self.config(login), bootstrap_timeout_ms=3_000).list_topics()
        return repr(raised.value)


class Aiokafka:
    """aiokafka."""

    def config(self, login):
        config = {
            "bootstrap_servers": login.bootstrap,
            "security_protocol": login.protocol,
            "sasl_mechanism": login.mechanism,
        }
        if login.tls:
            config["ssl_context"] = ssl.create_default_context(cafile=str(login.trust))
        if login.mechanism == "OAUTHBEARER":
            from aiokafka.abc import AbstractTokenProvider

            class Provider(AbstractTokenProvider):
                async def token(self):
                    return login.token()

            config["sasl_oauth_token_provider"] = Provider()
        else:
            config |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
        return config

    def exchange(self, login, topic):
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        async def run():
            async with AIOKafkaProducer(**self.config(login)) as producer:
                for sent in [await producer.send(topic, value) for value in VALUES]:
                    await asyncio.wait_for(sent, WAIT_S)
            async with AIOKafkaConsumer(**self.config(login), auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                found = []
                deadline = time.monotonic() + WAIT_S
                while len(found) < len(VALUES) and time.monotonic() < deadline:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        found += [message.value for message in messages]
                return found

        return asyncio.run(run())

    def refusal(self, login):
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        async def run():
            producer = AIOKafkaProducer(**self.config(login))
            try:
                with pytest.raises(KafkaError) as raised:
                    await producer.start()
                return repr(raised.value)
            finally:
                await producer.stop()

        return asyncio.run(run())


class Own:
    """Moldau's own clients."""

    def config(self, login):
        config = {
            "bootstrap.servers": login.bootstrap,
            "security.protocol": login.protocol,
            "sasl.mechanism": login.mechanism,
        }
        if login.tls:
            config["ssl.truststore.location"] = str(login.trust)
        if login.mechanism == "OAUTHBEARER":
            config["sasl.oauthbearer.token"] = login.token
        else:
            config |= {"sasl.username": login.user, "sasl.password": login.password}
        return config

    def exchange(self, login, topic):
        from moldau.blocking import Consumer, Producer

        with Producer(self.config(login)) as producer:
            for sent in [producer.send(topic, value) for value in VALUES]:
                sent.result(1000 * WAIT_S)
        with Consumer({**self.config(login), "auto.offset.reset": "earliest", "enable.auto.commit": False}) as consumer:
            consumer.assign([(topic, 0)])
            found = []
            deadline = time.monotonic() + WAIT_S
            while len(found) < len(VALUES) and time.monotonic() < deadline:
                for consumed in consumer.poll(200):
                    found += [bytes(record.value) for record in consumed.records]
        return found

    def refusal(self, login):
        from moldau.blocking import Admin, Producer
        from moldau.protocol.errors import KafkaError

        begun = time.monotonic()
        with Admin(self.config(login)) as admin, pytest.raises(KafkaError) as raised:
            admin.describe_cluster()
        with Producer(self.config(login)) as producer, pytest.raises(KafkaError) as failed:
            producer.send("never", b"x").result(1000 * WAIT_S)
        assert "SASL_AUTHENTICATION_FAILED" in repr(failed.value)
        assert time.monotonic() - begun < 10, "no repetitions until a time-out"
        return repr(raised.value)


CLIENTS = {"confluent-kafka": Confluent(), "kafka-python": KafkaPython(), "aiokafka": Aiokafka(), "moldau": Own()}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", CLIENTS)
def test_right_secrets(name, mechanism, node):
    topic = f"{name}-{mechanism}"
    tls = list(CLIENTS).index(name) % 2 == MECHANISMS.index(mechanism) % 2  # each pairs with both kinds of listeners
    assert CLIENTS[name].exchange(Login(node, mechanism, tls=tls), topic) == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", CLIENTS)
def test_wrong_secrets(name, mechanism, node):
    refusal = CLIENTS[name].refusal(Login(node, mechanism, wrong=True))
    if name not in ("kafka-python", "aiokafka"):  # these log the reason, and raise that they found no broker
        assert "authentication" in refusal.lower()
    assert "wr0ng" not in refusal
    assert "wr0ng" not in node.log()
    assert "s3cret" not in node.log()
    line = [line for line in node.log().splitlines() if "authentication-failed" in line][-1]
    assert f"mechanism={mechanism}" in line
    assert "peer=127.0.0.1" in line


def write_until_renewed(node, write):
    """Writes until a session is renewed, and beyond the time at which it had ended otherwise."""
    before, begun = node.log().count(" re-authenticated "), time.monotonic()
    is_renewed = False
    while not is_renewed or time.monotonic() < begun + SESSION_S + 0.5:
        write()
        time.sleep(0.1)
        is_renewed = is_renewed or node.log().count(" re-authenticated ") > before
        assert time.monotonic() < begun + WAIT_S, "no session was renewed"


def test_confluent_authenticates_again(node):
    """A producer writes for longer than a session lives; the broker counts sessions that were renewed."""
    from confluent_kafka import Producer

    login = Login(node, "SCRAM-SHA-256", tls=True)
    producer = Producer(confluent_config(login))
    failures = []

    def write():
        producer.produce("again", b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.flush(WAIT_S)

    write_until_renewed(node, write)
    assert failures == []


def test_moldau_authenticates_again(node):
    from moldau.blocking import Producer

    with Producer(Own().config(Login(node, "SCRAM-SHA-512", tls=True))) as producer:
        write_until_renewed(node, lambda: producer.send("again", b"y").result(1000 * WAIT_S))
    assert "the authenticated session has expired" not in node.log().split("y")[-1]


def test_the_configuration_shows_no_secret(node):
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient(confluent_config(Login(node, "PLAIN")))
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    found = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert "s3cret" not in json.dumps({name: str(entry.value) for name, entry in found.items()})
    assert found["sasl.jaas.config"].is_sensitive


def test_the_command_line(node, tmp_path):
    """``moldau users`` with a login from a file; a wrong password is one line."""
    config = tmp_path / "client.properties"
    config.write_text(
        f"bootstrap.servers={node.plain}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=bob\nsasl.password=${env:BOB_PASSWORD}\n"
    )

    def run(*arguments, given="", password="bob-s3cret"):
        words = (*arguments, "--command-config", str(config))
        return run_command(*words, given=given, environment={"BOB_PASSWORD": password})

    added = run("users", "add", "dave", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192", given="dave-s3cret\n")
    assert added.returncode == 0, added.stderr
    listed = run("users", "list", "--json")
    assert {"user": "dave", "mechanism": "SCRAM-SHA-512", "iterations": 8192} in json.loads(listed.stdout)["users"]
    assert run("users", "remove", "dave", "--mechanism", "SCRAM-SHA-512").returncode == 0
    assert "dave" not in run("users", "list").stdout
    wrong = run("topics", "list", password="wr0ng")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert "Invalid username or password" in wrong.stderr
    with contextlib.suppress(ValueError):
        assert "wr0ng" not in wrong.stderr
