"""Classic groups: members that come, stay away, come again under another id, and commit with stale generations.

A join waits for the other members, so all members of a group join together, each on a connection of its own. No wait
ends by time: the timeouts of members are longer than a sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequestProtocol
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.protocol.messages.sync_group import SyncGroupRequestAssignment
from support.answers.classic_groups import commit, find, join, sync
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.records import list_offsets
from support.answers.session import TRANSIENT, codes_of, open_connection
from support.answers.topics import made

if TYPE_CHECKING:
    import random

    from moldau.protocol.messages.join_group import JoinGroupRequest
    from moldau.protocol.messages.sync_group import SyncGroupRequest
    from moldau.runtime.net.rpc import RpcConnection

_GROUPS: Final = ("g1", "g2")
_WORDS: Final = ("m1", "m2", "s1", "s2")
"""Members; those that begin with s are static."""
_STRANGER: Final = "stranger-that-was-never-given"
_TIMEOUT_MS: Final = 600_000
_PROTOCOLS: Final = {"both": ("range", "sticky"), "one": ("sticky",), "other": ("roundrobin",), "more": ("sticky", "x")}
_WEIGHTS: Final = {
    "join": 14,
    "sync": 16,
    "sync_all": 8,
    "heartbeat": 8,
    "leave": 7,
    "commit": 14,
    "stored": 6,
    "delete_offsets": 4,
    "delete_group": 4,
    "describe": 8,
    "list": 3,
}


def _draw(rng: random.Random) -> list[Step]:
    groups, words = rng.choice((_GROUPS[:1], _GROUPS)), rng.sample(_WORDS, rng.randint(1, 4))
    return [_one(rng, weighted(rng, _WEIGHTS), groups, words) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str, groups: tuple[str, ...], words: list[str]) -> Step:
    group: dict[str, Any] = {"group": rng.choice(groups)}
    member: dict[str, Any] = {
        "who": rng.choice(words) if rng.random() < 0.96 else "stranger",
        "back": rng.choices((0, 1), (92, 8))[0],
        "generation": rng.choices((0, -1, 1), (90, 6, 4))[0],
        "instance": rng.choices(("own", "none", "another"), (92, 5, 3))[0],
    }
    place = {"topic": rng.choice(("a", "b")), "partition": rng.choices((0, 1, 7), (60, 38, 2))[0]}
    match kind:
        case "join":
            drawn = {
                "who": rng.choice(words),
                "as": rng.choices(("new", "known", "back"), (50, 44, 6))[0],
                "protocols": rng.choices(list(_PROTOCOLS), (60, 20, 6, 14))[0],
                "type": rng.choices(("consumer", "connect"), (95, 5))[0],
                "version": rng.choice((2, 4, 5, 7, 8, 9)),
            }
            return Step(kind, group | drawn)
        case "sync":
            drawn = {"protocol": rng.choices(("own", "other", "none"), (90, 5, 5))[0], "version": rng.choice((3, 4, 5))}
            return Step(kind, group | member | drawn)
        case "heartbeat":
            return Step(kind, group | member | {"version": rng.choice((2, 3, 4))})
        case "leave":
            by = rng.choices(("id", "instance", "both"), (6, 3, 3))[0]
            return Step(kind, group | member | {"by": by, "version": rng.choice((2, 3, 4, 5))})
        case "commit":
            of = rng.choices(("member", "no member"), (80, 20))[0]
            place["partition"] %= 6  # Kafka looks for the partitions first, Moldau for the member
            drawn = {"of": of, "offset": rng.randrange(20), "version": rng.choice((6, 7, 8, 9))}
            return Step(kind, group | member | place | drawn)
        case "stored":
            return Step(kind, group | {"all": rng.random() < 0.3, "version": rng.choice((4, 6, 7))})
        case "delete_offsets":
            return Step(kind, group | place)
        case "describe":
            return Step(kind, group | {"version": rng.choice((4, 5, 6))})
        case "list":
            states = rng.choice(([], ["Stable"], ["Empty"], ["PreparingRebalance", "CompletingRebalance"], ["Dead"]))
            return Step(kind, {"states": states})
    return Step(kind, group)


class ClassicGroups(World):
    """Sends steps to one broker, and remembers its answers."""

    wait_s = 5.0
    """A join that waits longer waits for a member that does not come."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.ids: dict[str, dict[str, list[str]]] = {group: {} for group in _GROUPS}
        """The ids that a member was given by a group, the newest last."""
        self.joined: dict[str, dict[str, tuple[str, str, int]]] = {group: {} for group in _GROUPS}
        """Protocols, type and version with which the member of an id has joined a group."""
        self.generation = dict.fromkeys(_GROUPS, 0)
        self.protocol: dict[str, str | None] = dict.fromkeys(_GROUPS, "range")
        self.leader = dict.fromkeys(_GROUPS, "")
        self.answered: dict[str, tuple[Any, int]] = {}
        """The answers to the joins of one step, with their versions."""

    async def prepare(self) -> None:
        """Creates two topics, and waits for the coordinator."""
        for word in ("a", "b"):
            name, _ = await made(self.session, word, 2)
            for partition in (0, 1):
                await self.session.served(list_offsets(name, (partition, -1, -1)))
        await find(self.session, self.session.name("g1"), 0)

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    # Members

    def _id(self, drawn: Any) -> str:
        known = self.ids[drawn["group"]].get(drawn["who"], [])
        return known[-1 - min(drawn.get("back", 0), len(known) - 1)] if known else _STRANGER

    def _instance(self, who: str, how: str = "own") -> str | None:
        if how == "another":
            return "s2" if who == "s1" else "s1"
        return who if how == "own" and who.startswith("s") else None

    def _learn(self, group: str, who: str, member_id: str) -> None:
        known = self.ids[group].setdefault(who, [])
        if member_id and member_id not in known:
            known.append(member_id)
            self.session.known(member_id, f"id {len(known)} of {who} in {group}")

    async def _state(self, group: str) -> tuple[str, list[tuple[str, str]]]:
        """Returns the state of a group, and ids and instances of its members."""
        [found] = (await self.session.quietly(DescribeGroupsRequest(groups=[self.session.name(group)]), 5)).groups
        return found.group_state, [(each.member_id, each.group_instance_id or "") for each in found.members]

    def _generation(self, group: str, member_id: str) -> int:
        """Returns the generation that a member knows."""
        return self.generation[group]

    async def _open(self, group: str, who: str, member_id: str) -> RpcConnection:
        """Returns a connection of a member's client."""
        return await open_connection(self.session.address)

    async def _chosen(self, group: str, who: str, given: str) -> str:
        """Returns the id with which a member joins that was ``given`` one; "" if the group is to give it."""
        return given

    # Joins

    def _request(self, group: str, who: str, member_id: str, how: tuple[str, str, int]) -> JoinGroupRequest:
        protocols, kind, version = how
        named = [JoinGroupRequestProtocol(name=each, metadata=each.encode()) for each in _PROTOCOLS[protocols]]
        instance = self._instance(who) if version >= 5 else None
        return join(
            self.session.name(group),
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=named,
            session_timeout_ms=_TIMEOUT_MS,
            rebalance_timeout_ms=_TIMEOUT_MS,
        )

    async def _join(self, name: str, drawn: Any) -> None:
        """A member joins, then all others do."""
        group, who = drawn["group"], drawn["who"]
        known = self.ids[group].get(who, [])
        member_id = "" if drawn["as"] == "new" or not known else known[-1 if drawn["as"] == "known" else 0]
        how = (drawn["protocols"], drawn["type"], drawn["version"])
        is_static = drawn["version"] >= 5 and self._instance(who) is not None
        if not member_id and not is_static:
            if drawn["version"] >= 4:
                await self._joining(f"{name} id", group, who, "", how, trio.Event())
                answer, _ = self.answered.pop(f"{name} id")
                self.session.shown(f"{name} id", answer, drawn["version"])
                if isinstance(answer, str) or answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                    return
                member_id = answer.member_id
            member_id = await self._chosen(group, who, member_id)
        self.answered.clear()
        async with trio.open_nursery() as nursery:
            done = await self._start(nursery, name, group, who, member_id, how)
            members = [] if done else (await self._state(group))[1]  # refused, or nothing changed
            others = [each for each in members if each[0] != member_id and each[1] != (self._instance(who) or "-")]
            others = [each for each in others if each[0] in self.joined[group]]  # the new one is not known yet
            others.sort(key=lambda each: (each[0] != self.leader[group], self.session.word(each[0])))
            for other_id, _ in others:
                other = next(word for word, ids in self.ids[group].items() if other_id in ids)
                again = f"{name} {self.session.word(other_id)}"
                await self._start(nursery, again, group, other, other_id, self.joined[group][other_id])
        for step, (answer, version) in self.answered.items():
            self.session.shown(step, answer, version)

    async def _start(
        self, nursery: trio.Nursery, name: str, group: str, who: str, member_id: str, how: tuple[str, str, int]
    ) -> bool:
        """Starts a join; returns whether it was answered, else it waits for other members."""
        answered = trio.Event()
        nursery.start_soon(self._joining, name, group, who, member_id, how, answered)
        for _ in range(2_000):
            with trio.move_on_after(0.02):
                await answered.wait()
            if answered.is_set():
                return True
            state, members = await self._state(group)
            if state == "PreparingRebalance" and (not member_id or member_id in [each for each, _ in members]):
                with trio.move_on_after(0.1):
                    await answered.wait()
                return answered.is_set()
        return False

    async def _joining(
        self, name: str, group: str, who: str, member_id: str, how: tuple[str, str, int], answered: trio.Event
    ) -> None:
        connection = await self._open(group, who, member_id)
        try:
            request = self._request(group, who, member_id, how)
            answer: Any = "no answer"
            with trio.move_on_after(self.wait_s):
                answer = await connection.request(request, how[2], int(self.wait_s * 2_000))
                while codes_of(answer) & TRANSIENT:
                    await trio.sleep(0.1)
                    answer = await connection.request(request, how[2], int(self.wait_s * 2_000))
        finally:
            connection.close()
        if not isinstance(answer, str):
            self._learn(group, who, answer.member_id)
            if answer.error_code == 0:
                self.joined[group][answer.member_id] = how
                self.generation[group], self.leader[group] = answer.generation_id, answer.leader
                self.protocol[group] = answer.protocol_name
        self.answered[name] = answer, how[2]
        answered.set()

    # Members that have joined

    async def _sync(self, name: str, drawn: Any) -> None:
        group, member_id = drawn["group"], self._id(drawn)
        state, _ = await self._state(group)
        if state == "CompletingRebalance" and member_id != self.leader[group]:
            return  # it would wait for the leader
        await self._synced(name, group, member_id, drawn)

    async def _synced(self, name: str, group: str, member_id: str, drawn: Any) -> None:
        protocol = {"own": self.protocol[group], "other": "another", "none": None}[drawn["protocol"]]
        request = sync(
            self.session.name(group),
            member_id,
            self._generation(group, member_id) + drawn["generation"],
            group_instance_id=self._instance(drawn["who"], drawn["instance"]),
            protocol_name=protocol,
            protocol_type="consumer" if protocol else None,
            assignments=self._assigned(group) if member_id == self.leader[group] else [],
        )
        await self._ask_sync(name, group, request, drawn["version"])

    async def _ask_sync(self, name: str, group: str, request: SyncGroupRequest, version: int) -> None:
        await self.session.ask(name, request, version)

    def _assigned(self, group: str) -> list[SyncGroupRequestAssignment]:
        """Returns what the leader gives to the members."""
        return [
            SyncGroupRequestAssignment(member_id=each, assignment=b"assigned")
            for ids in self.ids[group].values()
            for each in ids
        ]

    async def _sync_all(self, name: str, drawn: Any) -> None:
        """The leader gives the assignments, then all others ask for theirs."""
        group = drawn["group"]
        state, members = await self._state(group)
        if state not in ("CompletingRebalance", "Stable"):
            return
        members.sort(key=lambda each: each[0] != self.leader[group])
        for member_id, _ in members:
            who = next(word for word, ids in self.ids[group].items() if member_id in ids)
            asked = {"who": who, "generation": 0, "instance": "own", "protocol": "own", "version": 5}
            await self._synced(f"{name} {self.session.word(member_id)}", group, member_id, asked)

    async def _heartbeat(self, name: str, drawn: Any) -> None:
        group = drawn["group"]
        member_id = self._id(drawn)
        request = HeartbeatRequest(
            group_id=self.session.name(group),
            member_id=member_id,
            generation_id=self._generation(group, member_id) + drawn["generation"],
            group_instance_id=self._instance(drawn["who"], drawn["instance"]) if drawn["version"] >= 3 else None,
        )
        await self.session.ask(name, request, drawn["version"])

    async def _leave(self, name: str, drawn: Any) -> None:
        group, member_id = drawn["group"], self._id(drawn)
        if drawn["version"] < 3:
            request = LeaveGroupRequest(group_id=self.session.name(group), member_id=member_id)
        else:
            instance = self._instance(drawn["who"], drawn["instance"])
            by_id = drawn["by"] != "instance" or instance is None
            identity = MemberIdentity(
                member_id=member_id if by_id else "", group_instance_id=None if drawn["by"] == "id" else instance
            )
            request = LeaveGroupRequest(group_id=self.session.name(group), members=[identity])
        await self.session.ask(name, request, drawn["version"])

    # Offsets

    async def _commit(self, name: str, drawn: Any) -> None:
        group = drawn["group"]
        named: dict[str, Any] = {}
        if drawn["of"] == "member":
            member_id = self._id(drawn)
            generation = self._generation(group, member_id) + drawn["generation"]
            named = {"member_id": member_id, "generation_id_or_member_epoch": generation}
            if drawn["version"] >= 7:
                named["group_instance_id"] = self._instance(drawn["who"], drawn["instance"])
        topic = self.session.name(drawn["topic"])
        request = commit(self.session.name(group), topic, drawn["offset"], partition=drawn["partition"], **named)
        await self.session.ask(name, request, drawn["version"])

    async def _stored(self, name: str, drawn: Any) -> None:
        topics = [
            OffsetFetchRequestTopic(name=self.session.name(word), partition_indexes=[0, 1, 7]) for word in ("a", "b")
        ]
        request = OffsetFetchRequest(
            group_id=self.session.name(drawn["group"]), topics=None if drawn["all"] else topics
        )
        await self.session.ask(name, request, drawn["version"])

    async def _delete_offsets(self, name: str, drawn: Any) -> None:
        partitions = [OffsetDeleteRequestPartition(partition_index=drawn["partition"])]
        topics = [OffsetDeleteRequestTopic(name=self.session.name(drawn["topic"]), partitions=partitions)]
        await self.session.ask(name, OffsetDeleteRequest(group_id=self.session.name(drawn["group"]), topics=topics))

    async def _delete_group(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, DeleteGroupsRequest(groups_names=[self.session.name(drawn["group"])]))

    async def _describe(self, name: str, drawn: Any) -> None:
        request = DescribeGroupsRequest(groups=[self.session.name(drawn["group"])])
        await self.session.ask(name, request, drawn["version"])

    async def _list(self, name: str, drawn: Any) -> None:
        answer = await self.session.ask(name, ListGroupsRequest(states_filter=drawn["states"]))
        mine = {self.session.name(group) for group in _GROUPS}
        self.session.shown(name, [each for each in answer.groups if each.group_id in mine], 5)


CLASSIC_GROUPS: Final = Area(ClassicGroups, _draw)
