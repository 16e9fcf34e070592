"""Goal: a broker of Moldau answers as one of Apache Kafka does, or differs for a reason that is written down.

Method: the same requests to both, area by area (``support.answers``). A difference that is not listed fails, and so
does a listed one that is gone.
"""

from __future__ import annotations

import itertools

import pytest

from support.answers.differences import ALONE, judge, scenario_of
from support.answers.nodes import kafka_broker, moldau_broker
from support.answers.session import answers_of

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
_runs = itertools.count(1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    homes = [tmp_path_factory.mktemp(name) for name in ("kafka", "moldau")]
    with kafka_broker(homes[0]) as theirs, moldau_broker(homes[1]) as ours:
        yield theirs, ours


@pytest.mark.parametrize("area", ALONE)
def test_answers_are_those_of_kafka(area, brokers):
    run = f"r{next(_runs)}"
    judge(area, *(answers_of(broker, scenario_of(area), run) for broker in brokers))
