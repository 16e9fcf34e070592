"""Gathers what is known of partitions over time, in memory that does not grow with the length of a run."""

from __future__ import annotations

from moldau_jepsen.reports.over_time import PartitionSeries, PartitionState

POINTS_MAX = 600
"""Of high watermarks, per partition; beyond it every other one is dropped."""
STATES_MAX = 2_000
"""Changes of state that are kept, per partition: the first ones."""


class _Partition:
    __slots__ = ("points", "states")

    def __init__(self) -> None:
        self.states: list[PartitionState] = []
        self.points: list[tuple[float, float | None]] = []


class PartitionsOverTime:
    """Takes what was seen, in the order of time."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._partitions: dict[str, _Partition] = {}

    def saw_state(self, name: str, state: PartitionState) -> None:
        """A partition stands so; nothing is kept if it stood so before."""
        states = self._of(name).states
        if (not states or states[-1][1:] != state[1:]) and len(states) < STATES_MAX:
            states.append(state)

    def saw_high_watermark(self, name: str, at_s: float, offset: int | None) -> None:
        """The leader of a partition reports its high watermark; None: no leader does."""
        points = self._of(name).points
        if offset is None and (not points or points[-1][1] is None):
            return
        points.append((at_s, offset))
        if len(points) > POINTS_MAX:
            thinned = [one for place, one in enumerate(points[:-1]) if place % 2 == 0 or one[1] is None]
            # Breaks are kept as long as there is room for them.
            points[:] = [*(thinned if len(thinned) < POINTS_MAX else points[:-1:2]), points[-1]]

    def _of(self, name: str) -> _Partition:
        found = self._partitions.get(name)
        if found is None:
            found = self._partitions[name] = _Partition()
        return found

    def series(self) -> tuple[PartitionSeries, ...]:
        """Returns the gathered values, by name."""
        return tuple(
            PartitionSeries(name=name, states=tuple(one.states), high_watermarks=tuple(one.points))
            for name, one in sorted(self._partitions.items())
        )
