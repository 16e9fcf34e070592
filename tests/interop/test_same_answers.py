"""Goal: a broker of Moldau answers as one of Apache Kafka does, or differs for a reason that is written down.

Method: the same requests to both, area by area (``support.answers``). A difference that is not listed fails, and so
does a listed one that is gone.
"""

from __future__ import annotations

import itertools
from importlib import import_module

import pytest

from support.answers.differences import DIFFERENCES
from support.answers.nodes import kafka_broker, moldau_broker
from support.answers.session import answers_of, differences

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
_runs = itertools.count(1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    homes = [tmp_path_factory.mktemp(name) for name in ("kafka", "moldau")]
    with kafka_broker(homes[0]) as theirs, moldau_broker(homes[1]) as ours:
        yield theirs, ours


@pytest.mark.parametrize("area", DIFFERENCES)
def test_answers_are_those_of_kafka(area, brokers):
    scenario = getattr(import_module(f"support.answers.{area}"), area.rsplit(".", 1)[-1])
    run = f"r{next(_runs)}"
    theirs, ours = (answers_of(broker, scenario, run) for broker in brokers)
    found = differences(theirs, ours)
    assert len(theirs) > 40
    new = {step: lines for step, lines in found.items() if step not in DIFFERENCES[area]}
    assert not new, "\n".join(f"{step}: {lines}" for step, lines in new.items())
    assert not DIFFERENCES[area].keys() - found.keys(), "these answers are the same by now"
