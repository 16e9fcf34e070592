"""Which part of the log is redundant, and which snapshots keep it from growing. Pure (KIP-932).

``__share_group_state`` is not compacted. The state of a share-partition is in its last snapshot and the updates after
it, so all records before the oldest of these snapshots are redundant. The snapshot of a share-partition that never
changes would keep the whole log behind it; so cold snapshots are written again from time to time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_broker.coordinator.share.core.state import Change, SharePartitionKey, ShareState

COLD_PER_ROUND_MAX = 1_000


class Snapshots:
    """The offsets of the last committed snapshots."""

    def __init__(self) -> None:
        """Starts with an empty log."""
        self._offsets: dict[SharePartitionKey, int] = {}
        self._end_offset = 0

    def replay(self, change: Change, offset: int, state: ShareState | None) -> None:
        """Records where a committed change is; ``state`` is the state after it."""
        self._end_offset = max(self._end_offset, offset + 1)
        if state is None:
            self._offsets.pop(change.key, None)
        elif state.updates == 0 or change.key not in self._offsets:
            self._offsets[change.key] = offset

    def redundant_end_offset(self) -> int:
        """Returns the offset below which no record is needed."""
        return min(self._offsets.values(), default=self._end_offset)


def cold(states: Mapping[SharePartitionKey, ShareState], before_ms: int) -> list[SharePartitionKey]:
    """Returns share-partitions whose last snapshot was written before a time, the oldest first.

    If all last snapshots are such repetitions, nothing has been written to the log that could be deleted, and writing
    them again would never end.
    """
    if all(state.create_ms < state.write_ms and not state.updates for state in states.values()):
        return []
    found = [(state.write_ms, key) for key, state in states.items() if state.write_ms <= before_ms]
    return [key for _, key in sorted(found)[:COLD_PER_ROUND_MAX]]
