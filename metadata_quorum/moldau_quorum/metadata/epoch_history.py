"""The epochs of commands by offset, with which a controller recognises followers of another history. Pure.

A follower names the last position that it has applied. Committed entries never change, so the controller's log must
have the same epoch there. Its entries may be gone already; the few offsets at which the epoch rose are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

EPOCHS_MAX: Final = 1_000
"""Rises of the epoch that are kept, the newest ones."""


class EpochHistory:
    """Invariant: offsets and epochs both rise, and there is at least one pair."""

    def __init__(self, epochs_max: int = EPOCHS_MAX) -> None:
        """Starts as before the first entry."""
        self._epochs_max = epochs_max
        self._offsets = [0]
        self._epochs = [0]

    def restart(self, offset: int, epoch: int) -> None:
        """Forgets everything before ``offset``, at which a snapshot ends."""
        self._offsets, self._epochs = [offset], [epoch]

    def take(self, offset: int, epoch: int) -> None:
        """Takes the next command."""
        if epoch > self._epochs[-1]:
            self._offsets.append(offset)
            self._epochs.append(epoch)
            if len(self._offsets) > self._epochs_max:
                del self._offsets[0], self._epochs[0]

    @property
    def latest(self) -> int:
        """The epoch of the last command."""
        return self._epochs[-1]

    def epoch_at(self, offset: int) -> int | None:
        """Returns the epoch of the last command at or below ``offset``; None if that is no longer known."""
        index = bisect_right(self._offsets, offset)
        return self._epochs[index - 1] if index else None
