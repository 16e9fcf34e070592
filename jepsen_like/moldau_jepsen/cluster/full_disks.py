"""Tells which ends of processes a full disk explains. Pure.

A process that met a full disk may end because of it, also after the disk has room again. The next process of the node,
which begins with room, may not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Period:
    first: int
    """The number of failures of all nodes when the disk was filled."""
    end: int | None = None
    """The same when the first process began that had room; None before."""
    is_freed: bool = False


class FullDisks:
    """The times in which disks of nodes were full. Failures of processes are known by their index in a list."""

    def __init__(self) -> None:
        self._periods: dict[int, list[_Period]] = {}

    def filled(self, node_id: int, failures: int) -> None:
        """Takes note that a node's disk has no room, after so many failures."""
        period = self._open(node_id)
        if period is None:
            self._periods.setdefault(node_id, []).append(_Period(failures))
        else:
            period.is_freed = False

    def freed(self, node_id: int) -> None:
        """Takes note that a node's disk has room again."""
        period = self._open(node_id)
        if period is not None:
            period.is_freed = True

    def started(self, node_id: int, failures: int) -> None:
        """Takes note that a process of a node begins, after so many failures."""
        period = self._open(node_id)
        if period is not None and period.is_freed:
            period.end = failures

    def explains(self, node_id: int, index: int) -> bool:
        """Returns whether the failure with an index, one of this node, may have come from its full disk."""
        periods = self._periods.get(node_id, ())
        return any(each.first <= index and (each.end is None or index < each.end) for each in periods)

    def _open(self, node_id: int) -> _Period | None:
        last = self._periods.get(node_id, [])[-1:]
        return last[0] if last and last[0].end is None else None
