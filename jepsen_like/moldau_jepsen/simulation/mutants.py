"""Planted bugs: what the judge and the checkers must find, or they prove nothing.

A mutant breaks one rule of one protocol by replacing one function while a simulated run lasts; production code has no
switch for it. ``run_mutant`` runs seeds until one convicts, and tells which invariant or checker did. A mutant that
survives is a hole in the proof, not a success.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau_jepsen.simulation import planted_bugs as bugs
from moldau_jepsen.simulation.campaign import Result, RunOptions, run_seed
from moldau_jepsen.simulation.cluster import ClusterShape
from moldau_jepsen.simulation.faults import FaultKind, Struck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from moldau_jepsen.simulation.planted_bugs import Patch


SEEDS_MAX = 200

QUORUM_RUNS = replace(
    RunOptions(),
    shape=ClusterShape(settings={"controller.quorum.election.timeout.ms": "120"}),
    workload=replace(
        RunOptions().workload, senders=1, assigned_readers=0, group_readers=1, sends_per_second=4.0, crash_every_s=0.0
    ),
    config_changes_per_second=25.0,
    struck=Struck.CONTROLLERS,
    kinds=(
        FaultKind.KILL,
        FaultKind.KILL_LEADER,
        FaultKind.KILL_MANY,
        FaultKind.CRASH_POINT,
        FaultKind.POWER,
        FaultKind.POWER_ALL,
        FaultKind.CUT,
        FaultKind.CUT_ONE_WAY,
        FaultKind.BRIDGE,
        FaultKind.HALVES,
        FaultKind.LINK,
        FaultKind.SLOW,
        FaultKind.DISK_SLOW,
    ),
)
"""Runs that strike controllers alone, whose elections follow each other closely."""


REPLICATION_RUNS = replace(
    RunOptions(),
    shape=ClusterShape(settings={"replica.lag.time.max.ms": "600", "broker.session.timeout.ms": "5000"}),
    struck=Struck.BROKERS,
    kinds=(
        FaultKind.CUT,
        FaultKind.CUT_ONE_WAY,
        FaultKind.BRIDGE,
        FaultKind.HALVES,
        FaultKind.LINK,
        FaultKind.SLOW,
        FaultKind.RESET,
        FaultKind.KILL_LEADER,
        FaultKind.RESTART,
    ),
)
"""Runs whose leaders lose followers, or the controllers, for longer than either waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One planted bug."""

    name: str
    area: str
    text: str
    """What is wrong, in one line."""
    patches: Callable[[], list[Patch]]
    """Owner, attribute, replacement; made when the mutant is switched on."""
    options: RunOptions | None = None
    """Where the bug needs faults that a run does not have by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantVerdict:
    """Whether the kit finds a mutant."""

    name: str
    area: str
    found: bool
    seeds: int
    """How many were run, the convicting one included."""
    found_by: str
    """The invariant or checker; empty if the mutant survived."""
    detail: str

    def to_json(self) -> dict[str, object]:
        """Returns the verdict as JSON values."""
        return dataclasses.asdict(self)


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is there while this lasts."""
    undo: list[tuple[object, str, object]] = []
    try:
        for given, name, replacement in mutant.patches():
            owner = owner_of(given, name)
            undo.append((owner, name, vars(owner)[name]))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


def owner_of(given: object, name: str) -> object:
    """Returns the class that defines an attribute of ``given``, or ``given`` itself if it is a module."""
    for owner in given.__mro__ if isinstance(given, type) else (given,):
        if name in vars(owner):
            return owner
    raise AttributeError(f"{given!r} has no {name!r}: the rule that the mutant breaks has moved")


def run_mutant(
    mutant: Mutant,
    seeds: Iterable[int],
    *,
    options: RunOptions | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> MutantVerdict:
    """Runs seeds with the bug planted until one finds it."""
    count = 0
    for seed in seeds:
        with planted(mutant):
            result = run_seed(seed, options or mutant.options)
        count += 1
        if on_result is not None:
            on_result(result)
        if result.violations:
            return MutantVerdict(
                name=mutant.name,
                area=mutant.area,
                found=True,
                seeds=count,
                found_by=finder_of(result.violations[0]),
                detail=f"seed {seed}: {result.violations[0]}",
            )
    return MutantVerdict(name=mutant.name, area=mutant.area, found=False, seeds=count, found_by="", detail="")


def finder_of(violation: str) -> str:
    """Returns the name of the invariant or checker in a violation's text."""
    parts = violation.split(": ")
    if parts[0].endswith(" s") or parts[0] == "at the end":
        return parts[1]
    return parts[0].split(" at ")[0]


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            name="raft-quorum-too-small", area="quorum", text="one of three is a majority", patches=bugs.quorum_of_one
        ),
        Mutant(
            name="raft-vote-not-persisted",
            area="quorum",
            text="a vote is gone after a crash",
            patches=bugs.vote_forgotten,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-votes-twice",
            area="quorum",
            text="a second vote in one epoch",
            patches=bugs.votes_twice,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-votes-for-stale-log",
            area="quorum",
            text="a candidate with an older log gets votes",
            patches=bugs.votes_for_stale_log,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-answers-before-durable",
            area="quorum",
            text="entries are counted before they are durable",
            patches=bugs.answers_before_durable,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-commits-on-one",
            area="quorum",
            text="an entry that one voter holds is committed",
            patches=bugs.counts_one_follower_twice,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-wal-not-synced", area="quorum", text="fsync of the log does nothing", patches=bugs.wal_not_synced
        ),
        Mutant(
            name="metadata-out-of-order",
            area="quorum",
            text="committed metadata is applied out of order",
            patches=bugs.metadata_applied_out_of_order,
        ),
        Mutant(
            name="controller-unclean-election",
            area="controller",
            text="a replica out of sync leads rather than none",
            patches=bugs.unclean_election,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="controller-elects-any-replica",
            area="controller",
            text="the ISR is not asked in elections",
            patches=bugs.elects_any_replica,
        ),
        Mutant(
            name="controller-accepts-stale-isr",
            area="controller",
            text="ISR changes are not fenced by epochs",
            patches=bugs.stale_isr_change,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="watermark-without-isr",
            area="replication",
            text="the high watermark is the leader's log end",
            patches=bugs.watermark_without_isr,
        ),
        Mutant(
            name="watermark-by-majority",
            area="replication",
            text="a majority of replicas moves the high watermark",
            patches=bugs.watermark_by_majority,
        ),
        Mutant(
            name="watermark-before-shrink-committed",
            area="replication",
            text="the high watermark moves before the ISR shrink is committed",
            patches=bugs.watermark_before_shrink,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="isr-counted-before-committed",
            area="replication",
            text="a proposed ISR counts at once",
            patches=bugs.isr_join_unasked,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="isr-refusal-taken-for-success",
            area="replication",
            text="a refused ISR change counts",
            patches=bugs.isr_shrink_lost,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="isr-join-too-early", area="replication", text="a lagging replica joins", patches=bugs.joins_too_early
        ),
        Mutant(
            name="follower-taken-for-caught-up",
            area="replication",
            text="any fetch counts as a fetch of the end",
            patches=bugs.laggards_stay_counted_out,
        ),
        Mutant(
            name="acknowledged-at-once",
            area="replication",
            text="acks=all is answered by the leader alone",
            patches=bugs.acknowledged_at_once,
        ),
        Mutant(
            name="acknowledged-by-another-epoch",
            area="replication",
            text="an append of an old epoch is acknowledged in a new one",
            patches=bugs.acknowledged_by_another_epoch,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="leader-epoch-unchecked",
            area="replication",
            text="requests of other leader epochs are served",
            patches=bugs.leader_epoch_unchecked,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="divergence-unseen",
            area="replication",
            text="the leader does not look for divergence",
            patches=bugs.divergence_unseen,
        ),
        Mutant(
            name="divergence-ignored",
            area="replication",
            text="the follower does not truncate",
            patches=bugs.divergence_ignored,
        ),
        Mutant(
            name="truncates-to-watermark",
            area="replication",
            text="truncation to the high watermark instead of the epoch's end",
            patches=bugs.truncates_to_watermark,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="truncates-one-too-little",
            area="log",
            text="an epoch ends one offset late",
            patches=bugs.truncates_too_little,
        ),
        Mutant(name="dedup-off", area="log", text="sequence numbers are not looked at", patches=bugs.dedup_off),
        Mutant(
            name="dedup-lost-on-failover",
            area="log",
            text="followers do not keep producer state",
            patches=bugs.dedup_lost_on_failover,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="sequence-gaps-accepted",
            area="log",
            text="a gap in sequence numbers passes",
            patches=bugs.sequence_gaps_accepted,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="log-not-synced",
            area="log",
            text="fsync before the acknowledgement does nothing",
            patches=bugs.log_not_synced,
            options=RunOptions(synced=True),
        ),
        Mutant(
            name="index-off-by-one", area="log", text="a lookup finds the next batch", patches=bugs.index_off_by_one
        ),
        Mutant(
            name="reads-beyond-watermark",
            area="broker",
            text="consumers see what is not committed",
            patches=bugs.reads_beyond_watermark,
        ),
        Mutant(
            name="consumer-skips",
            area="client",
            text="the consumer skips an offset now and then",
            patches=bugs.consumer_skips,
        ),
    )
}


def run_mutants(
    names: Iterable[str] | None = None,
    *,
    seeds_max: int = SEEDS_MAX,
    seed_first: int = 1,
    processes: int | None = None,
) -> Iterator[MutantVerdict]:
    """Hunts mutants over the cores, one mutant per task; yields verdicts as they come.

    Raises ``KeyError`` for an unknown name.
    """
    chosen = [MUTANTS[name] for name in names] if names is not None else list(MUTANTS.values())
    context = multiprocessing.get_context("spawn")
    count = processes if processes is not None else (os.cpu_count() or 1)
    with concurrent.futures.ProcessPoolExecutor(count, mp_context=context) as pool:
        hunts = [pool.submit(_hunt, mutant.name, seed_first, seeds_max) for mutant in chosen]
        for hunt in concurrent.futures.as_completed(hunts):
            yield hunt.result()


def _hunt(name: str, seed_first: int, seeds_max: int) -> MutantVerdict:
    return run_mutant(MUTANTS[name], range(seed_first, seed_first + seeds_max))


def verdicts_json(verdicts: Iterable[MutantVerdict]) -> dict[str, object]:
    """Returns the table of a hunt as JSON values."""
    return {"mutants": [verdict.to_json() for verdict in sorted(verdicts, key=lambda verdict: verdict.name)]}
