"""Goal: a client whose coordinator cannot exist says why, instead of waiting in silence.

Method: one broker on virtual time, with the replication factors for internal topics that three brokers need.
"""

import logging

import pytest
import trio

from moldau import Consumer, KafkaError, Producer
from support.cluster.broker_cluster import run_cluster

REASON = "could not be created: are fewer brokers alive than its replication factor?"


def warnings_of(caplog):
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in found if text.startswith("coordinator-not-found")]


def run_alone(scenario):
    """Runs ``scenario(config, environment)`` against a broker that lacks two others."""

    async def main(cluster):
        return await scenario({"bootstrap.servers": "b1:9092"}, cluster.client_environment)

    factors = {"offsets_topic_replication_factor": "3", "transaction_state_log_replication_factor": "3"}
    return run_cluster(main, **factors)[0]


def test_initialization_without_a_coordinator_says_why(caplog):
    async def scenario(config, environment):
        config |= {"transactional.id": "one", "max.block.ms": "5000"}
        async with Producer(config, environment=environment) as producer:
            with pytest.raises(KafkaError) as caught:
                await producer.init_transactions()
        return str(caught.value)

    text = run_alone(scenario)
    assert text.startswith("REQUEST_TIMED_OUT: could not initialize transactions within 5000 ms; the last failure: ")
    assert f"__transaction_state {REASON}" in text
    (warning,) = warnings_of(caplog)
    assert "of=one" in warning


def test_a_member_without_a_coordinator_warns_each_minute(caplog):
    async def scenario(config, environment):
        async with Consumer({**config, "group.id": "readers"}, environment=environment) as consumer:
            consumer.subscribe(["t"])
            with trio.move_on_after(1.5):
                await consumer.poll()
            early = warnings_of(caplog)
            with trio.move_on_after(100):
                while True:
                    await consumer.poll()
            return early

    assert not run_alone(scenario), "another broker would take over sooner"
    warnings = warnings_of(caplog)
    assert len(warnings) == 2
    assert all("of=readers" in text and f"__consumer_offsets {REASON}" in text for text in warnings)
