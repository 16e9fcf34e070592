"""A subscriber's part in the rebalances of its group: joining, revoking partitions, taking over an assignment.

Theory of operation: the application sees changes only inside ``poll``. A poll revokes partitions (callback, commit) and
starts a join in the background; a later poll takes over the new assignment. A poll may be cancelled at any checkpoint;
the next one then resumes, and repeats at most one callback. Partitions of which a callback raises an error are given up
nevertheless: the member would hold them against its group, and a callback that always fails would hold it up for good.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

import trio

from moldau.consumer.core.membership import Membership, MemberState
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.positions import Positions
    from moldau.consumer.core.values import RebalanceCallback, RebalanceCallbacks
    from moldau.consumer.fetcher import Fetcher
    from moldau.consumer.group import GroupClient


class _Join:
    """A join that runs in the background; ``assigned`` or ``error`` is set when ``finished`` is."""

    __slots__ = ("added", "assigned", "began_ms", "error", "finished", "is_adopted", "scope")

    def __init__(self, began_ms: float) -> None:
        self.began_ms = began_ms
        self.finished = trio.Event()
        self.scope = trio.CancelScope()
        self.assigned: list[TopicPartition] = []
        self.error: KafkaError | None = None
        self.is_adopted = False  # the positions are those of ``assigned``; the callback may still be pending
        self.added: list[TopicPartition] = []


class Rebalancer:
    """Keeps one subscriber in its group; the polling task calls all methods."""

    def __init__(
        self,
        client: ClusterClient,
        fetcher: Fetcher,
        positions: Positions,
        group: GroupClient,
        membership: Membership,
        *,
        commit: Callable[[], Awaitable[None]],
        hides_internal: bool,
        callbacks: RebalanceCallbacks,
    ) -> None:
        """Takes ``commit``, which commits positions with ``enable.auto.commit`` and else does nothing."""
        self._client = client
        self._fetcher = fetcher
        self._positions = positions
        self._group = group
        self.membership = membership
        self._commit = commit
        self._hides_internal = hides_internal
        self._callbacks = callbacks
        self.topics: list[str] | None = None  # None: not subscribed
        self._pattern: re.Pattern[str] | None = None
        self._matched_version = -1  # of the metadata with which the pattern was compared last
        self._joined_topics: list[str] = []
        self._owned_before: list[TopicPartition] = []
        self._losses = membership.losses  # those that the positions reflect
        self._join: _Join | None = None

    def subscribe(self, names: list[str], pattern: str | None) -> None:
        """Sets the topics to join for; the next ``keep`` joins.

        Raises:
            re.error: the pattern is not a regular expression.
        """
        self._pattern = None if pattern is None else re.compile(pattern)
        if self._pattern is None:
            self.topics = names
            # A leader goes on watching the topics of the other members.
            self._client.set_topics([*names, *(self._group.partition_counts or ())])
        else:
            self.topics = self._matching_topics(self._pattern)
            self._client.want_all_topics()

    def _matching_topics(self, pattern: re.Pattern[str]) -> list[str]:
        self._matched_version = self._client.cluster_metadata.version
        return sorted(
            name
            for name, topic in self._client.cluster_metadata.topics.items()
            if pattern.fullmatch(name) and topic.partitions and not (topic.is_internal and self._hides_internal)
        )

    async def leave(self, reason: str) -> None:
        """Commits, revokes all partitions and leaves the group; an error of a callback is raised once it has left."""
        if self._join is not None:
            self._join.scope.cancel()
            self._join = None
        if self.membership.losses == self._losses:
            await self._commit()
        failure: Exception | None = None
        try:
            if self.membership.losses == self._losses:
                await self._revoke(list(self._positions.by_partition))
            else:
                await self._lose()
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        self.topics = None
        self._pattern = None
        await self._leave(reason)
        if failure is not None:
            raise failure

    async def _leave(self, reason: str) -> None:
        """Leaves the group after all partitions were given up in order."""
        try:
            await self._group.leave(reason)
        finally:
            self.membership.end(reason)
            self._losses = self.membership.losses

    async def depart(self, reason: str) -> None:
        """Leaves the group at once, without a commit or a callback."""
        if self._join is not None:
            self._join.scope.cancel()
            self._join = None
        try:
            await self._group.leave(reason)
        finally:
            self.membership.end(reason)

    async def keep(self, nursery: trio.Nursery, deadline_ms: float) -> None:
        """Joins if needed and takes over the assignment of a finished join; waits until ``deadline_ms``.

        Raises:
            KafkaError: the coordinator refused the member with an error that is not retriable; the next call joins, but
                not after FENCED_INSTANCE_ID, which each call raises until the application leaves the group.
        """
        membership = self.membership
        while True:
            self._notice_changes()
            if self._join is None:
                if membership.is_fenced:
                    await self._raise_fenced()
                self._group.check()
                if membership.state is not MemberState.UNJOINED:
                    return
                await self._prepare()
                if not self.topics:
                    # No topic matches the pattern: there is nothing to join for, and a rebalance need not wait.
                    if membership.has_generation:
                        await self._leave("no topic matches the pattern")
                    return
                self._join = _Join(self._client.now_ms)
                nursery.start_soon(self._run, self._join, self.topics)
            join = self._join
            await self._wait(join, deadline_ms)
            if membership.losses != self._losses:
                await self._lose()  # the coordinator had expelled the member before it joined again
            if not join.finished.is_set():
                return
            if join.error is not None:
                self._join = None
                raise join.error
            if not membership.is_assignment_lost:
                await self._adopt(join)
            self._join = None

    async def _raise_fenced(self) -> NoReturn:
        if self.membership.losses != self._losses:
            await self._lose()
        group = self.membership.identity.group_id
        text = "another member has taken over the group.instance.id; close this consumer, or unsubscribe it"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"group {group}: {text}")

    async def _wait(self, join: _Join, deadline_ms: float) -> None:
        positions = self._positions.by_partition
        with trio.move_on_after(max(deadline_ms - self._client.now_ms, 0) / 1000):
            if not (self.membership.is_cooperative and positions):
                await join.finished.wait()
            elif not join.finished.is_set() and not any(position.chunks for position in positions.values()):
                # Members keep working through a cooperative rebalance: look again when records arrive.
                await self._fetcher.arrived.wait()

    def _notice_changes(self) -> None:
        """Joins again when the topics changed: by a new subscription, a new match, or (as leader) new partitions.

        The leader looks at the topics of all members, since it alone assigns their partitions.
        """
        # A cluster may have thousands of topics, and this is part of each poll.
        if self._pattern is not None and self._matched_version != self._client.cluster_metadata.version:
            self.topics = self._matching_topics(self._pattern)
        membership, counts = self.membership, self._group.partition_counts
        if membership.state is not MemberState.STABLE or self._join is not None:
            return
        if self.topics != self._joined_topics:
            membership.rejoin("the subscription changed")
            return
        known = self._client.cluster_metadata.topics
        if counts is None:
            return  # the group's leader handles that
        for topic, count in counts.items():
            info = known.get(topic)
            if info is not None and info.partitions and len(info.partitions) != count:
                membership.rejoin(f"topic {topic} has {len(info.partitions)} partitions, not {count}")
                return

    async def _prepare(self) -> None:
        """Commits, and revokes the partitions that this member must not hold during the rebalance.

        It runs before JoinGroup. Under the eager protocol it revokes all partitions. Under the cooperative protocol it
        revokes those of topics that are no longer subscribed to: the leader assigns them to other members in the same
        rebalance, because no subscriber owns them.
        """
        membership = self.membership
        if membership.has_generation:
            await self._commit()
        held = list(self._positions.by_partition)
        self._owned_before = held
        if membership.losses != self._losses:
            await self._lose()
        elif not held:
            return
        elif not membership.is_cooperative:
            await self._revoke(held)
        else:
            wanted = dict.fromkeys(self.topics or ())
            await self._revoke([partition for partition in held if partition.topic not in wanted])
            self._owned_before = list(self._positions.by_partition)

    async def _lose(self) -> None:
        """Drops all partitions without a commit, because others may own them or have owned them meanwhile."""
        held = list(self._positions.by_partition)
        self._owned_before = []

        def drop() -> None:
            self._positions.assign([])
            self._losses = self.membership.losses

        await self._give_up(held, self._callbacks.on_lost, drop)

    async def _revoke(self, partitions: list[TopicPartition]) -> None:
        revoked = dict.fromkeys(partitions)

        def drop() -> None:
            self._positions.assign([each for each in self._positions.by_partition if each not in revoked])

        await self._give_up(partitions, self._callbacks.on_revoked, drop)

    async def _give_up(
        self, partitions: list[TopicPartition], callback: RebalanceCallback | None, drop: Callable[[], None]
    ) -> None:
        """Calls a callback for partitions, then ``drop``, as Kafka does also if the callback raises an error.

        A poll that is cancelled in the callback drops nothing, and the next one repeats it.
        """
        if partitions and callback is not None:
            try:
                await callback(partitions)
            except Exception:
                drop()
                raise
        drop()

    async def _run(self, join: _Join, topics: list[str]) -> None:
        self._joined_topics = topics
        with join.scope:
            try:
                join.assigned = await self._group.join(topics, self._owned_before)
            except KafkaError as error:
                join.error = error
            join.finished.set()
            self._fetcher.arrived.notify()

    async def _adopt(self, join: _Join) -> None:
        """Takes over an assignment: revokes the lost partitions (cooperative), then begins the new ones."""
        membership = self.membership
        if not join.is_adopted:
            wanted = dict.fromkeys(self._group.still_given(join.assigned))
            held = dict.fromkeys(self._positions.by_partition)
            revoked = [partition for partition in held if partition not in wanted]
            if revoked:
                await self._commit()
                try:
                    await self._revoke(revoked)
                finally:
                    if not self._positions.by_partition.keys() & revoked:  # also if the callback has raised an error
                        membership.rejoin("partitions were given up and can be assigned to others")
            # What the coordinator has taken back meanwhile does not begin; what is held ends with the next takeover.
            given = dict.fromkeys(self._group.still_given(join.assigned))
            join.assigned = [partition for partition in wanted if partition in held or partition in given]
            join.added = [partition for partition in join.assigned if partition not in held]
            if self._pattern is None:
                for partition in join.added:
                    self._client.add_topic(partition.topic)
            self._positions.assign(join.assigned)
            membership.take_over()
            join.is_adopted = True
            if self._group.counters is not None:
                now_ms = self._client.now_ms
                self._group.counters.rebalanced(now_ms - join.began_ms, now_ms)
            self._group.adopted()
            self._client.logger.info(
                "assigned",
                group=membership.identity.group_id,
                generation=membership.generation,
                partitions=len(join.assigned),
            )
        if self._callbacks.on_assigned is not None and (join.added or not membership.is_cooperative):
            await self._callbacks.on_assigned(join.added)
        self._fetcher.wake()
