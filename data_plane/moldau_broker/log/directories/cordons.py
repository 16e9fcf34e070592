"""The cordoned log directories of a broker: they take no new replicas (KIP-1066). Pure.

The replicas in a cordoned directory stay in service, and replicas may leave it. New replicas, and moves between the
directories of the broker, go elsewhere. A replica that was assigned to the broker must still find a place: if all
working directories are cordoned, one of them takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Cordons:
    """The paths of the cordoned directories."""

    def __init__(self) -> None:
        """Starts without cordons."""
        self._paths: frozenset[str] = frozenset()

    def __contains__(self, path: object) -> bool:
        return path in self._paths

    @property
    def paths(self) -> frozenset[str]:
        """The cordoned directories."""
        return self._paths

    def follow(self, paths: Collection[str]) -> bool:
        """Replaces the cordoned directories; returns whether they changed."""
        wanted = frozenset(paths)
        if wanted == self._paths:
            return False
        self._paths = wanted
        return True

    def choose(self, logs: Mapping[str, int]) -> str:
        """Returns the directory for a new replica, by the numbers of logs in the working directories.

        It is the one with the fewest logs, in the order of ``logs``, among those that are not cordoned.
        """
        return min(logs, key=lambda path: (path in self._paths, logs[path]))
