"""Answers to requests, for handlers that may have to wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Response


class Completion:
    """The answer to one request.

    The coordinator completes it exactly once, by its own deadlines at the latest.
    """

    __slots__ = ("_event", "_response")

    def __init__(self, response: Response | None = None) -> None:
        """Starts unanswered, or answered with ``response``."""
        self._response = response
        self._event = trio.Event()
        if response is not None:
            self._event.set()

    @property
    def is_ready(self) -> bool:
        """True when `response` may be called."""
        return self._response is not None

    def complete(self, response: Response) -> None:
        """Sets the answer."""
        assert self._response is None, "a request is answered once"
        self._response = response
        self._event.set()

    def response(self) -> Response:
        """Returns the answer. Call it only when `is_ready`."""
        assert self._response is not None
        return self._response

    async def wait(self) -> Response:
        """Waits for the answer. After a cancellation the coordinator still completes the request."""
        await self._event.wait()
        return self.response()


class Combined(Completion):
    """An answer that combines the answers of several parts."""

    __slots__ = ("_combine", "_parts")

    def __init__(self, parts: list[Completion], combine: Callable[[list[Response]], Response]) -> None:
        """Calls ``combine`` once, with the answers in the order of ``parts``."""
        ready = all(part.is_ready for part in parts)
        super().__init__(combine([part.response() for part in parts]) if ready else None)
        self._parts = parts
        self._combine = combine

    async def wait(self) -> Response:
        """Waits for all parts."""
        if not self.is_ready:
            responses = [await part.wait() for part in self._parts]
            if not self.is_ready:
                self.complete(self._combine(responses))
        return self.response()
