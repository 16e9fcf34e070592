"""The consumer: reads partitions that the application or the group assigns to it.

    async with Consumer({"bootstrap.servers": "127.0.0.1:9092", "group.id": "readers"}) as consumer:
        consumer.subscribe(["flights"])
        async for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)

The consumer prefetches records in the background, and ``poll`` returns them, a run of one partition at a time. ``poll``
also performs rebalances (callbacks run inside it) and starts the background commits of positions. So the records of one
poll count as processed when the next poll begins: at-least-once, as with Kafka's own consumer. A member that does not
poll within ``max.poll.interval.ms`` leaves its group; a background task sends the heartbeats.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import trio

from moldau.cluster import arguments
from moldau.cluster.background import Background, Closing
from moldau.cluster.bootstrap import environment_or_real
from moldau.cluster.caller import AsyncOnly, Caller
from moldau.cluster.client import ClusterClient
from moldau.cluster.interceptors import ConsumerInterceptor, checked, on_commit
from moldau.cluster.reports import Reports
from moldau.cluster.troubles import check_topic_names
from moldau.consumer.auto_commit import AutoCommit
from moldau.consumer.core.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Lag, PartitionPosition, Positions
from moldau.consumer.core.reset_policy import ResetPolicy
from moldau.consumer.core.taking import take_columns, take_encoded, take_records
from moldau.consumer.core.values import ConsumedBatch, ConsumedColumns, ConsumedRecord, RebalanceCallbacks
from moldau.consumer.decoding import Decoding
from moldau.consumer.fetcher import Fetcher
from moldau.consumer.joining import membership_of, metadata_of
from moldau.consumer.lookups import partitions_of
from moldau.consumer.offsets import ConsumerOffsets, given_offsets, wait_position
from moldau.consumer.poller import Poller
from moldau.consumer.rebalance import Rebalancer
from moldau.consumer.topic_watch import TopicWatch
from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import CONSUMER_CONFIG, Config, ConfigError
from moldau.serialization.core.values import KeyOut, ValueOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from uuid import UUID

    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.metadata import PartitionInfo, TopicPartition
    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.consumer.core.membership import Membership
    from moldau.consumer.core.statistics import ConsumerStatistics
    from moldau.consumer.core.values import ConsumedBatch, ConsumedColumns, EncodedBatches, RebalanceCallback
    from moldau.consumer.group import GroupClient
    from moldau.runtime.ports.environment import Environment
    from moldau.serialization.core.values import DeserializerLike

T = TypeVar("T")


class Consumer(AsyncOnly, Generic[KeyOut, ValueOut]):
    """Reads records.

    Use it as an async context manager. All methods belong to one task of the trio thread that opened it.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        environment: Environment | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        key_deserializer: DeserializerLike[KeyOut] | None = None,
        value_deserializer: DeserializerLike[ValueOut] | None = None,
        interceptors: Iterable[ConsumerInterceptor] = (),
        on_statistics: Callable[[ConsumerStatistics], object] | None = None,
    ) -> None:
        """Takes Kafka's consumer configuration keys, rebalance callbacks and deserializers.

        The callbacks run inside ``poll``: ``on_revoked`` while the partitions still belong to this member (commit
        there), ``on_lost`` when they may already belong to others (default: ``on_revoked``), ``on_assigned`` before
        the first record of the new partitions. ``poll`` raises the error of a callback; partitions are given up
        nevertheless, and the next poll repeats ``on_assigned``. Without a deserializer, keys or values are bytes.
        ``on_statistics`` receives ``statistics()`` every ``statistics.interval.ms``.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._config = arguments.configuration("Consumer", config, CONSUMER_CONFIG)
        self._environment = environment
        self._callbacks = RebalanceCallbacks.of(on_assigned, on_revoked, on_lost)
        self._reset_policy = ResetPolicy(self._config.get_str("auto.offset.reset"))
        self._group_id = self._config.get_str_or_none("group.id")
        self._max_poll_records = self._config.get_int("max.poll.records")
        self._api_timeout_ms = self._config.get_int("default.api.timeout.ms")
        self._auto_commits = self._config.get_bool("enable.auto.commit") and self._group_id is not None
        self._auto_commit: AutoCommit | None = None
        self._positions = Positions()
        self._offsets = ConsumerOffsets(
            self._positions,
            self._api_timeout_ms,
            reads_committed=self._config.get_str("isolation.level") == "read_committed",
        )
        self._decoding = Decoding.of(self._positions, key_deserializer, value_deserializer, self._api_timeout_ms)
        self._interceptors = checked("Consumer", interceptors, ConsumerInterceptor)
        self._is_plain = self._decoding is None and not self._interceptors
        self._reports = Reports("Consumer", self._config, on_statistics)
        self._background = Background()
        self._caller = Caller("Consumer")
        self._client: ClusterClient | None = None
        self._fetcher: Fetcher | None = None
        self._group: GroupClient | None = None
        self._membership: Membership | None = None
        self._rebalancer: Rebalancer | None = None
        self._poller: Poller | None = None
        self._is_heartbeating = False
        self._is_closed = False
        self._closing = Closing()

    # --- life

    async def __aenter__(self) -> Self:
        """Starts the background tasks. Does not wait for a broker."""
        self._caller.enter()
        client = self._client = ClusterClient(environment_or_real(self._environment), self._config, "consumer")
        client.allow_auto_create = self._config.get_bool("allow.auto.create.topics")
        config = self._config
        if self._group_id is not None:
            self._membership, self._group = membership_of(client, config, self._group_id, lambda: self.assignment)
        committed = None if self._group is None else self._group.committed
        self._fetcher = fetcher = Fetcher(client, self._positions, config, self._reset_timestamp, committed)
        if self._group is not None and self._membership is not None:
            self._rebalancer = Rebalancer(
                client,
                self._fetcher,
                self._positions,
                self._group,
                self._membership,
                commit=self._commit_if_automatic,
                hides_internal=config.get_bool("exclude.internal.topics"),
                callbacks=self._callbacks,
            )
            self._group.counters = fetcher.counters
            if self._interceptors:
                self._group.on_commit = partial(on_commit, self._interceptors)
        client.on_bootstrap_error = fetcher.arrived.notify
        client.on_other_cluster = self._positions.leave_cluster
        self._poller = Poller(
            client,
            fetcher,
            self._positions,
            rebalance=self._rebalance,
            commit_when_due=self._commit_when_due,
            decoding=self._decoding,
            interceptors=self._interceptors,
        )
        if self._auto_commits and self._group is not None:
            self._auto_commit = AutoCommit(client, self._group, self._offsets.consumed, config)
        watch = TopicWatch(client, lambda: self.subscription, lambda: self.assignment, self._fetcher.report)
        await self._background.open(client.run, self._fetcher.run, watch.run)
        client.telemetry.member_id = lambda: "" if self._membership is None else self._membership.member_id
        self._reports.start(self._background.nursery, client, self.statistics)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Commits positions (with ``enable.auto.commit``), leaves the group and stops.

        After an exception or a cancellation it commits nothing and calls no callback. The member still leaves its group
        (a static member stays in it, KIP-345), for at most ``FAREWELL_MS``.
        """
        return await self._background.close(
            kind, error, traceback, closing=self.close, departing=self._depart, ended=self.abandon
        )

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commits positions (with ``enable.auto.commit``), leaves the group and ends the fetch sessions; idempotent.

        Takes at most ``timeout_ms``. An error of a rebalance callback is raised once the consumer is closed. A second
        call waits for the first.
        """
        timeout_ms = arguments.milliseconds("close", timeout_ms)
        if self._is_closed:
            await self._closing.wait(timeout_ms)
            return
        self._opened()
        self._is_closed = True
        with self._closing.carried_out():
            await self._close(timeout_ms)

    async def _close(self, timeout_ms: float) -> None:
        client, fetcher = self._opened()
        try:
            with trio.move_on_after(timeout_ms / 1000):
                try:
                    if self._rebalancer is not None and self._is_subscribed:
                        await self._rebalancer.leave("the consumer was closed")
                    else:
                        await self._commit_if_automatic()
                finally:
                    await fetcher.close_sessions()
                    await client.telemetry.farewell()
        except Exception:  # of a rebalance callback
            self.abandon()
            raise
        client.logger.debug("consumer-closed")
        self.abandon()

    async def _depart(self) -> None:
        """Leaves the group without a commit, so that other members need not wait for the session timeout."""
        client, rebalancer = self._client, self._rebalancer
        if client is None or client.is_closed:
            return
        try:
            if rebalancer is not None and self._is_subscribed:
                await rebalancer.depart("the consumer was left by an exception")
            await client.telemetry.farewell()
        except trio.Cancelled:
            client.logger.info("leave-unanswered", group=self._group_id)
            raise

    def abandon(self) -> None:
        """Closes the connections at once and sends nothing more, as if the process had died.

        Nothing is committed, and a member keeps its partitions until its session times out. Leave the block afterwards.
        """
        self._is_closed = True
        if self._client is not None and self._fetcher is not None:
            self._client.close()
            self._fetcher.arrived.notify()
        self._background.cancel()

    def _opened(self, *, may_be_closed: bool = True) -> tuple[ClusterClient, Fetcher]:
        self._caller.check()
        if self._client is None or self._fetcher is None:
            self._caller.refuse()
        if self._is_closed and not may_be_closed:
            raise RuntimeError("the consumer is closed")
        return self._client, self._fetcher

    def _reset_timestamp(self) -> int | None:
        return self._reset_policy.timestamp(self._opened()[0].environment.clock.wall_ms())

    # --- what to read

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Assigns exactly these partitions, without a group.

        Raises:
            RuntimeError: the consumer is subscribed.
            InvalidTopicError: a name is not a valid topic name.
        """
        client, fetcher = self._opened(may_be_closed=False)
        if self._is_subscribed:
            raise RuntimeError("the consumer is subscribed; unsubscribe() first")
        wanted = arguments.partitions("assign", partitions)
        check_topic_names(partition.topic for partition in wanted)
        self._commit_when_due()  # no rebalance commits the positions of partitions that are given up here
        self._positions.assign(wanted)
        client.set_topics(partition.topic for partition in wanted)
        fetcher.wake()

    def subscribe(self, topics: Iterable[str] = (), *, pattern: str | None = None) -> None:
        """Joins the group for these topics, or for all whose whole name matches ``pattern``, at the next ``poll``.

        Raises:
            InvalidTopicError: a name is not a valid topic name.
            ConfigError: ``group.id`` is not set.
            TypeError: ``topics`` is a str instead of a list.
        """
        self._opened(may_be_closed=False)
        names = list(dict.fromkeys(arguments.texts("subscribe", "topics", topics)))
        if pattern is not None:
            arguments.pattern("subscribe", pattern)
        if self._group is None or self._rebalancer is None:
            raise ConfigError(["group.id: needed to subscribe; use assign() to read without a group"])
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe takes either topics or a pattern; unsubscribe() gives them up")
        check_topic_names(names)
        if not self._is_subscribed and self._positions.by_partition:
            raise RuntimeError("partitions are assigned by hand; unsubscribe() first")
        self._rebalancer.subscribe(names, pattern)
        if not self._is_heartbeating:
            poller = self._polling()
            self._is_heartbeating = True
            self._background.nursery.start_soon(
                self._group.heartbeat_forever, poller.polling_ms, self._opened()[1].arrived.notify
            )

    async def unsubscribe(self) -> None:
        """Gives up all partitions and leaves the group; an error of a rebalance callback is raised afterwards."""
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
        """The assigned partitions."""
        return list(self._positions.by_partition)

    @property
    def clusters_left(self) -> int:
        """How often the bootstrap servers have led to another cluster; offsets from before mean other records."""
        return self._opened()[0].clusters_left

    @property
    def subscription(self) -> list[str]:
        """The topics that the consumer is subscribed to."""
        return [] if self._rebalancer is None else list(self._rebalancer.topics or ())

    @property
    def group_generation(self) -> int:
        """The group generation that this member belongs to; -1 for none."""
        return -1 if self._membership is None else self._membership.generation

    @property
    def assignment_generation(self) -> int:
        """The generation in which the group's leader gave this member its ``assignment``; -1 for none.

        It is older than ``group_generation`` while the member waits for its assignment in a newer generation.
        """
        return -1 if self._membership is None else self._membership.owned_generation

    def group_metadata(self) -> GroupMetadata:
        """Returns this member's group metadata, for ``Producer.send_offsets_to_transaction`` (KIP-447).

        Generation and member id are those of the ``assignment``. The coordinator refuses them after it has expelled the
        member, even if the member has joined again, until a poll has reported the lost partitions and taken over the
        new assignment.

        Raises:
            ConfigError: ``group.id`` is not set.
        """
        self._grouped()
        assert self._group_id is not None
        return metadata_of(self._group_id, self._membership)

    # --- polling

    async def poll(
        self, timeout_ms: float = 1000, max_records: int | None = None
    ) -> list[ConsumedBatch[KeyOut, ValueOut]]:
        """Returns records, at most ``max_records`` (``max.poll.records``), or nothing after ``timeout_ms``.

        Cancelling loses no records. After a ``KafkaError`` the consumer can be polled again; FENCED_INSTANCE_ID comes
        again until it unsubscribes.

        Raises:
            KafkaError: the application must decide: there is no offset to start from, no authorization, an unknown
                topic or partition with ``allow.auto.create.topics=false``, and the like.
            RecordDeserializationError: a deserializer refuses a record; the position is the record's offset, and
                ``seek`` skips it.
            RegistryError: the schema registry does not answer; the next poll asks again.
            RuntimeError: another task polls.
        """
        limit = self._max_poll_records
        if max_records is not None:
            limit = arguments.at_least("poll", "max_records", max_records, 0)
        return await self._poll_records(timeout_ms, limit)

    async def poll_columns(
        self, timeout_ms: float = 1000, *, max_bytes: int = 16 * 1024 * 1024
    ) -> list[ConsumedColumns]:
        """Returns about ``max_bytes`` of records as columns in Arrow's layout; otherwise works like ``poll``.

        No object is created for a record.
        """
        taken = await self._poll(timeout_ms, lambda: take_columns(self._positions, max_bytes))
        self._polling().count(sum(each.columns.length for each in taken))
        return taken

    async def poll_encoded(
        self, timeout_ms: float = 1000, *, max_bytes: int = 16 * 1024 * 1024
    ) -> list[EncodedBatches]:
        """Returns about ``max_bytes`` of record batches as they were fetched, for ``Producer.send_encoded``.

        Nothing is decompressed or decoded. A result without batches reports a position that moved past markers or
        aborted records. Otherwise it works like ``poll``.
        """
        taken = await self._poll(timeout_ms, lambda: take_encoded(self._positions, max_bytes))
        self._polling().count(sum(batch.new_records for each in taken for batch in each.batches))
        return taken

    async def _poll(self, timeout_ms: float, take: Callable[[], list[T]]) -> list[T]:
        self._opened(may_be_closed=False)
        poller = self._polling()
        timeout_ms = arguments.milliseconds("poll", timeout_ms)
        if not self._is_subscribed and not self._positions.by_partition:
            raise RuntimeError("nothing to poll: subscribe() or assign() first")
        return await poller.poll(timeout_ms, take)

    async def _poll_records(
        self, timeout_ms: float, limit: int, partitions_max: int = 2**31
    ) -> list[ConsumedBatch[KeyOut, ValueOut]]:
        decoding = self._decoding

        def take() -> list[ConsumedBatch]:
            return take_records(self._positions, limit, partitions_max)

        if decoding is not None:
            decoding.raise_pending()
        taken = await self._poll(timeout_ms, take)
        return await self._polling().present(taken)

    def _polling(self) -> Poller:
        self._caller.check()
        if self._poller is None:
            self._caller.refuse()
        return self._poller

    async def _rebalance(self, deadline_ms: float) -> bool:
        if self._rebalancer is None or not self._is_subscribed or self._is_closed:
            return False
        await self._rebalancer.keep(self._background.nursery, deadline_ms)
        return True

    def __aiter__(self) -> Self:
        """Iterates over records, without end until the consumer is closed.

        Positions and commits cover the records that the loop has received, and a rebalance takes place between two of
        them. ``batches`` is faster.
        """
        return self

    async def __anext__(self) -> ConsumedRecord[KeyOut, ValueOut]:
        poller = self._polling()
        taken = [] if self._is_closed else poller.take_nowait(self._take_one)
        if taken and self._is_plain:
            poller.counters.records += 1
            return next(taken[0].with_partition())  # type: ignore[return-value]  # bytes
        batches = await poller.present(taken) if taken else []
        while not self._is_closed:
            for batch in batches:
                for record in batch.with_partition():  # an interceptor may have left none
                    return record
            poller.iteration_polls()
            batches = await self._poll_records(1000, 1)
        raise StopAsyncIteration

    def _take_one(self) -> list[ConsumedBatch]:
        return take_records(self._positions, 1)

    def batches(self) -> AsyncIterator[ConsumedBatch[KeyOut, ValueOut]]:
        """Iterates over the records of one partition at a time, without end until the consumer is closed.

        The records of a batch count as processed when the loop asks for the next one.
        """
        from moldau.consumer.iteration import Iteration

        self._opened()
        return Iteration(self._next_batch)

    async def _next_batch(self) -> ConsumedBatch[KeyOut, ValueOut]:
        while not self._is_closed:
            # One partition at a time: the records of a poll count as processed when the next poll begins.
            batches = await self._poll_records(1000, self._max_poll_records, 1)
            if batches:
                return batches[0]
        raise StopAsyncIteration

    # --- positions

    def _position(self, call: str, partition: tuple[str, int]) -> PartitionPosition:
        self._caller.check()
        return self._positions.assigned(arguments.partition(call, partition))

    def seek(
        self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1, cluster: int | None = None
    ) -> None:
        """Sets the position to ``offset``; ``cluster`` is that of the batch which had the offset, None for any.

        Raises:
            LookupError: the partition is not assigned, or the consumer has left ``cluster``.
        """
        offset = arguments.offset("seek", offset)
        position = self._position("seek", partition)
        self._positions.check_cluster(cluster)
        position.seek(offset, leader_epoch)
        self._opened()[1].wake()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Sets the positions of partitions (by default all assigned) to their log start offsets."""
        self._reset("seek_to_beginning", partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Sets the positions of partitions (by default all assigned) to their high watermarks."""
        self._reset("seek_to_end", partitions, LATEST_TIMESTAMP)

    def _reset(self, call: str, partitions: Sequence[tuple[str, int]], timestamp: int) -> None:
        for position in [self._position(call, partition) for partition in partitions or self.assignment]:
            position.reset(timestamp)
        self._opened()[1].wake()

    async def position(self, partition: tuple[str, int], timeout_ms: float | None = None) -> int:
        """Returns the offset of the next record that ``poll`` will return; waits until it is known.

        Raises:
            LookupError: the partition is not assigned.
            KafkaError: the position cannot be determined.
            trio.TooSlowError: it is unknown after ``timeout_ms`` (by default ``default.api.timeout.ms``).
        """
        client, fetcher = self._opened()
        found = self._position("position", partition)
        limit_ms = arguments.time_limit("position", timeout_ms, self._api_timeout_ms)
        return await wait_position(client, fetcher, found, limit_ms)

    def position_nowait(self, partition: tuple[str, int]) -> int | None:
        """Returns the position, or None while it is unknown."""
        found = self._position("position_nowait", partition)
        return found.offset if found.has_position else None

    def lag(self, partition: tuple[str, int]) -> Lag:
        """Returns how far the consumer is behind the end of the partition, as of the last fetch."""
        found = self._position("lag", partition)
        return Lag(position=found.offset, end_offset=found.end_offset)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stops reading the partitions; they stay assigned."""
        for position in [self._position("pause", partition) for partition in partitions]:
            position.is_paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Reads paused partitions again."""
        for position in [self._position("resume", partition) for partition in partitions]:
            position.resume()
        self._opened()[1].wake()
        self._opened()[1].arrived.notify()

    @property
    def paused(self) -> list[TopicPartition]:
        """Assigned partitions that ``pause`` holds back."""
        return [each.partition for each in self._positions.by_partition.values() if each.is_paused]

    def statistics(self) -> ConsumerStatistics:
        """Returns the consumer's numbers, under the names of Kafka's consumer metrics."""
        return self._polling().statistics()

    async def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714); waits until one has assigned it.

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return await self._opened()[0].telemetry.client_instance_id(timeout_ms)

    @property
    def application_metrics(self) -> ApplicationMetrics:
        """The application's own metrics, which this client pushes to brokers that want them (KIP-1076)."""
        return self._opened()[0].telemetry.application

    # --- offsets

    def _grouped(self) -> GroupClient:
        self._opened()
        if self._group is None:
            raise ConfigError(["group.id: needed to commit and to look up committed offsets"])
        return self._group

    @property
    def commits_automatically(self) -> bool:
        """Whether the consumer commits positions by itself (``enable.auto.commit`` with a group)."""
        return self._auto_commits

    def offsets_to_commit(
        self, unread: Mapping[TopicPartition, tuple[int, int]] | None = None
    ) -> dict[tuple[str, int], CommittedOffset]:
        """Returns what ``commit`` commits by default: the positions of the assigned partitions.

        Pass it to ``Producer.send_offsets_to_transaction``. ``unread`` holds offset and leader epoch where a part of
        the records of the last poll is not to count.
        """
        self._opened()
        return self._offsets.to_commit(unread or {})

    async def commit(
        self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None, *, cluster: int | None = None
    ) -> None:
        """Commits offsets of the next records to read, by default the present positions.

        The commit follows all earlier commits and applies to the generation in which it is called. ``cluster`` is that
        of the batches which had the offsets, None for any.

        Raises:
            CommitFailedError: this member no longer belongs to the group's generation, or has left ``cluster``.
            KafkaError: the coordinator refused the commit.
            trio.TooSlowError: the commit was not answered in time.
        """
        group = self._grouped()
        if cluster not in (None, self.clusters_left):
            from moldau.consumer.group import CommitFailedError  # not loaded by consumers without a group

            text = f"group {self._group_id}: the offsets are those of another cluster, which the client has left"
            raise CommitFailedError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        await group.commit(self._offsets.consumed() if offsets is None else given_offsets(offsets))

    async def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's committed offsets; partitions without one are left out.

        Raises:
            OffsetsUnknownError: the coordinator refused partitions (``errors``); ``found`` has the offsets of others.
            KafkaError: the coordinator answered with an error.
            trio.TooSlowError: the answer did not come in time.
        """
        wanted = arguments.partitions("committed", partitions)
        check_topic_names(partition.topic for partition in wanted)
        return await self._grouped().committed(wanted)

    def _commit_when_due(self) -> float:
        if self._auto_commit is None or self._is_closed:  # another task closes it, and commits
            return math.inf
        return self._auto_commit.commit_when_due(self._background.nursery)

    async def _commit_if_automatic(self) -> None:
        if self._auto_commit is not None:
            await self._auto_commit.commit()

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return await self._offsets.list(
            arguments.partitions("beginning_offsets", partitions), EARLIEST_TIMESTAMP, self._opened()[0]
        )

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the high watermark of each partition (read_committed: the last stable offset)."""
        return await self._offsets.list(
            arguments.partitions("end_offsets", partitions), LATEST_TIMESTAMP, self._opened()[0]
        )

    async def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of the first record at or after each time; (-1, -1) where there is none."""
        return await self._offsets.at(arguments.times("offsets_for_times", "times", times), self._opened()[0])

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic.

        Raises:
            KafkaError: the topic does not exist or cannot be read.
            trio.TooSlowError: its metadata did not arrive in time.
        """
        client = self._opened()[0]
        return await partitions_of(client, arguments.text("partitions_for", "topic", topic), self._api_timeout_ms)
