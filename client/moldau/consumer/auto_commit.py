"""Automatic commits (``enable.auto.commit``): in the background while the application polls, and before a rebalance.

A poll that finds the interval over asks for a commit of the positions at that moment; a task carries it out. At most
one background commit is in progress. A failed one is logged only, because the next commit covers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.consumer.group import CommitFailedError
from moldau.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import trio

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.group import AskedCommit, GroupClient
    from moldau.runtime.config import Config


class AutoCommit:
    """Commits the positions of one consumer."""

    def __init__(
        self,
        client: ClusterClient,
        group: GroupClient,
        consumed: Callable[[], Mapping[TopicPartition, CommittedOffset]],
        config: Config,
    ) -> None:
        """``consumed`` returns the present positions."""
        self._client = client
        self._group = group
        self._consumed = consumed
        self._group_id = config.get_str("group.id")  # for the log
        self._interval_ms = config.get_int("auto.commit.interval.ms")
        self._next_ms = client.now_ms + self._interval_ms
        self._is_committing = False

    def commit_when_due(self, nursery: trio.Nursery) -> float:
        """Begins a commit in ``nursery`` if the interval is over and none is in progress.

        Returns when to call again, on ``ClusterClient.now_ms``.
        """
        now_ms = self._client.now_ms
        if self._is_committing:
            return now_ms + self._interval_ms
        if now_ms < self._next_ms:
            return self._next_ms
        self._next_ms = now_ms + self._interval_ms
        offsets = self._consumed()
        if offsets:
            self._is_committing = True
            nursery.start_soon(self._commit_in_background, self._group.ask_commit(offsets, is_automatic=True))
        return self._next_ms

    async def commit(self) -> None:
        """Commits the present positions; logs a failure."""
        await self._carry_out(self._group.ask_commit(self._consumed(), is_automatic=True))

    async def _commit_in_background(self, asked: AskedCommit) -> None:
        try:
            await self._carry_out(asked, gives_way=True)
        finally:
            self._is_committing = False

    async def _carry_out(self, asked: AskedCommit, *, gives_way: bool = False) -> None:
        client = self._client
        try:
            await self._group.carry_out(asked, client.now_ms + client.request_timeout_ms, gives_way=gives_way)
        except (CommitFailedError, KafkaError, RuntimeError, *TRANSPORT_ERRORS) as error:  # RuntimeError: abandoned
            client.logger.warning("auto-commit-failed", group=self._group_id, error=error)
