"""Defines the kinds of anomalies, and which of them a configuration allows."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.log.reach import GAP_MAX, OFFSET_END

if TYPE_CHECKING:
    from moldau_jepsen.checkers.witnesses import WitnessQuery
    from moldau_jepsen.history import TopicPartition

DETAILS_MAX = 100
"""Number of anomalies of one kind that are kept with their operations; further ones are only counted."""


class AnomalyKind(enum.Enum):
    """The kinds of anomalies."""

    INCONSISTENT_OFFSETS = "inconsistent-offsets"  # one offset, two values
    IMPOSSIBLE_OFFSET = "impossible-offset"  # no log has it: it is negative, or far above all others
    DUPLICATE = "duplicate"  # one value at two offsets
    LOST_WRITE = "lost-write"  # acknowledged, below a polled offset, and never polled
    UNSEEN = "unseen"  # acknowledged, or polled before, and not polled in the final phase
    G1A = "G1a"  # a failed or aborted write was polled
    TORN = "torn-transaction"  # the final read holds only a part of a transaction
    PRECOMMITTED_READ = "precommitted-read"  # a transaction polled its own write
    INT_POLL_SKIP = "int-poll-skip"  # a poll jumps over a record
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"  # a poll goes back
    POLL_SKIP = "poll-skip"  # the next poll of a process jumps over a record
    NONMONOTONIC_POLL = "nonmonotonic-poll"  # the next poll of a process goes back
    SEEK_MISSED = "seek-missed"  # the first record after a seek is not the first one at or after its target
    ALTERED = "altered-record"  # a record came back with another key, value, timestamp or other headers
    GROUP_SKIP = "group-skip"  # the members of a group together jumped over a record
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"  # within one operation a later send landed earlier
    NONMONOTONIC_SEND = "nonmonotonic-send"  # a later operation of a process landed earlier
    G0 = "G0"  # a cycle of write-write dependencies between transactions
    G1C = "G1c"  # a cycle of write-read (and write-write) dependencies between transactions
    DUAL_OWNERSHIP = "dual-ownership"  # two members own a partition in one generation
    SPLIT_BRAIN = "split-brain"  # two nodes lead a partition, or the quorum, in one epoch
    PIPE_LOST = "pipe-lost"  # a record of a pipe's source has none in the target
    PIPE_DUPLICATE = "pipe-duplicate"  # a record of a pipe's source has several in the target
    PIPE_DISORDER = "pipe-disorder"  # records of the target are not in the order of their source records
    PIPE_UNKNOWN = "pipe-unknown"  # a record of the target has no source record
    BANK_TORN = "bank-torn-transfer"  # the final read has one leg of a transfer and not the other
    BANK_TWICE = "bank-transfer-twice"  # a transfer took effect more than once
    BANK_ABORTED = "bank-aborted-transfer"  # a leg of a failed or aborted transfer was read
    BANK_LOST = "bank-transfer-lost"  # a transfer was acknowledged or requested, and is not in the final read
    BANK_UNKNOWN = "bank-unknown-leg"  # money was moved without a transfer, or by one that was not requested
    BANK_TOTAL = "bank-total"  # the total at the end differs from the total at the beginning
    BANK_BALANCE = "bank-balance"  # a reader's balances differ from those of its records
    STUCK = "stuck"  # a final read did not finish


class Bank(NamedTuple):
    """A bank whose transfers are judged, which requires the final phase."""

    topics: tuple[str, ...]
    """Topics with the legs of transfers: a send ``says`` the transfer's number, an account, and the amount it gains."""
    requests: str
    """Topic of requested transfers, empty for none: a send ``says`` the transfer's number first."""
    accounts: int
    opening: int
    """Balance of each account before the first transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The guarantees that a run promised."""

    read_committed: bool = True
    """Consumers asked for committed records only."""
    idempotent: bool = True
    """Producers were idempotent."""
    subscribe: bool = False
    """Consumers were in groups, where a rebalance may move positions between operations."""
    final_phase: bool = True
    """The history ends with a phase in which everything is read from the beginning."""
    ended: bool = True
    """Each send has its operation in the history. False for a truncated history: operations are added when they end, so
    the send of a polled record may be missing."""
    pipes: tuple[tuple[str, str], ...] = ()
    """Source and target topics of exactly-once pipes, whose check requires the final phase."""
    banks: tuple[Bank, ...] = ()
    new_topics: bool = True
    """The topics were made for the run: their logs begin at 0, so that no offset is far above the other ones."""
    append_time: bool = False
    """Brokers replace timestamps, and the digests of the history include the sent ones. This holds for old histories
    only, because workloads now leave timestamps out of digests if brokers replace them."""

    @property
    def offset_gap_max(self) -> int:
        """Returns how far an offset may be above all those of its partition before it (``Reach``)."""
        return GAP_MAX if self.new_topics else OFFSET_END


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One finding."""

    kind: AnomalyKind
    allowed: bool
    """Whether the options permit it: then it is a figure, not an error."""
    text: str
    """One sentence that names values, offsets and processes."""
    partition: TopicPartition | None = None
    operations: tuple[int, ...] = ()
    """Indexes of its witnesses, ascending."""
    offsets: tuple[int, ...] = ()
    """Offsets of the affected records in the partition, for operations with many records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Sizes of the history."""

    operations: int
    sends_acknowledged: int
    sends_failed: int
    sends_unknown: int
    records_polled: int
    """With repetition."""
    values_seen: int
    """Distinct."""
    partitions: int
    leaderships: int = 0
    """Number of pairs of partition and leader epoch (the quorum's too) with a known leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of a history."""

    valid: bool
    """Whether the options allow all anomalies."""
    counts: dict[AnomalyKind, int]
    """Numbers of findings by kind, allowed ones included."""
    anomalies: tuple[Anomaly, ...]
    """The first ``DETAILS_MAX`` of each kind."""
    figures: Figures


@dataclass(slots=True)
class Findings:
    """Collects anomalies while checkers run."""

    options: CheckOptions
    counts: dict[AnomalyKind, int] = field(default_factory=dict)
    forbidden: int = 0
    kept: list[Anomaly] = field(default_factory=list)
    sought: list[tuple[int, tuple[WitnessQuery, ...]]] = field(default_factory=list)
    """Indexes in ``kept``, with the witness queries of the anomalies there (``name_witnesses``)."""

    def add(
        self,
        kind: AnomalyKind,
        text: str,
        *,
        partition: TopicPartition | None = None,
        operations: tuple[int, ...] = (),
        offsets: tuple[int, ...] = (),
        sought: tuple[WitnessQuery, ...] = (),
        allowed: bool | None = None,
    ) -> None:
        """Adds one finding; with ``allowed`` None ``is_allowed`` decides.

        ``operations`` are the known witnesses, in any order; ``sought`` are queries for the unknown ones.
        """
        permitted = is_allowed(kind, self.options) if allowed is None else allowed
        count = self.counts.get(kind, 0)
        self.counts[kind] = count + 1
        self.forbidden += not permitted
        if count < DETAILS_MAX:
            if sought:
                self.sought.append((len(self.kept), sought))
            self.kept.append(
                Anomaly(
                    kind=kind,
                    allowed=permitted,
                    text=text,
                    partition=partition,
                    operations=tuple(sorted(set(operations))),
                    offsets=offsets,
                )
            )


def is_allowed(kind: AnomalyKind, options: CheckOptions) -> bool:
    """Returns whether the options permit all anomalies of a kind.

    Checkers permit more where they have details: cycles of G1c that need a write-write edge, and polls of members of a
    group.
    """
    match kind:
        case AnomalyKind.DUPLICATE | AnomalyKind.NONMONOTONIC_SEND | AnomalyKind.INT_NONMONOTONIC_SEND:
            return not options.idempotent  # a retry may repeat a record, and follow later ones
        case AnomalyKind.G1A | AnomalyKind.TORN | AnomalyKind.PRECOMMITTED_READ | AnomalyKind.G1C:
            return not options.read_committed  # a transaction sees its own writes and other open ones
        case AnomalyKind.BANK_ABORTED | AnomalyKind.BANK_BALANCE | AnomalyKind.BANK_TORN | AnomalyKind.BANK_TOTAL:
            return not options.read_committed
        case AnomalyKind.ALTERED:
            return options.append_time
        case AnomalyKind.G0:
            return True  # Kafka does not order the writes of different transactions
        case _:
            return False
