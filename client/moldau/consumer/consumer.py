"""The consumer: reads partitions that it is assigned, or that its group assigns to it.

    async with Consumer({"bootstrap.servers": "127.0.0.1:9092", "group.id": "readers"}) as consumer:
        consumer.subscribe(["flights"])
        async for batch in consumer:
            for record in batch.records:
                ...

Records are fetched ahead in the background and handed out by ``poll``, a run of one partition at a time. ``poll`` is
also where a group rebalances (callbacks run inside it) and where positions are committed in the background, so what
one poll returned counts as processed when the next one begins: at least once, as with Kafka's own consumer. A member
that does not poll within ``max.poll.interval.ms`` leaves its group; heartbeats go on by themselves in between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self, TypeVar

import trio

from moldau.cluster.background import Background
from moldau.cluster.client import TRANSPORT_ERRORS, ClusterClient
from moldau.cluster.group_metadata import GroupMetadata
from moldau.cluster.metadata import PartitionInfo, TopicPartition
from moldau.cluster.offsets import list_offsets
from moldau.consumer.assignors import assignors_of
from moldau.consumer.fetcher import CommittedOffset, Fetcher
from moldau.consumer.group import CommitFailedError, GroupClient
from moldau.consumer.membership import GroupIdentity, Membership
from moldau.consumer.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Lag, PartitionPosition, Positions
from moldau.consumer.rebalance import Rebalancer
from moldau.consumer.taking import take_columns, take_records
from moldau.consumer.values import ConsumedBatch, ConsumedColumns, duration_ms
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import CONSUMER_CONFIG, Config, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from moldau.consumer.group import AskedCommit
    from moldau.consumer.values import RebalanceCallback
    from moldau.runtime.environment import Environment

T = TypeVar("T")


class Consumer:
    """Reads records. Use it as an async context manager; all methods belong to the trio thread that opened it, one
    task.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        environment: Environment | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Takes Kafka's consumer configuration keys; raises ``ConfigError`` for what is wrong with them.

        The callbacks run inside ``poll``: ``on_revoked`` while the partitions still belong to this member (commit
        there), ``on_lost`` when they already belong to others (default: ``on_revoked``), ``on_assigned`` before the
        first record of the new ones.
        """
        self._config = config if isinstance(config, Config) else CONSUMER_CONFIG.parse(config)
        if self._config.schema is not CONSUMER_CONFIG:
            raise ConfigError([f"a consumer cannot use a {self._config.schema.name} configuration"])
        self._environment = environment
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost or on_revoked
        self._reset_policy = self._config.get_str("auto.offset.reset")
        self._reset_duration_ms = 0
        if self._reset_policy.startswith("by_duration:"):
            try:
                self._reset_duration_ms = duration_ms(self._reset_policy.removeprefix("by_duration:"))
            except ValueError as error:
                raise ConfigError([f"auto.offset.reset: {error}"]) from None
        self._group_id = self._config.get_str_or_none("group.id")
        self._max_poll_records = self._config.get_int("max.poll.records")
        self._api_timeout_ms = self._config.get_int("default.api.timeout.ms")
        self._auto_commits = self._config.get_bool("enable.auto.commit") and self._group_id is not None
        self._auto_commit_ms = self._config.get_int("auto.commit.interval.ms")
        self._next_commit_ms = math.inf
        self._is_committing = False
        self._positions = Positions()
        self._background = Background()
        self._client: ClusterClient | None = None
        self._fetcher: Fetcher | None = None
        self._group: GroupClient | None = None
        self._membership: Membership | None = None
        self._rebalancer: Rebalancer | None = None
        self._is_heartbeating = False
        self._last_poll_ms = 0.0
        self._is_closed = False

    # --- life

    async def __aenter__(self) -> Self:
        """Starts the background tasks. Does not wait for a broker."""
        environment = self._environment
        if environment is None:
            from moldau.runtime.real import real_environment

            environment = real_environment()
        client = self._client = ClusterClient(environment, self._config, "consumer")
        client.allow_auto_create = self._config.get_bool("allow.auto.create.topics")
        config = self._config
        if self._group_id is not None:
            identity = GroupIdentity(
                group_id=self._group_id,
                instance_id=config.get_str_or_none("group.instance.id"),
                session_timeout_ms=config.get_int("session.timeout.ms"),
                rebalance_timeout_ms=config.get_int("max.poll.interval.ms"),
                rack=config.get_str("client.rack") or None,
            )
            self._membership = Membership(identity, assignors_of(config.get_list("partition.assignment.strategy")))
            self._group = GroupClient(client, self._group_id, config, self._membership)
        committed = None if self._group is None else self._group.committed
        self._fetcher = Fetcher(client, self._positions, config, self._reset_timestamp, committed)
        if self._group is not None and self._membership is not None:
            self._rebalancer = Rebalancer(
                client,
                self._fetcher,
                self._positions,
                self._group,
                self._membership,
                commit=self._commit_if_automatic,
                hides_internal=config.get_bool("exclude.internal.topics"),
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                on_lost=self._on_lost,
            )
        self._last_poll_ms = client.now_ms
        self._next_commit_ms = client.now_ms + self._auto_commit_ms
        await self._background.open(client.run, self._fetcher.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Commits positions (where that is on), leaves the group and stops."""
        return await self._background.close(kind, error, traceback, closing=self.close, ended=self._end)

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commits positions (where that is on) and leaves the group, for at most ``timeout_ms``; idempotent."""
        if self._is_closed:
            await trio.lowlevel.checkpoint()
            return
        client, _ = self._opened()
        self._is_closed = True
        with trio.move_on_after(timeout_ms / 1000):
            if self._rebalancer is not None and self._is_subscribed:
                await self._rebalancer.leave("the consumer was closed")
            else:
                await self._commit_if_automatic()
        client.logger.debug("consumer_closed")
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        if self._client is not None:
            self._client.close()
        self._background.cancel()

    def _opened(self) -> tuple[ClusterClient, Fetcher]:
        if self._client is None or self._fetcher is None:
            raise RuntimeError("the consumer is not open; use it as `async with Consumer(...) as consumer`")
        return self._client, self._fetcher

    def _reset_timestamp(self) -> int | None:
        match self._reset_policy:
            case "earliest":
                return EARLIEST_TIMESTAMP
            case "latest":
                return LATEST_TIMESTAMP
            case "none":
                return None
        return max(self._opened()[0].environment.clock.wall_ms() - self._reset_duration_ms, 0)

    # --- what to read

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions, without a group's say. Raises ``RuntimeError`` while subscribed."""
        client, fetcher = self._opened()
        if self._is_subscribed:
            raise RuntimeError("the consumer is subscribed; unsubscribe() first")
        wanted = [TopicPartition(*partition) for partition in partitions]
        self._positions.assign(wanted)
        client.set_topics(partition.topic for partition in wanted)
        fetcher.wake()

    def subscribe(self, topics: Iterable[str] = (), *, pattern: str | None = None) -> None:
        """Joins the group for these topics, or for all whose whole name matches ``pattern``, at the next ``poll``."""
        self._opened()
        if self._group is None or self._rebalancer is None:
            raise ConfigError(["group.id: needed to subscribe; use assign() to read without a group"])
        names = list(dict.fromkeys(topics))
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe takes either topics or a pattern")
        if not self._is_subscribed and self._positions.by_partition:
            raise RuntimeError("partitions are assigned by hand; unsubscribe() first")
        self._rebalancer.subscribe(names, pattern)
        if not self._is_heartbeating:
            self._is_heartbeating = True
            self._background.nursery.start_soon(
                self._group.heartbeat_forever, lambda: self._last_poll_ms, self._opened()[1].arrived.notify
            )

    async def unsubscribe(self) -> None:
        """Reads nothing any more, and leaves the group."""
        fetcher = self._opened()[1]
        if self._is_subscribed:
            assert self._rebalancer is not None
            await self._rebalancer.leave("the consumer unsubscribed")
        self._positions.assign([])
        fetcher.wake()
        await trio.lowlevel.checkpoint()

    @property
    def _is_subscribed(self) -> bool:
        return self._rebalancer is not None and self._rebalancer.topics is not None

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return list(self._positions.by_partition)

    @property
    def subscription(self) -> list[str]:
        """The topics it is subscribed to."""
        return [] if self._rebalancer is None else list(self._rebalancer.topics or ())

    @property
    def group_generation(self) -> int:
        """Generation of the group that this member belongs to; -1 for none."""
        return -1 if self._membership is None else self._membership.generation

    @property
    def assignment_generation(self) -> int:
        """Generation in which the group's leader gave this member its ``assignment``; -1 for none.

        Behind ``group_generation`` while the member has joined a newer one and waits for its assignment there.
        """
        return -1 if self._membership is None else self._membership.owned_generation

    def group_metadata(self) -> GroupMetadata:
        """This member's place in its group, for ``Producer.send_offsets_to_transaction`` (KIP-447).

        The one in which it was given its ``assignment``: a member that was expelled is refused, though it has joined
        again, until a poll has told what was lost and taken over what it was given since.

        Raises ``ConfigError`` without ``group.id``.
        """
        self._grouped()
        assert self._group_id is not None
        membership = self._membership
        if membership is None:
            return GroupMetadata(group_id=self._group_id)
        generation, member_id = membership.assigned_as
        return GroupMetadata(
            group_id=self._group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=membership.identity.instance_id,
        )

    # --- polling

    async def poll(self, timeout_ms: float = 1000, *, max_records: int | None = None) -> list[ConsumedBatch]:
        """Returns records, at most ``max_records`` (``max.poll.records``), or nothing after ``timeout_ms``.

        Raises ``KafkaError`` for what the application must decide (no offset to start from, no authorization ...); the
        consumer can be polled again afterwards. Cancelling loses nothing.
        """
        limit = self._max_poll_records if max_records is None else max_records
        return await self._poll(timeout_ms, lambda: take_records(self._positions, limit))

    async def poll_columns(
        self, timeout_ms: float = 1000, *, max_bytes: int = 16 * 1024 * 1024
    ) -> list[ConsumedColumns]:
        """Like ``poll``, but as columns in Arrow's layout, without an object for each record: about ``max_bytes`` in
        all.
        """
        return await self._poll(timeout_ms, lambda: take_columns(self._positions, max_bytes))

    async def _poll(self, timeout_ms: float, take: Callable[[], list[T]]) -> list[T]:
        client, fetcher = self._opened()
        if self._is_closed:
            raise RuntimeError("the consumer is closed")
        if not self._is_subscribed and not self._positions.by_partition:
            raise RuntimeError("nothing to poll: subscribe() or assign() first")
        await trio.lowlevel.checkpoint()
        deadline_ms = client.now_ms + timeout_ms
        self._last_poll_ms = client.now_ms
        self._commit_when_due()
        while True:
            if self._rebalancer is not None and self._is_subscribed:
                await self._rebalancer.keep(self._background.nursery, deadline_ms)
                self._last_poll_ms = client.now_ms
            if fetcher.errors:
                raise fetcher.errors.popleft()
            taken = take()
            if taken:
                fetcher.wake()
                return taken
            remaining_ms = deadline_ms - client.now_ms
            if remaining_ms <= 0:
                return []
            with trio.move_on_after(remaining_ms / 1000):
                await fetcher.arrived.wait()

    def __aiter__(self) -> Self:
        """Iterates over batches without end."""
        return self

    async def __anext__(self) -> ConsumedBatch:
        while not self._is_closed:
            # One partition at a time: what a poll returned counts as processed when the next one begins.
            batches = await self._poll(1000, lambda: take_records(self._positions, self._max_poll_records, 1))
            if batches:
                return batches[0]
        raise StopAsyncIteration

    # --- positions

    def _position(self, partition: tuple[str, int]) -> PartitionPosition:
        found = self._positions.by_partition.get(TopicPartition(*partition))
        if found is None:
            raise LookupError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return found

    def seek(self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1) -> None:
        """Goes to ``offset``. Raises ``LookupError`` for a partition that is not assigned."""
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        self._position(partition).seek(offset, leader_epoch)
        self._opened()[1].wake()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Goes to the log start offset of the partitions (all of the assignment by default)."""
        self._reset(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Goes to the high watermark of the partitions (all of the assignment by default)."""
        self._reset(partitions, LATEST_TIMESTAMP)

    def _reset(self, partitions: Sequence[tuple[str, int]], timestamp: int) -> None:
        for partition in partitions or self.assignment:
            self._position(partition).reset(timestamp)
        self._opened()[1].wake()

    async def position(self, partition: tuple[str, int], timeout_ms: float | None = None) -> int:
        """Returns the offset of the next record that ``poll`` will return; waits until it is known.

        Raises ``LookupError``, ``KafkaError``, and ``trio.TooSlowError`` after ``timeout_ms``
        (``default.api.timeout.ms``).
        """
        fetcher = self._opened()[1]
        found = self._position(partition)
        limit_ms = self._api_timeout_ms if timeout_ms is None else timeout_ms
        with trio.move_on_after(limit_ms / 1000):
            await trio.lowlevel.checkpoint()
            while not found.has_position:
                if fetcher.errors:
                    raise fetcher.errors.popleft()
                await fetcher.arrived.wait()
            return found.offset
        raise trio.TooSlowError(f"{found.partition}: no position within {limit_ms:g} ms")

    def position_nowait(self, partition: tuple[str, int]) -> int | None:
        """Returns the position if it is known."""
        found = self._position(partition)
        return found.offset if found.has_position else None

    def lag(self, partition: tuple[str, int]) -> Lag:
        """Returns how far the consumer is behind the end of the partition, as of the last fetch."""
        found = self._position(partition)
        return Lag(position=found.offset, end_offset=found.high_watermark)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stops reading the partitions; they stay assigned."""
        for partition in partitions:
            self._position(partition).is_paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Reads paused partitions again."""
        for partition in partitions:
            self._position(partition).is_paused = False
        self._opened()[1].wake()
        self._opened()[1].arrived.notify()

    @property
    def paused(self) -> list[TopicPartition]:
        return [each.partition for each in self._positions.by_partition.values() if each.is_paused]

    # --- offsets

    def _grouped(self) -> GroupClient:
        self._opened()
        if self._group is None:
            raise ConfigError(["group.id: needed to commit and to look up committed offsets"])
        return self._group

    def _consumed(self) -> dict[TopicPartition, CommittedOffset]:
        return {
            position.partition: CommittedOffset(offset=position.offset, leader_epoch=position.offset_epoch)
            for position in self._positions.by_partition.values()
            if position.has_position
        }

    async def commit(self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None) -> None:
        """Commits offsets of the next records to read, by default the present positions.

        After the commits asked for earlier, and for the generation in which it is called. Raises ``CommitFailedError``
        when the group went on without this member, ``KafkaError``, ``trio.TooSlowError``.
        """
        group = self._grouped()
        if offsets is None:
            await group.commit(self._consumed())
            return
        await group.commit(
            {
                TopicPartition(*partition): CommittedOffset(offset=given) if isinstance(given, int) else given
                for partition, given in offsets.items()
            }
        )

    async def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's committed offsets; partitions without one are left out."""
        return await self._grouped().committed([TopicPartition(*partition) for partition in partitions])

    def _commit_when_due(self) -> None:
        client = self._opened()[0]
        if self._auto_commits and client.now_ms >= self._next_commit_ms and not self._is_committing:
            self._next_commit_ms = client.now_ms + self._auto_commit_ms
            offsets = self._consumed()
            if offsets:
                self._is_committing = True
                self._background.nursery.start_soon(self._commit_in_background, self._grouped().ask_commit(offsets))

    async def _commit_if_automatic(self) -> None:
        if self._auto_commits:
            await self._commit_quietly(self._grouped().ask_commit(self._consumed()))

    async def _commit_in_background(self, asked: AskedCommit) -> None:
        try:
            await self._commit_quietly(asked, gives_way=True)
        finally:
            self._is_committing = False

    async def _commit_quietly(self, asked: AskedCommit, *, gives_way: bool = False) -> None:
        """Commits; a failure is told by the log and made good by the next commit."""
        client = self._opened()[0]
        deadline_ms = client.now_ms + client.request_timeout_ms
        try:
            await self._grouped().carry_out(asked, deadline_ms, gives_way=gives_way)
        except (CommitFailedError, KafkaError, *TRANSPORT_ERRORS) as error:
            client.logger.warning("auto_commit_failed", group=self._group_id, error=error)

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return await self._list_offsets(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the high watermark of each partition (read_committed: the last stable offset)."""
        return await self._list_offsets(partitions, LATEST_TIMESTAMP)

    async def _list_offsets(self, partitions: Iterable[tuple[str, int]], timestamp: int) -> dict[TopicPartition, int]:
        found = await self._offsets_at({TopicPartition(*partition): timestamp for partition in partitions})
        return {partition: offset for partition, (offset, _) in found.items()}

    async def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of the first record at or after each time; (-1, -1) where there is none."""
        return await self._offsets_at({TopicPartition(*partition): time for partition, time in times.items()})

    async def _offsets_at(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        isolation = 1 if self._config.get_str("isolation.level") == "read_committed" else 0
        return await list_offsets(self._opened()[0], wanted, self._api_timeout_ms, isolation)

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic. Raises ``KafkaError``, ``trio.TooSlowError``."""
        client = self._opened()[0]
        client.add_topic(topic)
        deadline_ms = client.now_ms + self._api_timeout_ms
        while True:
            info = client.picture.topics.get(topic)
            if info is not None and info.partitions:
                await trio.lowlevel.checkpoint()
                return info.partitions
            if info is not None and info.error is not ErrorCode.NONE and not info.error.retriable:
                raise KafkaError(info.error, f"topic {topic}: {info.error.message}")
            await client.wait_update(deadline_ms)
