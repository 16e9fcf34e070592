"""No record is lost, none stays for ever and none counts twice while a former leader goes on beside its successor.

Method: all short histories of two brokers (``support.remote_log.histories``) over the production's decisions. In each
world each broker has, here or in a finished segment of its own lineage, all records that retention has not given up;
and the leader, alone, comes to a store that holds nothing but what it needs. Mutated decisions make the check fail.
"""

from __future__ import annotations

import pytest

from moldau_broker.remote_log.core import plans
from support.remote_log.histories import CUTS, Scope, explore

SMALL = Scope(elections=1, units=1, crashes=0, copies=2)
STEPS = (
    "copy-aux",
    "copy-log",
    "delete-aux",
    "delete-local",
    "delete-log",
    "delete-unfinished",
    "demoted",
    "elected",
    "list",
    "prove",
    "retention",
)


def test_all_short_histories() -> None:
    """Without time that passes, and with a single copy; together they have each step."""
    scopes = SMALL._replace(units=0, cuts=CUTS[1]), SMALL._replace(copies=1, cuts=CUTS[1])
    worlds, counts = zip(*map(explore, scopes), strict=True)
    assert sum(worlds) > 10_000
    for name in STEPS:
        assert sum(each.get(f"{broker}-{name}", 0) for each in counts for broker in (0, 1)) > 100, f"{name} is rare"


@pytest.mark.proof
@pytest.mark.parametrize(
    "scope",
    [
        SMALL._replace(cuts=CUTS[1]),
        SMALL._replace(crashes=1, cuts=CUTS[1]),
        SMALL._replace(elections=2, cuts=CUTS[1]),
        SMALL._replace(copies=3, units=0),
    ],
    ids=["short", "crash", "two-elections", "three-copies"],
)
def test_all_longer_histories(scope: Scope) -> None:
    worlds, _ = explore(scope)
    assert worlds > 20_000


original = plans.to_delete


def age_of_today(remote, retention, *, now_ms, **limits):
    """Deletes unfinished objects by their age today, though the copy may be finished by now."""
    plan = original(remote, retention, now_ms=now_ms, **limits)
    delay_ms = limits["unfinished_delete_delay_ms"]
    return plan._replace(objects=[item for item in remote.unfinished if now_ms - item.modified_ms >= delay_ms])


def foreign_at_once(remote, retention, **limits):
    """Deletes segments of other lineages, a newer leader's too."""
    plan = original(remote, retention, **limits)
    return plan._replace(segments=list({*plan.segments, *remote.foreign}))


def other_copy_kept(remote, retention, **limits):
    """Deletes the copy that other brokers keep, of two equal ones."""
    plan = original(remote, retention, **limits)
    if limits["leader_epoch"] > 1:
        return plan
    equal = {(item.base_offset, item.last_offset) for item in remote.contained}
    kept = [item for item in remote.segments if (item.base_offset, item.last_offset) in equal]
    return plan._replace(segments=[*kept, *plan.segments])


@pytest.mark.parametrize("mutant", [age_of_today, foreign_at_once])
def test_a_wrong_deletion_is_found(mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "to_delete", mutant)
    with pytest.raises(AssertionError, match="has lost offset"):
        explore(SMALL)


@pytest.mark.proof
def test_brokers_that_keep_different_copies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "to_delete", other_copy_kept)
    with pytest.raises(AssertionError, match="has lost offset"):
        explore(SMALL)


def without_proof(remote, retention, **limits):
    """Deletes segments and writes no proof."""
    return original(remote, retention, **limits)._replace(proofs=[])


def test_a_deletion_without_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next leader takes the records for lost, and its log starts at a hole."""
    monkeypatch.setattr(plans, "to_delete", without_proof)
    with pytest.raises(AssertionError, match="is the end of what was copied"):
        explore(SMALL._replace(elections=2, cuts=CUTS[1]))
