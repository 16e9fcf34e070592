"""A proposal of the node as the port shows it: something to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_quorum.log.port import LogPosition
    from moldau_quorum.log.raft.waiting import Pending


class RaftProposal:
    """See ``Proposal`` of the port."""

    __slots__ = ("_event", "_pending")

    def __init__(self, begin: Callable[[Callable[[], None]], Pending]) -> None:
        """``begin(notify)`` makes the proposal."""
        self._event = trio.Event()
        self._pending = begin(self._event.set)

    @property
    def position(self) -> LogPosition:
        """See ``Proposal``."""
        return self._pending.position

    async def wait_committed(self) -> LogPosition:
        """See ``Proposal``."""
        await self._event.wait()
        if self._pending.error is not None:
            raise self._pending.error
        return self._pending.position
