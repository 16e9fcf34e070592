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

from moldau.consumer.chunk import FetchedChunk
from moldau.protocol.errors import ErrorCode
from moldau_broker.log.epoch_cache import LeaderEpochCache
from moldau_broker.log.partition_log import PartitionLog
from moldau_broker.log.producer_state import ProducerStateManager
from moldau_broker.log.segment import LogSegment
from moldau_broker.log.segmented_log import SegmentedLog
from moldau_broker.replication.follower import FollowerFetcher
from moldau_broker.replication.replica import FollowerProgress, Replica, Role
from moldau_broker.server.fetch import FetchService
from moldau_broker.server.replica_manager import ReplicaManager
from moldau_jepsen.simulation.campaign import Result, RunOptions, run_seed
from moldau_jepsen.simulation.cluster import ClusterShape
from moldau_jepsen.simulation.faults import FaultKind, Struck
from moldau_quorum.controller import partitions
from moldau_quorum.controller.partition_change import Election, PartitionChange
from moldau_quorum.raft.core import RaftCore
from moldau_quorum.raft.leader import LeaderRole
from moldau_quorum.raft.types import NO_NODE, Configuration
from moldau_quorum.raft.wal import SyncWork, WriteAheadLog
from moldau_quorum.state_machine import MetadataStateMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from moldau.records import Record
    from moldau_broker.log.values import EpochEndOffset

Patch = tuple[object, str, object]

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


# --- the bugs. Each is what a plausible slip in the code would do.


def _quorum_of_one() -> list[Patch]:
    return [(Configuration, "quorum", property(lambda self: max(1, len(self.voters) // 2)))]


def _vote_forgotten() -> list[Patch]:
    original = WriteAheadLog.write

    def write(self: WriteAheadLog, hard_state: object, entries: object, prev_epoch: int = 0) -> None:
        if hard_state is not None:
            hard_state = dataclasses.replace(hard_state, voted_for=NO_NODE)  # type: ignore[type-var]
        original(self, hard_state, entries, prev_epoch)  # type: ignore[arg-type]

    return [(WriteAheadLog, "write", write)]


def _votes_twice() -> list[Patch]:
    original = RaftCore._on_vote_request

    def on_vote_request(self: RaftCore, sender: int, request: object) -> None:
        kept = self.hard_state
        if self.leader is None and not request.pre_vote and kept.voted_for != self.node_id:  # type: ignore[attr-defined]
            self.hard_state = dataclasses.replace(kept, voted_for=NO_NODE)
            self.leader_id = None
        original(self, sender, request)  # type: ignore[arg-type]

    return [(RaftCore, "_on_vote_request", on_vote_request)]


def _votes_for_stale_log() -> list[Patch]:
    return [(RaftCore, "_log_is_up_to_date", lambda self, request: True)]


def _answers_before_durable() -> list[Patch]:
    def durable_on_quorum(self: LeaderRole) -> int:
        core = self._core
        held = sorted(
            (core.log.last_index if voter == core.node_id else self.progress[voter].match)
            for voter in core.configuration.voters
        )
        return held[len(held) - core.configuration.quorum]

    return [
        (RaftCore, "send", RaftCore.send_early),
        (LeaderRole, "_durable_on_quorum", durable_on_quorum),
        (RaftCore, "applicable_index", property(lambda self: self.commit_index)),
    ]


def _counts_one_follower_twice() -> list[Patch]:
    def durable_on_quorum(self: LeaderRole) -> int:
        core = self._core
        return max(
            (core.durable_index if voter == core.node_id else self.progress[voter].match)
            for voter in core.configuration.voters
        )

    return [(LeaderRole, "_durable_on_quorum", durable_on_quorum)]


def _wal_not_synced() -> list[Patch]:
    return [(SyncWork, "run", lambda self: None)]


def _metadata_applied_out_of_order() -> list[Patch]:
    original = MetadataStateMachine.apply
    held: dict[int, object] = {}

    def apply(self: MetadataStateMachine, entry: object) -> None:
        waiting = held.pop(id(self), None)
        if waiting is None and entry.index % 7 == 0:  # type: ignore[attr-defined]
            held[id(self)] = entry
            return
        original(self, entry)  # type: ignore[arg-type]
        if waiting is not None:
            original(self, waiting)  # type: ignore[arg-type]

    return [(MetadataStateMachine, "apply", apply)]


def _unclean_election() -> list[Patch]:
    original = PartitionChange.build

    def build(self: PartitionChange) -> object:
        self.election = Election.UNCLEAN
        return original(self)

    return [(PartitionChange, "build", build)]


def _elects_any_replica() -> list[Patch]:
    original = PartitionChange._elect

    def elect(self: PartitionChange, replicas: tuple[int, ...], isr: tuple[int, ...]) -> object:
        elected = original(self, replicas, isr)
        if elected.leader == self.partition.leader:
            return elected
        for replica in replicas:
            if self.acceptable(replica) and replica != self.partition.leader:
                return dataclasses.replace(elected, leader=replica)
        return elected

    return [(PartitionChange, "_elect", elect)]


def _stale_isr_change() -> list[Patch]:
    return [(partitions, "_check_epochs", lambda broker_id, partition, data: None)]


def _watermark_without_isr() -> list[Patch]:
    return [(Replica, "_high_watermark_candidate", lambda self, now_ms, eligible: self.log_end_offset)]


def _watermark_by_majority() -> list[Patch]:
    def candidate(self: Replica, now_ms: float, eligible: object) -> int:
        ends = sorted([self.log_end_offset, *(f.log_end_offset for f in self._followers.values())])
        return max(self.high_watermark, ends[len(ends) // 2])

    return [(Replica, "_high_watermark_candidate", candidate)]


def _watermark_before_shrink() -> list[Patch]:
    def maximal_isr(self: Replica) -> tuple[int, ...]:
        return self._proposal.isr if self._proposal is not None else self.state.isr

    return [(Replica, "maximal_isr", property(maximal_isr))]


def _acknowledged_at_once() -> list[Patch]:
    def acknowledgement(self: Replica, leader_epoch: int, required_offset: int) -> ErrorCode | None:
        return ErrorCode.NONE if self.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    return [(Replica, "acknowledgement", acknowledgement)]


def _acknowledged_by_another_epoch() -> list[Patch]:
    original = Replica.acknowledgement

    def acknowledgement(self: Replica, leader_epoch: int, required_offset: int) -> ErrorCode | None:
        if self.high_watermark >= required_offset:
            return ErrorCode.NONE
        return original(self, leader_epoch, required_offset)

    return [(Replica, "acknowledgement", acknowledgement)]


def _leader_epoch_unchecked() -> list[Patch]:
    return [(Replica, "check_leader_epoch", lambda self, epoch: ErrorCode.NONE)]


def _joins_too_early() -> list[Patch]:
    return [(Replica, "_may_join", lambda self, broker_id, follower, eligible: True)]


def _isr_join_unasked() -> list[Patch]:
    """The leader counts a proposal as committed when it sends it."""
    original = Replica._propose

    def propose(self: Replica, isr: tuple[int, ...], **more: object) -> object:
        proposal = original(self, isr, **more)  # type: ignore[arg-type]
        self.state = dataclasses.replace(self.state, isr=isr)
        return proposal

    return [(Replica, "_propose", propose)]


def _laggards_stay_counted_out() -> list[Patch]:
    """A follower that is in sync is taken for caught up from its first fetch on."""

    def fetched(
        self: FollowerProgress,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: float,
    ) -> None:
        self.log_end_offset = leader_end_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = self.last_caught_up_ms = now_ms

    return [(FollowerProgress, "fetched", fetched)]


def _divergence_unseen() -> list[Patch]:
    return [(FetchService, "diverging", lambda self, partition, wanted: None)]


def _divergence_ignored() -> list[Patch]:
    original = FollowerFetcher._step

    def step(self: FollowerFetcher, followed: object, answer: object, now_ms: float) -> object:
        plain = dataclasses.replace(answer, diverging_epoch=-1, diverging_end_offset=-1)  # type: ignore[type-var]
        return original(self, followed, plain, now_ms)  # type: ignore[arg-type]

    return [(FollowerFetcher, "_step", step)]


def _truncates_to_watermark() -> list[Patch]:
    original = ReplicaManager.follower_truncated

    def follower_truncated(self: ReplicaManager, partition: object, offset: int) -> None:
        original(self, partition, partition.replica.high_watermark)  # type: ignore[attr-defined, arg-type]

    return [
        (ReplicaManager, "follower_truncated", follower_truncated),
        (FetchService, "_agrees", lambda self, partition, wanted: True),
    ]


def _truncates_too_little() -> list[Patch]:
    original = LeaderEpochCache.end_offset_for

    def end_offset_for(self: LeaderEpochCache, leader_epoch: int, log_end_offset: int) -> EpochEndOffset:
        found = original(self, leader_epoch, log_end_offset)
        if found.end_offset >= 0 and found.end_offset < log_end_offset:
            return dataclasses.replace(found, end_offset=found.end_offset + 1)
        return found

    return [(LeaderEpochCache, "end_offset_for", end_offset_for)]


def _dedup_off() -> list[Patch]:
    return [(ProducerStateManager, "check", lambda self, header, origin: None)]


def _dedup_lost_on_failover() -> list[Patch]:
    return [(PartitionLog, "_replicate_producer", lambda self, header, data: None)]


def _sequence_gaps_accepted() -> list[Patch]:
    return [(ProducerStateManager, "_check_sequence", lambda self, entry, header: None)]


def _log_not_synced() -> list[Patch]:
    return [(PartitionLog, "flush", lambda self: None), (SegmentedLog, "flush_work", lambda self, *a, **k: None)]


def _index_off_by_one() -> list[Patch]:
    original = LogSegment.position_of
    return [(LogSegment, "position_of", lambda self, offset: original(self, offset + 1))]


def _reads_beyond_watermark() -> list[Patch]:
    return [(PartitionLog, "last_stable_offset", property(lambda self: self.log_end_offset))]


def _isr_shrink_lost() -> list[Patch]:
    """The answer of the controller is taken for a success whatever it says."""
    original = Replica.alter_answered

    def alter_answered(
        self: Replica, proposal: object, error: ErrorCode, state: object, now_ms: float, eligible: object
    ) -> object:
        if error is not ErrorCode.NONE and self._proposal is not None and self._proposal is proposal:
            state = dataclasses.replace(
                self.state, isr=self._proposal.isr, partition_epoch=self.state.partition_epoch + 1
            )
            error = ErrorCode.NONE
        return original(self, proposal, error, state, now_ms, eligible)  # type: ignore[arg-type]

    return [(Replica, "alter_answered", alter_answered)]


def _consumer_skips() -> list[Patch]:
    original = FetchedChunk.take
    calls = [0]

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        records = original(self, limit)
        calls[0] += 1
        return records[1:] if calls[0] % 10 == 0 else records

    return [(FetchedChunk, "take", take)]


MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(name="raft-quorum-too-small", area="quorum", text="one of three is a majority", patches=_quorum_of_one),
        Mutant(
            name="raft-vote-not-persisted",
            area="quorum",
            text="a vote is gone after a crash",
            patches=_vote_forgotten,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-votes-twice",
            area="quorum",
            text="a second vote in one epoch",
            patches=_votes_twice,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-votes-for-stale-log",
            area="quorum",
            text="a candidate with an older log gets votes",
            patches=_votes_for_stale_log,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-answers-before-durable",
            area="quorum",
            text="entries are counted before they are durable",
            patches=_answers_before_durable,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-commits-on-one",
            area="quorum",
            text="an entry that one voter holds is committed",
            patches=_counts_one_follower_twice,
            options=QUORUM_RUNS,
        ),
        Mutant(
            name="raft-wal-not-synced", area="quorum", text="fsync of the log does nothing", patches=_wal_not_synced
        ),
        Mutant(
            name="metadata-out-of-order",
            area="quorum",
            text="committed metadata is applied out of order",
            patches=_metadata_applied_out_of_order,
        ),
        Mutant(
            name="controller-unclean-election",
            area="controller",
            text="a replica out of sync leads rather than none",
            patches=_unclean_election,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="controller-elects-any-replica",
            area="controller",
            text="the ISR is not asked in elections",
            patches=_elects_any_replica,
        ),
        Mutant(
            name="controller-accepts-stale-isr",
            area="controller",
            text="ISR changes are not fenced by epochs",
            patches=_stale_isr_change,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="watermark-without-isr",
            area="replication",
            text="the high watermark is the leader's log end",
            patches=_watermark_without_isr,
        ),
        Mutant(
            name="watermark-by-majority",
            area="replication",
            text="a majority of replicas moves the high watermark",
            patches=_watermark_by_majority,
        ),
        Mutant(
            name="watermark-before-shrink-committed",
            area="replication",
            text="the high watermark moves before the ISR shrink is committed",
            patches=_watermark_before_shrink,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="isr-counted-before-committed",
            area="replication",
            text="a proposed ISR counts at once",
            patches=_isr_join_unasked,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="isr-refusal-taken-for-success",
            area="replication",
            text="a refused ISR change counts",
            patches=_isr_shrink_lost,
            options=REPLICATION_RUNS,
        ),
        Mutant(name="isr-join-too-early", area="replication", text="a lagging replica joins", patches=_joins_too_early),
        Mutant(
            name="follower-taken-for-caught-up",
            area="replication",
            text="any fetch counts as a fetch of the end",
            patches=_laggards_stay_counted_out,
        ),
        Mutant(
            name="acknowledged-at-once",
            area="replication",
            text="acks=all is answered by the leader alone",
            patches=_acknowledged_at_once,
        ),
        Mutant(
            name="acknowledged-by-another-epoch",
            area="replication",
            text="an append of an old epoch is acknowledged in a new one",
            patches=_acknowledged_by_another_epoch,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="leader-epoch-unchecked",
            area="replication",
            text="requests of other leader epochs are served",
            patches=_leader_epoch_unchecked,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="divergence-unseen",
            area="replication",
            text="the leader does not look for divergence",
            patches=_divergence_unseen,
        ),
        Mutant(
            name="divergence-ignored",
            area="replication",
            text="the follower does not truncate",
            patches=_divergence_ignored,
        ),
        Mutant(
            name="truncates-to-watermark",
            area="replication",
            text="truncation to the high watermark instead of the epoch's end",
            patches=_truncates_to_watermark,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="truncates-one-too-little",
            area="log",
            text="an epoch ends one offset late",
            patches=_truncates_too_little,
        ),
        Mutant(name="dedup-off", area="log", text="sequence numbers are not looked at", patches=_dedup_off),
        Mutant(
            name="dedup-lost-on-failover",
            area="log",
            text="followers do not keep producer state",
            patches=_dedup_lost_on_failover,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="sequence-gaps-accepted",
            area="log",
            text="a gap in sequence numbers passes",
            patches=_sequence_gaps_accepted,
            options=REPLICATION_RUNS,
        ),
        Mutant(
            name="log-not-synced",
            area="log",
            text="fsync before the acknowledgement does nothing",
            patches=_log_not_synced,
            options=RunOptions(synced=True),
        ),
        Mutant(name="index-off-by-one", area="log", text="a lookup finds the next batch", patches=_index_off_by_one),
        Mutant(
            name="reads-beyond-watermark",
            area="broker",
            text="consumers see what is not committed",
            patches=_reads_beyond_watermark,
        ),
        Mutant(
            name="consumer-skips",
            area="client",
            text="the consumer skips an offset now and then",
            patches=_consumer_skips,
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
