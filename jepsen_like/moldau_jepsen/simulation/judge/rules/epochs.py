"""Judges the leader epochs of a log when its beginning has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


class EpochRules:
    """Judges that the epochs of a log lie within the log, in order (KIP-101)."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated

    def began(
        self, key: Hashable, broker: int, log_start: int, log_end: int, epochs: Sequence[tuple[int, int]]
    ) -> None:
        """The log of ``key`` on a broker begins at another offset, or over; ``epochs`` are (epoch, start offset)."""
        former_epoch, former_start = -1, log_start - 1
        for epoch, start in epochs:
            if epoch <= former_epoch or start <= former_start or start > log_end:
                self._violated(
                    "epochs-in-log",
                    f"{key}: broker {broker} has a log from {log_start} to {log_end} and the epochs {list(epochs)}",
                )
                return
            former_epoch, former_start = epoch, start
