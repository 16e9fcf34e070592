"""The trio clients' requests to schema registries: one at a time, bounded by the client's time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.serialization.core.values import RegistryError

if TYPE_CHECKING:
    from moldau.serialization.core.values import SchemaNeeded


class SchemaLookups:
    """Fetches what serializers of one client need; tasks that need the same wait for one request."""

    def __init__(self, limit_name: str, limit_ms: float) -> None:
        """Takes the configuration key that bounds a wait, and its value."""
        self._limit_name = limit_name
        self._limit_ms = limit_ms
        self._lock = trio.Lock()

    async def resolve(self, needed: SchemaNeeded) -> None:
        """Asks the registry, unless another task has just done so.

        Raises:
            RegistryError: the registry refuses or does not answer.
        """
        with trio.move_on_after(self._limit_ms / 1000):
            async with self._lock:
                await needed.registry.resolve(needed.need)
            return
        raise RegistryError(f"the schema registry does not answer within {self._limit_name} = {self._limit_ms:g} ms")
