"""Goal: after any sequence of requests, a broker of Moldau answers as one of Apache Kafka does.

Method: sequences from fixed seeds to both, area by area (``support.answers.drawn``); a difference needs a rule.
"""

from __future__ import annotations

import random

import pytest

from support.answers.drawn.areas import AREAS
from support.answers.drawn.sequences import first_difference, shrunk
from support.answers.nodes import AT_ONCE, kafka_broker, moldau_broker

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
SEQUENCES = {
    "transactions": 60,
    "classic_groups": 20,
    "consumer_groups": 30,
    "mixed_groups": 10,
    "topics": 60,
    "share_groups": 40,
    "share_changes": 20,
    "streams_groups": 40,
    "data_path": 50,
    "settings": 60,
    "administration": 30,
}
"""By area: joins of classic members take longest."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    homes = [tmp_path_factory.mktemp(name) for name in ("kafka", "moldau")]
    with kafka_broker(homes[0], AT_ONCE) as theirs, moldau_broker(homes[1], AT_ONCE) as ours:
        yield theirs, ours


@pytest.mark.parametrize("area", AREAS)
def test_drawn_sequences_have_the_answers_of_kafka(area, brokers):
    """A failure names the seed and the steps that are left of its sequence after shrinking."""
    requests, rules = AREAS[area]

    def differs(steps):
        return first_difference(brokers, requests, steps, rules)

    for seed in range(SEQUENCES[area]):
        steps = requests.draw(random.Random(seed))
        found = differs(steps)
        if found is not None:
            left = shrunk(steps, differs) if differs(steps) else steps
            pytest.fail(f"seed {seed}: {found}\n" + "\n".join(map(str, left)))
