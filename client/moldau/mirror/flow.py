"""The mirror from one source to the target: its clients, its tasks, and its restarts.

One task copies records. The others follow topics, configurations, ACLs and groups, and write heartbeats; if one of them
fails, it logs why and tries again, and copying goes on. If copying fails as a whole, everything of the source starts
again after a wait, from the positions that the target holds.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin
from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.consumer import Consumer
from moldau.mirror.at_least_once import AtLeastOnce
from moldau.mirror.core.batches import Provenance
from moldau.mirror.core.formats import Heartbeat
from moldau.mirror.core.policy import HEARTBEATS
from moldau.mirror.core.provenance import find_cycle
from moldau.mirror.errors import MirrorStoppedError
from moldau.mirror.exactly_once import END_TIMEOUT_MS, WATCH_S, ExactlyOnce
from moldau.mirror.group_sync import GroupSync
from moldau.mirror.internal import create_compacted, open_reader
from moldau.mirror.positions import PositionStore
from moldau.mirror.reading import FIRST_RETRY_MS, SourceMemory, SourceReader
from moldau.mirror.sending import TargetSender
from moldau.mirror.statistics import SourceStatistics
from moldau.mirror.syncs import SyncWriter
from moldau.mirror.topic_sync import TopicSync
from moldau.producer import Producer, ProducerFencedError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.exceptions import leaves
from moldau.runtime.tasks.supervision import BackoffPolicy
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.mirror.core.settings import SourceSettings
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment

HEARTBEAT_AGE_MS = 300_000
"""A mirror without a heartbeat for this time does not count in the search for cycles."""
HEALTHY_MS = 60_000.0
"""A source that was mirrored for this time begins again with the shortest wait after its next failure."""
STOP_MS = 20_000
"""For a mirror that ends in order; container platforms kill a process 30 s after their signal."""
_TEMPORARY = (KafkaError, *TRANSPORT_ERRORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients of one run of a source."""

    source: Admin
    target: Admin
    consumer: Consumer
    producer: Producer
    """Writes records and positions to the target."""
    side: Producer
    """Writes heartbeats and checkpoints to the target, outside of transactions."""
    syncs: Producer
    """Writes offset syncs, to the cluster where they lie."""


class SourceFlow:
    """Mirrors one source until it is stopped."""

    def __init__(self, environment: Environment, settings: SourceSettings, stop: trio.Event) -> None:
        """``stop`` ends the mirror in order."""
        self._environment = environment
        self._settings = settings
        self._stop = stop
        self.statistics = SourceStatistics(alias=settings.alias)
        self._memory = SourceMemory()
        self._target_id = ""
        self._has_warned = False  # of heartbeats that the source hides
        self._logger = EventLogger("moldau.mirror", source=settings.alias, target=settings.target_alias)

    async def run(self) -> None:
        """Mirrors the source; after a failure it waits and starts again.

        Raises:
            MirrorStoppedError: a start would not help: another mirror has taken over, or the mirrors form a cycle.
        """
        policy = BackoffPolicy(initial_ms=FIRST_RETRY_MS, max_ms=self._settings.retry_max_ms)
        failures = 0
        while not self._stop.is_set():
            began_ms = self._environment.clock.monotonic_ms()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_at_stop, nursery.cancel_scope)
                    await self._run_once()
                    nursery.cancel_scope.cancel()
            except* (*_TEMPORARY, MirrorStoppedError) as group:
                error = self._judged(group)
            else:
                return
            finally:
                self.statistics.is_running = False
            if isinstance(error, MirrorStoppedError):
                raise error
            if self._environment.clock.monotonic_ms() - began_ms >= HEALTHY_MS:
                failures = 0
            failures += 1
            delay_ms = policy.delay_ms(failures, self._environment.random)
            self.statistics.restarts += 1
            self.statistics.failures += 1
            self.statistics.last_error = str(error)
            self._logger.warning("source-restarts", error=error, failures=failures, delay_ms=delay_ms)
            with trio.move_on_after(delay_ms / 1000):
                await self._stop.wait()

    def _judged(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """Returns the error that decides what to do: one that ends the source, or the first one."""
        found = list(leaves(group))
        for error in found:
            if isinstance(error, MirrorStoppedError):
                return error
            if isinstance(error, ProducerFencedError):
                name = self._settings.transactional_id
                stopped = MirrorStoppedError(
                    f"mirror of {self._settings.alias} stopped: another mirror uses the transactional id {name}"
                )
                stopped.__cause__ = error
                return stopped
        return found[0]

    # --- one run

    async def _end_at_stop(self, scope: trio.CancelScope) -> None:
        """Ends a run when the mirror is stopped: at once if it has not begun to copy, else after ``STOP_MS``.

        A cluster that is down would hold up the last outcomes for as long as clients try again.
        """
        await self._stop.wait()
        if self.statistics.is_running:
            await trio.sleep(STOP_MS / 1000)
            reason = "outcomes are missing; the next start goes on at the stored positions"
            self._logger.warning("source-stopped-early", reason=reason, waited_ms=STOP_MS)
            self.statistics.ended_early = True
        scope.cancel()

    async def _run_once(self) -> None:
        with trio.CancelScope() as scope:
            async with AsyncExitStack() as stack:
                await self._run_with(await self._open(stack, scope))
        if scope.cancelled_caught:
            text = f"the addresses of {self._settings.alias} or {self._settings.target_alias} lead to another cluster"
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)

    async def _run_with(self, clients: Clients) -> None:
        provenance = await self._check_clusters(clients)
        store = PositionStore(self._environment, self._settings, self._logger)
        await self._create_internal(clients, store)
        if self._settings.is_exactly_once:
            await clients.producer.init_transactions()
        syncs = SyncWriter(self._settings, self.statistics)
        reader = SourceReader(
            self._environment,
            clients.consumer,
            await store.read(),
            starts_at_end=self._starts_at_end,
            memory=self._memory,
            retry_max_ms=self._settings.retry_max_ms,
            statistics=self.statistics,
            syncs=syncs,
            logger=self._logger,
        )
        topics = TopicSync(self._settings, clients.source, clients.target, reader.want, self._logger)
        await topics.refresh()
        self.statistics.is_running = True
        self._logger.info("source-mirrored", topics=len(topics.topics.known))
        try:
            async with trio.open_nursery() as nursery:
                self._start_side_tasks(nursery, clients, topics)
                await self._copy(clients, reader, store, syncs, provenance)
                nursery.cancel_scope.cancel()
        finally:
            reader.remember()

    @property
    def _starts_at_end(self) -> bool:
        return self._settings.config.get_str("auto.offset.reset") == "latest"

    async def _open(self, stack: AsyncExitStack, scope: trio.CancelScope) -> Clients:
        settings, environment = self._settings, self._environment
        source, target = settings.cluster, settings.target
        transactional: dict[str, object] = {}
        if settings.is_exactly_once:
            transactional["transactional_id"] = settings.transactional_id
            transactional["delivery_timeout_ms"] = settings.delivery_timeout_ms(END_TIMEOUT_MS)
        where = source if settings.syncs_lie_in_source else target
        is_set = {"isolation.level", "consumer.isolation.level"} & source.keys.keys()
        isolation = {} if is_set else {"isolation_level": "read_committed"}
        enter = stack.enter_async_context
        clients = Clients(
            source=await enter(Admin(source.client("admin"), environment=environment)),
            target=await enter(Admin(target.client("admin"), environment=environment)),
            consumer=await enter(Consumer(source.client("consumer", **isolation), environment=environment)),
            producer=await enter(Producer(target.client("producer", **transactional), environment=environment)),
            side=await enter(Producer(target.client("producer"), environment=environment)),
            syncs=await enter(Producer(where.client("producer"), environment=environment)),
        )
        _end_in_another_cluster(clients, scope)
        return clients

    async def _check_clusters(self, clients: Clients) -> Provenance | None:
        """Checks that records cannot go round; returns the clusters' ids if records must carry them.

        Raises:
            MirrorStoppedError: both aliases mean one cluster, or the mirrors form a cycle.
        """
        settings = self._settings
        source_id = (await clients.source.describe_cluster()).cluster_id
        target_id = (await clients.target.describe_cluster()).cluster_id
        if source_id == target_id:
            raise MirrorStoppedError(
                f"{settings.alias} and {settings.target_alias} are the same cluster, {source_id}", is_usage=True
            )
        if self._target_id not in ("", target_id):
            self._logger.warning("target-replaced", before=self._target_id, now=target_id)
            if not self._starts_at_end:
                self._memory = SourceMemory()  # the new target lacks the records of the former one
        self._target_id = target_id
        if settings.policy.renames:
            return None
        await self._check_cycle(clients.source)
        return Provenance(source_id, target_id)

    async def _check_cycle(self, source: Admin) -> None:
        settings = self._settings
        if settings.config.get_bool("allow.cycles"):
            return
        since_ms = self._environment.clock.wall_ms() - HEARTBEAT_AGE_MS
        found: list[Heartbeat] = []

        def take(record: Record) -> None:
            found.append(Heartbeat.parse(record.key, record.value))

        listed = await source.list_topics()
        await self._warn_of_hidden_heartbeats(source, {topic.name for topic in listed})
        for topic in listed:
            if settings.policy.is_heartbeats_topic(topic.name) and topic.partition_count:
                async with open_reader(self._environment, settings.cluster, topic.name, self._logger) as reader:
                    await reader.begin(since_ms)
                    await reader.read_to_end(take)
        cycle = find_cycle(found, settings.alias, settings.target_alias, alive_since_ms=since_ms)
        if cycle:
            raise MirrorStoppedError(
                f"mirrors that keep topic names form a cycle, {' -> '.join(cycle)}: records would go round; "
                "use DefaultReplicationPolicy, or allow.cycles = true if all of them are Moldau mirrors",
                is_usage=True,
            )

    async def _warn_of_hidden_heartbeats(self, source: Admin, visible: set[str]) -> None:
        """Logs once if the mirror's user may not see the source's heartbeats: a cycle would not be noticed."""
        if HEARTBEATS in visible or self._has_warned:
            return
        try:
            await source.describe_topics([HEARTBEATS])
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self._has_warned = True
                remedy = "give the mirror's user the right to read this topic, so that cycles are noticed"
                self._logger.warning("heartbeats-hidden", topic=HEARTBEATS, remedy=remedy)

    async def _create_internal(self, clients: Clients, store: PositionStore) -> None:
        settings = self._settings
        factor = settings.config.get_int("replication.factor")
        await store.create(clients.target)
        if settings.config.get_bool("emit.offset-syncs.enabled"):
            where = clients.source if settings.syncs_lie_in_source else clients.target
            await create_compacted(where, settings.offset_syncs_topic, factor)
        if settings.writes_checkpoints:
            await create_compacted(clients.target, settings.policy.checkpoints_topic(settings.alias), factor)
        if settings.config.get_bool("emit.heartbeats.enabled"):
            await create_compacted(clients.target, HEARTBEATS, factor)

    async def _copy(
        self,
        clients: Clients,
        reader: SourceReader,
        store: PositionStore,
        syncs: SyncWriter,
        provenance: Provenance | None,
    ) -> None:
        config = self._settings.config
        sender = TargetSender(clients.producer, reader.progress, self._settings, provenance, self.statistics)
        parts = (reader, sender, clients.producer, store, syncs, clients.syncs)
        flush_ms = config.get_int("offset.flush.interval.ms")
        if not self._settings.is_exactly_once:
            simple = AtLeastOnce(*parts, flush_ms=flush_ms, statistics=self.statistics, logger=self._logger)
            await simple.run(self._stop)
            return
        exact = ExactlyOnce(
            *parts,
            clock=self._environment.clock,
            boundary_ms=config.get_int("transaction.boundary.interval.ms"),
            timeout_ms=self._settings.transaction_timeout_ms,
            bytes_max=config.get_int("transaction.bytes.max"),
            flush_ms=flush_ms,
            statistics=self.statistics,
            logger=self._logger,
        )
        await exact.run(self._stop)

    # --- side tasks

    def _start_side_tasks(self, nursery: trio.Nursery, clients: Clients, topics: TopicSync) -> None:
        config = self._settings.config

        def start(key: str, work: Callable[[], Awaitable[object]]) -> None:
            if f"{key}.enabled" not in config or config.get_bool(f"{key}.enabled"):
                nursery.start_soon(self._repeat, key, config.get_int(f"{key}.interval.seconds"), work)

        nursery.start_soon(self._watch_producers, clients)
        start("refresh.topics", topics.refresh)
        start("sync.topic.configs", topics.sync_configs)
        start("sync.topic.acls", topics.sync_acls)
        start("emit.heartbeats", lambda: self._beat(clients.side))
        if not self._settings.policy.renames:
            start("refresh.topics", lambda: self._check_cycle(clients.source))
        if self._settings.writes_checkpoints:
            nursery.start_soon(self._follow_groups, clients)

    async def _watch_producers(self, clients: Clients) -> None:
        """Ends the run when a producer has failed for good, because only a new one would take records again.

        ``ExactlyOnce`` watches the one with transactions, and knows how old the failed transaction is.

        Raises:
            KafkaError: the failure.
        """
        first = () if self._settings.is_exactly_once else (clients.producer,)
        while True:
            for producer in (*first, clients.side, clients.syncs):
                if producer.failure is not None:
                    raise producer.failure
            await trio.sleep(WATCH_S)

    async def _repeat(self, name: str, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        """Does something again and again; a failure is logged, and does not end the source."""
        while True:
            try:
                await work()
            except _TEMPORARY as error:
                self.statistics.failures += 1
                self.statistics.last_error = f"{name}: {error}"
                self._logger.warning("mirror-task-failed", task=name, error=error)
            await trio.sleep(interval_s)

    async def _beat(self, producer: Producer) -> None:
        beat = Heartbeat(self._settings.alias, self._settings.target_alias, self._environment.clock.wall_ms())
        await (await producer.send(HEARTBEATS, beat.value(), key=beat.key(), partition=0, timestamp=beat.timestamp))
        self.statistics.heartbeats += 1

    async def _follow_groups(self, clients: Clients) -> None:
        """Runs the tasks of groups; they begin again with empty hands after a failure."""
        while True:
            try:
                await self._sync_groups(clients)
            except _TEMPORARY as error:
                self.statistics.failures += 1
                self.statistics.last_error = f"groups: {error}"
                self._logger.warning("mirror-task-failed", task="groups", error=error)
            await trio.sleep(self._settings.config.get_int("emit.checkpoints.interval.seconds"))

    async def _sync_groups(self, clients: Clients) -> None:
        settings, environment, logger = self._settings, self._environment, self._logger
        config = settings.config
        groups = GroupSync(settings, clients.source, clients.target, clients.side, self.statistics, logger)
        checkpoints = settings.policy.checkpoints_topic(settings.alias)
        async with open_reader(environment, settings.target, checkpoints, logger) as reader:
            await groups.load(reader)
        where = settings.cluster if settings.syncs_lie_in_source else settings.target
        async with open_reader(environment, where, settings.offset_syncs_topic, logger) as syncs:
            await syncs.begin()
            synced_at_ms = -1.0
            while True:
                await groups.write_checkpoints(syncs)
                now_ms = environment.clock.monotonic_ms()
                interval_ms = config.get_int("sync.group.offsets.interval.seconds") * 1000
                if config.get_bool("sync.group.offsets.enabled") and now_ms - synced_at_ms >= interval_ms:
                    await groups.sync_offsets()
                    synced_at_ms = now_ms
                await trio.sleep(config.get_int("emit.checkpoints.interval.seconds"))


def _end_in_another_cluster(clients: Clients, scope: trio.CancelScope) -> None:
    """Ends a run at the moment at which one of its clients goes to another cluster, before it sends anything there.

    The positions that wait for the former target would be stored in the new one, which lacks the records before them.
    """
    producers = (clients.producer, clients.side, clients.syncs)

    def end() -> None:
        for producer in producers:
            producer.abandon()
        scope.cancel()

    for client in (clients.consumer._opened()[0], *(each._client for each in producers)):
        assert client is not None, "the clients are open"
        client.on_other_cluster = end
