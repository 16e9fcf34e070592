"""Streams groups (KIP-1071): members with topologies of several epochs, stale epochs, and the tasks that they claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from support.answers.classic_groups import commit, find
from support.answers.drawn.epochs import observe, with_words
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.records import list_offsets
from support.answers.session import codes_of
from support.answers.settings import GROUP, SET, change
from support.answers.streams_groups import beat, topology
from support.answers.topics import made

if TYPE_CHECKING:
    import random

_GROUPS: Final = ("g1", "g2")
_WORDS: Final = ("c1", "c2", "s1")
"""Members; those that begin with s are static."""
_MISSING_INTERNAL_TOPICS: Final = 3
_TIMEOUT_MS: Final = 600_000
_TOPOLOGIES: Final = ("plain", "two", "stored", "single", "kept", "lacking", "unknown", "empty")
"""Kinds of topologies. In ``single`` and ``kept`` there is one task only, so that no assignor has a choice."""
_WEIGHTS: Final = {
    "enter": 14,
    "heartbeat": 34,
    "leave": 8,
    "commit": 8,
    "describe": 10,
    "list": 2,
    "delete_group": 2,
    "make": 2,
    "drop": 2,
    "standby": 1,
}


def _draw(rng: random.Random) -> list[Step]:
    groups, words = rng.choice((_GROUPS[:1], _GROUPS)), rng.sample(_WORDS, rng.randint(1, 3))
    usual = rng.choice((*_TOPOLOGIES[:3], "single", "kept", "single", "kept"))
    return [_one(rng, weighted(rng, _WEIGHTS), groups, words, usual) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str, groups: tuple[str, ...], words: list[str], usual: str) -> Step:
    group: dict[str, Any] = {"group": rng.choice(groups)}
    member: dict[str, Any] = group | {
        "who": rng.choice(words) if rng.random() < 0.96 else "stranger",
        "epoch": rng.choices((0, -1, 1), (92, 4, 4))[0],
    }
    has = usual if rng.random() < 0.85 else rng.choice(_TOPOLOGIES)
    match kind:
        case "enter":
            drawn: dict[str, Any] = {"topology": has, "topology_epoch": rng.choices((0, 1, 2), (90, 7, 3))[0]}
            drawn |= {"endpoint": rng.random() < 0.5, "rack": rng.choice((None, "r1")), "tag": rng.choice((None, "t1"))}
            return Step(kind, group | {"who": rng.choice(words), "process": rng.choices((1, 2), (8, 2))[0]} | drawn)
        case "heartbeat":
            owns = rng.choices((None, "assigned", "all", "none"), (45, 45, 5, 5))[0]
            again = has if rng.random() < 0.08 else None
            drawn = {
                "topology_epoch": rng.choices((0, 1, 2), (70, 20, 10))[0],
                "asks": rng.random() < 0.3,
                "offsets": rng.random() < 0.15,
                "copies": rng.random() < 0.05,
            }
            return Step(kind, member | {"owns": owns, "topology": again, "ends": rng.random() < 0.02} | drawn)
        case "leave":
            return Step(kind, member | {"for_a_while": rng.random() < 0.4})
        case "commit":
            of = rng.choices(("member", "no member"), (85, 15))[0]
            return Step(kind, member | {"of": of, "partition": rng.choice((0, 1)), "version": rng.choice((8, 9))})
        case "make" | "drop":
            return Step(kind, {"topic": rng.choice(("b", "one", "unknown"))})
        case "standby":
            return Step(kind, group | {"count": rng.choice((0, 1))})
        case "list":
            states = rng.choice(([], ["Stable"], ["Empty"], ["NotReady"], ["Reconciling"]))
            return Step(kind, {"states": states, "types": rng.choice(([], ["streams"]))})
    return Step(kind, group)


class _Groups(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.epochs: dict[tuple[str, str], int] = {}
        self.assigned: dict[tuple[str, str], Any] = {}
        self.observed: dict[str, list[int]] = {group: [] for group in _GROUPS}
        self.process: dict[str, int] = {}
        self.inside: set[tuple[str, str]] = set()
        self.endpoint_epochs: dict[tuple[str, str], int] = {}
        self.topics = {"a", "b", "store", "one", "kept"}

    async def prepare(self) -> None:
        """Creates the topics that topologies read and store in, and waits for the coordinator."""
        for word in ("a", "b", "store", "one", "kept"):
            await self._made(word)
        await find(self.session, self.session.name("g1"), 0)

    async def _made(self, word: str) -> None:
        count = 1 if word in ("one", "kept") else 2
        name, _ = await made(self.session, word, count)
        for partition in range(count):
            await self.session.served(list_offsets(name, (partition, -1, -1)))

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    def _id(self, who: str) -> str:
        member_id = f"id-of-{who}-{self.process.get(who, 1)}"
        self.session.known(member_id, member_id)
        return member_id

    def _topology(self, word: str, epoch: int = 0) -> Topology:
        name = self.session.name
        one = Subtopology(subtopology_id="0", source_topics=[name("a")])
        match word:
            case "two":
                return topology(one, Subtopology(subtopology_id="1", source_topics=[name("b")]), epoch=epoch)
            case "stored" | "lacking":
                store = TopicInfo(name=name("store" if word == "stored" else "absent"), replication_factor=1)
                one = Subtopology(subtopology_id="0", source_topics=[name("a")], state_changelog_topics=[store])
            case "single":
                one = Subtopology(subtopology_id="0", source_topics=[name("one")])
            case "kept":
                store = TopicInfo(name=name("kept"), replication_factor=1)
                one = Subtopology(subtopology_id="0", source_topics=[name("one")], state_changelog_topics=[store])
            case "unknown":
                one = Subtopology(subtopology_id="0", source_topics=[name("unknown")])
            case "empty":
                return topology(epoch=epoch)
        return topology(one, epoch=epoch)

    def _epoch(self, drawn: Any) -> int:
        epoch = self.epochs.get((drawn["group"], self._id(drawn["who"])), 1)
        seen = self.observed[drawn["group"]]
        if drawn["epoch"] == -1 and epoch in seen:
            return seen[max(0, seen.index(epoch) - 1)]
        return max(1, epoch + (99 if drawn["epoch"] > 0 else 0))

    async def _observe(self, name: str, group: str) -> None:
        described = await self.session.quietly(StreamsGroupDescribeRequest(group_ids=[self.session.name(group)]))
        if described.groups[0].error_code == ErrorCode.NONE:
            observe(self.observed[group], described.groups[0].group_epoch)
        self.session.answers[name] = with_words(self.session.answers[name], self.observed[group])

    async def _beats(self, name: str, drawn: Any, **fields: Any) -> list[int]:
        """Sends a heartbeat, and returns what the group lacks."""
        who = drawn["who"]
        named = {"member_id": self._id(who), "instance_id": who if who.startswith("s") else None}
        answer = await self.session.ask(name, beat(self.session.name(drawn["group"]), **named | fields), 0)
        await self._observe(name, drawn["group"])
        shown: Any = self.session.answers[name]
        for field in ("endpoint_information_epoch", "acceptable_recovery_lag_legacy", "task_offset_interval_ms"):
            if isinstance(shown, dict):
                shown.pop(field, None)
        key = (drawn["group"], self._id(who))
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return []
        (self.inside.add if answer.member_epoch > 0 else self.inside.discard)(key)
        self.epochs[key] = answer.member_epoch
        self.endpoint_epochs[key] = answer.endpoint_information_epoch
        if answer.active_tasks is not None:
            self.assigned[key] = [
                TaskIds(subtopology_id=each.subtopology_id, partitions=list(each.partitions))
                for each in answer.active_tasks
            ]
        return [each.status_code for each in answer.status or ()]

    async def _enter(self, name: str, drawn: Any) -> None:
        if drawn["who"].startswith("s"):
            self.process[drawn["who"]] = drawn["process"]
            if (drawn["group"], self._id(drawn["who"])) in self.inside:
                return
        self.assigned.pop((drawn["group"], self._id(drawn["who"])), None)
        lacks = await self._beats(
            name,
            drawn,
            member_epoch=0,
            rebalance_timeout_ms=_TIMEOUT_MS,
            topology=self._topology(drawn["topology"], drawn["topology_epoch"]),
            process_id=f"process of {drawn['who']}",
            user_endpoint=Endpoint(host=f"host of {drawn['who']}", port=1) if drawn["endpoint"] else None,
            rack_id=drawn["rack"],
            client_tags=None if drawn["tag"] is None else [KeyValue(key="zone", value=drawn["tag"])],
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
        if _MISSING_INTERNAL_TOPICS in lacks:  # the group creates them later
            await self.session.served(list_offsets(self.session.name("absent"), (0, -1, -1), (1, -1, -1)))

    async def _heartbeat(self, name: str, drawn: Any) -> None:
        owned: Any = None
        if drawn["owns"] == "assigned":
            owned = self.assigned.get((drawn["group"], self._id(drawn["who"])), [])
        elif drawn["owns"] == "all":
            owned = [TaskIds(subtopology_id="0", partitions=[0, 1])]
        elif drawn["owns"] == "none":
            owned = []
        others: Any = None if owned is None else []
        copies = [TaskIds(subtopology_id="0", partitions=[0])] if drawn["copies"] else others
        offsets = [TaskOffset(subtopology_id="0", partition=0, offset=5)] if drawn["offsets"] else None
        key = (drawn["group"], self._id(drawn["who"]))
        await self._beats(
            name,
            drawn,
            member_epoch=self._epoch(drawn),
            active_tasks=owned,
            standby_tasks=others if owned is None else copies,
            warmup_tasks=others,
            task_offsets=offsets,
            task_end_offsets=offsets,
            endpoint_information_epoch=99 if drawn["asks"] else self.endpoint_epochs.get(key, 0),
            topology=None if drawn["topology"] is None else self._topology(drawn["topology"], drawn["topology_epoch"]),
            shutdown_application=drawn["ends"],
        )

    async def _leave(self, name: str, drawn: Any) -> None:
        is_static = drawn["who"].startswith("s")
        await self._beats(name, drawn, member_epoch=-2 if is_static and drawn["for_a_while"] else -1)

    async def _commit(self, name: str, drawn: Any) -> None:
        named: dict[str, Any] = {}
        if drawn["of"] == "member":
            named = {"member_id": self._id(drawn["who"]), "generation_id_or_member_epoch": self._epoch(drawn)}
        group, topic = self.session.name(drawn["group"]), self.session.name("a")
        await self.session.ask(name, commit(group, topic, 1, partition=drawn["partition"], **named), drawn["version"])

    async def _make(self, name: str, drawn: Any) -> None:
        """Creates a topic that is not there."""
        if drawn["topic"] not in self.topics:
            await self._made(drawn["topic"])
            self.topics.add(drawn["topic"])

    async def _drop(self, name: str, drawn: Any) -> None:
        """Deletes a topic, and waits until it is gone."""
        topic = self.session.name(drawn["topic"])
        if drawn["topic"] not in self.topics:
            return
        self.topics.discard(drawn["topic"])
        await self.session.quietly(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000))
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        for _ in range(400):
            await trio.sleep(0.1)  # the coordinator knows it a little later
            if ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in codes_of(await self.session.quietly(request)):
                break
        await trio.sleep(0.1)

    async def _standby(self, name: str, drawn: Any) -> None:
        key = "streams.num.standby.replicas"
        await self.session.ask(
            name, change(GROUP, self.session.name(drawn["group"]), [(key, SET, str(drawn["count"]))])
        )

    async def _delete_group(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, DeleteGroupsRequest(groups_names=[self.session.name(drawn["group"])]))

    async def _describe(self, name: str, drawn: Any) -> None:
        request = StreamsGroupDescribeRequest(group_ids=[self.session.name(drawn["group"])])
        await self.session.ask(name, request, 0)
        await self._observe(name, drawn["group"])
        compared: Any = self.session.answers[name]
        [shown] = compared["groups"]
        if shown.get("group_state") == "Empty":
            shown.pop("assignment_epoch", None)

    async def _list(self, name: str, drawn: Any) -> None:
        request = ListGroupsRequest(states_filter=drawn["states"], types_filter=drawn["types"])
        answer = await self.session.ask(name, request)
        mine = {self.session.name(group) for group in _GROUPS}
        self.session.shown(name, [each for each in answer.groups if each.group_id in mine], 5)


STREAMS_GROUPS: Final = Area(_Groups, _draw)
