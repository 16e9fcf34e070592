"""Goal: a broker of Moldau answers as one of Apache Kafka does, or differs for a reason that is written down.

Method: the same requests to both, area by area (``support.answers``). A difference that is not listed fails, and so
does a listed one that is gone.
"""

from __future__ import annotations

import itertools
from importlib import import_module

import pytest

from moldau_jepsen.testing import cluster
from support.answers.differences import DIFFERENCES
from support.answers.session import answers_of, differences
from support.interop.kafka_node import NEWEST, kafka

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
SETTINGS = {
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "secret",
}
FEW_PARTITIONS = dict.fromkeys(
    (
        "offsets.topic.num.partitions",
        "transaction.state.log.num.partitions",
        "share.coordinator.state.topic.num.partitions",
    ),
    "1",
)
_runs = itertools.count(1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    more = "".join(f"{key}={value}\n" for key, value in SETTINGS.items())
    with (
        kafka(tmp_path_factory.mktemp("kafka"), NEWEST, more) as theirs,
        cluster(brokers=1, controllers=1, links=False, settings=SETTINGS | FEW_PARTITIONS) as ours,
    ):
        yield theirs, ours.bootstrap


@pytest.mark.parametrize("area", DIFFERENCES)
def test_answers_are_those_of_kafka(area, brokers):
    scenario = getattr(import_module(f"support.answers.{area}"), area)
    run = f"r{next(_runs)}"
    theirs, ours = (answers_of(broker, scenario, run) for broker in brokers)
    found = differences(theirs, ours)
    assert len(theirs) > 50
    new = {step: lines for step, lines in found.items() if step not in DIFFERENCES[area]}
    assert not new, "\n".join(f"{step}: {lines}" for step, lines in new.items())
    assert not DIFFERENCES[area].keys() - found.keys(), "these answers are the same by now"
