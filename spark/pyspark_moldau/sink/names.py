"""The names of a query or job on the cluster: its transactional ids, and its consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_TASK: Final = "-task-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one query or batch job on the cluster.

    ``has_notes`` is False for a job without ``txnAppId``: nothing repeats it, so nothing reads its notes.
    """

    app_id: str
    has_notes: bool = True

    @property
    def prefix(self) -> str:
        return f"moldau-spark-{self.app_id}"

    @property
    def driver(self) -> str:
        """The driver's transactional id."""
        return f"{self.prefix}-driver"

    def task(self, run: str, partition: int, attempt: int) -> str:
        """Returns the transactional id of one attempt; the next batch uses it again."""
        return f"{self.prefix}{_TASK}{run}-{partition}-{attempt}"

    def is_task(self, transactional_id: str) -> bool:
        """Returns whether an id is of a task of this query, not of one whose ``txnAppId`` merely begins alike."""
        return transactional_id.rpartition(_TASK)[0] == self.prefix

    def decision_group(self, part: int) -> str:
        """Returns the group whose offset holds a part of the last decision."""
        return f"{self.prefix}-decision-{part}"

    @property
    def begun_group(self) -> str:
        """The group whose offset is the last batch whose commits were begun."""
        return f"{self.prefix}-begun"

    @property
    def done_group(self) -> str:
        """The group whose offset is the last batch whose commits are done."""
        return f"{self.prefix}-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a task of an exactly-once write."""

    names: Names
    batch: int
    run: str
    partition: int
    attempt: int
