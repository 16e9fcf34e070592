"""What a transactional producer raises, where it may be, and what it asks for. Values, no behaviour."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import KafkaError

if TYPE_CHECKING:
    from moldau.protocol.schema import Request


class TransactionError(KafkaError):
    """A transaction, or the producer itself, has failed; see the subclasses."""


class AbortableTransactionError(TransactionError):
    """This transaction cannot be committed; abort it, then the next one may begin."""


class FatalTransactionError(TransactionError):
    """The producer can do nothing any more; close it."""


class ProducerFencedError(FatalTransactionError):
    """Another producer has taken over the transactional id, or the coordinator aborted the transaction for its age."""


class TransactionAbortedError(KafkaError):
    """The record was not sent, or the offsets are not committed, because their transaction was aborted."""


class State(enum.Enum):
    """Where the producer is."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "failed, to be aborted"
    FATAL_ERROR = "failed for good"


@dataclass(slots=True, kw_only=True, eq=False)
class Outcome:
    """What becomes of one init, commit or abort, or of offsets that are sent: of this one, whatever is asked for after
    it.

    Invariant: ``error`` and ``is_told`` are set only where ``is_known`` is; ``is_known`` and ``error`` do not change
    afterwards.
    """

    action: State
    """INITIALIZING, COMMITTING or ABORTING; IN_TRANSACTION for offsets."""
    is_known: bool = False
    error: KafkaError | None = None
    is_told: bool = False
    """Whether a call has returned it to the application."""

    def settle(self, error: KafkaError | None = None) -> None:
        """It is known from now on: a success without ``error``. What was known before stays."""
        if not self.is_known:
            self.is_known = True
            self.error = error


class Coordinator(enum.IntEnum):
    """Whom a request goes to; numbers are the key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that is due. Without ``request``, the coordinator of ``key`` is to be looked up first."""

    coordinator: Coordinator
    key: str
    node_id: int = -1
    request: Request | None = None
    version_max: int = 0
    subject: object = None
    """What the request is about, for the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """An offset that is committed with the transaction."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
