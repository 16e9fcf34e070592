"""Runs the administered workload: a group whose offsets are reset and deleted while members come, go and commit.

The topics have no records: committed offsets are numbers that each stand for one write, so a read shows which write it
saw. Members are ordinary consumers. They subscribe to more or fewer topics, unsubscribe, and die; the first one is
static, so its successor replaces it. All of them leave from time to time, because most operations of an administrator
need an empty group. Requests that change offsets are sent once, as single requests: what a client repeats could take
effect twice. Some are sent in the name of a member as it was before, some with metadata that are too long.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from moldau.cluster.committed import CommittedOffset
from moldau.consumer import Consumer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from moldau.protocol.schema import Response
from moldau_jepsen.checkers.group.administered import (
    OPEN,
    UNKNOWN_NODE,
    Act,
    GroupOperation,
    Membership,
    OffsetRead,
    Parting,
    Sighting,
    check_administered,
)
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.questions import Questions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from moldau.protocol.schema import Request
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.questions import Nodes

R = TypeVar("R", bound=Response)

TOPICS = ("administered-a", "administered-b")
PARTITIONS = tuple(TopicPartition(topic, 0) for topic in TOPICS)
GROUP = "administered"
INSTANCE_ID = "static"
POLL_MS = 100.0
RETRY_S = 0.1
READ_S = 3.0
COMMIT_VERSION = 9
FETCH_VERSION = 9
OVERSIZED = "x" * 5_000
"""Metadata of a commit that exceed ``offset.metadata.max.bytes``."""
STALE_MS = 10_000.0
RESET_BASE = 1_000_000
"""Values of resets count down from here: most of them move the group back."""
IDENTITIES_KEPT = 20
FATE_UNKNOWN = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
"""Codes with which a coordinator may answer although the write was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdministeredOptions:
    """The options of the workload."""

    protocol: str = "classic"
    """``classic`` or ``consumer`` (KIP-848)."""
    slots: int = 2
    life_s: float = 4.0
    """Mean length of a member's life."""
    busy_s: tuple[float, float] = (2.0, 5.0)
    quiet_s: tuple[float, float] = (2.0, 5.0)
    """How long members stay away, all at once."""
    administrations_per_second: float = 6.0


class _Asked(NamedTuple):
    """The changes that a request asks for."""

    act: Act
    values: Mapping[TopicPartition, int | None]
    member: Membership | None = None
    oversized: TopicPartition | None = None
    """A partition whose metadata are too long."""


class AdministeredWorkload:
    """The members, the administrator and what they observed."""

    def __init__(self, nodes: Nodes, bootstrap: str, environment: Environment, options: AdministeredOptions) -> None:
        """Sends nothing before ``run``."""
        self._nodes = nodes
        self._bootstrap = bootstrap
        self._environment = environment
        self._options = options
        self._questions = Questions(environment, nodes, "administrator", keeps_connections=True)
        self._coordinator: int | None = None
        self._stopping = trio.Event()
        self._quiet_until_s = 0.0
        self._numbers = 0
        self._identities: list[Membership] = []
        self.operations: list[GroupOperation] = []
        self.reads: list[OffsetRead] = []
        self.sightings: list[Sighting] = []
        self.partings: list[Parting] = []
        self.counts: Counter[str] = Counter()
        """Counts of events, for the coverage."""
        self.stuck: str | None = None
        """Why the final read failed, if it did."""

    def stop(self) -> None:
        """Ends all clients after their open operations."""
        self._stopping.set()

    def verdict(self) -> list[str]:
        """Returns what is wrong with the operations and the reads so far."""
        return check_administered(self.operations, self.reads, self.sightings, self.partings, stale_ms=STALE_MS)

    async def run(self) -> None:
        """Runs members and administrator until ``stop``."""
        try:
            async with trio.open_nursery() as nursery:
                for slot in range(self._options.slots):
                    nursery.start_soon(self._lives, slot)
                nursery.start_soon(self._administer)
                nursery.start_soon(self._call_breaks)
        finally:
            self._questions.close()

    async def final_read(self, seconds: float) -> None:
        """Reads the offsets once more; sets ``stuck`` when that does not end within ``seconds``."""
        try:
            with trio.move_on_after(seconds):
                await self._read_until_it_ends()
                return
        finally:
            self._questions.close()
        self.stuck = f"the offsets of group {GROUP} could not be read within {seconds} s"

    async def _read_until_it_ends(self) -> None:
        while True:
            if await self._read(is_final=True):
                return
            await trio.sleep(RETRY_S)

    def _now_ms(self) -> float:
        return self._environment.clock.monotonic_ms()

    # --- members

    async def _call_breaks(self) -> None:
        draw, options = self._environment.random, self._options
        while not self._stopping.is_set():
            await trio.sleep(draw.uniform(*options.busy_s))
            quiet_s = draw.uniform(*options.quiet_s)
            self._quiet_until_s = trio.current_time() + quiet_s
            await trio.sleep(quiet_s)

    @property
    def _is_quiet(self) -> bool:
        return trio.current_time() < self._quiet_until_s

    async def _lives(self, slot: int) -> None:
        """Runs the members of one slot in turn: each until it crashes, all must leave, or the run stops."""
        draw = self._environment.random
        while not self._stopping.is_set():
            if self._is_quiet:
                await trio.sleep(RETRY_S)
                continue
            with trio.move_on_after(draw.expovariate(1 / self._options.life_s)):
                try:
                    await self._live(slot, draw)
                except (KafkaError, trio.TooSlowError):
                    await trio.sleep(RETRY_S)

    def _config(self, slot: int) -> dict[str, object]:
        config: dict[str, object] = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.id": GROUP,
            "bootstrap.servers": self._bootstrap,
        }
        if self._options.protocol == "consumer":
            config |= {"group.protocol": "consumer"}
        else:
            config |= {"session.timeout.ms": 1_500, "heartbeat.interval.ms": 300}
        if slot == 0:
            config["group.instance.id"] = INSTANCE_ID
        return config

    def _draw_topics(self, draw: random.Random) -> list[str]:
        return draw.choice([list(TOPICS), list(TOPICS), [TOPICS[0]], [TOPICS[1]]])

    async def _live(self, slot: int, draw: random.Random) -> None:
        begun_ms = self._now_ms()
        member: Membership | None = None

        async def lost(_: list[TopicPartition]) -> None:
            self._part(member)

        made = Consumer(self._config(slot), environment=self._environment, on_lost=lost)
        async with mortal(made, draw) as consumer:
            consumer.subscribe(self._draw_topics(draw))
            while not (self._stopping.is_set() or self._is_quiet):
                await consumer.poll(POLL_MS)
                member = self._sight(consumer, slot, member, begun_ms)
                chosen = draw.random()
                if chosen < 0.35 and member is not None:
                    await self._commit(member, draw)
                elif chosen < 0.45 and self._identities:
                    await self._commit(draw.choice(self._identities), draw)
                elif chosen < 0.5 and member is not None:
                    await self._commit_by_consumer(consumer)
                elif chosen < 0.6:
                    consumer.subscribe(self._draw_topics(draw))
                    self.counts["member subscribes again"] += 1
                    if member is not None:
                        member = member._replace(topics=frozenset())
                elif chosen < 0.63:
                    self._part(member)
                    await consumer.unsubscribe()
                    self.counts["member unsubscribes"] += 1
                    await trio.sleep(draw.uniform(0.1, 1.0))
                    consumer.subscribe(self._draw_topics(draw))
                    member, begun_ms = None, self._now_ms()

    def _part(self, member: Membership | None) -> None:
        if member is not None:
            self.partings.append(Parting(self._now_ms(), member.member_id))

    def _sight(self, consumer: Consumer, slot: int, before: Membership | None, begun_ms: float) -> Membership | None:
        """Returns the member as it is now; a new epoch of it is noted, and its identity kept."""
        known = consumer.group_metadata()
        if known.generation_id < 0:
            self._part(before)  # a member without partitions loses its membership without a callback
        if known.generation_id < 0 or not known.member_id or not consumer.assignment:
            return before
        if before is not None and (before.member_id, before.epoch) == (known.member_id, known.generation_id):
            return before
        is_classic = self._options.protocol == "classic"  # members of the other protocol keep epochs longer
        # It may have subscribed to others meanwhile, and be on its way to the next generation.
        topics = frozenset({partition.topic for partition in consumer.assignment} & {*consumer.subscription})
        topics = topics if is_classic else frozenset()
        instance = INSTANCE_ID if slot == 0 else ""
        member = Membership(known.member_id, known.generation_id, instance, topics)
        if instance and any(
            each.member_id != member.member_id for each in self._identities if each.instance_id == instance
        ):
            self.counts["static member replaced"] += 1
        self.sightings.append(Sighting(begun_ms, self._now_ms(), member))
        self._identities.append(member._replace(topics=frozenset()))  # it may subscribe to others later
        del self._identities[:-IDENTITIES_KEPT]
        return member

    async def _commit(self, member: Membership | None, draw: random.Random) -> None:
        """Commits one offset or both, for a member, or for none; a part of the requests has too long metadata."""
        partitions = draw.choice([PARTITIONS, PARTITIONS[:1], PARTITIONS[1:]])
        oversized = draw.choice(PARTITIONS) if len(partitions) > 1 and draw.random() < 0.3 else None
        values = {partition: self._number(is_reset=member is None) for partition in partitions}
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=-1 if member is None else member.epoch,
            member_id="" if member is None else member.member_id,
            group_instance_id=(member.instance_id or None) if member is not None else None,
            topics=[
                OffsetCommitRequestTopic(
                    name=partition.topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition.partition,
                            committed_offset=value,
                            committed_metadata=OVERSIZED if partition == oversized else "",
                        )
                    ],
                )
                for partition, value in values.items()
            ],
        )
        act = Act.RESET if member is None else Act.COMMIT

        def codes_of(response: OffsetCommitResponse) -> dict[TopicPartition, ErrorCode]:
            return {
                TopicPartition(topic.name, part.partition_index): ErrorCode.of(part.error_code)
                for topic in response.topics
                for part in topic.partitions
            }

        asked = _Asked(act, values, member, oversized)
        await self._send(asked, OffsetCommitResponse, request, codes_of, version=COMMIT_VERSION)

    async def _commit_by_consumer(self, consumer: Consumer) -> None:
        """Commits through the consumer with too long metadata for one partition: it must raise an error.

        The consumer may send the other offset several times, so its outcome is unknown.
        """
        values = {partition: self._number() for partition in PARTITIONS}
        bad = self._environment.random.choice(PARTITIONS)
        begun_ms = self._now_ms()
        hidden: TopicPartition | None = None
        try:
            with trio.fail_after(READ_S):
                await consumer.commit(
                    {
                        (partition.topic, partition.partition): CommittedOffset(
                            offset=value, metadata=OVERSIZED if partition == bad else ""
                        )
                        for partition, value in values.items()
                    }
                )
            hidden = bad
        except KafkaError as error:
            self.counts["partial error reported by the consumer"] += error.code is ErrorCode.OFFSET_METADATA_TOO_LARGE
        except trio.TooSlowError:
            pass  # the outcome is unknown, as it is noted
        finally:  # also if the member's life ends meanwhile
            rest = tuple((partition, value) for partition, value in values.items() if partition != bad)
            self.operations.append(
                GroupOperation(act=Act.COMMIT, begun_ms=begun_ms, ended_ms=OPEN, values=rest, oversized=hidden)
            )

    def _number(self, *, is_reset: bool = False) -> int:
        self._numbers += 1
        return RESET_BASE - self._numbers if is_reset else self._numbers

    # --- the administrator

    async def _administer(self) -> None:
        draw = self._environment.random
        while not self._stopping.is_set():
            await trio.sleep(draw.expovariate(self._options.administrations_per_second))
            chosen = draw.random()
            if chosen < 0.45:
                await self._read()
            elif chosen < 0.65:
                await self._commit(None, draw)
            elif chosen < 0.8:
                await self._delete_offsets(draw)
            elif chosen < 0.9:
                await self._delete_group()
            elif self._identities:
                await self._commit(draw.choice(self._identities), draw)

    async def _delete_offsets(self, draw: random.Random) -> None:
        partitions = draw.choice([PARTITIONS, PARTITIONS, PARTITIONS[:1], PARTITIONS[1:]])
        request = OffsetDeleteRequest(
            group_id=GROUP,
            topics=[
                OffsetDeleteRequestTopic(
                    name=partition.topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=partition.partition)],
                )
                for partition in partitions
            ],
        )

        def codes_of(response: OffsetDeleteResponse) -> dict[TopicPartition, ErrorCode]:
            codes = dict.fromkeys(partitions, ErrorCode.of(response.error_code))
            if response.error_code == 0:
                for topic in response.topics:
                    for part in topic.partitions:
                        codes[TopicPartition(topic.name, part.partition_index)] = ErrorCode.of(part.error_code)
            return codes

        await self._send(_Asked(Act.DELETE_OFFSETS, dict.fromkeys(partitions)), OffsetDeleteResponse, request, codes_of)
        await self._read()

    async def _delete_group(self) -> None:
        def codes_of(response: DeleteGroupsResponse) -> dict[TopicPartition, ErrorCode]:
            return dict.fromkeys(PARTITIONS, ErrorCode.of(response.results[0].error_code))

        request = DeleteGroupsRequest(groups_names=[GROUP])
        await self._send(_Asked(Act.DELETE_GROUP, dict.fromkeys(PARTITIONS)), DeleteGroupsResponse, request, codes_of)

    # --- requests

    async def _send(
        self,
        asked: _Asked,
        kind: type[R],
        request: Request,
        codes_of: Callable[[R], Mapping[TopicPartition, ErrorCode]],
        *,
        version: int | None = None,
    ) -> None:
        """Sends a request once, and notes its outcome, which is unknown if the sender is cancelled."""
        node_id = await self._find()
        if node_id is None:
            return
        begun_ms = self._now_ms()
        codes: Mapping[TopicPartition, ErrorCode] = {}
        try:
            response = await self._questions.ask(node_id, kind, request, version)
            codes = {} if response is None else codes_of(response)
        finally:
            self._note(asked, begun_ms, codes, node_id)

    def _note(self, asked: _Asked, begun_ms: float, codes: Mapping[TopicPartition, ErrorCode], node_id: int) -> None:
        """Notes what a request did, or may have done; ``codes`` is empty if there was no answer."""
        ended_ms = self._now_ms()
        for name in dict.fromkeys(code.name for code in codes.values()):
            self.counts[f"{asked.act.value}: {name}"] += 1
        values = {partition: value for partition, value in asked.values.items() if partition != asked.oversized}
        done = {partition: value for partition, value in values.items() if codes.get(partition) is ErrorCode.NONE}
        unknown = {
            partition: value for partition, value in values.items() if not codes or codes[partition] in FATE_UNKNOWN
        }
        if asked.oversized is not None and codes.get(asked.oversized) is ErrorCode.NONE:
            self._add(asked, begun_ms, OPEN, {}, hidden=asked.oversized)
        if done:
            self._add(asked, begun_ms, ended_ms, done, node_id=node_id)
        if unknown:
            self._add(asked, begun_ms, OPEN, unknown)
        if done and asked.member is not None:
            self.sightings.append(Sighting(begun_ms, ended_ms, asked.member))
        if not codes or any(code in FATE_UNKNOWN for code in codes.values()):
            self._coordinator = None

    def _add(
        self,
        asked: _Asked,
        begun_ms: float,
        ended_ms: float,
        values: Mapping[TopicPartition, int | None],
        *,
        node_id: int = UNKNOWN_NODE,
        hidden: TopicPartition | None = None,
    ) -> None:
        operation = GroupOperation(
            act=asked.act,
            begun_ms=begun_ms,
            ended_ms=ended_ms,
            values=tuple(values.items()),
            node=node_id,
            member=asked.member,
            oversized=hidden,
        )
        self.operations.append(operation)

    # --- questions

    async def _find(self) -> int | None:
        """Returns the broker that is said to coordinate the group; None if no broker says so."""
        if self._coordinator is None:
            broker = self._environment.random.choice(self._nodes.broker_ids)
            request = FindCoordinatorRequest(key=GROUP, key_type=0, coordinator_keys=[GROUP])
            response = await self._questions.ask(broker, FindCoordinatorResponse, request)
            if response is None or not response.coordinators or response.coordinators[0].error_code:
                return None
            node_id = response.coordinators[0].node_id
            self._coordinator = node_id if node_id in self._nodes.broker_ids else None
        return self._coordinator

    async def _read(self, *, is_final: bool = False) -> bool:
        begun_ms = self._now_ms()
        node_id = await self._find()
        if node_id is None:
            return False
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
        response = await self._questions.ask(node_id, OffsetFetchResponse, request, FETCH_VERSION)
        if response is None or response.groups[0].error_code:
            self._coordinator = None
            return False
        found = {
            TopicPartition(topic.name, part.partition_index): part.committed_offset
            for topic in response.groups[0].topics
            for part in topic.partitions
            if part.committed_offset >= 0
        }
        self.counts["offsets read"] += 1
        offsets = tuple((partition, found.get(partition)) for partition in PARTITIONS)
        self.reads.append(OffsetRead(begun_ms, self._now_ms(), offsets, node_id, is_final))
        return True
