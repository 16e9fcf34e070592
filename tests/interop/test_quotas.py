"""Goal: unmodified Kafka clients learn of their pauses and lose nothing; the command line sets quotas.

Method: real clients send and read a little more than an idle client may, so that each pause takes about a second.
"""

from __future__ import annotations

import json
import os

import pytest

from moldau_cli.main import main
from support.interop.clients import WAIT_S, create_topic

pytestmark = [
    pytest.mark.interop,
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves the socket pairs of its wake-ups to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
RATE = 100_000
VALUE = os.urandom(10_000)
COUNT = 120
"""1.2 MB; an idle client may send 1 MB at once."""


def moldau(bootstrap, *arguments):
    """Runs a command in this process, and returns its exit code."""
    return main(["quotas", *arguments, "--bootstrap-server", bootstrap])


@pytest.fixture(scope="module")
def limited(bootstrap):
    """A topic of one partition, and quotas of bytes for every client id that has none of its own."""
    create_topic(bootstrap, "interop-quotas", 1, 1)
    add = f"producer_byte_rate={RATE},consumer_byte_rate={RATE}"
    for client in ("q-confluent", "q-python"):
        assert moldau(bootstrap, "alter", "--client", client, "--add-config", add) == 0
    yield "interop-quotas"
    for client in ("q-confluent", "q-python"):
        assert moldau(bootstrap, "delete", "--client", client) == 0


@pytest.mark.proof
def test_confluent_kafka_receives_throttle_times(bootstrap, limited):
    from confluent_kafka import Consumer, Producer, TopicPartition

    pauses, errors = [], []
    config = {"bootstrap.servers": bootstrap, "client.id": "q-confluent"}
    producer = Producer({**config, "throttle_cb": lambda event: pauses.append(event.throttle_time)})
    for _ in range(COUNT):
        producer.produce(limited, VALUE, partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert errors == [None] * COUNT
    producer.poll(0)
    assert max(pauses) > 0
    pauses.clear()
    consumer = Consumer({**config, "group.id": "q", "throttle_cb": lambda event: pauses.append(event.throttle_time)})
    consumer.assign([TopicPartition(limited, 0, 0)])
    read = []
    while len(read) < COUNT:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        read.append(message.value())
    consumer.close()
    assert set(read) == {VALUE}
    assert max(pauses) > 0


@pytest.mark.proof
def test_kafka_python_receives_throttle_times(bootstrap, limited):
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="q-python")
    sent = [producer.send(limited, VALUE, partition=0) for _ in range(COUNT)]
    producer.flush(timeout=WAIT_S)
    assert all(each.get(timeout=WAIT_S).offset >= 0 for each in sent)
    pauses = [
        value
        for group in producer.metrics().values()
        for name, value in group.items()
        if name.endswith("throttle-time-max")
    ]
    producer.close()
    assert max(pauses) > 0


def test_command_line(bootstrap, limited, capsys):
    parts = ("--user", "x", "--client-defaults")
    assert moldau(bootstrap, "alter", *parts, "--add-config", "request_percentage=150") == 0
    capsys.readouterr()
    assert moldau(bootstrap, "describe", "--client", "q-python", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["quotas"]
    assert [(row["client-id"], row["quota"], row["value"]) for row in rows] == [
        ("q-python", "consumer_byte_rate", RATE),
        ("q-python", "producer_byte_rate", RATE),
    ]
    assert moldau(bootstrap, "describe", "--user", "x") == 0
    assert "<default>" in capsys.readouterr().out
    assert moldau(bootstrap, "delete", *parts) == 0
    capsys.readouterr()
    for wrong, text in (
        (["alter", "--user", "x", "--add-config", "producer_rate=1"], "producer_byte_rate"),
        (["alter", "--user", "x", "--add-config", "producer_byte_rate=-1"], "above 0"),
        (["alter", "--add-config", "producer_byte_rate=1"], "--user"),
        (["alter", "--ip", "10.0.0.1", "--user", "x", "--add-config", "connection_creation_rate=1"], "--user"),
        (["delete", *parts], "no quota"),
    ):
        assert moldau(bootstrap, *wrong) == 2
        error_text = capsys.readouterr().err
        assert error_text.count("\n") == 1
        assert text in error_text
