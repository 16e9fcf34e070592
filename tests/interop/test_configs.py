"""Goal: administrators' tools configure groups, metrics subscriptions, loggers and brokers as they do with Kafka.

Method: the admin clients of kafka-python, confluent-kafka and aiokafka, unmodified, against a cluster of processes.
"""

import asyncio

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from support.interop.clients import WAIT_S, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves the socket pairs of its wake-ups to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SESSION = "consumer.session.timeout.ms"
KERBEROS = "sasl.kerberos.min.time.before.relogin"


@pytest.fixture
def python_admin(bootstrap):
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield admin
    admin.close()


@pytest.fixture
def confluent_admin(bootstrap):
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.mark.parametrize(
    ("kind", "name", "key", "value"),
    [
        ("GROUP", "configured", SESSION, "50000"),
        ("CLIENT_METRICS", "subscription", "interval.ms", "60000"),
        ("BROKER_LOGGER", "1", "moldau.broker", "DEBUG"),
    ],
)
def test_kafka_python_sets_and_describes(python_admin, kind, name, key, value):
    from kafka.admin import ConfigResource as KafkaResource
    from kafka.admin import ConfigResourceType

    kind = ConfigResourceType[kind]
    python_admin.alter_configs([KafkaResource(kind, name, {key: value})], raise_on_unknown=False)

    def shown():
        found = python_admin.describe_configs([KafkaResource(kind, name)], config_filter="all")
        return str(found)

    wait_until(lambda: value in shown(), "the value is shown")
    assert key in shown()
    listed = str(python_admin.list_config_resources([kind]))
    assert name in listed
    python_admin.alter_configs([KafkaResource(kind, name, {key: ("DELETE", None)})], raise_on_unknown=False)
    wait_until(lambda: value not in shown(), "the value is gone")


def test_aiokafka_administers_topics(bootstrap):
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
    from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
    from aiokafka.admin.config_resource import ConfigResourceType

    async def run():
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic("aio-admin", 2, 3, topic_configs={"retention.ms": "70000"})])
            await admin.create_partitions({"aio-admin": NewPartitions(3)})
            (described,) = await admin.describe_topics(["aio-admin"])
            assert len(described["partitions"]) == 3
            assert "70000" in str(
                await admin.describe_configs([AiokafkaResource(ConfigResourceType.TOPIC, "aio-admin")])
            )
            await admin.delete_topics(["aio-admin"])
            assert "aio-admin" not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


def changed(admin, kind, name, key, value):
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def described(admin, kind, name):
    resource = ConfigResource(kind, name)
    return {key: entry.value for key, entry in admin.describe_configs([resource])[resource].result(WAIT_S).items()}


def test_confluent_sets_groups_and_keys_that_are_not_served(confluent_admin):
    changed(confluent_admin, ResourceType.GROUP, "other", SESSION, "55000")
    wait_until(
        lambda: described(confluent_admin, ResourceType.GROUP, "other")[SESSION] == "55000", "the value is shown"
    )
    changed(confluent_admin, ResourceType.BROKER, "1", KERBEROS, "58000")
    wait_until(
        lambda: described(confluent_admin, ResourceType.BROKER, "1").get(KERBEROS) == "58000", "the key is shown"
    )
