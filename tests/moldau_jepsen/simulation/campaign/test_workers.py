"""Goal: worker processes end with the campaign that started them, at once when it is left early; one that dies or is
late is reported; a campaign with more tasks than its workers may have is run to its end.

Method: real worker processes. Their task waits for ever, so that a test that waited for it would not end, or
kills the worker that unpickles it.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import trio

from moldau_jepsen.simulation import run_seeds
from moldau_jepsen.simulation.campaign.case import Case
from moldau_jepsen.simulation.campaign.controls import run_controls
from moldau_jepsen.simulation.campaign.corpus import run_corpus
from moldau_jepsen.simulation.mutants import mutants
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, run_mutant, run_mutants
from moldau_jepsen.workers import NOT_YET, run_each, workers
from support.kit.worker_tasks import Endless, fail_at, has_loaded, interrupt_at, pause_at, square

DIED = "at the end: kit-failed: BrokenProcessPool: "


class Deadly:
    """Kills the process that unpickles it."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


def test_workers_leave_interrupts_to_the_campaign():
    """The server process has imported what they need, and keeps garbage collection from it, which this one does not."""
    with workers(1) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN
        assert pool.submit(has_loaded, "moldau_jepsen.preloaded").result()
    assert not has_loaded("moldau_jepsen.preloaded")


@pytest.mark.parametrize("reason", [KeyboardInterrupt, GeneratorExit, LookupError])
def test_leaving_early_waits_for_nothing_that_runs(reason):
    started = []

    def leave():
        with workers(1) as pool:
            started.append(pool.submit(os.getpid).result())
            started.extend(pool.submit(signal.pause) for _ in range(5))
            raise reason

    with pytest.raises(reason):
        leave()
    worker, *running = started
    assert all(task.done() for task in running)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_workers_end_with_a_campaign_that_is_killed(tmp_path):
    """Its worker holds the write end of a pipe until it ends."""
    program = tmp_path / "campaign.py"
    program.write_text(
        "import os, signal\n"
        "from moldau_jepsen.workers import workers\n"
        "if __name__ == '__main__':\n"
        "    with workers(1) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        pool.submit(signal.pause)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    async def run():
        path = os.pathsep.join(part for part in sys.path if part)
        command = [sys.executable, str(program)]
        with trio.fail_after(120):  # standard output ends when the last process that has it ends
            return await trio.run_process(
                command, capture_stdout=True, check=False, env={**os.environ, "PYTHONPATH": path}
            )

    ended = trio.run(run)
    assert ended.returncode == -signal.SIGKILL
    assert int(ended.stdout) > 0


LONG_S = 600.0


@pytest.mark.parametrize("total", [10, 11, 13])
def test_tasks_beyond_what_workers_may_have_are_run_by_others(total):
    """Two workers with five tasks each: the eleventh needs a third one."""
    results = dict(run_each(square, range(total), processes=2, tasks_per_worker=5, seconds_max=LONG_S))
    assert {number: found for number, (found, _) in results.items()} == {number: number**2 for number in range(total)}
    by_worker = Counter(worker for _, worker in results.values())
    assert max(by_worker.values()) <= 5
    assert len(by_worker) >= (total + 4) // 5


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_in_a_later_worker_ends_a_campaign():
    """The fourth task interrupts, in the second worker of its place."""
    found = []
    tasks = run_each(partial(interrupt_at, 4), range(10**9), processes=1, tasks_per_worker=3, seconds_max=LONG_S)
    with pytest.raises(KeyboardInterrupt):
        found.extend(tasks)
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert len({worker for _, (_, worker) in found}) == 2
    assert multiprocessing.active_children() == []


def test_an_error_of_a_task_is_its_outcome():
    tasks = run_each(partial(fail_at, {1}), range(3), processes=1, tasks_per_worker=5, seconds_max=LONG_S)
    results = dict(tasks)
    assert str(results[1]) == "LookupError: no square of 1"
    assert "in fail_at" in "".join(traceback.format_exception(results[1]))
    assert results[0][1] == results[2][1], "the worker goes on"


def test_an_argument_may_depend_on_an_outcome():
    """The other worker stays idle until the outcome is there, and has its share of what follows."""
    found = {}

    def arguments():
        yield 3
        while 3 not in found:
            yield NOT_YET
        yield from (found[3], found[3] + 1)

    for number, (outcome, _) in run_each(square, arguments(), processes=2, tasks_per_worker=5, seconds_max=LONG_S):
        found[number] = outcome
    assert found == {3: 9, 9: 81, 10: 100}


def test_a_task_that_never_ends_costs_only_its_worker():
    """A task that never ends costs its worker, and nothing else."""
    tasks = run_each(partial(pause_at, {1}), range(6), processes=2, tasks_per_worker=50, seconds_max=2.0)
    results = dict(tasks)
    assert isinstance(results.pop(1), TimeoutError)
    assert {number: found for number, (found, _) in results.items()} == {0: 0, 2: 4, 3: 9, 4: 16, 5: 25}
    assert multiprocessing.active_children() == []


def test_a_seed_that_never_ends_is_a_named_kit_failure():
    """A seed that never ends is a failure of the kit, and the report names it."""
    results = {
        result.seed: result.violations for result in run_seeds((7, 8), processes=1, options=Endless(), seconds_max=0.5)
    }
    late = "not at its end after 0.5 s of real time; the worker process was killed"
    assert results == dict.fromkeys((7, 8), (f"at the end: kit-failed: TimeoutError: {late}",))


def test_a_dead_worker_fails_its_seeds_and_ends_the_campaign():
    """A worker that dies fails the seeds that it was given, and ends the campaign."""
    results = list(run_seeds(iter(range(1, 10**9)), processes=1, options=Deadly(), mutant=""))
    assert sorted(result.seed for result in results) == list(range(1, len(results) + 1))
    assert 1 <= len(results) <= 5
    for result in results:
        assert result.violations[0].startswith(DIED)


def test_a_dead_worker_convicts_finds_and_keeps_nothing():
    """A worker that dies convicts no mutant, finds nothing and keeps nothing."""
    (verdict,) = run_controls(["acks-1"], seeds_max=Deadly(), processes=1)
    assert not verdict.convicted
    assert verdict.detail.startswith(DIED)
    (hunt,) = run_mutants(["sequence-numbers-ignored"], seeds_max=Deadly(), processes=1)
    assert (hunt.name, hunt.found) == ("sequence-numbers-ignored", False)
    assert hunt.detail.startswith(DIED)
    (case,) = run_corpus([Case(name="one", why=Deadly(), seeds=(7,))], processes=1)
    assert not case.kept
    assert case.text.startswith(f"seed 7: {DIED}")


@pytest.mark.parametrize("broken_run", [1, 2])
def test_a_kit_that_breaks_ends_a_hunt_and_finds_nothing(monkeypatch, broken_run):
    """In the run with the bug, or in the one without it that is to show that the seed is innocent."""
    runs = []

    def run(seed, options):
        runs.append(seed)
        if len(runs) == broken_run:
            raise LookupError("gremlin")
        return FAILED

    monkeypatch.setattr(mutants, "run_seed", run)
    verdict = run_mutant(MUTANTS["sequence-numbers-ignored"], [3, 4])
    assert not verdict.found
    assert verdict.detail == "seed 3: at the end: kit-failed: LookupError: gremlin"
    assert (verdict.seeds, len(runs)) == (1, broken_run)


FAILED = replace(mutants.kit_failed(3, LookupError()), violations=("1.0 s: one-leader: two lead",))
