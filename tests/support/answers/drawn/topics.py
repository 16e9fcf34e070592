"""Topics that are created, changed, deleted and created again, and fetch sessions that outlive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.records import batch, deletion, epochs, list_offsets, produce
from support.answers.settings import SET, TOPIC, change, description
from support.answers.topics import WAIT_MS, creation, enlargement

if TYPE_CHECKING:
    import random

_TOPICS: Final = ("a", "b", "c")
_SESSIONS: Final = ("f1", "f2")
_KEYS: Final = ("retention.ms", "cleanup.policy", "min.insync.replicas", "compression.type", "max.message.bytes")
_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "retention.ms": ("1000000", "-1", "x", "-2"),
    "cleanup.policy": ("compact", "delete", "compact,delete", "zip", ""),
    "min.insync.replicas": ("1", "2", "0"),
    "compression.type": ("gzip", "producer", "zip"),
    "max.message.bytes": ("100", "2000000", "-1"),
    "no.such.key": ("1",),
}
_WEIGHTS: Final = {
    "create": 12,
    "delete": 7,
    "enlarge": 5,
    "alter": 14,
    "describe": 8,
    "metadata": 6,
    "partitions": 4,
    "produce": 14,
    "open": 8,
    "next": 22,
    "list_offsets": 5,
    "delete_records": 4,
    "epochs": 3,
}


def _draw(rng: random.Random) -> list[Step]:
    topics = _TOPICS[: rng.randint(1, 3)]
    first = [Step("create", {"topic": topics[0], "partitions": 2, "configs": [], "only_checked": False})]
    return first + [_one(rng, weighted(rng, _WEIGHTS), topics) for _ in range(length(rng))]


def _parts(rng: random.Random, topics: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Draws topics, partitions and offsets of a Fetch."""
    places = [(topic, partition) for topic in topics for partition in (0, 1, 2)]
    chosen = rng.sample(places, rng.randint(0, min(4, len(places))))
    return [(*place, rng.choices((0, 1, 3, 50, -1), (70, 12, 10, 5, 3))[0]) for place in chosen]


def _one(rng: random.Random, kind: str, topics: tuple[str, ...]) -> Step:
    topic: dict[str, Any] = {"topic": rng.choice(topics)}
    place = topic | {"partition": rng.choices((0, 1, 2), (55, 35, 10))[0]}
    key = rng.choices([*_KEYS, "no.such.key"], (20, 20, 20, 20, 20, 3))[0]
    match kind:
        case "create":
            configs = [(key, rng.choice(_VALUES[key]))] if rng.random() < 0.3 else []
            partitions = rng.choices((1, 2, 3, -1, 0), (40, 30, 20, 5, 5))[0]
            return Step(
                kind, topic | {"partitions": partitions, "configs": configs, "only_checked": rng.random() < 0.1}
            )
        case "delete":
            return Step(kind, topic | {"by": rng.choices(("name", "id", "former id"), (60, 30, 10))[0]})
        case "enlarge":
            return Step(kind, topic | {"count": rng.choice((1, 2, 3, 4, 5))})
        case "alter":
            number = rng.choices((1, 2), (8, 2))[0]
            keys = rng.choices(list(_VALUES), (20, 30, 20, 20, 20, 3), k=number)
            changes = [
                (each, rng.choices((0, 1, 2, 3), (60, 15, 13, 12))[0], rng.choice(_VALUES[each])) for each in keys
            ]
            # To Kafka, an empty value is an element of a list.
            changes = [(each, how if value else SET, value) for each, how, value in changes]
            return Step(kind, topic | {"changes": changes, "only_checked": rng.random() < 0.1})
        case "metadata":
            return Step(kind, topic | {"by": rng.choices(("name", "id", "former id"), (50, 30, 20))[0]})
        case "produce":
            return Step(kind, place | {"count": rng.randint(1, 3), "by": rng.choice(("name", "id", "former id"))})
        case "open":
            how = {"session": rng.choice(_SESSIONS), "version": rng.randint(7, 18)}
            return Step(kind, how | {"parts": _parts(rng, topics) or [(topics[0], 0, 0)]})
        case "next":
            epoch = rng.choices((0, 1, -1, 1000, "close"), (82, 5, 5, 2, 6))[0]
            parts = _parts(rng, topics) if rng.random() < 0.4 else []
            forgotten = [each[:2] for each in _parts(rng, topics)] if rng.random() < 0.25 else []
            forgotten = [each for each in forgotten if each not in [part[:2] for part in parts]]
            drawn = {"session": rng.choice(_SESSIONS), "epoch": epoch, "parts": parts, "forgotten": forgotten}
            drawn |= {"known": rng.random() < 0.97, "isolation": rng.choice((0, 1))}
            return Step(kind, drawn)
        case "list_offsets":
            return Step(
                kind, place | {"at": rng.choice((-1, -2, -3, 0)), "epoch": rng.choices((-1, 0, 4), (8, 3, 1))[0]}
            )
        case "delete_records":
            return Step(kind, place | {"offset": rng.choice((-1, 0, 1, 2, 4))})
        case "epochs":
            return Step(kind, place | {"epoch": rng.choice((0, 0, 3, -1))})
    return Step(kind, topic)


class _Topics(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.ids: dict[str, list[UUID]] = {}
        self.sessions: dict[str, tuple[int, int, int]] = {}
        """Id, next epoch and version of a fetch session."""
        self.changes = 0

    async def prepare(self) -> None:
        """Creates nothing."""

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    def _id(self, word: str, by: str = "id") -> UUID:
        known = self.ids.get(word, [])
        if by == "former id":
            known = known[:-1]
        return known[-1] if known else UUID(int=1_000 + _TOPICS.index(word))  # of no topic

    async def _settled(self, word: str, least: int) -> None:
        """Waits until the broker serves all partitions of a topic, and so many at least; 0 if it is deleted."""
        name = self.session.name(word)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        for _ in range(400):
            [topic] = (await self.session.quietly(request)).topics
            count = len(topic.partitions)
            found = await self.session.quietly(list_offsets(name, *((index, -1, -2) for index in range(count + 1))))
            codes = [
                each.error_code for each in sorted(found.topics[0].partitions, key=lambda each: each.partition_index)
            ]
            served = codes == [0] * count + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            if served and (count >= least if least else not count):
                return
            await trio.sleep(0.02)

    async def _create(self, name: str, drawn: Any) -> None:
        word = drawn["topic"]
        request = creation(
            self.session.name(word), drawn["partitions"], configs=drawn["configs"], validate=drawn["only_checked"]
        )
        answer = await self.session.ask(name, request)
        [topic] = answer.topics
        if topic.error_code == ErrorCode.NONE and not drawn["only_checked"]:
            self.ids.setdefault(word, []).append(topic.topic_id)
            self.session.known(topic.topic_id, f"id {len(self.ids[word])} of {word}")
            await self._settled(word, 1)
        compared: Any = self.session.answers[name]
        for shown in compared["topics"]:
            shown.pop("configs", None)
            shown.pop("topic_id", None)

    async def _delete(self, name: str, drawn: Any) -> None:
        word = drawn["topic"]
        state = DeleteTopicState(name=self.session.name(word))
        if drawn["by"] != "name":
            state = DeleteTopicState(name=None, topic_id=self._id(word, drawn["by"]))
        answer = await self.session.ask(name, DeleteTopicsRequest(topics=[state], timeout_ms=WAIT_MS))
        if answer.responses[0].error_code == ErrorCode.NONE:
            await self._settled(word, 0)

    async def _enlarge(self, name: str, drawn: Any) -> None:
        answer = await self.session.ask(name, enlargement(self.session.name(drawn["topic"]), drawn["count"]))
        if answer.results[0].error_code == ErrorCode.NONE:
            await self._settled(drawn["topic"], drawn["count"])

    async def _alter(self, name: str, drawn: Any) -> None:
        topic = self.session.name(drawn["topic"])
        answer = await self.session.ask(name, change(TOPIC, topic, drawn["changes"], validate=drawn["only_checked"]))
        if answer.responses[0].error_code == ErrorCode.NONE and not drawn["only_checked"]:
            await self._applied(topic)

    async def _applied(self, topic: str) -> None:
        """Waits until the broker has applied all changes: one more change follows them, and is visible."""
        self.changes += 1
        wanted = str(10**7 + self.changes)
        await self.session.quietly(change(TOPIC, topic, [("segment.ms", SET, wanted)]))
        for _ in range(400):
            found = await self.session.quietly(description(TOPIC, topic, ["segment.ms"]))
            if [each.value for each in found.results[0].configs] == [wanted]:
                return
            await trio.sleep(0.02)

    async def _describe(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, description(TOPIC, self.session.name(drawn["topic"]), list(_KEYS), synonyms=True))

    async def _metadata(self, name: str, drawn: Any) -> None:
        by_name = {"name": self.session.name(drawn["topic"])}
        named = by_name if drawn["by"] == "name" else {"name": None, "topic_id": self._id(drawn["topic"], drawn["by"])}
        request = MetadataRequest(topics=[MetadataRequestTopic(**named)], allow_auto_topic_creation=False)
        await self.session.ask(name, request)

    async def _partitions(self, name: str, drawn: Any) -> None:
        await self.session.ask(
            name, DescribeTopicPartitionsRequest(topics=[TopicRequest(name=self.session.name(drawn["topic"]))])
        )

    async def _produce(self, name: str, drawn: Any) -> None:
        word = drawn["topic"]
        topic = self.session.name(word) if drawn["by"] == "name" else self._id(word, drawn["by"])
        request = produce(topic, (drawn["partition"], batch(drawn["count"])))
        await self.session.ask(name, request, 12 if drawn["by"] == "name" else 13)

    # Fetch sessions

    def _fetch(self, drawn: Any, session_id: int, epoch: int) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for word, partition, offset in drawn["parts"]:
            part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
            topics.setdefault(word, []).append(part)
        left: dict[str, list[int]] = {}
        for word, partition in drawn.get("forgotten", []):
            left.setdefault(word, []).append(partition)
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            session_id=session_id,
            session_epoch=epoch,
            isolation_level=drawn.get("isolation", 0),
            topics=[
                FetchTopic(topic=self.session.name(word), topic_id=self._id(word), partitions=parts)
                for word, parts in topics.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=self.session.name(word), topic_id=self._id(word), partitions=parts)
                for word, parts in left.items()
            ],
        )

    async def _open(self, name: str, drawn: Any) -> None:
        version = drawn["version"]
        answer = await self.session.ask(name, self._fetch(drawn, 0, 0), version)
        self._merge(name)
        if not isinstance(answer, str) and answer.session_id:
            self.sessions[drawn["session"]] = (answer.session_id, 1, version)

    async def _next(self, name: str, drawn: Any) -> None:
        session_id, epoch, version = self.sessions.get(drawn["session"], (12_345, 1, 17))
        session_id = session_id if drawn["known"] else 54_321
        sent = -1 if drawn["epoch"] == "close" else max(1, epoch + drawn["epoch"])
        answer = await self.session.ask(name, self._fetch(drawn, session_id, sent), version)
        self._merge(name)
        if not isinstance(answer, str) and answer.error_code == ErrorCode.NONE and sent == epoch and drawn["known"]:
            self.sessions[drawn["session"]] = (session_id, epoch + 1, version)

    def _merge(self, name: str) -> None:
        """Shows each topic of a Fetch once, with its partitions in order; Kafka may name a topic several times."""
        shown: Any = self.session.answers[name]
        if not isinstance(shown, dict) or not shown.get("responses"):
            return
        topics: dict[Any, list[Any]] = {}
        for topic in shown["responses"]:
            topics.setdefault(topic.get("topic") or topic.get("topic_id"), []).extend(topic["partitions"])
        shown["responses"] = [
            {"topic": topic, "partitions": sorted(parts, key=lambda part: part["partition_index"])}
            for topic, parts in sorted(topics.items(), key=str)
        ]

    # Offsets

    async def _list_offsets(self, name: str, drawn: Any) -> None:
        part = (drawn["partition"], drawn["epoch"], drawn["at"])
        await self.session.ask(name, list_offsets(self.session.name(drawn["topic"]), part))

    async def _delete_records(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, deletion(self.session.name(drawn["topic"]), drawn["partition"], drawn["offset"]))

    async def _epochs(self, name: str, drawn: Any) -> None:
        await self.session.ask(
            name, epochs(self.session.name(drawn["topic"]), (drawn["partition"], -1, drawn["epoch"]))
        )


TOPICS: Final = Area(_Topics, _draw)
