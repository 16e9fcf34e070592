"""The share consumer: takes records of a share group one by one, and acknowledges each (KIP-932).

    async with ShareConsumer({"bootstrap.servers": "127.0.0.1:9092", "group.id": "workers"}) as consumer:
        consumer.subscribe(["jobs"])
        async for record in consumer:
            work(record.value)

Members of a share group share the partitions of their topics: each record is delivered to one of them, which has
*acquired* it until a lock expires. A record that is not accepted is delivered again, to any member, up to the group's
limit of deliveries. So there are no positions and no rebalances, and more members than partitions can work.

With ``share.acknowledgement.mode=implicit`` a poll accepts the records of the poll before. With ``explicit`` the
application acknowledges each record before the next poll. Acknowledgements leave with the next fetch, or with
``commit``.
"""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Any, Generic, Self
from uuid import UUID

import trio

from moldau.cluster import arguments
from moldau.cluster.background import Background, Closing, exits_unwrapped
from moldau.cluster.bootstrap import environment_or_real
from moldau.cluster.caller import AsyncOnly, Caller
from moldau.cluster.client import ClusterClient
from moldau.cluster.metadata import TopicPartition
from moldau.cluster.troubles import check_topic_names
from moldau.runtime.config import SHARE_CONSUMER_CONFIG, Config, ConfigError
from moldau.serialization.core.records import RecordDecoder, unreadable
from moldau.serialization.core.values import (
    KeyOut,
    RecordDeserializationError,
    RegistryError,
    SchemaNeeded,
    ValueOut,
)
from moldau.serialization.lookups import SchemaLookups
from moldau.share.core.deliveries import Deliveries, ShareKey
from moldau.share.core.membership import ShareMembership
from moldau.share.core.values import AcknowledgeType, ShareRecord
from moldau.share.fetcher import Buffered, ShareFetcher
from moldau.share.group import ShareGroupClient
from moldau.share.node import ShareLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.protocol.errors import KafkaError
    from moldau.runtime.ports.environment import Environment
    from moldau.serialization.core.values import DeserializerLike
    from moldau.share.core.statistics import ShareConsumerStatistics

_NEWS_MS = 1_000
"""A poll looks again at the assignment, and at leaders, at least this often."""
_ACQUIRE_MODES = {"batch_optimized": 0, "record_limit": 1}


class ShareConsumer(AsyncOnly, Generic[KeyOut, ValueOut]):
    """A member of a share group.

    Use it as an async context manager. All methods belong to one task of the trio thread that opened it.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        environment: Environment | None = None,
        on_acknowledged: Callable[[TopicPartition, list[int], KafkaError | None], object] | None = None,
        key_deserializer: DeserializerLike[KeyOut] | None = None,
        value_deserializer: DeserializerLike[ValueOut] | None = None,
    ) -> None:
        """Takes Kafka's configuration keys of share consumers, a callback and deserializers.

        ``on_acknowledged`` receives the outcome of acknowledgements: a partition, offsets, and the error if the broker
        did not take them. It is an ordinary function, and is called inside ``poll``, ``commit`` and ``close``. Without
        a deserializer, keys or values are bytes.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed, or ``group.id`` is not set.
        """
        self._config = arguments.configuration("ShareConsumer", config, SHARE_CONSUMER_CONFIG)
        group_id = self._config.get_str_or_none("group.id")
        if not group_id:
            raise ConfigError(["group.id: needed by a share consumer"])
        if on_acknowledged is not None and not callable(on_acknowledged):
            raise TypeError(f"ShareConsumer: on_acknowledged must be a function, not {on_acknowledged!r}")
        self._group_id = group_id
        self._environment = environment
        self._on_acknowledged = on_acknowledged
        self._is_explicit = self._config.get_str("share.acknowledgement.mode") == "explicit"
        self._decoder = RecordDecoder.of(key_deserializer, value_deserializer)
        self._lookups = SchemaLookups("default.api.timeout.ms", self._config.get_int("default.api.timeout.ms"))
        self._limits = ShareLimits(
            max_wait_ms=self._config.get_int("fetch.max.wait.ms"),
            min_bytes=self._config.get_int("fetch.min.bytes"),
            max_bytes=self._config.get_int("fetch.max.bytes"),
            max_records=self._config.get_int("max.poll.records"),
            acquire_mode=_ACQUIRE_MODES[self._config.get_str("share.acquire.mode")],
            request_timeout_ms=self._config.get_int("request.timeout.ms"),
        )
        self._background = Background()
        self._caller = Caller("ShareConsumer")
        self._client: ClusterClient | None = None
        self._membership: ShareMembership | None = None
        self._group: ShareGroupClient | None = None
        self._deliveries = Deliveries()
        self._fetcher: ShareFetcher | None = None
        self._last_poll_ms = 0.0
        self._has_polled = False
        self._is_polled = False
        self._is_heartbeating = False
        self._is_closed = False
        self._closing = Closing()

    # --- life

    async def __aenter__(self) -> Self:
        """Starts the background tasks. Does not wait for a broker."""
        self._caller.enter()
        environment = environment_or_real(self._environment)
        client = self._client = ClusterClient(environment, self._config, "share-consumer")
        # Kafka's brokers take members of share groups for UUIDs in base64, and fail at any other form in ShareFetch.
        fresh = UUID(int=environment.random.getrandbits(128), version=4)
        member_id = base64.urlsafe_b64encode(fresh.bytes).decode().rstrip("=")
        rack = self._config.get_str("client.rack") or None
        self._membership = ShareMembership(self._group_id, member_id, rack)
        self._group = ShareGroupClient(
            client, self._membership, poll_interval_ms=self._config.get_int("max.poll.interval.ms")
        )
        self._fetcher = ShareFetcher(
            client,
            group_id=self._group_id,
            member_id=member_id,
            limits=self._limits,
            deliveries=self._deliveries,
            check_crcs=self._config.get_bool("check.crcs"),
            start_soon=lambda *call: self._background.nursery.start_soon(*call),
        )
        client.on_bootstrap_error = self._fetcher.arrived.notify
        await self._background.open(client.run)
        client.telemetry.member_id = lambda: member_id
        self._background.nursery.start_soon(client.telemetry.run, self.statistics)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Sends the acknowledgements, releases all other records, leaves the group and stops.

        After an exception or a cancellation that takes at most ``FAREWELL_MS``.
        """
        return await self._background.close(
            kind, error, traceback, closing=self.close, departing=self._farewell, ended=self.abandon
        )

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Sends the acknowledgements, releases all other records and leaves the group; idempotent.

        Takes at most ``timeout_ms``. Records of the last poll that the application has not acknowledged are released,
        in both modes: call ``commit`` first to accept them. An error of the callback is raised once the consumer is
        closed. A second call waits for the first.
        """
        timeout_ms = arguments.milliseconds("close", timeout_ms)
        if self._is_closed:
            await self._closing.wait(timeout_ms)
            return
        client = self._opened()
        self._is_closed = True
        with self._closing.carried_out(), trio.move_on_after(timeout_ms / 1000):
            await self._farewell()
        client.logger.debug("share-consumer-closed")
        self.abandon()
        self._call_back()

    async def _depart(self) -> None:
        client = self._client
        if client is None or client.is_closed:
            return
        assert self._group is not None
        assert self._fetcher is not None
        self._deliveries.release_unread()
        with exits_unwrapped():
            async with trio.open_nursery() as nursery:  # a leader that hangs must not keep the member in its group
                nursery.start_soon(self._fetcher.end_sessions)
                await self._group.leave()

    async def _farewell(self) -> None:
        """Departs, and pushes metrics a last time if a broker wants them."""
        await self._depart()
        if self._client is not None and not self._client.is_closed:
            await self._client.telemetry.farewell()

    def abandon(self) -> None:
        """Closes the connections at once and sends nothing more, as if the process had died.

        The brokers release the records of this member. Leave the block afterwards.
        """
        self._is_closed = True
        if self._client is not None and self._fetcher is not None:
            self._client.close()
            self._fetcher.arrived.notify()
        self._background.cancel()

    def _opened(self, *, may_be_closed: bool = True) -> ClusterClient:
        self._caller.check()
        if self._client is None:
            self._caller.refuse()
        if self._is_closed and not may_be_closed:
            raise RuntimeError("the share consumer is closed")
        return self._client

    def _fetching(self) -> ShareFetcher:
        self._caller.check()
        if self._fetcher is None:
            self._caller.refuse()
        return self._fetcher

    # --- what to read

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group for these topics; replaces an earlier subscription.

        Raises:
            InvalidTopicError: a name is not a valid topic name.
            TypeError: ``topics`` is a str instead of a list.
            ValueError: there are no topics; ``unsubscribe`` leaves the group.
        """
        client = self._opened(may_be_closed=False)
        names = list(dict.fromkeys(arguments.texts("subscribe", "topics", topics)))
        if not names:
            raise ValueError("subscribe needs a topic; unsubscribe() leaves the group")
        check_topic_names(names)
        assert self._membership is not None
        assert self._group is not None
        self._membership.subscribe(names)
        client.set_topics(names)
        self._last_poll_ms = client.now_ms
        if not self._is_heartbeating:
            self._is_heartbeating = True
            self._background.nursery.start_soon(
                self._group.heartbeat_forever, lambda: self._last_poll_ms, self._fetching().arrived.notify
            )
        self._group.wake()

    async def unsubscribe(self) -> None:
        """Sends the acknowledgements, releases all other records and leaves the group."""
        client = self._opened()
        await self._depart()
        client.set_topics(())
        self._call_back()

    @property
    def subscription(self) -> list[str]:
        """The topics that the consumer is subscribed to."""
        topics = None if self._membership is None else self._membership.topics
        return list(topics or ())

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions from which the coordinator lets this member fetch; other members may fetch from them too."""
        return [partition for _, partition in self._wanted()]

    @property
    def member_id(self) -> str:
        """The id of this member, which it keeps for life; empty before it is opened."""
        return "" if self._membership is None else self._membership.member_id

    def statistics(self) -> ShareConsumerStatistics:
        """Returns the consumer's numbers, under the names of Kafka's metrics of share consumers."""
        last_poll_ms = self._last_poll_ms if self._has_polled else None
        return self._fetching().counters.statistics(self._opened().now_ms, last_poll_ms)

    async def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714); waits until one has assigned it.

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return await self._opened().telemetry.client_instance_id(timeout_ms)

    @property
    def application_metrics(self) -> ApplicationMetrics:
        """The application's own metrics, which this client pushes to brokers that want them (KIP-1076)."""
        return self._opened().telemetry.application

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long records stay with this member, from the last fetch; None before the first."""
        return None if self._fetcher is None else self._fetcher.lock_timeout_ms

    def _wanted(self) -> list[ShareKey]:
        if self._client is None or self._membership is None:
            return []
        names = self._client.cluster_metadata.topic_names()
        found: list[ShareKey] = []
        for topic_id, number in self._membership.assignment:
            name = names.get(topic_id)
            if name is not None:
                found.append((topic_id, TopicPartition(name, number)))
        return found

    # --- records

    async def poll(
        self, timeout_ms: float = 1000, max_records: int | None = None
    ) -> list[ShareRecord[KeyOut, ValueOut]]:
        """Returns records that this member has acquired, or nothing after ``timeout_ms``.

        Accepts the records of the poll before in the mode ``implicit``.

        Raises:
            RuntimeError: in the mode ``explicit``, records of earlier polls are not acknowledged (a renewal suffices);
                or another task polls; or the consumer is closed.
            KafkaError: the brokers refuse the member, or a batch is damaged (its records are rejected).
            RecordDeserializationError: a deserializer refuses a record, which the next call releases, unless
                ``acknowledge_offset`` rejects it first.
            RegistryError: the schema registry does not answer; the next poll asks again.
        """
        client = self._opened(may_be_closed=False)
        timeout_ms = arguments.milliseconds("poll", timeout_ms)
        limit = self._limits.max_records
        if max_records is not None:
            limit = arguments.at_least("poll", "max_records", max_records, 1)
        if self._is_polled:
            raise RuntimeError("this share consumer is being polled already, by another task: one at a time may")
        if self._membership is None or (self._membership.topics is None and self._membership.fatal is None):
            raise RuntimeError("the share consumer is not subscribed: subscribe() first")
        self._begin_poll()
        self._is_polled = True
        began_ms, counters, pace = client.now_ms, self._fetching().counters, self._fetching().pace
        pace.polls(began_ms)
        try:
            records = await self._poll_until(began_ms + timeout_ms, limit)
            counters.polled(len(records))
            pace.polled(len(records), client.now_ms)
            return records
        finally:
            self._is_polled = False
            counters.polled_for(began_ms, client.now_ms)

    def _begin_poll(self) -> None:
        if not self._is_explicit:
            self._deliveries.accept_all()
        elif self._deliveries.unacknowledged > self._deliveries.renewed:
            waiting = self._deliveries.unacknowledged - self._deliveries.renewed
            raise RuntimeError(
                f"{waiting} records of earlier polls are not acknowledged: share.acknowledgement.mode=explicit needs "
                "acknowledge() for each record before the next poll"
            )
        self._deliveries.release_unread()

    async def _poll_until(self, deadline_ms: float, limit: int) -> list[ShareRecord[KeyOut, ValueOut]]:
        client, fetcher, group = self._opened(), self._fetching(), self._group
        assert group is not None
        await trio.lowlevel.checkpoint()
        if client.now_ms - self._last_poll_ms > self._config.get_int("max.poll.interval.ms"):
            group.wake()
        self._last_poll_ms, self._has_polled = client.now_ms, True
        while True:
            self._call_back()
            self._raise_errors()
            taken = await self._take(limit)
            if taken:
                fetcher.send_old()
                return taken
            self._raise_errors()
            if self._is_closed:  # by another task
                return []
            self._start_fetches()
            remaining_ms = deadline_ms - client.now_ms
            if remaining_ms <= 0:
                return []
            with trio.move_on_after(min(remaining_ms, _NEWS_MS) / 1000):
                await fetcher.arrived.wait()
            self._last_poll_ms = client.now_ms  # a poll that waits, however long, is no missing one

    def _start_fetches(self) -> None:
        client, membership = self._opened(), self._membership
        assert membership is not None
        names = client.cluster_metadata.topic_names()
        if any(topic_id not in names for topic_id, _ in membership.assignment):
            client.request_update()
        self._fetching().start(self._wanted())

    def _raise_errors(self) -> None:
        assert self._membership is not None
        if self._membership.fatal is not None:
            raise self._membership.fatal
        fetcher = self._fetching()
        while fetcher.errors and not fetcher.buffer:
            topic, error = fetcher.errors.popleft()
            if topic is None or topic in self.subscription:  # errors of a former subscription concern no one
                raise error
        if self._client is not None and self._client.bootstrap_error is not None:
            raise self._client.bootstrap_error

    async def _take(self, limit: int) -> list[ShareRecord[KeyOut, ValueOut]]:
        """Returns buffered records that are still locked for this member.

        The application holds them from now on. Those of a call that fails or is cancelled stay in the buffer. Records
        before one that cannot be deserialized are returned alone, and the next call meets it again.
        """
        fetcher = self._fetching()
        buffer, taken, values = fetcher.buffer, list[Buffered](), list[tuple[Any, Any]]()
        try:
            while buffer and len(taken) < limit:
                each = buffer.popleft()
                if not self._is_released(each):
                    taken.append(each)
                    values.append(await self._decode(each))
        except (RecordDeserializationError, RegistryError) as error:
            unread = taken.pop()
            if not taken and isinstance(error, RecordDeserializationError):
                self._deliveries.leave_unread(unread.node.node_id, unread.key, unread.record.offset)
                raise
            buffer.appendleft(unread)
            if not taken:
                raise
        except BaseException:
            buffer.extendleft(reversed(taken))
            raise
        found = zip(taken, values, strict=True)
        return [self._deliver(each, value) for each, value in found if not self._is_released(each)]

    def _is_released(self, each: Buffered) -> bool:
        """Returns whether a record is left to the delivery that follows the end of its session or lock.

        One that has come before is given to the application after the end of its lock too, because the group may give
        it up instead of delivering it again.
        """
        if each.session_number != each.node.session.number:
            return True
        return each.locked_until_ms <= self._opened().now_ms and each.delivery_count == 1

    def _deliver(self, each: Buffered, decoded: tuple[Any, Any]) -> ShareRecord[KeyOut, ValueOut]:
        record, partition, (key, value) = each.record, each.key[1], decoded
        self._deliveries.deliver(each.node.node_id, each.key, record.offset)
        return ShareRecord(
            partition.topic,
            partition.partition,
            record.offset,
            record.timestamp,
            key,
            value,
            record.headers,
            each.delivery_count,
        )

    async def _decode(self, each: Buffered) -> tuple[Any, Any]:
        if self._decoder is None:
            return each.record.key, each.record.value
        while True:
            try:
                return self._decoder.decode(each.key[1], each.record)
            except SchemaNeeded as needed:
                try:
                    await self._lookups.resolve(needed)
                except RegistryError as error:
                    if error.is_about_schema:
                        raise unreadable(each.key[1], each.record, needed, error) from error
                    raise

    def put_back(self, records: Iterable[ShareRecord[Any, Any]]) -> None:
        """Releases polled records that the application did not receive, because its call was interrupted."""
        for record in records:
            with contextlib.suppress(KeyError):  # the session has ended meanwhile
                self._deliveries.acknowledge(record.topic_partition, record.offset, AcknowledgeType.RELEASE)

    def __aiter__(self) -> Self:
        """Iterates over records, without end until the consumer is closed.

        In the mode ``implicit`` asking for the next record accepts the one before; in the mode ``explicit`` each must
        be acknowledged before the next.
        """
        return self

    async def __anext__(self) -> ShareRecord[KeyOut, ValueOut]:
        while not self._is_closed:
            records = await self.poll(1000, max_records=1)
            if records:
                return records[0]
        raise StopAsyncIteration

    # --- acknowledgements

    def acknowledge(self, record: ShareRecord[Any, Any], kind: AcknowledgeType | int = AcknowledgeType.ACCEPT) -> None:
        """Notes the outcome of a record that a poll has returned; the next poll or ``commit`` sends it.

        Raises:
            RuntimeError: the mode is ``implicit``; or the record is not held: its acknowledgement was sent, or the
                broker has released it because the session with it ended.
        """
        self.acknowledge_offset(record.topic_partition, record.offset, kind)

    def acknowledge_offset(
        self, partition: tuple[str, int], offset: int, kind: AcknowledgeType | int = AcknowledgeType.ACCEPT
    ) -> None:
        """Works like ``acknowledge``, for a record that could not be deserialized too.

        Raises:
            RuntimeError: as ``acknowledge``.
            TypeError: partition or offset is of a wrong type.
            ValueError: there is no such acknowledge type, or a number is negative.
        """
        self._opened()
        if not self._is_explicit:
            raise RuntimeError("acknowledge() needs share.acknowledgement.mode=explicit")
        try:
            wanted = AcknowledgeType(kind)
        except ValueError as error:
            raise ValueError(f"acknowledge: {kind!r} is no acknowledge type") from error
        place = arguments.partition("acknowledge", partition)
        offset = arguments.offset("acknowledge", offset)
        try:
            self._deliveries.acknowledge(place, offset, wanted)
        except KeyError as error:
            raise RuntimeError(f"this share consumer does not hold {place} offset {offset}") from error

    async def commit(self, timeout_ms: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Sends the acknowledgements and waits until the brokers have stored them; returns the outcome by partition.

        Accepts the records of the last poll in the mode ``implicit``. Without acknowledgements the result is empty.

        Raises:
            trio.TooSlowError: the brokers did not answer within ``timeout_ms`` (default: ``default.api.timeout.ms``).
                The acknowledgements are under way; ``on_acknowledged`` reports their outcome.
            RuntimeError: the consumer is closed.
        """
        self._opened(may_be_closed=False)
        fetcher = self._fetching()
        limit_ms = arguments.time_limit("commit", timeout_ms, self._config.get_int("default.api.timeout.ms"))
        if not self._is_explicit:
            self._deliveries.accept_all()
        self._deliveries.release_unread()
        self._call_back()
        with trio.fail_after(limit_ms / 1000):
            await fetcher.acknowledge_all()
        results: dict[TopicPartition, KafkaError | None] = {}
        for outcome in fetcher.outcomes:
            if results.get(outcome.partition) is None:
                results[outcome.partition] = outcome.error
        self._call_back()
        return results

    def commit_nowait(self) -> None:
        """Begins to send the acknowledgements; ``on_acknowledged`` reports the outcome.

        Accepts the records of the last poll in the mode ``implicit``.

        Raises:
            RuntimeError: the consumer is closed.
        """
        self._opened(may_be_closed=False)
        fetcher = self._fetching()
        if not self._is_explicit:
            self._deliveries.accept_all()
        self._deliveries.release_unread()
        fetcher.send()

    def _call_back(self) -> None:
        """Reports all outcomes, then raises the first error of the callback."""
        outcomes = self._fetching().outcomes
        failure: Exception | None = None
        while outcomes:
            outcome = outcomes.popleft()
            if self._on_acknowledged is not None:
                try:
                    self._on_acknowledged(*outcome)
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = failure or error
        if failure is not None:
            raise failure
