"""The log against a naive model: random histories with crashes, over a virtual disk and a real directory; and planted
bugs.

Every step is followed by all checks (content, lookups, epochs, transactions, indexes). Thousands of steps run here;
``make campaign-log`` (``tests/support/log/campaign.py``) runs as many as wanted.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, rule

from moldau_broker.log.errors import LogError
from moldau_jepsen.planted_bug import planted
from support.log import campaign as log_campaign
from support.log.model import (
    KINDS,
    Driver,
    RealMachine,
    TransactionsDriver,
    VirtualMachine,
    crash_after_each_write,
    run_seed,
    swap,
)
from support.log.mutants import BY_NAME, KIND_OF
from support.proof import examples, proof_beyond

SEEDS = strategies.integers(0, 2**32)
BOUNDED = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


class PlainLog(RuleBasedStateMachine):
    """A log with retention; Hypothesis chooses what happens and shrinks what fails."""

    compact = False

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(VirtualMachine(1), compact=self.compact)

    @rule(action=strategies.sampled_from(sorted(set(Driver.PLAIN_ACTIONS))), seed=SEEDS)
    def act(self, action: str, seed: int) -> None:
        self.driver.perform(action, random.Random(seed), crash=False)

    @rule(action=strategies.sampled_from(Driver.CRASHING), seed=SEEDS)
    def crash(self, action: str, seed: int) -> None:
        self.driver.perform(action, random.Random(seed), crash=True)


class CompactedLog(PlainLog):
    """A log with compaction."""

    compact = True

    @rule(action=strategies.sampled_from(sorted(set(Driver.COMPACT_ACTIONS))), seed=SEEDS)
    def act(self, action: str, seed: int) -> None:
        self.driver.perform(action, random.Random(seed), crash=False)


class TransactionsLog(CompactedLog):
    """A log with compaction whose keys are written and deleted in transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = TransactionsDriver(VirtualMachine(1))

    @rule(action=strategies.sampled_from(sorted(set(TransactionsDriver.COMPACT_ACTIONS))), seed=SEEDS)
    def act(self, action: str, seed: int) -> None:
        self.driver.perform(action, random.Random(seed), crash=False)

    @rule(action=strategies.sampled_from(TransactionsDriver.CRASHING), seed=SEEDS)
    def crash(self, action: str, seed: int) -> None:
        self.driver.perform(action, random.Random(seed), crash=True)


TestPlainLog = PlainLog.TestCase
TestPlainLog.settings = BOUNDED
TestCompactedLog = CompactedLog.TestCase
TestCompactedLog.settings = BOUNDED
TestTransactionsLog = TransactionsLog.TestCase
TestTransactionsLog.settings = BOUNDED


@pytest.mark.drawn
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", proof_beyond(1, range(4)))
def test_random_histories_on_a_virtual_disk(block: int, kind: str) -> None:
    for seed in range(block * 8, block * 8 + examples(8)):
        run_seed(VirtualMachine(seed), seed=seed, steps=80, kind=kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "short"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_histories_in_a_real_directory(seed: int, kind: str, tmp_path) -> None:
    run_seed(RealMachine(f"{tmp_path}/data"), seed=seed, steps=60, kind=kind)


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (57, "plain"),
        (225, "plain"),
        (156, "plain"),
        (13, "plain"),
        (26, "compacted"),
        (20012, "compacted"),
        (30243, "plain"),
        (24, "transactions"),
        (98, "transactions"),
    ],
)
def test_kept_regressions(seed: int, kind: str) -> None:
    """Histories that once failed.

    Index of a segment closed at the recovery point, order of renames of a deletion, ...
    """
    run_seed(VirtualMachine(seed), seed=seed, steps=80, kind=kind)


# Planted bugs

FIRST_SEEDS = {"crc-not-checked": 200}
"""Of a bug that one seed in a hundred shows: a batch must be torn in the middle, and have a sound header."""


@pytest.mark.proof
def test_planted_bug_of_the_swap_is_found() -> None:
    """Only a crash between two renames shows it: every one of them is tried."""
    crash_after_each_write(swap, compact=True, power_lost=False)
    with planted(BY_NAME["swap-without-rename-order"]), pytest.raises((AssertionError, LogError)):
        _crash_the_swap()


def _crash_the_swap() -> None:
    for power_lost in (False, True):
        crash_after_each_write(swap, compact=True, power_lost=power_lost)


@pytest.mark.proof
@pytest.mark.parametrize(("name", "kind"), KIND_OF.items())
def test_planted_bug_is_found(name: str, kind: str) -> None:
    first = FIRST_SEEDS.get(name, 0)
    with planted(BY_NAME[name]):
        for seed in range(first, first + 60):
            try:
                run_seed(VirtualMachine(seed), seed=seed, steps=80, kind=kind)
            except (TypeError, AttributeError, NameError):
                raise  # the planted bug does not fit the code any more, and proves nothing
            except Exception:  # noqa: BLE001 - a check that fails and code that breaks both give the bug away
                break
        else:
            pytest.fail(f"{BY_NAME[name].text}: nothing noticed it")
    run_seed(VirtualMachine(seed), seed=seed, steps=80, kind=kind)  # it holds without the bug


def test_the_campaign_reports_failures_by_its_exit_code(capsys) -> None:
    assert log_campaign.main(["--seeds", "2", "--steps", "10"]) == 0
    assert "2 seeds, 80 steps, 0 failed" in capsys.readouterr().out
    with planted(BY_NAME["recovery-point-not-lowered"]), planted(BY_NAME["last-value-dropped"]):
        assert log_campaign.main(["--seeds", "20", "--steps", "80"]) == 1
    assert "python -m support.log.campaign --first" in capsys.readouterr().out
