"""Offset syncs: pairs of a source's offset and the target's, and the translation of offsets with them. Pure.

``SyncEmitter`` decides which pairs are worth a record. ``SyncStore`` keeps some pairs of each partition, dense near the
end of the log and sparse far behind it, and translates committed offsets.

Translation never skips a record. A committed offset is that of the next record to read. If a pair with exactly this
upstream offset is known, its downstream offset is the answer. Else the answer is the offset after the nearest earlier
pair: the record of the pair was read, and it is not known how many of the following records reached the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.mirror.core.formats import OffsetSync

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition


class SyncEmitter:
    """The offset syncs that one flow writes, with the rules of MirrorMaker's ``OffsetSyncWriter``.

    A pair is due at once for the first records of a partition, after a gap in the source's offsets, when the target's
    offsets go back, and when translation would be ``lag_max`` records behind. Else it waits for ``take_delayed``.
    """

    def __init__(self, lag_max: int) -> None:
        """``lag_max`` is ``offset.lag.max``, in records."""
        self._lag_max = lag_max
        self._states: dict[TopicPartition, _Emitted] = {}
        self._delayed: dict[TopicPartition, OffsetSync] = {}

    def copied(self, partition: TopicPartition, upstream: int, downstream: int, count: int) -> list[OffsetSync]:
        """Takes a run of ``count`` records that have consecutive offsets on both sides; returns the pairs due now."""
        assert count >= 1, "a run has records"
        state = self._states.setdefault(partition, _Emitted())
        due: list[OffsetSync] = []
        last_upstream, last_downstream = upstream + count - 1, downstream + count - 1
        breaks = upstream - state.upstream != 1 or downstream - state.downstream < 1
        if state.synced < 0 or breaks:
            due.append(OffsetSync(partition, upstream, downstream))
            state.synced = downstream
        last = OffsetSync(partition, last_upstream, last_downstream)
        if last_downstream - (state.synced + 1) >= self._lag_max:
            due.append(last)
            state.synced = last_downstream
        state.upstream, state.downstream = last_upstream, last_downstream
        if state.synced == last_downstream:
            self._delayed.pop(partition, None)
        else:
            self._delayed[partition] = last
        return due

    def take_delayed(self) -> list[OffsetSync]:
        """Returns the newest pair of each partition that was not due when its records were copied."""
        taken = list(self._delayed.values())
        self._delayed.clear()
        for sync in taken:
            self._states[sync.partition].synced = sync.downstream
        return taken

    def forget(self, partition: TopicPartition) -> None:
        """Begins again with a partition whose mirroring goes back or ends."""
        self._states.pop(partition, None)
        self._delayed.pop(partition, None)


class _Emitted:
    """The known offsets of one partition; -1 means unknown."""

    __slots__ = ("downstream", "synced", "upstream")

    def __init__(self) -> None:
        self.upstream = -1  # of the last record that was copied
        self.downstream = -1
        self.synced = -1  # downstream offset of the last pair


class SyncStore:
    """The pairs of each partition, in ascending order of both offsets.

    Of the pairs at a distance of 2^k to 2^(k+1) records behind the newest one, at most two are kept: so a partition
    keeps at most 128, and a group that is n records behind is translated to at most about 2n records behind.
    """

    def __init__(self) -> None:
        """Knows nothing; no offset can be translated."""
        self._syncs: dict[TopicPartition, list[OffsetSync]] = {}

    def add(self, sync: OffsetSync) -> bool:
        """Takes a pair, in the order of the topic of offset syncs; returns whether the target's log went back.

        Pairs that it contradicts go: those not before it in the source (the mirror went back, or the source's topic was
        created again), and those not before it in the target (the copy was created again, or cut).
        """
        known = self._syncs.get(sync.partition, [])
        kept = [each for each in known if each.upstream < sync.upstream and each.downstream < sync.downstream]
        self._syncs[sync.partition] = _thinned([*kept, sync])
        return bool(known) and known[-1].downstream >= sync.downstream

    def translate(self, partition: TopicPartition, upstream: int) -> int | None:
        """Returns the offset in the target for a committed offset of the source.

        None if no pair is known, or all known ones lie behind the committed offset.
        """
        for sync in reversed(self._syncs.get(partition, ())):
            if sync.upstream <= upstream:
                return sync.downstream + (0 if sync.upstream == upstream else 1)
        return None

    def count(self, partition: TopicPartition) -> int:
        """Returns how many pairs of a partition are kept."""
        return len(self._syncs.get(partition, ()))


def _thinned(syncs: list[OffsetSync]) -> list[OffsetSync]:
    newest = syncs[-1].upstream
    by_distance: dict[int, list[OffsetSync]] = {}
    for sync in syncs:
        by_distance.setdefault((newest - sync.upstream).bit_length(), []).append(sync)
    return [each for group in by_distance.values() for each in (group if len(group) <= 2 else [group[0], group[-1]])]
