"""Goal: a transaction that died after its decision is replaced by the replayed one with the same rows, and by no other.

Method: the driver's core alone, from the answer that a decided transaction is dead.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_moldau.sink.core.effects import (
    Decision,
    EndDecided,
    Ended,
    Entry,
    Fence,
    Kind,
    ReadMarker,
    ReadNotes,
    Report,
    WriteDecision,
)
from pyspark_moldau.sink.core.protocol import MARKER_AGE_MAX_MS, DriverCore, TaskCore
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError, TryAgainError

DEAD = Entry(transactional_id="t-0", producer_id=1, producer_epoch=0, rows=3, fingerprint=99)
AGAIN = replace(DEAD, producer_epoch=1)
DECISION = Decision(batch=7, run="first", entries=(DEAD,))


def after_the_death_of(report):
    """Returns the driver of a replayed batch that has found the decided transaction dead, and what it does next."""
    core = DriverCore(batch=7, run="second", reports=(report,), effect=EndDecided(DEAD), decision=DECISION)
    lost = next(each for each in Ended if each is not Ended.COMMITTED)
    core = core.on(lost)
    assert isinstance(core.effect, ReadMarker)
    return core.on(6).effect


def test_the_same_rows_replace_a_dead_transaction():
    effect = after_the_death_of(Report(batch=7, partition=0, kind=Kind.PREPARED, entry=AGAIN))
    assert effect == WriteDecision(Decision(batch=7, run="second", entries=(AGAIN,), amendments=1))


@pytest.mark.parametrize(
    "report",
    [
        Report(batch=7, partition=0, kind=Kind.DECIDED),
        Report(batch=7, partition=0, kind=Kind.PREPARED, entry=DEAD),
    ],
    ids=["not written again", "the dead one itself"],
)
def test_a_replay_writes_the_rows_first(report):
    with pytest.raises(TryAgainError, match="the replay of the batch writes its rows again"):
        after_the_death_of(report)


@pytest.mark.parametrize("entry", [None, replace(AGAIN, rows=4), replace(AGAIN, fingerprint=98)], ids=str)
def test_other_rows_replace_nothing(entry):
    kind = Kind.EMPTY if entry is None else Kind.PREPARED
    with pytest.raises(ProtocolRefusedError):
        after_the_death_of(Report(batch=7, partition=0, kind=kind, entry=entry))


def test_a_replay_in_other_partitions_replaces_nothing():
    """The rows of its first partition are those of the dead transaction; where the others are, it does not say."""
    done = replace(DEAD, transactional_id="t-1")
    decision = replace(DECISION, entries=(DEAD, done))
    report = Report(batch=7, partition=0, kind=Kind.PREPARED, entry=AGAIN)
    core = DriverCore(batch=7, run="second", reports=(report,), effect=EndDecided(DEAD), decision=decision)
    core = core.on(Ended.DEAD).on(6)
    assert core.effect == EndDecided(done)
    with pytest.raises(ProtocolRefusedError, match="in 1 partitions"):
        core.on(Ended.COMMITTED)


@pytest.mark.parametrize("marker", [6, -1])
def test_only_a_missing_marker_may_have_expired(marker):
    """One of the batch before is still there after a long rest, so that of this batch was never written."""
    rested = {"effect": EndDecided(DEAD), "decision": DECISION, "now_ms": MARKER_AGE_MAX_MS + 1}
    report = Report(batch=7, partition=0, kind=Kind.PREPARED, entry=AGAIN)
    driver = DriverCore(batch=7, run="second", reports=(report,), **rested).on(Ended.DEAD).on(marker)
    task = TaskCore(batch=7, partition=0, entry=DEAD, **rested).on(Ended.DEAD).on(marker)
    if marker < 0:
        assert (driver.effect, task.effect) == (ReadNotes(), ReadNotes())
    else:
        assert isinstance(driver.effect, WriteDecision)
        assert task.effect == Fence()


def test_an_amended_decision_is_as_old_as_the_first():
    """Its age says which markers may have expired, and those of the other transactions are as old as the first."""
    report = Report(batch=7, partition=0, kind=Kind.PREPARED, entry=AGAIN)
    first = replace(DECISION, decided_ms=1_000)
    core = DriverCore(batch=7, run="second", reports=(report,), now_ms=9_000, effect=EndDecided(DEAD), decision=first)
    effect = core.on(Ended.DEAD).on(6).effect
    assert isinstance(effect, WriteDecision)
    assert (effect.decision.decided_ms, effect.decision.amendments) == (1_000, 1)
