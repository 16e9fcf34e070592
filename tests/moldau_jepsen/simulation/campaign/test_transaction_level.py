"""Goal: campaigns run at both levels of ``transaction.version``, and a run whose level is written out has that level.

Method: the draws of many seeds.
"""

from __future__ import annotations

from dataclasses import replace

from moldau_jepsen.simulation.campaign.options import RunOptions, drawn_transaction_level
from moldau_jepsen.simulation.campaign.profiles import drawn_options


def test_some_seeds_of_a_campaign_run_at_level_1() -> None:
    levels = [drawn_transaction_level(seed, drawn_options(seed)) for seed in range(400)]
    assert 40 < levels.count(1) < 140
    assert set(levels) == {1, 2}


def test_a_stated_level_is_not_drawn() -> None:
    assert RunOptions().transaction_level == 2
    for level in (1, 2):
        options = replace(RunOptions(), transaction_level=level)
        assert {drawn_transaction_level(seed, options) for seed in range(50)} == {level}
