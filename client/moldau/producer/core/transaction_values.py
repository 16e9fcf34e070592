"""States, outcomes and calls of a transactional producer. Values without behaviour."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.protocol.errors import KafkaError
    from moldau.protocol.schema import Request


class State(enum.Enum):
    """The states of a transactional producer."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "failed, to be aborted"
    FATAL_ERROR = "failed for good"


def described(transactional_id: str, state: State, action: str) -> str:
    """Returns the words for a producer that refuses an action in this state, and for the call that it misses."""
    remedy = {
        State.UNINITIALIZED: "; call init_transactions first",
        State.READY: "" if action.startswith("init") else "; begin a transaction first, with transaction()",
        State.IN_TRANSACTION: "; commit or abort it first",
    }.get(state, "")
    return f"transactional producer {transactional_id!r} is {state.value}{remedy}"


@dataclass(slots=True, kw_only=True, eq=False)
class Outcome:
    """The outcome of one init, commit, abort or sending of offsets, independent of later calls.

    Invariant: ``error`` and ``is_delivered`` are set only where ``is_known`` is; ``is_known`` and ``error`` do not
    change afterwards.
    """

    action: State
    """INITIALIZING, COMMITTING or ABORTING; IN_TRANSACTION for offsets."""
    is_known: bool = False
    error: KafkaError | None = None
    is_delivered: bool = False
    """Whether a call has returned it to the application."""

    def settle(self, error: KafkaError | None = None) -> None:
        """Sets the outcome: a success without ``error``. A known outcome does not change."""
        if not self.is_known:
            self.is_known = True
            self.error = error


class Coordinator(enum.IntEnum):
    """The destination of a request; numbers are the key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that is due. If ``request`` is None, the coordinator of ``key`` must be looked up first."""

    coordinator: Coordinator
    key: str
    node_id: int = -1
    request: Request | None = None
    version_max: int = 0
    subject: object = None
    """The subject of the request, for the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """An offset that is committed with the transaction."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """An open transaction whose records and offsets are all delivered; the holder of this value can end it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_open: bool = True
    """Whether its coordinator knows it; a transaction without records and offsets needs no end."""
