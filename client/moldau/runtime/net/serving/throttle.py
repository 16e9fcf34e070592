"""Pauses of a connection whose client has used more than its quota (KIP-219).

The answer that names the pause leaves at once. Then the connection loop handles no further request until the pause is
over. It goes on receiving into its buffer, so that it notices the end of the stream; when the buffer is full, bytes of
the peer wait in the transport. A pause is one wait with a deadline: many paused connections cost no processor time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Throttle:
    """The pause of one connection. Handlers set it, the connection loop obeys it."""

    __slots__ = ("_scope", "until_ms")

    def __init__(self) -> None:
        """No pause."""
        self.until_ms = 0.0
        """End of the pause on the monotonic clock; 0 if there is none."""
        self._scope: trio.CancelScope | None = None

    def extend(self, until_ms: float) -> None:
        """Lets the pause last at least until ``until_ms``."""
        self.until_ms = max(self.until_ms, until_ms)

    def lift(self) -> None:
        """Ends the pause, because the quotas have changed."""
        self.until_ms = 0.0
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self, remaining_ms: float, work: Callable[[], Awaitable[object]]) -> None:
        """Runs ``work`` for at most ``remaining_ms``, or until the pause is lifted."""
        with trio.move_on_after(remaining_ms / 1_000) as self._scope:
            await work()
        self._scope = None


def throttle_of(handler: object) -> Throttle:
    """Returns the throttle of a handler; one that never pauses for handlers without.

    A ``ConnectionHandler`` whose client may have to pause has an attribute ``throttle``: one object for the life of the
    connection.
    """
    found: Throttle | None = getattr(handler, "throttle", None)
    return Throttle() if found is None else found
