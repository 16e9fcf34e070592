"""The requests that wait for the active controller, and what is known about the answer of each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.refusals import refusal
from moldau_quorum.broker_side.controller_client import REPEATABLE_APIS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.log.port import Proposal
    from moldau_quorum.node.voters.voter_features import FeatureRanges
    from moldau_quorum.quotas.mutations import MutationAllowance

QUEUE_MAX: Final = 10_000
"""Requests that wait for their decision; more are answered REQUEST_TIMED_OUT, which clients retry after a while."""
ANSWER_TIMEOUT_MS: Final = 30_000.0


class NotActiveError(Exception):
    """This node is not the active controller, or ceased to be it before the answer was certain."""


@dataclass(slots=True, kw_only=True)
class PendingAnswer:
    """A request in the queue, then its answer under way."""

    request: Request
    connection: object | None
    arrived_ms: float
    deadline_ms: float
    response: Response | None = None
    wrote: bool = False
    """Whether records were written for it."""
    proposal: Proposal | None = None
    """Must be committed before ``response`` is sent; None if nothing must."""
    unconfirmed_epoch: int | None = None
    """The controller epoch to confirm before ``response`` is sent; None if a commit does that, or nothing must."""
    controller_features: Mapping[int, FeatureRanges | None] = field(default_factory=dict)
    """The levels that the other voters support, where the request changes levels."""
    mutations: MutationAllowance | None = None
    """The changes that the quota of the sender allows; None if no quota limits it."""
    requester: Identity | None = None
    """The sender of the request, where that matters."""
    is_forwarded: bool = False
    """Whether a broker forwarded the request in an envelope."""
    decided: trio.Event = field(default_factory=trio.Event)

    def lost(self) -> Response:
        """Returns the answer to a request that was not committed in this controller epoch.

        The next leader of the quorum may still commit its records. Sent again, the request would be executed twice and
        might undo later changes.

        Raises:
            NotActiveError: the sender may ask another controller at once.
        """
        if not self.wrote or self.request.__api_key__ in REPEATABLE_APIS:
            raise NotActiveError
        return refusal(
            self.request,
            ErrorCode.REQUEST_TIMED_OUT,
            "the controller was deposed before the change was committed: it may still take effect",
        )


class RequestQueue:
    """Requests in the order of their arrival, at most ``QUEUE_MAX``."""

    __slots__ = ("_waiting", "refused")

    def __init__(self) -> None:
        self._waiting: deque[PendingAnswer] = deque()
        self.refused = 0
        """Requests that found the queue full, since the start of the process."""

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, pending: PendingAnswer) -> bool:
        """Queues a request; answers it at once, and returns False, if the queue is full."""
        if len(self._waiting) < QUEUE_MAX:
            self._waiting.append(pending)
            return True
        self.refused += 1
        pending.response = refusal(
            pending.request,
            ErrorCode.REQUEST_TIMED_OUT,
            f"{QUEUE_MAX} requests wait for the controller: try again later",
        )
        pending.decided.set()
        return False

    def pop(self) -> PendingAnswer:
        """Takes out the oldest request; there must be one."""
        return self._waiting.popleft()

    def drop_all(self) -> None:
        """Ends all waits without a response, because this node is not the active controller."""
        while self._waiting:
            self._waiting.popleft().decided.set()
