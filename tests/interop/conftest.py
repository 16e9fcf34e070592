"""One cluster of three brokers and a controller for all clients.

Groups form at once instead of after 3 seconds, and members of consumer and share groups learn of changes twice a second
instead of every 5 seconds: the coordinator tells its members when to send heartbeats.
"""

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
    **{f"group.{kind}.{key}heartbeat.interval.ms": "500" for kind in ("consumer", "share") for key in ("min.", "")},
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
