"""The start position of a consumer without a committed offset (``auto.offset.reset``). Pure."""

from __future__ import annotations

from moldau.consumer.core.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from moldau.values import reset_duration_ms


class ResetPolicy:
    """One value of ``auto.offset.reset``."""

    __slots__ = ("_duration_ms", "_name")

    def __init__(self, name: str) -> None:
        """Takes a value that the consumer's configuration has checked."""
        self._name = name
        self._duration_ms = reset_duration_ms(name) or 0

    def timestamp(self, wall_ms: int) -> int | None:
        """Returns the time for which to ask ListOffsets; None for ``none``, where the application decides."""
        match self._name:
            case "earliest":
                return EARLIEST_TIMESTAMP
            case "latest":
                return LATEST_TIMESTAMP
            case "none":
                return None
        return max(wall_ms - self._duration_ms, 0)
