"""Goal: calls about a group, a transactional id or a partition go to the broker that took over from a dead one.

Method: real brokers on virtual time; the broker that a call is about is killed just before the call, so that the others
still name it.
"""

import pytest
import trio

from moldau import Admin, KafkaError, Producer
from moldau.admin import AdminError, ConfigAlteration, ConfigResource, ResourceType
from moldau.protocol.errors import ErrorCode
from support.cluster.broker_cluster import run_cluster

GONE = ErrorCode.BROKER_NOT_AVAILABLE
LIMIT_S = 15
"""A broker's session ends after some seconds; calls give up after 60."""


async def prepared(cluster, admin):
    """Makes a topic, a group that has read it, and a producer with an open transaction in it."""
    await cluster.client(1).create_topic("t", replicas=3)
    await cluster.leader("t")
    await admin.alter_group_offsets("g", {("t", 0): 0})
    given = {"bootstrap.servers": servers(cluster), "transactional.id": "x"}
    async with Producer(given, environment=cluster.client_environment) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await (await producer.send("t", b"1"))
        producer.abandon()


def servers(cluster):
    return ",".join(f"b{broker}:9092" for broker in cluster.broker_ids)


async def group(admin):
    return (await admin.describe_groups(["g"]))["g"].coordinator


async def transaction(admin):
    return (await admin.describe_transactions(["x"]))["x"].coordinator


async def leader(admin):
    return (await admin.describe_topics(["t"]))["t"].partitions[0].leader


CALLS = [
    (group, lambda admin: admin.describe_groups(["g"])),
    (group, lambda admin: admin.delete_group_offsets("g", [("t", 0)])),
    (group, lambda admin: admin.delete_groups(["g"])),
    (transaction, lambda admin: admin.describe_transactions(["x"])),
    (transaction, lambda admin: admin.terminate_transaction("x")),
    (group, lambda admin: admin.list_groups()),
    (transaction, lambda admin: admin.list_transactions()),
    (leader, lambda admin: admin.describe_producers(("t", 0))),
    (leader, lambda admin: admin.delete_records({("t", 0): -1})),
]
NAMES = ["describe-group", "delete-offsets", "delete-group", "transaction", "terminate", "groups", "transactions"]
NAMES += ["producers", "delete-records"]


def test_a_broker_that_is_gone_is_not_waited_for():
    async def scenario(cluster):
        async with Admin({"bootstrap.servers": servers(cluster)}, environment=cluster.client_environment) as admin:
            await admin.describe_log_dirs(cluster.broker_ids)
            cluster.kill(3)
            began = trio.current_time()
            with pytest.raises(KafkaError, match="BROKER_NOT_AVAILABLE: there is no live broker 3"):
                await admin.describe_log_dirs([3])
            assert trio.current_time() - began < LIMIT_S

    run_cluster(scenario, brokers=3)


def test_a_dead_broker_keeps_no_other_from_answering():
    """Broker 1 is the first one to be asked; it is dead, but the others do not know it yet."""

    async def scenario(cluster):
        async with Admin({"bootstrap.servers": servers(cluster)}, environment=cluster.client_environment) as admin:
            await prepared(cluster, admin)
            directories = {broker: each[0].path for broker, each in (await admin.describe_log_dirs([1, 2, 3])).items()}
            loggers = [ConfigResource(ResourceType.BROKER_LOGGER, str(broker)) for broker in (1, 2, 3)]
            cluster.kill(1)
            began = trio.current_time()
            with pytest.raises(AdminError) as caught:
                await admin.alter_configs({each: [ConfigAlteration(name="root", value="DEBUG")] for each in loggers})
            assert {name: each.code for name, each in caught.value.failures.items()} == {"1": GONE}
            with pytest.raises(AdminError) as caught:
                await admin.describe_configs(loggers)
            assert list(caught.value.failures) == ["1"]
            levels = {each.name: entries["root"].value for each, entries in caught.value.results.items()}
            assert levels == {"2": "DEBUG", "3": "DEBUG"}
            with pytest.raises(AdminError) as caught:
                await admin.alter_replica_log_dirs({("t", 0, each): path for each, path in directories.items()})
            assert {name: each.code for name, each in caught.value.failures.items()} == {"t-0 on broker 1": GONE}
            with pytest.raises(AdminError, match="broker 1: BROKER_NOT_AVAILABLE") as caught:
                await admin.describe_log_dirs([1, 2, 3])
            assert sorted(caught.value.results) == [2, 3]
            assert trio.current_time() - began < LIMIT_S

    run_cluster(scenario, brokers=3)


@pytest.mark.parametrize(("place", "call"), CALLS, ids=NAMES)
def test_a_call_finds_the_successor_of_a_dead_broker(place, call):
    async def scenario(cluster):
        async with Admin({"bootstrap.servers": servers(cluster)}, environment=cluster.client_environment) as admin:
            await prepared(cluster, admin)
            cluster.kill(await place(admin))
            began = trio.current_time()
            found = await call(admin)
            assert found != [], "nothing of a list is missing"
            assert trio.current_time() - began < LIMIT_S

    run_cluster(scenario, brokers=3)
