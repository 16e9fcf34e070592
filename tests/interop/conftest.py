"""One cluster of three brokers and three controllers for all clients; groups form at once instead of after 3
seconds.
"""

import itertools

import pytest

from moldau_jepsen.testing import cluster

PARTITIONS = 3
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def bootstrap():
    with cluster(brokers=3, settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running.bootstrap


@pytest.fixture
def topic(bootstrap):
    """A fresh topic of three partitions and three replicas, made by the librdkafka admin client."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"interop-{next(_numbers)}"
    made = AdminClient({"bootstrap.servers": bootstrap}).create_topics([NewTopic(name, PARTITIONS, 3)])
    made[name].result(timeout=20)
    return name
