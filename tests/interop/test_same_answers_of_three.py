"""Goal: three brokers of Moldau answer as three of Apache Kafka do, or differ for a reason that is written down.

Method: the same requests to both clusters, also to brokers that do not lead, and while one of them stands still or is
stopped. A difference that is not listed fails, and so does a listed one that is gone.
"""

from __future__ import annotations

import itertools

import pytest

from support.answers.differences import SEVERAL, judge, scenario_of
from support.answers.several.nodes import kafka_cluster, moldau_cluster
from support.answers.several.session import answers_of_cluster

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
_runs = itertools.count(1)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    homes = [tmp_path_factory.mktemp(name) for name in ("kafka", "moldau")]
    with kafka_cluster(homes[0]) as theirs, moldau_cluster(homes[1]) as ours:
        yield theirs, ours


@pytest.mark.parametrize("area", SEVERAL)
def test_answers_are_those_of_kafka(area, clusters):
    """The last area stops a broker."""
    run = f"r{next(_runs)}"
    judge(area, *(answers_of_cluster(cluster, scenario_of(area), run) for cluster in clusters))
