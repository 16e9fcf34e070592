"""An async iterator without an end of its own, which a loop may leave at any time.

An async generator would need ``aclose`` when a loop leaves it early; this iterator holds nothing that must be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Iteration(Generic[T]):
    """Returns what a coroutine function returns, until that raises ``StopAsyncIteration``."""

    __slots__ = ("_next",)

    def __init__(self, next_value: Callable[[], Awaitable[T]]) -> None:
        self._next = next_value

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self._next()
