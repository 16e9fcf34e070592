"""One cluster of three brokers and a controller for all clients; groups form at once instead of after 3 seconds."""

import itertools
from contextlib import contextmanager

import pytest

from moldau_jepsen.testing import cluster
from support.interop.clients import create_topic
from support.shared import SHARED

PARTITIONS = 3
_numbers = itertools.count(1)


SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    # No broker dies here, however long it gets no processor time.
    "broker.session.timeout.ms": "120000",
    "broker.session.grace.ms": "120000",
}


@contextmanager
def started():
    with cluster(brokers=3, controllers=1, settings=SETTINGS, links=False) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def bootstrap():
    return SHARED.get("clients' cluster", started)


@pytest.fixture
def topic(bootstrap):
    """A fresh topic of three partitions and three replicas, made by the librdkafka admin client."""
    name = f"interop-{next(_numbers)}"
    create_topic(bootstrap, name, PARTITIONS, 3)
    return name
