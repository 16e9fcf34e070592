"""Runs the share workload: members of a share group that accept, release, reject, renew, dawdle and crash.

Members live on machines of their own. Each life takes records one by one, holds some of them for long (some beyond the
lock), acknowledges them in one of the ways, and ends by leaving or by a crash. At the end one member accepts whatever
comes, until nothing has come for longer than the lock. Then the group's dead letter queue is read, if the cluster has
such queues. ``checkers.group.share`` judges the events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin, ConfigAlteration, ConfigResource, ResourceType
from moldau.producer import Producer
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.share import AcknowledgeType, ShareConsumer, ShareRecord
from moldau_jepsen.checkers.group.share import (
    Acknowledged,
    Acknowledgement,
    Delivered,
    Event,
    Sent,
    ShareAnomalyKind,
    ShareVerdict,
    check_share_group,
)
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.operations import OperationFailedError
from moldau_jepsen.workloads.phases.dead_letters import create_queue, dead_letters, has_queues, queue_settings
from moldau_jepsen.workloads.phases.share_evidence import PrunedLogError, archived_records, group_times_ms

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from moldau.cluster.metadata import TopicPartition as Place
    from moldau.runtime.ports.environment import Environment

UNKNOWN = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # leadership ended during the write
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors after which an acknowledgement may have been stored all the same."""
FETCH_WAIT_MS = 200
RETRY_S = 0.2
DELIVERY_COUNT_MAX = 10
POLL_MS = 500.0
EVIDENCE_SECONDS = 30.0
Member = ShareConsumer[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions:
    """The options of the workload."""

    topic: str = "share"
    partitions: int = 2
    group: str = "share"
    slots: int = 3
    sends_per_second: float = 10.0
    life_s: float = 15.0
    """Mean length of a member's life."""
    crash_share: float = 0.6
    """Of the lives: those that end like the death of a process."""
    lock_ms: int = 15_000
    """The lock of the group. Brokers are given it (``settings_of``), since a group may have none below 15 s."""
    session_ms: int = 6_000
    """Session timeout of the group: members that crashed keep their partitions from others for so long."""
    connection: Mapping[str, str] = field(default_factory=dict)
    """How all clients reach the cluster: keys that all kinds of clients know."""
    request_timeout_ms: int = 3_000
    """Of the members: the shorter, the better is it known when a record was acquired."""
    dawdle_share: float = 0.2
    """Of the records: those that a member holds for several seconds, some beyond the lock."""
    shares: dict[AcknowledgeType, float] = field(
        default_factory=lambda: {
            AcknowledgeType.ACCEPT: 0.6,
            AcknowledgeType.RELEASE: 0.25,
            AcknowledgeType.REJECT: 0.1,
            AcknowledgeType.RENEW: 0.05,
        }
    )

    @property
    def quiet_ms(self) -> int:
        """If nothing has come for so long, nothing is left: sessions and locks of dead members have ended."""
        return 2 * self.lock_ms + self.session_ms

    @property
    def queue(self) -> str:
        """The topic of the group's dead letters, which the workload creates with one partition."""
        return f"dlq.{self.topic}"

    @property
    def hosts(self) -> list[str]:
        """Names of the machines on which members live."""
        return [f"sharer-{slot}" for slot in range(self.slots)]


def settings_of(options: ShareOptions) -> dict[str, str]:
    """Returns settings of brokers with which a group of these options works within a run of some seconds."""
    return {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(options.lock_ms),
        "group.share.min.session.timeout.ms": "500",
        "group.share.session.timeout.ms": str(options.session_ms),
        "group.share.min.heartbeat.interval.ms": "100",
        "group.share.heartbeat.interval.ms": str(options.session_ms // 4),
    }


KEEPS_STATES = {"share.coordinator.state.topic.prune.interval.ms": str(24 * 3600 * 1000)}
"""A setting of brokers with which a longer run can still tell a record that was given up from one that was lost."""


class ShareWorkload:
    """All clients of one run; ``events`` is what they saw."""

    def __init__(self, bootstrap: str, options: ShareOptions, environment: Environment) -> None:
        """Runs nothing before `feed` and `live`; ``environment`` has the clock of the events."""
        self._reach = {**options.connection, "bootstrap.servers": bootstrap}
        self._options = options
        self._clock = environment.clock
        self._stopping = trio.Event()
        self._next_value = 0
        self._next_member = 0
        self._emptied_ms: dict[int, float] = {}
        """When each member's buffer was surely empty: a poll returned fewer records than it asked for."""
        self.events: list[Event] = []
        self.stuck: str | None = None
        """Why the final read did not end."""
        self.evidence = ""
        """Times of the group that brokers use, and why the coordinators' log was not read where it was needed."""
        self._judges_loss = False
        """Whether everything was drained at the end, and it is known which records were given up."""
        self._lock_ms = options.lock_ms
        self._refused = ""
        """The last error of a change of the group's settings."""
        self._has_queue = False
        self._queue_was_read = False

    def stop(self) -> None:
        """Ends the sender and the members."""
        self._stopping.set()

    @property
    def created_topics(self) -> list[str]:
        """The topics that the workload itself has created."""
        return [self._options.queue] if self._has_queue else []

    def now_ms(self) -> float:
        """Returns the time of the run."""
        return self._clock.monotonic_ms()

    async def feed(self, environment: Environment) -> None:
        """Sends records to all partitions until ``stop``."""
        draw, options = environment.random, self._options
        while not self._stopping.is_set():
            config = {
                **self._reach,
                "acks": "all",
                "delivery.timeout.ms": 20_000,
                "request.timeout.ms": 5_000,
                "linger.ms": 0,
            }
            try:
                async with Producer(config, environment=environment) as producer:
                    while not self._stopping.is_set():
                        value, partition = self._next_value, draw.randrange(options.partitions)
                        self._next_value += 1
                        await self._send(producer, value, partition)
                        await trio.sleep(draw.expovariate(options.sends_per_second))
            except KafkaError:  # the producer failed for good; what it has not acknowledged may be stored or not
                await trio.sleep(RETRY_S)

    async def _send(self, producer: Producer, value: int, partition: int) -> None:
        try:
            delivery = await producer.send(self._options.topic, b"%d" % value, partition=partition)
            metadata = await delivery
        except KafkaError:
            return
        if metadata.offset >= 0:
            self.events.append(Sent((TopicPartition(metadata.topic, metadata.partition), metadata.offset), value))

    # -- members

    def _consumer(self, environment: Environment) -> Member:
        return ShareConsumer(
            {
                **self._reach,
                "group.id": self._options.group,
                "share.acknowledgement.mode": "explicit",
                "share.acquire.mode": "record_limit",
                "max.poll.records": 20,
                "fetch.max.wait.ms": FETCH_WAIT_MS,
                "request.timeout.ms": self._options.request_timeout_ms,
            },
            environment=environment,
        )

    async def live(self, environment: Environment) -> None:
        """Runs members in turn: each until it crashes, leaves or the run stops."""
        draw = environment.random
        while not self._stopping.is_set():
            with trio.move_on_after(draw.expovariate(1 / self._options.life_s)):
                try:
                    async with self._consumer(environment) as member:
                        try:
                            await self._work(member, draw)
                        finally:
                            if draw.random() < self._options.crash_share:
                                member.abandon()
                except KafkaError:  # refused for good; the next life joins again
                    await trio.sleep(RETRY_S)

    async def _work(self, member: Member, draw: random.Random) -> None:
        number = self._new_member()
        member.subscribe([self._options.topic])
        while not self._stopping.is_set():
            for record in await self._poll(member, number, draw.randint(1, 5)):
                await self._handle(member, number, record, draw)

    def _new_member(self) -> int:
        self._next_member += 1
        return self._next_member

    async def _poll(self, member: Member, number: int, limit: int) -> list[ShareRecord[bytes, bytes]]:
        begun_ms = self.now_ms()
        records = await member.poll(POLL_MS, max_records=limit)
        # A fetch that began so long before the poll may have acquired a record.
        uncertain_ms = FETCH_WAIT_MS + self._options.request_timeout_ms + 100.0
        ended_ms = self.now_ms()
        # One that has come before is returned after the end of its lock too, however long it was in the buffer.
        emptied_ms = self._emptied_ms.get(number, begun_ms)
        for record in records:
            place = (_partition(record.topic_partition), record.offset)
            value = int(record.value or b"-1")
            since_ms = (begun_ms if record.delivery_count == 1 else emptied_ms) - uncertain_ms
            self.events.append(Delivered(place, value, record.delivery_count, number, since_ms, ended_ms))
        if number not in self._emptied_ms or len(records) < limit:
            self._emptied_ms[number] = ended_ms if len(records) < limit else begun_ms
        return records

    async def _handle(
        self, member: Member, number: int, record: ShareRecord[bytes, bytes], draw: random.Random
    ) -> None:
        options = self._options
        if draw.random() < options.dawdle_share:
            await trio.sleep(draw.uniform(1.0, 1.5 * options.lock_ms / 1000))
        kinds = list(options.shares)
        (kind,) = draw.choices(kinds, [options.shares[each] for each in kinds])
        if kind is AcknowledgeType.RENEW:
            await self._acknowledge(member, number, record, kind)
            kind = AcknowledgeType.ACCEPT
        await self._acknowledge(member, number, record, kind)

    async def _acknowledge(
        self, member: Member, number: int, record: ShareRecord[bytes, bytes], kind: AcknowledgeType
    ) -> None:
        partition = _partition(record.topic_partition)
        begun_ms = self.now_ms()
        is_stored: bool | None = None
        try:
            member.acknowledge(record, kind)
        except RuntimeError:  # the session with the broker has ended, so the member no longer holds the record
            return
        try:
            outcomes = await member.commit(20_000)
            is_stored = stored(outcomes, record.topic_partition)
        except trio.TooSlowError:
            is_stored = None
        finally:  # a cancelled acknowledgement may have been stored
            self.events.append(
                Acknowledged(
                    (partition, record.offset), number, Acknowledgement(int(kind)), begun_ms, self.now_ms(), is_stored
                )
            )

    # -- begin and end

    async def prepare(self, environment: Environment, timeout_s: float) -> None:
        """Sets the group up, and asks for its times: a run that ends early is judged by them.

        Raises:
            OperationFailedError: The cluster refused the group's settings, or did not answer, within ``timeout_s``.
        """
        with trio.move_on_after(timeout_s):
            await self.set_group(environment)
            await self.ask_times(environment)
            return
        why = f": {self._refused}" if self._refused else ""
        raise OperationFailedError(f"share group {self._options.group} was not set up within {timeout_s:g} s{why}")

    async def set_group(self, environment: Environment) -> None:
        """Lets the group begin with the first records, and sets its limit of deliveries; asks until it is done."""
        settings = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(DELIVERY_COUNT_MAX)}
        async with Admin(self._reach, environment=environment) as admin:
            while True:
                try:
                    if await has_queues(admin):
                        await create_queue(admin, self._options.queue)
                        settings |= queue_settings(self._options.queue)
                        self._has_queue = True
                    changes = [ConfigAlteration(name=name, value=value) for name, value in settings.items()]
                    await admin.alter_configs({ConfigResource(ResourceType.GROUP, self._options.group): changes})
                    return
                except KafkaError as error:
                    self._refused = str(error)
                    await trio.sleep(RETRY_S)

    async def ask_times(self, environment: Environment) -> tuple[int, int]:
        """Returns the lock and the session that brokers use for the group; asks until there is an answer."""
        lock_ms, session_ms = await group_times_ms(self._reach, environment, self._options.group)
        self._lock_ms = lock_ms
        self.evidence = f"lock {lock_ms} ms, session {session_ms} ms"
        return lock_ms, session_ms

    async def final_read(self, environment: Environment, seconds: float) -> None:
        """Accepts whatever is left; sets ``stuck`` if that does not end within ``seconds`` and twice the lock."""
        try:
            await self.drain(environment, seconds)
        except trio.TooSlowError:
            self.stuck = f"share group {self._options.group} did not come to its end within {seconds:g} s"
            if not self.evidence:
                self._lock_ms = 0  # the brokers' locks are not known: no member is convicted for holding a record
            return
        self._judges_loss = await self._ask_what_was_given_up(environment)
        if self._has_queue:
            await self._read_queue(environment)

    async def _read_queue(self, environment: Environment) -> None:
        """Adds the dead letters, and waits for those that are missing: brokers write them when the record is stored."""
        events, options = self.events, self._options
        with trio.move_on_after(EVIDENCE_SECONDS):
            while True:
                try:
                    letters = await dead_letters(self._reach, environment, options.queue)
                except KafkaError as error:
                    self._refused = str(error)
                else:
                    self.events, self._queue_was_read = [*events, *letters], True
                    if all(one.kind is not ShareAnomalyKind.LETTER_MISSING for one in self._verdict().anomalies):
                        return
                await trio.sleep(RETRY_S)
        if not self._queue_was_read:
            self.stuck = f"the dead letters of share group {options.group} were not read: {self._refused}"

    async def _ask_what_was_given_up(self, environment: Environment) -> bool:
        """Adds the records that the coordinators archived, if the history alone would call a record lost.

        Returns whether it is known which records were given up. If the coordinators' log cannot be read, it is not, and
        ``stuck`` says so. Without the topic nothing was archived.
        """
        options = self._options
        if all(one.kind is not ShareAnomalyKind.LOST for one in self._verdict().anomalies):
            return True
        try:
            with trio.fail_after(EVIDENCE_SECONDS):
                self.events += await archived_records(
                    self._reach, environment, options.group, options.topic, self._lock_ms
                )
        except PrunedLogError as error:  # whether a record was given up or lost cannot be known
            self.evidence += f"; not judged whether records were lost: {error}"
            return False
        except (KafkaError, DecodeError, trio.TooSlowError) as error:
            why = f"the log of the coordinators was not read: {type(error).__name__} {error}"
            self.evidence += f"; {why}"
            if not (isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                self.stuck = f"whether share group {options.group} lost records is not known: {why}"
                return False
        return True

    def wrong(self) -> list[tuple[str, str]]:
        """Returns the kind and the text of each violation of the group.

        Before the end of the final read no record counts as lost.
        """
        found = self._verdict().anomalies
        return [
            (one.kind.value, f"{one.kind.value}: offset {one.place[1]} of {one.place[0]}: {one.text}")
            for one in found
            if self._judges_loss or one.kind is not ShareAnomalyKind.LOST
        ]

    def _verdict(self) -> ShareVerdict:
        drained = self.stuck is None
        return check_share_group(
            self.events,
            delivery_count_max=DELIVERY_COUNT_MAX,
            lock_ms=self._lock_ms,
            drained=drained,
            has_queue=self._queue_was_read,
        )

    async def drain(self, environment: Environment, timeout_s: float) -> None:
        """Accepts whatever comes, until nothing has come for longer than the group's lock and session.

        A cluster that the run did not start may use longer ones than the options name.

        Raises:
            trio.TooSlowError: records still came after ``timeout_s`` and twice the lock.
        """
        number = self._new_member()
        with trio.fail_after(timeout_s) as scope:
            lock_ms, session_ms = await self.ask_times(environment)
            allowed_ms = max(self._options.quiet_ms, 2 * lock_ms + session_ms)
            scope.deadline += allowed_ms / 1000
            async with self._consumer(environment) as member:
                member.subscribe([self._options.topic])
                quiet_ms = self.now_ms()
                while self.now_ms() - quiet_ms < allowed_ms:
                    for record in await self._poll(member, number, 20):
                        quiet_ms = self.now_ms()
                        await self._acknowledge(member, number, record, AcknowledgeType.ACCEPT)


def _partition(place: Place) -> TopicPartition:
    return TopicPartition(place.topic, place.partition)


def stored(outcomes: dict[Place, KafkaError | None], place: Place) -> bool | None:
    """Returns whether the commit stored the acknowledgements of a partition; None if that is unknown."""
    if place not in outcomes:
        return None
    error = outcomes[place]
    if error is None:
        return True
    return None if error.code in UNKNOWN else False
