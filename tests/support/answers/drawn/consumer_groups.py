"""Groups of the consumer protocol (KIP-848): members with stale and later epochs, and with what they say they own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from support.answers.classic_groups import commit, find, join
from support.answers.drawn.epochs import observe, with_words
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.newer_groups import beat, owned
from support.answers.records import list_offsets
from support.answers.topics import made

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from uuid import UUID

_GROUPS: Final = ("g1", "g2")
_WORDS: Final = ("c1", "c2", "c3", "s1", "s2")
"""Members; those that begin with s are static."""
_TIMEOUT_MS: Final = 600_000
_TOPICS: Final = {"a": 2, "b": 2, "c": 3}
_REGEX: Final = "[ab]"
"""Kafka resolves an expression that is new to a group at once, and again after ten seconds only."""
_WEIGHTS: Final = {
    "enter": 12,
    "heartbeat": 34,
    "leave": 7,
    "commit": 12,
    "stored": 5,
    "describe": 10,
    "list": 2,
    "delete_group": 3,
    "delete_offsets": 3,
    "classic_join": 3,
    "classic_heartbeat": 2,
}


def _draw(rng: random.Random) -> list[Step]:
    groups, words = rng.choice((_GROUPS[:1], _GROUPS)), rng.sample(_WORDS, rng.randint(1, 5))
    style = {"assignor": rng.choices(("range", "uniform", "mixed"), (70, 15, 15))[0], "regex": rng.random() < 0.2}
    return [_one(rng, weighted(rng, _WEIGHTS), groups, words, style) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str, groups: tuple[str, ...], words: list[str], style: Mapping[str, Any]) -> Step:
    group: dict[str, Any] = {"group": rng.choice(groups)}
    member: dict[str, Any] = {
        "who": rng.choice(words) if rng.random() < 0.96 else "stranger",
        "epoch": rng.choices((0, -1, 1, 9), (90, 5, 3, 2))[0],
    }
    place = {"topic": rng.choice(("a", "b")), "partition": rng.choice((0, 1))}
    topics = rng.choices((["a"], ["b"], ["a", "b"], ["a", "unknown"], ["b", "c"], []), (35, 15, 25, 10, 10, 5))[0]
    if style["assignor"] != "range" and rng.random() < 0.7:
        topics = ["c"]
    match kind:
        case "enter":
            topics = topics or ["a"]  # Kafka raises no epoch for a new member without topics
            process = rng.choices((1, 2), (8, 2))[0]
            assignor = rng.choice(("range", "uniform", None)) if style["assignor"] == "mixed" else style["assignor"]
            drawn = {
                "assignor": assignor,
                "style": style["assignor"],
                "rack": rng.choice((None, "r1", "r2")),
                "regex": style["regex"] and rng.random() < 0.5,
            }
            return Step(kind, group | {"who": rng.choice(words), "process": process, "topics": topics} | drawn)
        case "heartbeat":
            owns = rng.choices((None, "assigned", "all"), (48, 48, 4))[0]
            changes = topics if rng.random() < 0.1 else None
            rack = rng.choices((None, "r1", "r2"), (90, 5, 5))[0]
            drawn = {"owns": owns, "topics": changes, "rack": rack, "style": style["assignor"]}
            return Step(kind, group | member | drawn)
        case "leave":
            return Step(kind, group | member | {"for_a_while": rng.random() < 0.4})
        case "commit":
            of = rng.choices(("member", "no member"), (85, 15))[0]
            return Step(
                kind, group | member | place | {"of": of, "offset": rng.randrange(20), "version": rng.choice((8, 9))}
            )
        case "stored":
            return Step(kind, group | member | {"of": rng.choice(("member", "no member"))})
        case "delete_offsets":
            return Step(kind, group | place)
        case "describe":
            return Step(kind, group | {"version": rng.choice((0, 1)), "style": style["assignor"]})
        case "list":
            states = rng.choice(([], ["Stable"], ["Empty"], ["Reconciling"], ["Assigning"]))
            return Step(kind, {"states": states, "types": rng.choice(([], ["consumer"], ["classic"]))})
        case "classic_heartbeat":
            return Step(kind, group | member)
    return Step(kind, group)


class _Groups(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.epochs: dict[tuple[str, str], int] = {}
        self.assigned: dict[tuple[str, str], list[Any]] = {}
        self.observed: dict[str, list[int]] = {group: [] for group in _GROUPS}
        """The epochs of a group that were seen; Kafka sometimes raises an epoch twice at once."""
        self.process: dict[str, int] = {}
        self.inside: set[tuple[str, str]] = set()
        self.ids: dict[str, UUID] = {}
        self.by_regex: dict[str, set[tuple[str, str]]] = {group: set() for group in _GROUPS}
        """Members with an expression."""
        self.resolved: set[str] = set()
        """Groups whose expression was resolved before."""

    async def prepare(self) -> None:
        """Creates the topics, and waits for the coordinator."""
        for word, count in _TOPICS.items():
            name, self.ids[word] = await made(self.session, word, count)
            for partition in range(count):
                await self.session.served(list_offsets(name, (partition, -1, -1)))
        await find(self.session, self.session.name("g1"), 0)

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    def _id(self, who: str) -> str:
        member_id = f"id-of-{who}-{self.process.get(who, 1)}"
        self.session.known(member_id, member_id)
        return member_id

    def _named(self, drawn: Any) -> dict[str, Any]:
        who = drawn["who"]
        return {"member_id": self._id(who), "instance_id": who if who.startswith("s") else None}

    def _epoch(self, drawn: Any) -> int:
        """Returns the epoch of a member, or one before or after it."""
        epoch = self.epochs.get((drawn["group"], self._id(drawn["who"])), 1)
        seen = self.observed[drawn["group"]]
        if drawn["epoch"] == -1 and epoch in seen:
            return seen[max(0, seen.index(epoch) - 1)]
        return max(1, epoch + (99 if drawn["epoch"] > 0 else 0))

    async def _observe(self, name: str, group: str) -> None:
        """Looks at the epoch of a group, and shows epochs in an answer by their number in the order of time."""
        described = await self.session.quietly(ConsumerGroupDescribeRequest(group_ids=[self.session.name(group)]))
        if described.groups[0].error_code == ErrorCode.NONE:
            observe(self.observed[group], described.groups[0].group_epoch)
        self.session.answers[name] = with_words(self.session.answers[name], self.observed[group])

    async def _beats(self, name: str, drawn: Any, **fields: Any) -> None:
        answer = await self.session.ask(name, beat(self.session.name(drawn["group"]), **self._named(drawn) | fields), 1)
        await self._observe(name, drawn["group"])
        key = (drawn["group"], self._id(drawn["who"]))
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return
        if answer.member_epoch > 0:
            self.inside -= {
                each
                for each in self.inside
                if each[0] == drawn["group"] and each[1].startswith(f"id-of-{drawn['who']}-")
            }
            self.inside.add(key)
        else:
            self.inside.discard(key)
            if answer.member_epoch == -1:
                self.by_regex[drawn["group"]].discard(key)
        self.epochs[key] = answer.member_epoch
        if answer.assignment is not None:
            self.assigned[key] = [(each.topic_id, list(each.partitions)) for each in answer.assignment.topic_partitions]

    def _topics(self, words: list[str] | None) -> list[str] | None:
        return None if words is None else [self.session.name(word) for word in words]

    async def _enter(self, name: str, drawn: Any) -> None:
        if drawn["who"].startswith("s"):
            self.process[drawn["who"]] = drawn["process"]
            if (drawn["group"], self._id(drawn["who"])) in self.inside:
                return  # Kafka refuses a process that missed the answer to its first heartbeat
        self.assigned.pop((drawn["group"], self._id(drawn["who"])), None)
        entry: dict[str, Any] = {
            "member_epoch": 0,
            "rebalance_timeout_ms": _TIMEOUT_MS,
            "subscribed_topic_names": self._topics(drawn["topics"]),
            "server_assignor": drawn["assignor"],
            "rack_id": drawn["rack"],
            "topic_partitions": [],
        }
        group, key = drawn["group"], (drawn["group"], self._id(drawn["who"]))
        known = self.by_regex[group]
        if not drawn["regex"] or (group in self.resolved and not known):
            if key in known:
                known.discard(key)
                entry["subscribed_topic_regex"] = ""
            await self._beats(name, drawn, **entry)
            return
        entry |= {"subscribed_topic_names": [], "subscribed_topic_regex": self.session.name(_REGEX)}
        request = beat(self.session.name(group), **self._named(drawn) | entry)
        first = await self.session.quietly(request, 1)
        if first.error_code == ErrorCode.NONE:
            entry["member_epoch"] = first.member_epoch
            known.add(key)
            if group not in self.resolved:
                self.resolved.add(group)
                await self._settled(group)
        await self._beats(name, drawn, **entry)

    async def _settled(self, group: str) -> None:
        """Waits until the expression is resolved: Kafka raises the epoch again when it has done so."""
        request = ConsumerGroupDescribeRequest(group_ids=[self.session.name(group)])
        first = (await self.session.quietly(request)).groups[0].group_epoch
        for _ in range(8):
            await trio.sleep(0.05)
            if (await self.session.quietly(request)).groups[0].group_epoch != first:
                return

    async def _heartbeat(self, name: str, drawn: Any) -> None:
        key = (drawn["group"], self._id(drawn["who"]))
        owns: Any = None
        if drawn["owns"] == "assigned":
            owns = [part for topic_id, parts in self.assigned.get(key, []) for part in owned(topic_id, *parts)]
        elif drawn["owns"] == "all":
            owns = [part for topic_id in self.ids.values() for part in owned(topic_id, 0, 1)]
        topics = self._topics(drawn["topics"])
        await self._beats(
            name,
            drawn,
            member_epoch=self._epoch(drawn),
            subscribed_topic_names=topics,
            topic_partitions=owns,
            rack_id=drawn["rack"],
            rebalance_timeout_ms=_TIMEOUT_MS if owns is not None else -1,
        )

    async def _leave(self, name: str, drawn: Any) -> None:
        is_static = drawn["who"].startswith("s")
        await self._beats(name, drawn, member_epoch=-2 if is_static and drawn["for_a_while"] else -1)

    async def _commit(self, name: str, drawn: Any) -> None:
        named: dict[str, Any] = {}
        if drawn["of"] == "member":
            named = {"member_id": self._id(drawn["who"]), "generation_id_or_member_epoch": self._epoch(drawn)}
        group, topic = self.session.name(drawn["group"]), self.session.name(drawn["topic"])
        request = commit(group, topic, drawn["offset"], partition=drawn["partition"], **named)
        await self.session.ask(name, request, drawn["version"])

    async def _stored(self, name: str, drawn: Any) -> None:
        named: dict[str, Any] = {}
        if drawn["of"] == "member":
            named = {"member_id": self._id(drawn["who"]), "member_epoch": self._epoch(drawn)}
        asked = OffsetFetchRequestGroup(group_id=self.session.name(drawn["group"]), topics=None, **named)
        await self.session.ask(name, OffsetFetchRequest(groups=[asked]), 9)

    async def _delete_offsets(self, name: str, drawn: Any) -> None:
        partitions = [OffsetDeleteRequestPartition(partition_index=drawn["partition"])]
        topics = [OffsetDeleteRequestTopic(name=self.session.name(drawn["topic"]), partitions=partitions)]
        await self.session.ask(name, OffsetDeleteRequest(group_id=self.session.name(drawn["group"]), topics=topics))

    async def _delete_group(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, DeleteGroupsRequest(groups_names=[self.session.name(drawn["group"])]))

    async def _describe(self, name: str, drawn: Any) -> None:
        request = ConsumerGroupDescribeRequest(group_ids=[self.session.name(drawn["group"])])
        await self.session.ask(name, request, drawn["version"])
        await self._observe(name, drawn["group"])
        compared: Any = self.session.answers[name]
        [shown] = compared["groups"]
        if shown.get("group_state") == "Empty":
            shown.pop("assignment_epoch")  # Kafka computes an assignment of nothing

    async def _list(self, name: str, drawn: Any) -> None:
        request = ListGroupsRequest(states_filter=drawn["states"], types_filter=drawn["types"])
        answer = await self.session.ask(name, request)
        mine = {self.session.name(group) for group in _GROUPS}
        self.session.shown(name, [each for each in answer.groups if each.group_id in mine], 5)

    async def _classic_join(self, name: str, drawn: Any) -> None:
        """A classic member whose metadata no assignor can read."""
        if all(group != drawn["group"] for group, _ in self.inside):
            return  # Kafka forgets a group without members, although it refuses this one
        await self.session.ask(name, join(self.session.name(drawn["group"]), member_id="a-classic-member"), 9)

    async def _classic_heartbeat(self, name: str, drawn: Any) -> None:
        member_id, epoch = self._id(drawn["who"]), self._epoch(drawn)
        request = HeartbeatRequest(group_id=self.session.name(drawn["group"]), member_id=member_id, generation_id=epoch)
        await self.session.ask(name, request, 4)


CONSUMER_GROUPS: Final = Area(_Groups, _draw)
