"""The assignors, with which the leader of a classic group assigns partitions to members. Pure and deterministic.

``range`` gives each member a run of every topic; ``roundrobin`` deals all partitions out in turn; ``sticky`` balances
and keeps what members own; ``cooperative-sticky`` does the same but hands a partition over only after its owner has
given it up (KIP-429), so that members go on with the rest. Results equal those of the Java client where all members
subscribe to the same topics (golden tests); where they differ, the sticky assignor here keeps and balances by the same
goals with a simpler search.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moldau.cluster.group_bytes import VERSION, group_by_topic, read_version
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.codec import DecodeError, decode, encode
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.values import Buffer


PROTOCOL_TYPE = "consumer"
_SUBSCRIPTION_VERSION = 3
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """A member's subscription. ``owned`` holds its partitions in ``generation``."""

    member_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None

    @property
    def sort_key(self) -> tuple[bool, str]:
        """The sort key: static members come first, by instance id, so that restarts change nothing (KIP-345)."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Assignment = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """An assignment strategy."""

    @property
    def name(self) -> str:
        """Protocol name, on which all members of a group agree."""
        ...

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep their partitions through a rebalance."""
        ...

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        """Returns the partitions of each member; topics that do not exist are not in ``partition_counts``."""
        ...


def _members_by_topic(
    partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> dict[str, list[MemberSubscription]]:
    by_topic: dict[str, list[MemberSubscription]] = {}
    for member in sorted(members, key=lambda each: each.sort_key):
        for topic in dict.fromkeys(member.topics):
            if topic in partition_counts:
                by_topic.setdefault(topic, []).append(member)
    return dict(sorted(by_topic.items()))


class RangeAssignor:
    """Gives each member a run of partitions of each topic; the first ``count mod members`` get one more."""

    name = "range"
    is_cooperative = False

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        """See ``Assignor.assign``."""
        assignment: Assignment = {member.member_id: [] for member in members}
        for topic, interested in _members_by_topic(partition_counts, members).items():
            each, extra = divmod(partition_counts[topic], len(interested))
            start = 0
            for index, member in enumerate(interested):
                count = each + (index < extra)
                assignment[member.member_id] += [TopicPartition(topic, part) for part in range(start, start + count)]
                start += count
        return assignment


class RoundRobinAssignor:
    """Assigns all partitions of all topics in turn to the members that subscribe to their topic."""

    name = "roundrobin"
    is_cooperative = False

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        """See ``Assignor.assign``."""
        assignment: Assignment = {member.member_id: [] for member in members}
        ordered = sorted(members, key=lambda each: each.sort_key)
        subscribed = [frozenset(member.topics) for member in ordered]
        turn = 0
        for topic in _members_by_topic(partition_counts, members):
            for partition in range(partition_counts[topic]):
                while topic not in subscribed[turn % len(ordered)]:
                    turn += 1
                assignment[ordered[turn % len(ordered)].member_id].append(TopicPartition(topic, partition))
                turn += 1
        return assignment


def valid_ownership(
    partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> dict[str, list[TopicPartition]]:
    """Returns the partitions that each member owns.

    They exist, the member subscribes to their topic, and only this member claims them in the newest generation. A
    partition that two members claim in the same generation belongs to neither of them.
    """
    claims = _claims(partition_counts, members)
    return {
        member.member_id: [
            partition for partition in dict.fromkeys(member.owned) if claims.get(partition) == member.member_id
        ]
        for member in members
    }


def _claims(
    partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> dict[TopicPartition, str | None]:
    """Returns who claims each partition in the newest generation; None where more than one member does."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        subscribed = frozenset(member.topics)
        for partition in member.owned:
            if partition.topic not in subscribed or partition.partition >= partition_counts.get(partition.topic, 0):
                continue
            generation, _ = claims.get(partition, (NO_GENERATION - 1, None))
            if member.generation > generation:
                claims[partition] = (member.generation, member.member_id)
            elif member.generation == generation:
                claims[partition] = (generation, None)
    return {partition: member_id for partition, (_, member_id) in claims.items()}


class StickyAssignor:
    """Balances within one partition, and keeps as many partitions as possible with their owners."""

    name = "sticky"
    is_cooperative = False

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        """See ``Assignor.assign``."""
        if not members:
            return {}
        members = sorted(members, key=lambda each: each.member_id)
        owned = valid_ownership(partition_counts, members)
        wanting: dict[tuple[str, ...], int] = {}
        for index, member in enumerate(members):
            wanting[member.topics] = wanting.get(member.topics, 0) | 1 << index
        wanted = {named: frozenset(partition_counts).intersection(named) for named in wanting}
        topics = sorted(frozenset().union(*wanted.values()))
        every = [TopicPartition(topic, part) for topic in topics for part in range(partition_counts[topic])]
        if len(set(wanted.values())) == 1:
            return _assign_equal(every, members, owned)
        takers = dict.fromkeys(topics, 0)
        for named, able in wanting.items():
            for topic in wanted[named]:
                takers[topic] |= able
        return _assign_general(every, members, owned, takers)


def _assign_equal(
    every: Sequence[TopicPartition],
    members: Sequence[MemberSubscription],
    owned: Mapping[str, list[TopicPartition]],
) -> Assignment:
    """Assigns where all members want the same topics: each gets floor or ceil of the average, its own first.

    The members are in the order of their ids.
    """
    least, over_count = divmod(len(every), len(members))
    assignment: Assignment = {member.member_id: [] for member in members}
    taken: dict[TopicPartition, None] = {}
    below: list[str] = []
    exact: list[str] = []
    over = 0
    for member in members:
        mine = owned[member.member_id]
        if len(mine) < least:
            kept = mine
            below.append(member.member_id)
        elif len(mine) > least and over < over_count:
            kept = mine[: least + 1]
            over += 1
        else:
            kept = mine[:least]
            exact.append(member.member_id)
        assignment[member.member_id] += kept
        taken.update(dict.fromkeys(kept))
    turn = 0
    for partition in every:
        if partition in taken:
            continue
        if below:
            turn %= len(below)
            member_id = below[turn]
            assignment[member_id].append(partition)
            if len(assignment[member_id]) == least:
                below.pop(turn)
                exact.append(member_id)
            else:
                turn += 1
        else:
            # Members that hold the floor get one more, in order of name at first, then in the order they were filled.
            assignment[exact.pop(0)].append(partition)
    return assignment


class _Loads:
    """How many partitions each member has, for a search of the least loaded ones of many sets of members.

    A member is an index in the order of ids, and a set of members an integer with a bit for each. Invariant:
    ``_by_load[n]`` has the members with n partitions, and is not empty.
    """

    def __init__(self, loads: Sequence[int]) -> None:
        self.of = list(loads)
        self._by_load: dict[int, int] = {}
        for member, load in enumerate(loads):
            self._by_load[load] = self._by_load.get(load, 0) | 1 << member

    def below(self, load: int) -> int:
        """Returns the members with fewer partitions."""
        found = 0
        for each, members in self._by_load.items():
            if each < load:
                found |= members
        return found

    def least(self, among: int) -> int:
        """Returns the least loaded one of some members, of several the first by id."""
        load = min(load for load, members in self._by_load.items() if members & among)
        found = self._by_load[load] & among
        return (found & -found).bit_length() - 1

    def add(self, member: int, count: int) -> None:
        """Counts partitions that a member got, or gave up where ``count`` is negative."""
        load, bit = self.of[member], 1 << member
        self._by_load[load] ^= bit
        if not self._by_load[load]:
            del self._by_load[load]
        self._by_load[load + count] = self._by_load.get(load + count, 0) | bit
        self.of[member] = load + count


def _assign_general(
    every: Sequence[TopicPartition],
    members: Sequence[MemberSubscription],
    owned: Mapping[str, list[TopicPartition]],
    takers: Mapping[str, int],
) -> Assignment:
    """Assigns to members with different topics: owned ones stay, the least loaded get the rest; then evens out.

    The members are in the order of their ids, and ``takers`` has a bit for each that subscribes to a topic. It runs on
    the event loop of an application: 6,000 partitions of 100 members take 10 to 200 ms.
    """
    held = [dict.fromkeys(owned[member.member_id]) for member in members]
    loads = _Loads([len(each) for each in held])
    taken = dict.fromkeys(partition for each in held for partition in each)
    rest = [partition for partition in every if partition not in taken]
    # Partitions that few members can take go first.
    counts = {topic: able.bit_count() for topic, able in takers.items()}
    for partition in sorted(rest, key=lambda each: (counts[each.topic], each)):
        least = loads.least(takers[partition.topic])
        held[least][partition] = None
        loads.add(least, 1)
    first = {partition: index for index, member in enumerate(members) for partition in owned[member.member_id]}
    is_moving = True
    while is_moving:
        is_moving = False
        # New partitions move before kept ones; each move makes the load strictly more even, so this ends.
        for giver in sorted(range(len(members)), key=lambda member: (-loads.of[member], member)):
            moved = _even_out(giver, held, takers, loads, first)
            is_moving = is_moving or moved
    return {member.member_id: list(each) for member, each in zip(members, held, strict=True)}


def _even_out(
    giver: int,
    held: Sequence[dict[TopicPartition, None]],
    takers: Mapping[str, int],
    loads: _Loads,
    first: Mapping[TopicPartition, int],
) -> bool:
    """Moves partitions of a member to those that have at least two less; returns whether one moved.

    Such members only become fewer meanwhile: each move makes the giver's load smaller, and a taker's larger.
    """
    below = loads.below(loads.of[giver] - 1)
    candidates = [partition for partition in held[giver] if takers[partition.topic] & below] if below else []
    moved = False
    for partition in sorted(candidates, key=lambda each: (first.get(each) == giver, each)):
        able = takers[partition.topic] & below
        if not able:
            continue
        taker = loads.least(able)
        del held[giver][partition]
        held[taker][partition] = None
        loads.add(giver, -1)
        loads.add(taker, 1)
        below = loads.below(loads.of[giver] - 1)
        moved = True
    return moved


class CooperativeStickyAssignor:
    """Assigns like the sticky assignor, without partitions that another member must revoke first (KIP-429).

    Of a partition that two members claim, both must: either may still read it.
    """

    name = "cooperative-sticky"
    is_cooperative = True

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        """See ``Assignor.assign``."""
        assignment = StickyAssignor().assign(partition_counts, members)
        claims = _claims(partition_counts, members)
        return {
            member_id: [partition for partition in held if claims.get(partition, member_id) == member_id]
            for member_id, held in assignment.items()
        }


_ASSIGNORS: dict[str, Assignor] = {
    "range": RangeAssignor(),
    "roundrobin": RoundRobinAssignor(),
    "sticky": StickyAssignor(),
    "cooperative-sticky": CooperativeStickyAssignor(),
}
_JAVA_NAMES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}


def assignors_of(names: Iterable[str]) -> list[Assignor]:
    """Returns the assignors of ``partition.assignment.strategy``, each once.

    Raises:
        KeyError: there is no assignor of that name.
    """
    return [_ASSIGNORS[name] for name in dict.fromkeys(_JAVA_NAMES.get(name, name) for name in names)]


# --- on the wire (KIP-429, KIP-792): a 16-bit version, then the message


def encode_subscription(
    topics: Sequence[str],
    owned: Iterable[TopicPartition],
    generation: int,
    rack: str | None,
    user_data: bytes | None = None,
) -> bytes:
    """Encodes the metadata of a member for JoinGroup."""
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            OwnedTopicPartitions(topic=topic, partitions=numbers) for topic, numbers in group_by_topic(owned).items()
        ],
        generation_id=generation,
        rack_id=rack or None,
    )
    return VERSION.pack(_SUBSCRIPTION_VERSION) + encode(message, _SUBSCRIPTION_VERSION)


def decode_subscription(
    member_id: str, instance_id: str | None, metadata: Buffer, assignor: str = ""
) -> MemberSubscription:
    """Decodes the metadata of a member; only the eager sticky ``assignor`` reads user data.

    A member with unreadable sticky user data owns nothing, as in the Java client.

    Raises:
        DecodeError: the metadata cannot be read.
    """
    version = read_version(metadata, _SUBSCRIPTION_VERSION)
    message = decode(ConsumerProtocolSubscription, version, metadata, VERSION.size)
    owned = tuple(
        TopicPartition(topic.topic, number) for topic in message.owned_partitions for number in topic.partitions
    )
    generation = message.generation_id
    if assignor == StickyAssignor.name and not owned and message.user_data:
        with contextlib.suppress(DecodeError):
            owned, generation = decode_sticky_user_data(message.user_data)
    return MemberSubscription(
        member_id=member_id,
        topics=tuple(message.topics),
        instance_id=instance_id,
        owned=owned,
        generation=generation,
        rack=message.rack_id,
    )


def encode_sticky_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encodes what a member of the eager sticky assignor remembers (it owns nothing while it joins)."""
    topics = group_by_topic(owned)
    parts = [struct.pack(">i", len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    parts.append(struct.pack(">i", generation))
    return b"".join(parts)


def decode_sticky_user_data(data: Buffer) -> tuple[tuple[TopicPartition, ...], int]:
    """Decodes what the eager sticky assignor remembers.

    Raises:
        DecodeError: the bytes are malformed.
    """
    owned: list[TopicPartition] = []
    try:
        (topic_count,) = struct.unpack_from(">i", data)
        at = 4
        for _ in range(topic_count):
            (size,) = struct.unpack_from(">h", data, at)
            at += 2
            if size < 0:
                raise DecodeError("a topic name of the sticky assignor's data has a negative length")
            topic = str(bytes(data[at : at + size]), "utf-8")
            at += size
            (count,) = struct.unpack_from(">i", data, at)
            at += 4
            owned += [TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", data, at)]
            at += 4 * count
        generation = struct.unpack_from(">i", data, at)[0] if at + 4 <= len(data) else NO_GENERATION
    except (struct.error, UnicodeDecodeError) as error:
        raise DecodeError(f"the sticky assignor's data cannot be read: {error}") from error
    return tuple(owned), int(generation)
