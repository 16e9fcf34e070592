"""Goal: a guided campaign chooses what reaches rare states, repeats its choices, and can be repeated run by run.

Method: small campaigns with stub results that end in different orders, and the choice among the real kinds of runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from moldau_jepsen.coverage.coverage import SITUATIONS, START, Coverage, Transition
from moldau_jepsen.simulation.campaign import runner
from moldau_jepsen.simulation.campaign.later_profiles import STREAMING
from moldau_jepsen.simulation.campaign.profiles import drawn_options, drawn_profile
from moldau_jepsen.simulation.campaign.runner import case_of, run_guided
from moldau_jepsen.simulation.campaign.seed import kit_failed
from moldau_jepsen.simulation.campaign.tally import Tally
from moldau_jepsen.simulation.guidance.guide import DRAWN_SHARE, Guide, Task
from moldau_jepsen.simulation.guidance.kinds import CHOSEN, KINDS, SWARM, chosen_options, kind_of
from moldau_jepsen.workers import NOT_YET

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.simulation.campaign.options import Result

SEEDS = 96
RARE = Transition(SITUATIONS, START, "log started over")


def result_of(task: Task) -> Result:
    """Returns the result that a run might have: one kind alone reaches the rare situation, in every run."""
    result = replace(kit_failed(task.seed, ValueError()), violations=(), kind=task.kind, steps=1_000)
    reached = Counter({RARE: 2}) if kind_of(result) == "started-over" else Counter[Transition]()
    return replace(result, coverage=Coverage(transitions=reached))


def campaign(next_ended: Callable[[list[Task]], int], *, running_max: int, seeds: int = SEEDS) -> list[Task]:
    """Runs a campaign of stubs; ``next_ended`` says which of the running tasks ends next. Returns the tasks in order.

    As a campaign on processes, it begins the next task as soon as one of ``running_max`` has ended.
    """
    guide = Guide(range(seeds), round_seeds=8)
    tasks = guide.tasks()
    begun: list[Task] = []
    running: list[Task] = []
    while True:
        while len(running) < running_max:
            task = next(tasks, None)
            if task is None and not running:
                return begun
            if task is None or task is NOT_YET:
                assert running, "the guide waits for nothing"
                break
            assert isinstance(task, Task)
            begun.append(task)
            running.append(task)
        guide.add(result_of(running.pop(next_ended(running))))


def test_the_order_in_which_runs_end_changes_no_choice() -> None:
    one_by_one = campaign(lambda _: 0, running_max=1)
    assert [task.seed for task in one_by_one] == list(range(SEEDS))
    assert campaign(lambda running: len(running) - 1, running_max=7) == one_by_one
    assert campaign(lambda running: len(running) // 2, running_max=64) == one_by_one


def test_the_kind_that_reaches_rare_states_is_chosen_more_often() -> None:
    tasks = campaign(lambda _: 0, running_max=2)
    chosen = Counter(task.kind for task in tasks[32:])
    others = [count for kind, count in chosen.items() if kind not in ("", "started-over")]
    assert chosen["started-over"] > 2 * max(others)
    drawn = sum(not task.kind for task in tasks)
    assert abs(drawn - SEEDS * DRAWN_SHARE) < SEEDS / 6
    assert len({task.kind for task in tasks}) > len(KINDS) / 2, "others are tried as well"


def test_workers_run_the_chosen_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that died is a finding of its seed, whose kind is kept."""
    guide = Guide(range(3))

    def run_each(function: object, arguments: object, **_: object) -> object:
        assert function is runner._examine_task
        for task in guide.tasks():
            assert isinstance(task, Task)
            yield task, (OSError("dead") if task.seed == 1 else result_of(task))

    monkeypatch.setattr(runner, "run_each", run_each)
    expected = list(Guide(range(3)).tasks())
    results = list(run_guided(guide))
    assert [(one.seed, one.kind) for one in results] == expected
    assert [one.passed for one in results] == [True, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_one_command_repeats_a_chosen_run(kind: str) -> None:
    options = chosen_options(kind, 11)
    assert options == chosen_options(kind, 11) == runner.options_of(11, kind=kind)
    result = result_of(Task(11, kind))
    assert result.replay_command == f"moldau sim run --seed 11 --kind {kind}"
    assert case_of(replace(result, draws={}), "name", "").profile == ("" if kind == SWARM else kind)
    assert kind == SWARM or kind in CHOSEN


def test_a_drawn_run_is_that_of_a_blind_campaign() -> None:
    result = result_of(Task(11, ""))
    assert result.replay_command == "moldau sim run --seed 11"
    assert runner.options_of(11) == drawn_options(11) == chosen_options(kind_of(result), 11)


def test_a_profile_keeps_the_workloads_that_it_is_about() -> None:
    """Campaigns let seeds draw further workloads; they once drew those of the profile too, and mostly left them out."""
    seed = next(seed for seed in range(1_000) if drawn_profile(seed) is STREAMING)
    assert drawn_options(seed).streams is True
    assert chosen_options("administration", 5).administration is True
    assert chosen_options("near-readers", 5).racks is True
    assert chosen_options("short-sequences", 5).short_sequences is True
    assert chosen_options(SWARM, 5).administration is None


def test_the_report_has_a_row_for_each_profile() -> None:
    tally = Tally(1)
    for task in (Task(3, "started-over"), Task(4, "started-over"), Task(5, "bank")):
        tally.add(result_of(task))
    first, second = tally.report(1.0).profiles
    assert (first.name, first.seeds, first.chosen, first.turns, first.situations) == ("started-over", 2, 2, 2_000, 2)
    assert (second.name, second.seeds, second.situations) == ("bank", 1, 0)
    assert type(second.chosen) is int, "the document holds a number"
