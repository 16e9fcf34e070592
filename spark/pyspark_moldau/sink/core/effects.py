"""The records that the sink's protocol keeps about a batch, and the effects that it asks for. Pure.

A task and the driver (``protocol``) return one effect at a time; the modules ``task`` and ``driver`` of the sink carry
it out on a cluster and give its result back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

PROTOCOL_VERSION: Final = 1
"""The version of a decision as it is kept on the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prepared transaction of one task: what ends it, and what it holds."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    rows: int
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The transactions of a batch by partition; None for a partition without rows.

    ``decided_ms`` is the driver's wall clock when it decided the batch first; 0 if an earlier release decided it.
    ``topic`` is that of a job, empty if its rows name theirs; None for a query, whose batches no other write shares.
    ``plan`` tells the batch from another one of the same number; empty where it is not known.
    """

    batch: int
    run: str
    entries: tuple[Entry | None, ...]
    amendments: int = 0
    decided_ms: int = 0
    topic: str | None = None
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The notes of a query: the last batch whose commits were begun, and the last whose commits are done.

    ``begun_group`` is the consumer group that holds the first.
    """

    begun: int = -1
    done: int = -1
    begun_group: str = ""


class Kind(enum.Enum):
    """A task's report on its rows."""

    PREPARED = "prepared"
    EMPTY = "empty"
    DECIDED = "decided"  # the batch was decided before; the task wrote nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a task to the driver."""

    batch: int
    partition: int
    kind: Kind
    entry: Entry | None = None


# --- effects, and their results


@dataclass(frozen=True, slots=True)
class ReadDecision:
    """Reads the last decision. Result: ``Decision`` or None.

    A task may overlook a decision that is being committed, because the driver looks again; ``is_final`` must not. The
    driver reads after ``FenceDriver``, when none can be under way.
    """

    is_final: bool = False


@dataclass(frozen=True, slots=True)
class ReadMarker:
    """Reads the batch that a transactional id committed last, once none of its transactions is open.

    Result: int, -1 for none.
    """

    transactional_id: str


@dataclass(frozen=True, slots=True)
class ReadNotes:
    """Reads the notes of the query. Result: ``Notes``."""


@dataclass(frozen=True, slots=True)
class NoteBegun:
    """Notes that the commits of a batch begin; durable on return, and it does not expire. Result: None."""

    batch: int


@dataclass(frozen=True, slots=True)
class NoteDone:
    """Notes that all commits of a batch are done; durable on return, and it does not expire. Result: None."""

    batch: int


@dataclass(frozen=True, slots=True)
class EndDecided:
    """Commits a decided transaction. Result: ``Ended``."""

    entry: Entry


class Ended(enum.Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    DEAD = "dead"  # it has ended before; the marker shows how


@dataclass(frozen=True, slots=True)
class Fence:
    """Takes over a transactional id of the task that has no open transaction. Result: None."""


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Writes the task's rows in a transaction. Result: (number of rows, fingerprint)."""


@dataclass(frozen=True, slots=True)
class StageMarker:
    """Adds the marker of the batch to the transaction. Result: None."""

    batch: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Waits until everything is delivered and leaves the transaction open. Result: ``Entry``."""

    rows: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class SkipRows:
    """Reads the task's rows and drops them, because the batch is decided. Result: None."""


@dataclass(frozen=True, slots=True)
class FenceDriver:
    """Takes over the driver's transactional id. Result: None."""


@dataclass(frozen=True, slots=True)
class FindEnded:
    """Looks which transactions are not open any more. Result: their entries, a tuple."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Writes the decision in a transaction of the driver's id, and commits it. Result: None.

    It fails if another driver has taken over the id since ``FenceDriver``.
    """

    decision: Decision


@dataclass(frozen=True, slots=True)
class AbortOrphans:
    """Aborts the open transactions of tasks that are not among ``kept`` (transactional ids). Result: None."""

    kept: frozenset[str]


Effect: TypeAlias = (
    ReadDecision
    | ReadMarker
    | ReadNotes
    | NoteBegun
    | NoteDone
    | EndDecided
    | Fence
    | WriteRows
    | StageMarker
    | HandOver
    | SkipRows
    | FenceDriver
    | FindEnded
    | WriteDecision
    | AbortOrphans
)
