"""Streams groups (KIP-1071): members with topologies of several epochs, stale epochs, and the tasks that they claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.streams_group_heartbeat import Subtopology, TaskIds, TopicInfo, Topology
from support.answers.classic_groups import commit, find
from support.answers.drawn.epochs import observe, with_words
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.records import list_offsets
from support.answers.streams_groups import beat, topology
from support.answers.topics import made

if TYPE_CHECKING:
    import random

_GROUPS: Final = ("g1", "g2")
_WORDS: Final = ("c1", "c2", "s1")
"""Members; those that begin with s are static."""
_MISSING_INTERNAL_TOPICS: Final = 3
_TIMEOUT_MS: Final = 600_000
_TOPOLOGIES: Final = ("plain", "two", "stored", "lacking", "unknown", "empty")
_WEIGHTS: Final = {
    "enter": 14,
    "heartbeat": 34,
    "leave": 8,
    "commit": 8,
    "describe": 10,
    "list": 2,
    "delete_group": 2,
}


def _draw(rng: random.Random) -> list[Step]:
    groups, words = rng.choice((_GROUPS[:1], _GROUPS)), rng.sample(_WORDS, rng.randint(1, 3))
    usual = rng.choice(_TOPOLOGIES[:3])
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
            drawn = {"topology": has, "topology_epoch": rng.choices((0, 1, 2), (90, 7, 3))[0]}
            return Step(kind, group | {"who": rng.choice(words), "process": rng.choices((1, 2), (8, 2))[0]} | drawn)
        case "heartbeat":
            owns = rng.choices((None, "assigned", "all", "none"), (45, 45, 5, 5))[0]
            again = has if rng.random() < 0.08 else None
            return Step(kind, member | {"owns": owns, "topology": again, "ends": rng.random() < 0.02})
        case "leave":
            return Step(kind, member | {"for_a_while": rng.random() < 0.4})
        case "commit":
            of = rng.choices(("member", "no member"), (85, 15))[0]
            return Step(kind, member | {"of": of, "partition": rng.choice((0, 1)), "version": rng.choice((8, 9))})
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

    async def prepare(self) -> None:
        """Creates the topics that topologies read and store in, and waits for the coordinator."""
        for word in ("a", "b", "store"):
            name, _ = await made(self.session, word, 2)
            for partition in (0, 1):
                await self.session.served(list_offsets(name, (partition, -1, -1)))
        await find(self.session, self.session.name("g1"), 0)

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
        await self._beats(
            name,
            drawn,
            member_epoch=self._epoch(drawn),
            active_tasks=owned,
            standby_tasks=others,
            warmup_tasks=others,
            topology=None if drawn["topology"] is None else self._topology(drawn["topology"]),
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
