"""The trio clients' requests to schema registries: one for each answer, some at a time, within the client's limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from moldau.serialization.core.values import RegistryError

if TYPE_CHECKING:
    from moldau.serialization.core.values import SchemaNeeded

REQUESTS_MAX: Final = 8
"""Requests of one client at a time; each opens a connection."""


@dataclass(slots=True)
class _Turn:
    """The tasks that need one answer. Invariant: it is kept while ``waiting`` is above zero."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    waiting: int = 0


class SchemaLookups:
    """Fetches what serializers of one client need; tasks that need the same wait for one request."""

    def __init__(self, limit_name: str, limit_ms: float) -> None:
        """Takes the configuration key that bounds a wait, and its value."""
        self._limit_name = limit_name
        self._limit_ms = limit_ms
        self._turns: dict[object, _Turn] = {}
        self._requests: trio.CapacityLimiter | None = None

    async def resolve(self, needed: SchemaNeeded) -> None:
        """Asks the registry, unless another task has just done so.

        Raises:
            RegistryError: the registry refuses or does not answer.
        """
        if self._requests is None:  # clients are made outside of a trio run, too
            self._requests = trio.CapacityLimiter(REQUESTS_MAX)
        key = needed.registry, needed.need
        turn = self._turns.setdefault(key, _Turn())
        turn.waiting += 1
        try:
            with trio.move_on_after(self._limit_ms / 1000):
                async with turn.lock, self._requests:
                    await needed.registry.resolve(needed.need)
                return
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[key]
        raise RegistryError(f"the schema registry does not answer within {self._limit_name} = {self._limit_ms:g} ms")
