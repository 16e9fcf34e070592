"""Groups of which clients of several protocols are members, one after another or at the same time (KIP-848).

A classic group goes on as a consumer group when a member of the consumer protocol enters it, and back when the last one
leaves; an empty group may become one of another type. Each classic client has an id of its own, with which the ids of
its members begin, so that assignors put members into the same order with both brokers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.codec import DecodeError, decode, encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_protocol import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedTopicPartitions,
)
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.join_group import JoinGroupRequestProtocol
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.streams_group_heartbeat import Subtopology
from moldau.protocol.messages.sync_group import SyncGroupRequestAssignment
from support.answers import newer_groups, share_groups, streams_groups
from support.answers.classic_groups import commit
from support.answers.drawn.classic_groups import ClassicGroups
from support.answers.drawn.epochs import with_words
from support.answers.drawn.sequences import Area, DrawnSession, Step, length, weighted
from support.answers.newer_groups import owned
from support.answers.session import open_connection

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    import trio

    from moldau.protocol.messages.join_group import JoinGroupRequest
    from moldau.protocol.messages.sync_group import SyncGroupRequest
    from moldau.runtime.net.rpc import RpcConnection

_GROUPS: Final = ("g1", "g2")
_WORDS: Final = ("m1", "m2", "s1", "s2")
"""Members; those that begin with s are static."""
_TIMEOUT_MS: Final = 600_000
_PROTOCOLS: Final = {"both": ("range", "sticky"), "one": ("sticky",), "other": ("roundrobin",)}
_WEIGHTS: Final = {
    "enter": 10,
    "beat": 16,
    "go": 6,
    "join": 12,
    "sync": 10,
    "sync_all": 5,
    "heartbeat": 8,
    "leave": 5,
    "commit": 5,
    "commit_newer": 5,
    "stored": 3,
    "describe": 9,
    "list": 4,
    "delete_offsets": 2,
    "delete_group": 4,
    "other_enter": 2,
    "other_go": 2,
}


def _draw(rng: random.Random) -> list[Step]:
    groups, words = rng.choice((_GROUPS[:1], _GROUPS)), rng.sample(_WORDS, rng.randint(1, 4))
    weights = _WEIGHTS | ({"other_enter": 9, "other_go": 9, "delete_group": 8} if rng.random() < 0.25 else {})
    return [_one(rng, weighted(rng, weights), groups, words) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str, groups: tuple[str, ...], words: list[str]) -> Step:
    group: dict[str, Any] = {"group": rng.choice(groups)}
    who: dict[str, Any] = group | {"who": rng.choice(words)}
    topics = {"topics": rng.choices((["a"], ["b"], ["a", "b"], ["a", "unknown"]), (40, 15, 35, 10))[0]}
    classic: dict[str, Any] = {
        "back": rng.choices((0, 1), (95, 5))[0],
        "generation": rng.choices((0, -1, 1), (90, 6, 4))[0],
        "instance": rng.choices(("own", "none", "another"), (92, 5, 3))[0],
    }
    epoch = {"epoch": rng.choices((0, -1, 9), (92, 5, 3))[0]}
    place = {"topic": rng.choice(("a", "b")), "partition": rng.choice((0, 1)), "offset": rng.randrange(20)}
    match kind:
        case "enter":
            process = rng.choices((1, 2), (8, 2))[0]
            return Step(kind, who | topics | {"process": process, "early": rng.random() < 0.2})
        case "beat":
            owns = rng.choices((None, "assigned"), (40, 60))[0]
            return Step(kind, who | epoch | {"owns": owns} | (topics if rng.random() < 0.1 else {"topics": None}))
        case "go":
            return Step(kind, who | epoch | {"for_a_while": rng.random() < 0.4})
        case "join":
            drawn = {
                "as": rng.choices(("new", "known", "back"), (40, 56, 4))[0],
                "protocols": rng.choices(list(_PROTOCOLS), (75, 20, 5))[0],
                "type": rng.choices(("consumer", "connect"), (97, 3))[0],
                "version": rng.choice((2, 4, 5, 7, 8, 9)),
                "owns": rng.random() < 0.9,
                "metadata": rng.choices((3, 1, 0, 2), (70, 15, 10, 5))[0],
            }
            return Step(kind, who | topics | drawn)
        case "sync":
            drawn = {"protocol": rng.choices(("own", "other", "none"), (90, 5, 5))[0], "version": rng.choice((3, 4, 5))}
            return Step(kind, who | classic | drawn)
        case "heartbeat":
            return Step(kind, who | classic | {"version": rng.choice((2, 3, 4))})
        case "leave":
            by = rng.choices(("id", "instance", "both"), (6, 3, 3))[0]
            return Step(kind, who | classic | {"by": by, "version": rng.choice((2, 3, 4, 5))})
        case "commit":
            of = rng.choices(("member", "no member"), (80, 20))[0]
            return Step(kind, who | classic | place | {"of": of, "version": rng.choice((6, 7, 8, 9))})
        case "commit_newer":
            return Step(kind, who | epoch | place | {"version": rng.choice((8, 9))})
        case "stored":
            return Step(kind, group | {"all": rng.random() < 0.3, "version": rng.choice((4, 6, 7))})
        case "delete_offsets":
            return Step(kind, group | place)
        case "describe":
            of = rng.choices(("consumer", "classic", "share", "streams"), (50, 30, 10, 10))[0]
            return Step(kind, group | {"as": of})
        case "list":
            states = rng.choice(([], ["Stable"], ["Empty", "Reconciling"], ["PreparingRebalance"], ["stable", "empty"]))
            types = rng.choice(([], ["consumer"], ["classic"], ["Share", "Streams"], ["consumer", "classic"]))
            return Step(kind, {"states": states, "types": types})
        case "other_enter" | "other_go":
            return Step(kind, who | {"type": rng.choice(("share", "streams"))})
    return Step(kind, group)


class _Groups(ClassicGroups):
    """Sends steps to one broker, and remembers its answers."""

    wait_s = 2.0

    def __init__(self, session: DrawnSession) -> None:
        super().__init__(session)
        self.how: dict[tuple[str, str], Any] = {}
        """The draws of the last join of each member."""
        self.generations: dict[tuple[str, str], int] = {}
        self.given: dict[tuple[str, str], list[tuple[str, int]]] = {}
        """The last assignments of classic members."""
        self.process: dict[str, int] = {}
        self.epochs: dict[tuple[str, str], int] = {}
        self.assigned: dict[tuple[str, str], list[Any]] = {}
        self.inside: set[tuple[str, str]] = set()
        self.newest = dict.fromkeys(_GROUPS, 0)
        """The epoch of a group, or its generation."""
        self.before: dict[tuple[str, str], int] = {}
        """The former epochs of members."""

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await super().send(name, step)
        if "group" in step.drawn:
            await self._observe(name, step.drawn["group"])

    async def _observe(self, name: str, group: str) -> None:
        described = await self.session.quietly(ConsumerGroupDescribeRequest(group_ids=[self.session.name(group)]))
        if described.groups[0].error_code == ErrorCode.NONE:
            self.newest[group] = described.groups[0].group_epoch
        for key in [each for each in self.session.answers if each.startswith(name)]:
            self.session.answers[key] = with_words(self.session.answers[key], [self.newest[group]])

    async def _newer_state(self, group: str) -> str:
        """Returns the state of a group of the consumer protocol; "" if it is none."""
        described = await self.session.quietly(ConsumerGroupDescribeRequest(group_ids=[self.session.name(group)]))
        [found] = described.groups
        return str(found.group_state) if found.error_code == ErrorCode.NONE else ""

    # Members of the classic protocol

    async def _open(self, group: str, who: str, member_id: str) -> RpcConnection:
        known = self.ids[group].get(who, [])
        number = known.index(member_id) if member_id in known else len(known)
        client_id = who if self._instance(who) else f"{who}-{number}"
        return await open_connection(self.session.address, client_id=client_id)

    async def _chosen(self, group: str, who: str, given: str) -> str:
        """Chooses an id in a consumer group, which Kafka permits: those that it gives have no order."""
        if await self._newer_state(group) in ("", "Empty"):
            return given
        return f"{who}-{len(self.ids[group].get(who, []))}"

    def _generation(self, group: str, member_id: str) -> int:
        return self.generations.get((group, member_id), 1)

    async def _join(self, name: str, drawn: Any) -> None:
        group, who = drawn["group"], drawn["who"]
        if drawn["as"] != "new" and self.ids[group].get(who) and await self._newer_state(group) == "Empty":
            return  # Kafka forgets a group without members, although it refuses this one
        self.how[group, who] = drawn
        described = await self.session.quietly(ConsumerGroupDescribeRequest(group_ids=[self.session.name(group)]), 1)
        newer = [each.instance_id for each in described.groups[0].members if each.member_type == 1]
        await super()._join(name, drawn)
        if drawn["version"] >= 5 and newer == [who]:
            await self._taken_over(group, who)
        for key in [each for each in self.session.answers if each.startswith(name)]:
            shown: Any = self.session.answers[key]
            for member in (shown.get("members") or ()) if isinstance(shown, dict) else ():
                member["metadata"] = _subscribed(member["metadata"])

    async def _taken_over(self, group: str, who: str) -> None:
        """Lets the classic process go that has taken the place of the last member of the consumer protocol.

        The group is a classic one by now, which rebalances; Kafka's does not if the subscriptions are equal.
        """
        identity = MemberIdentity(group_instance_id=who)
        await self.session.quietly(LeaveGroupRequest(group_id=self.session.name(group), members=[identity]), 5)
        self.inside = {each for each in self.inside if each[0] != group}

    def _request(self, group: str, who: str, member_id: str, how: tuple[str, str, int]) -> JoinGroupRequest:
        request = super()._request(group, who, member_id, how)
        drawn = self.how[group, who]
        key = (group, member_id)
        owns = self.given.get(key, []) if drawn["owns"] and member_id else []
        subscription = ConsumerProtocolSubscription(
            topics=[self.session.name(word) for word in drawn["topics"]],
            owned_partitions=[
                OwnedTopicPartitions(topic=topic, partitions=numbers) for topic, numbers in _by_topic(owns).items()
            ],
            generation_id=self.generations.get(key, -1) if drawn["owns"] and member_id else -1,
        )
        version = drawn["metadata"]
        metadata = struct.pack(">h", version) + encode(subscription, version)
        request.protocols = [JoinGroupRequestProtocol(name=each, metadata=metadata) for each in _PROTOCOLS[how[0]]]
        return request

    async def _joining(
        self, name: str, group: str, who: str, member_id: str, how: tuple[str, str, int], answered: trio.Event
    ) -> None:
        await super()._joining(name, group, who, member_id, how, answered)
        answer, _ = self.answered[name]
        if not isinstance(answer, str) and answer.error_code == ErrorCode.NONE:
            self.generations[group, answer.member_id] = answer.generation_id
            if answer.leader:
                self.newest[group] = answer.generation_id

    def _assigned(self, group: str) -> list[SyncGroupRequestAssignment]:
        """Gives the partitions of both topics to the members in turn."""
        members = sorted((self.session.word(each), each) for each in self.joined[group])
        given: list[dict[str, list[int]]] = [{} for _ in members]
        for number in range(4 if members else 0):
            given[number % len(members)].setdefault(self.session.name("ab"[number // 2]), []).append(number % 2)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=_assignment(topics))
            for (_, member_id), topics in zip(members, given, strict=True)
        ]

    async def _ask_sync(self, name: str, group: str, request: SyncGroupRequest, version: int) -> None:
        answer = await self.session.ask(name, request, version)
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return
        given = self.given[group, request.member_id] = _decoded(bytes(answer.assignment))
        shown: Any = self.session.answers[name]
        shown["assignment"] = given

    # Members of the consumer protocol

    def _newer_id(self, who: str) -> str:
        member_id = f"id-of-{who}-{self.process.get(who, 1)}"
        self.session.known(member_id, member_id)
        return member_id

    def _epoch(self, drawn: Any) -> int:
        key = (drawn["group"], self._newer_id(drawn["who"]))
        epoch = (self.before if drawn["epoch"] < 0 else self.epochs).get(key, 1)
        return max(1, epoch + (99 if drawn["epoch"] > 0 else 0))

    async def _beats(self, name: str, drawn: Any, **fields: Any) -> None:
        group, who = drawn["group"], drawn["who"]
        key = (group, self._newer_id(who))
        named = {"member_id": key[1], "instance_id": self._instance(who)}
        answer = await self.session.ask(name, newer_groups.beat(self.session.name(group), **named, **fields), 1)
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return
        self.inside -= {each for each in self.inside if each[0] == group and each[1].startswith(f"id-of-{who}-")}
        if answer.member_epoch > 0:
            self.inside.add(key)
        if answer.member_epoch != self.epochs.get(key):
            self.before[key] = self.epochs.get(key, answer.member_epoch)
        self.epochs[key] = answer.member_epoch
        if answer.assignment is not None:
            self.assigned[key] = [(each.topic_id, list(each.partitions)) for each in answer.assignment.topic_partitions]

    async def _enter(self, name: str, drawn: Any) -> None:
        group, who = drawn["group"], drawn["who"]
        if who.startswith("s"):
            self.process[who] = drawn["process"]
            if (group, self._newer_id(who)) in self.inside:
                return  # Kafka refuses a process that missed the answer to its first heartbeat
        if not drawn["early"] and (await self._state(group))[0] == "PreparingRebalance":
            return
        self.assigned.pop((group, self._newer_id(who)), None)
        await self._beats(
            name,
            drawn,
            member_epoch=0,
            rebalance_timeout_ms=_TIMEOUT_MS,
            subscribed_topic_names=[self.session.name(word) for word in drawn["topics"]],
            server_assignor="range",
            topic_partitions=[],
        )

    async def _beat(self, name: str, drawn: Any) -> None:
        owns: Any = None
        if drawn["owns"]:
            given = self.assigned.get((drawn["group"], self._newer_id(drawn["who"])), [])
            owns = [part for topic_id, numbers in given for part in owned(topic_id, *numbers)]
        topics = drawn["topics"]
        await self._beats(
            name,
            drawn,
            member_epoch=self._epoch(drawn),
            subscribed_topic_names=None if topics is None else [self.session.name(word) for word in topics],
            topic_partitions=owns,
            rebalance_timeout_ms=_TIMEOUT_MS if owns is not None else -1,
        )

    async def _go(self, name: str, drawn: Any) -> None:
        is_static = drawn["who"].startswith("s")
        await self._beats(name, drawn, member_epoch=-2 if is_static and drawn["for_a_while"] else -1)

    async def _commit_newer(self, name: str, drawn: Any) -> None:
        request = commit(
            self.session.name(drawn["group"]),
            self.session.name(drawn["topic"]),
            drawn["offset"],
            partition=drawn["partition"],
            member_id=self._newer_id(drawn["who"]),
            generation_id_or_member_epoch=self._epoch(drawn),
        )
        await self.session.ask(name, request, drawn["version"])

    # Members of share and streams groups

    async def _other(self, name: str, drawn: Any, epoch: int) -> None:
        """Keeps the code only: when such a group has an assignment is up to the broker."""
        group, member_id = self.session.name(drawn["group"]), f"{drawn['type']}-of-{drawn['who']}"
        topic = self.session.name("a")
        if drawn["type"] == "share":
            topics = [topic] if epoch == 0 else None
            request: Any = share_groups.beat(
                group, member_id=member_id, member_epoch=epoch, subscribed_topic_names=topics
            )
        elif epoch == 0:
            subtopology = Subtopology(subtopology_id="0", source_topics=[topic])
            request = streams_groups.entry(group, streams_groups.topology(subtopology), member_id=member_id)
        else:
            request = streams_groups.beat(group, member_id=member_id, member_epoch=epoch)
        answer = await self.session.ask(name, request)
        self.session.answers[name] = answer if isinstance(answer, str) else ErrorCode(answer.error_code).name

    async def _other_enter(self, name: str, drawn: Any) -> None:
        await self._other(name, drawn, 0)

    async def _other_go(self, name: str, drawn: Any) -> None:
        await self._other(name, drawn, -1)

    # Administration

    async def _describe(self, name: str, drawn: Any) -> None:
        group = self.session.name(drawn["group"])
        match drawn["as"]:
            case "classic":
                await self.session.ask(name, DescribeGroupsRequest(groups=[group]), 6)
                self._decode_members(name)
            case "consumer":
                await self.session.ask(name, ConsumerGroupDescribeRequest(group_ids=[group]), 1)
                _without_assignment_epoch(self.session.answers[name])
            case "share":
                await self.session.ask(name, ShareGroupDescribeRequest(group_ids=[group]))
                _state_only(self.session.answers[name])
            case "streams":
                await self.session.ask(name, StreamsGroupDescribeRequest(group_ids=[group]), 0)
                _state_only(self.session.answers[name])

    def _decode_members(self, name: str) -> None:
        shown: Any = self.session.answers[name]
        for group in shown["groups"]:
            for member in group.get("members") or ():
                if group["group_state"] != "Stable":
                    member.pop("member_assignment")  # of a former consumer group Kafka shows the targets
                elif isinstance(member["member_assignment"], bytes):
                    member["member_assignment"] = _decoded(member["member_assignment"])
                member["member_metadata"] = _subscribed(member["member_metadata"])

    async def _list(self, name: str, drawn: Any) -> None:
        request = ListGroupsRequest(states_filter=drawn["states"], types_filter=drawn["types"])
        answer = await self.session.ask(name, request, 5)
        mine = {self.session.name(group) for group in _GROUPS}
        self.session.shown(name, [each for each in answer.groups if each.group_id in mine], 5)


def _assignment(topics: Mapping[str, list[int]]) -> bytes:
    """Returns what the leader gives to a member."""
    parts = [AssignedTopicPartitions(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
    return struct.pack(">h", 1) + encode(ConsumerProtocolAssignment(assigned_partitions=parts), 1)


def _by_topic(partitions: list[tuple[str, int]]) -> dict[str, list[int]]:
    """Returns partitions by topic."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def _decoded(assignment: bytes) -> list[tuple[str, int]]:
    """Returns the partitions of an assignment in one order; bytes that are none stand for no partitions."""
    try:
        found = decode(ConsumerProtocolAssignment, 1, assignment or bytes(10), 2)
    except DecodeError:
        return []
    return sorted((each.topic, number) for each in found.assigned_partitions for number in each.partitions)


def _subscribed(metadata: bytes | None) -> Any:
    """Returns the topics of a member, and what it says it owns; its generation is a number of the group's own."""
    if not metadata:
        return None
    found = decode(ConsumerProtocolSubscription, struct.unpack_from(">h", metadata)[0], metadata, 2)
    return sorted(found.topics), sorted((each.topic, sorted(each.partitions)) for each in found.owned_partitions)


def _without_assignment_epoch(answer: Any) -> None:
    """Drops the epoch of the assignment of an empty group: Kafka computes an assignment of nothing."""
    for group in answer["groups"]:
        if group.get("group_state") == "Empty":
            group.pop("assignment_epoch")


def _state_only(answer: Any) -> None:
    """Keeps whether a group of another type is there, and whether it has members."""
    for group in answer["groups"]:
        members = group.pop("members", None)
        for key in [key for key in group if key not in ("error_code", "group_id")]:
            group.pop(key)
        group["members"] = len(members or ())


MIXED_GROUPS: Final = Area(_Groups, _draw)
