"""What can be wrong with a history, and what of it a configuration allows."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moldau_jepsen.checkers.witnesses import Sought
    from moldau_jepsen.history import TopicPartition

DETAILS_MAX = 100
"""Anomalies of one kind that are kept with their operations; beyond that they are counted only."""


class AnomalyKind(enum.Enum):
    """The catalogue."""

    INCONSISTENT_OFFSETS = "inconsistent-offsets"  # one offset, two values
    DUPLICATE = "duplicate"  # one value at two offsets
    LOST_WRITE = "lost-write"  # acknowledged, below what was polled, polled by nobody
    UNSEEN = "unseen"  # acknowledged, or polled before, and not polled in the final phase
    G1A = "G1a"  # a failed or aborted write was polled
    TORN = "torn-transaction"  # part of a transaction is in the final read, part of it is not
    PRECOMMITTED_READ = "precommitted-read"  # a transaction polled its own write
    INT_POLL_SKIP = "int-poll-skip"  # a poll jumps over a record
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"  # a poll goes back
    POLL_SKIP = "poll-skip"  # the next poll of a process jumps over a record
    NONMONOTONIC_POLL = "nonmonotonic-poll"  # the next poll of a process goes back
    SEEK_MISSED = "seek-missed"  # what was read after a seek is not the first record at or after its target
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
    PIPE_DISORDER = "pipe-disorder"  # records of the target are not in the order of those they were made from
    PIPE_UNKNOWN = "pipe-unknown"  # a record of the target was made from none of the source
    BANK_TORN = "bank-torn-transfer"  # the final read has one leg of a transfer and not the other
    BANK_TWICE = "bank-transfer-twice"  # a transfer took effect more than once
    BANK_ABORTED = "bank-aborted-transfer"  # a leg of a failed or aborted transfer was read
    BANK_LOST = "bank-transfer-lost"  # a transfer was acknowledged, or asked for, and is not in the final read
    BANK_UNKNOWN = "bank-unknown-leg"  # money was moved by no transfer, or by one that nobody asked for
    BANK_TOTAL = "bank-total"  # at the end there is more or less money than at the beginning
    BANK_BALANCE = "bank-balance"  # a reader found other balances than its records have
    STUCK = "stuck"  # a final read did not come to its end


class Bank(NamedTuple):
    """Accounts whose transfers are judged; they need the final phase."""

    topics: tuple[str, ...]
    """They hold the legs of transfers: a send ``says`` the transfer's number, an account, and what it gains."""
    requests: str
    """Topic of transfers that others carry out, empty for none: a send ``says`` first the transfer's number."""
    accounts: int
    opening: int
    """Balance of each account before the first transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What was promised."""

    read_committed: bool = True
    """Consumers asked for committed records only."""
    idempotent: bool = True
    """Producers were idempotent."""
    subscribe: bool = False
    """Consumers were in groups, where a rebalance may move positions between operations."""
    final_phase: bool = True
    """The history ends with a phase in which everything is read from the beginning."""
    ended: bool = True
    """Each send has its operation in the history. False where a history was cut short: operations are told when they
    end, so that a record may have been polled whose send was under way."""
    pipes: tuple[tuple[str, str], ...] = ()
    """Pairs of topics, source and target of an exactly-once pipe; they need the final phase."""
    banks: tuple[Bank, ...] = ()
    append_time: bool = False
    """Brokers put timestamps of their own on records, and the digests of the history have those that were sent: old
    histories alone, for workloads leave timestamps out of digests where brokers do that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One finding."""

    kind: AnomalyKind
    allowed: bool
    """The options permit it: it is a figure, not an error."""
    text: str
    """One sentence that names values, offsets and processes."""
    partition: TopicPartition | None = None
    operations: tuple[int, ...] = ()
    """Indexes of the operations behind it, ascending."""
    offsets: tuple[int, ...] = ()
    """Offsets of the partition that it is about: what to look at in operations with many records."""


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
    """Pairs of partition and leader epoch (the quorum's too) of which a leader is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of a history."""

    valid: bool
    """No anomaly that the options do not allow."""
    counts: dict[AnomalyKind, int]
    """All findings by kind, allowed ones too."""
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
    sought: list[tuple[int, tuple[Sought, ...]]] = field(default_factory=list)
    """Places in ``kept``, and what is yet to be found for the anomalies there (``name_witnesses``)."""

    def add(
        self,
        kind: AnomalyKind,
        text: str,
        *,
        partition: TopicPartition | None = None,
        operations: tuple[int, ...] = (),
        offsets: tuple[int, ...] = (),
        sought: tuple[Sought, ...] = (),
        allowed: bool | None = None,
    ) -> None:
        """Adds one finding; ``allowed`` None asks the table of what the options allow.

        ``operations`` are those that the checker knows, in any order; ``sought`` are those that it does not.
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
    """What the options permit, whatever the cluster does.

    Checkers that know more say it themselves: cycles of G1c that need a write-write edge, and polls of members of a
    group, are allowed beyond this.
    """
    match kind:
        case AnomalyKind.DUPLICATE | AnomalyKind.NONMONOTONIC_SEND | AnomalyKind.INT_NONMONOTONIC_SEND:
            return not options.idempotent  # a retry may come again, and after what was sent later
        case AnomalyKind.G1A | AnomalyKind.TORN | AnomalyKind.PRECOMMITTED_READ | AnomalyKind.G1C:
            return not options.read_committed  # a transaction sees its own writes, and those of others that are open
        case AnomalyKind.BANK_ABORTED | AnomalyKind.BANK_BALANCE | AnomalyKind.BANK_TORN | AnomalyKind.BANK_TOTAL:
            return not options.read_committed
        case AnomalyKind.ALTERED:
            return options.append_time
        case AnomalyKind.G0:
            return True  # transactions of Kafka do not order their writes against each other
        case _:
            return False
