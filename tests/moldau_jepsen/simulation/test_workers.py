"""Goal: worker processes end with the campaign that started them, at once when it is left early; one that dies is told.

Method: real worker processes. What they are given waits for ever, so that a test that waited for it would not end, or
kills the worker that unpickles it.
"""

import os
import signal
import sys
from dataclasses import replace

import pytest
import trio

from moldau_jepsen.simulation import mutants, run_seeds
from moldau_jepsen.simulation.case import Case
from moldau_jepsen.simulation.controls import run_controls
from moldau_jepsen.simulation.corpus import run_corpus
from moldau_jepsen.simulation.mutants import MUTANTS, run_mutant, run_mutants
from moldau_jepsen.workers import workers

DIED = "at the end: kit-failed: BrokenProcessPool: "


class Deadly:
    """Kills the process that unpickles it."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


def test_workers_leave_interrupts_to_the_campaign():
    with workers(1) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN


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


def test_a_worker_that_dies_fails_the_seeds_that_were_handed_out_and_ends_the_campaign():
    results = list(run_seeds(iter(range(1, 10**9)), processes=1, options=Deadly(), mutant=""))
    assert sorted(result.seed for result in results) == list(range(1, len(results) + 1))
    assert 1 <= len(results) <= 5
    for result in results:
        assert result.violations[0].startswith(DIED)


def test_a_worker_that_dies_convicts_nobody_finds_nothing_and_keeps_nothing():
    (verdict,) = run_controls(["acks-1"], seeds_max=Deadly(), processes=1)
    assert not verdict.convicted
    assert verdict.detail.startswith(DIED)
    (hunt,) = run_mutants(["dedup-off"], seeds_max=Deadly(), processes=1)
    assert (hunt.name, hunt.found) == ("dedup-off", False)
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
    verdict = run_mutant(MUTANTS["dedup-off"], [3, 4])
    assert not verdict.found
    assert verdict.detail == "seed 3: at the end: kit-failed: LookupError: gremlin"
    assert (verdict.seeds, len(runs)) == (1, broken_run)


FAILED = replace(mutants.kit_failed(3, LookupError()), violations=("1.0 s: one-leader: two lead",))
