"""The data path: batches of all kinds in, and records, offsets and epochs out of topics with different settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import Compression
from support.answers.drawn.damaged import DAMAGES, damaged
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, decoded, length, weighted
from support.answers.records import NOW_MS, batch, deletion, epochs, fetch, list_offsets, produce
from support.answers.topics import made

if TYPE_CHECKING:
    import random
    from uuid import UUID

_TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "timed": {"message_timestamp_type": "LogAppendTime"},
    "compacted": {"cleanup_policy": "compact"},
    "small": {"max_message_bytes": "300"},
    "gzip": {"compression_type": "gzip"},
    "recent": {"message_timestamp_before_max_ms": "3600000", "message_timestamp_after_max_ms": "3600000"},
    "watched": {"min_insync_replicas": "2"},
}
"""Topics with their settings."""
_KEPT: Final = {"retention_ms": "-1", "segment_ms": str(2**63 - 1)}
"""One segment for all: to Kafka, a later time begins another, and a fetch ends with a segment."""
_BEGIN_MS: Final = 1_000_000_000_000
SHORTENED: Final = " of a shortened log"
"""Follows the number of a step, so that a rule may look at it."""
_HOUR_MS: Final = 3_600_000
_TIMES: Final = {"now": NOW_MS, "earlier": NOW_MS - 2 * _HOUR_MS, "later": NOW_MS + 2 * _HOUR_MS}
_SIZES: Final = (1 << 20, 400, 250, 150, 1, 0)
_WEIGHTS: Final = {
    "produce": 40,
    "produce_damaged": 12,
    "produce_parts": 6,
    "fetch": 20,
    "fetch_parts": 8,
    "look_up_parts": 4,
    "list_offsets": 16,
    "epochs": 6,
    "delete_records": 5,
    "producer": 3,
}


def _draw(rng: random.Random) -> list[Step]:
    topics = rng.sample(list(_TOPICS), rng.randint(1, 3))
    return [_one(rng, weighted(rng, _WEIGHTS), topics) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str, topics: list[str]) -> Step:
    place = {
        "topic": rng.choice(topics) if rng.random() < 0.97 else "unknown",
        "partition": rng.choices((0, 7), (97, 3))[0],
    }
    leader_epoch = {"leader_epoch": rng.choices((-1, 0, 5), (85, 10, 5))[0]}
    offset = rng.choices((0, 1, 2, 3, 5, 9, 20, -1), (4, 2, 2, 2, 2, 1, 1, 1))[0]
    match kind:
        case "produce":
            drawn = {
                "count": rng.choice((1, 1, 2, 3, 9)),
                "codec": rng.choice(list(Compression)).name,
                "at": rng.choice((0, 1, 2, 3, 50, -1, "now", "earlier", "later")),
                "keyed": rng.random() < 0.8,
                "acks": rng.choices((-1, 1, 2), (70, 25, 5))[0],
                "who": rng.choice((None, None, "p1", "p2", "stranger")),
                "how": rng.choices(("next", "again", "gap", "zero", "negative"), (70, 12, 8, 6, 4))[0],
                "epoch": rng.choices((0, 1, -1), (90, 6, 4))[0],
                "version": rng.randint(3, 13),
            }
            return Step(kind, place | drawn)
        case "produce_damaged":
            drawn = {
                "how": rng.choice(DAMAGES),
                "codec": rng.choice(("NONE", "NONE", "GZIP", "LZ4")),
                "count": rng.choice((1, 2, 3)),
                "acks": rng.choice((-1, -1, 1)),
                "version": rng.randint(3, 13),
            }
            return Step(kind, place | drawn)
        case "produce_parts":
            places, twice = _places(rng, topics)
            parts = [(*each, rng.randint(1, 3)) for each in places]
            drawn = {"twice": twice, "acks": rng.choice((-1, 1)), "version": rng.randint(3, 13)}
            return Step(kind, {"parts": parts, **drawn})
        case "fetch_parts":
            places, twice = _places(rng, topics)
            wanted = [(*each, rng.choice((0, 0, 1, 3, 20)), rng.choice(_SIZES)) for each in places]
            drawn = {"twice": twice, "bytes": rng.choice(_SIZES), "version": rng.randint(4, 18)}
            return Step(kind, {"parts": wanted, **drawn})
        case "look_up_parts":
            what = rng.choice(("list_offsets", "epochs", "delete_records"))
            places, twice = _places(rng, topics)
            return Step(
                kind,
                {"what": what, "parts": [(*each, rng.choice((-1, -2, 0, 1, 2))) for each in places], "twice": twice},
            )
        case "fetch":
            drawn = {
                "offset": offset,
                "last": rng.choices((-1, 0, 3), (8, 2, 1))[0],
                "bytes": rng.choice((1 << 20, 1 << 20, 1, 0)),
                "isolation": rng.choice((0, 1)),
                "version": rng.randint(4, 18),
            }
            return Step(kind, place | leader_epoch | drawn)
        case "list_offsets":
            at = rng.choice((-1, -2, -3, -4, -5, -6, 0, 1, 2, 3, 4, 60, "now", "earlier"))
            drawn = {"at": at, "isolation": rng.choice((0, 1)), "version": rng.randint(1, 11)}
            return Step(kind, place | leader_epoch | drawn)
        case "epochs":
            return Step(
                kind, place | leader_epoch | {"of": rng.choice((-1, 0, 1, 7)), "version": rng.choice((2, 3, 4))}
            )
        case "delete_records":
            return Step(kind, place | {"offset": offset})
    return Step(kind, {"who": rng.choice(("p1", "p2"))})


def _places(rng: random.Random, topics: list[str]) -> tuple[list[tuple[str, int]], bool]:
    """Draws partitions, and returns also whether one of them is named twice."""
    places = rng.choices([(topic, partition) for topic in topics for partition in (0, 0, 7)], k=rng.randint(1, 4))
    if rng.random() < 0.8:
        places = list(dict.fromkeys(places))
    return places, len(set(places)) < len(places)


def _time(at: int | str) -> int:
    if isinstance(at, str):
        return _TIMES[at]
    return at if at < 0 else _BEGIN_MS + at * 1000


def looked_up(what: str, parts: list[tuple[str, int, int]]) -> Any:
    """Returns a request for offsets, epochs or deletions, with one element of topics for each part."""
    requests: list[Any]
    match what:
        case "list_offsets":
            requests = [list_offsets(name, (partition, -1, at)) for name, partition, at in parts]
        case "epochs":
            requests = [epochs(name, (partition, -1, epoch)) for name, partition, epoch in parts]
        case _:
            requests = [deletion(name, partition, offset) for name, partition, offset in parts]
    fields = {key: getattr(requests[0], key) for key in type(requests[0]).__fields__}
    return type(requests[0])(**fields | {"topics": [topic for request in requests for topic in request.topics]})


class _Records(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.ids: dict[str, UUID] = {}
        self.producers: dict[str, int] = {"stranger": 777_777}
        self.shortened: set[str] = set()
        self.sequences: dict[tuple[str, str, int], list[tuple[int, int]]] = {}

    async def prepare(self) -> None:
        """Creates the topics and two producers."""
        for word, settings in _TOPICS.items():
            _, self.ids[word] = await made(self.session, word, 1, **_KEPT | settings)
        for who in ("p1", "p2"):
            await self._producer("", {"who": who})

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    async def _producer(self, _: str, drawn: Any) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        self.producers[drawn["who"]] = (await self.session.quietly(request)).producer_id
        self.sequences = {key: sent for key, sent in self.sequences.items() if key[0] != drawn["who"]}

    def _topic(self, drawn: Any, version: int, by_id: int) -> Any:
        name = self.session.name(drawn["topic"])
        return self.ids.get(drawn["topic"], self.ids["plain"]) if version >= by_id else name

    async def _produce(self, name: str, drawn: Any) -> None:
        who, fields, count = drawn["who"], {}, drawn["count"]
        key, first = (who, drawn["topic"], drawn["epoch"]), 0
        sent = self.sequences.setdefault(key, [])
        if who:
            after = sum(sent[-1]) if sent else 0
            # Moldau forgets no producer, so that the first batch of an unknown one begins at 0.
            first = {"gap": after + 2 if sent else 0, "zero": 0, "negative": -1}.get(drawn["how"], after)
            if drawn["how"] == "again" and sent:
                first, count = sent[-1]
            epoch = max(0, drawn["epoch"])
            fields = {"producer_id": self.producers[who], "producer_epoch": epoch, "base_sequence": first}
        time_ms = _time(drawn["at"])
        record_key = b"k" if drawn["keyed"] else None
        data = batch(count, time_ms=time_ms, key=record_key, compression=Compression[drawn["codec"]], **fields)
        topic = self._topic(drawn, drawn["version"], 13)
        request = produce(topic, (drawn["partition"], data), acks=drawn["acks"])
        answer = await self.session.ask(name, request, drawn["version"], transient=frozenset())
        if who and not isinstance(answer, str) and not answer.responses[0].partition_responses[0].error_code:
            sent.append((first, count))

    async def _produce_damaged(self, name: str, drawn: Any) -> None:
        data = damaged(batch(drawn["count"], compression=Compression[drawn["codec"]]), drawn["how"])
        request = produce(self._topic(drawn, drawn["version"], 13), (drawn["partition"], data), acks=drawn["acks"])
        await self.session.ask(name, request, drawn["version"], transient=frozenset())

    async def _produce_parts(self, name: str, drawn: Any) -> None:
        """Writes to several partitions, of which some are named twice."""
        parts = [
            PartitionProduceData(index=partition, records=batch(count, time_ms=_BEGIN_MS))
            for _, partition, count in drawn["parts"]
        ]
        topics: list[Any] = [self._topic({"topic": topic}, drawn["version"], 13) for topic, _, _ in drawn["parts"]]
        data = [
            TopicProduceData(
                **({"topic_id": topic} if drawn["version"] >= 13 else {"name": topic}), partition_data=[part]
            )
            for topic, part in zip(topics, parts, strict=True)
        ]
        request = ProduceRequest(transactional_id=None, acks=drawn["acks"], timeout_ms=5_000, topic_data=data)
        await self.session.ask(name, request, drawn["version"], transient=frozenset())
        self._merge(name, "partition_responses", "index")

    def _merge(self, name: str, parts: str, number: str) -> None:
        """Shows each topic once, with its partitions in order, and equal answers to one partition once.

        Both brokers may name a topic several times, and Kafka answers a partition once that a request names twice.
        """
        shown: Any = self.session.answers[name]
        if not isinstance(shown, dict):
            return
        key = next((each for each in ("responses", "topics") if each in shown), "responses")
        topics: dict[Any, dict[str, Any]] = {}
        for each in shown[key] or ():
            word = each.get("name") or each.get("topic") or each.get("topic_id")
            topics.setdefault(word, {}).update({f"{part[number]} {part}": part for part in each[parts] or ()})
        shown[key] = [
            {"topic": word, parts: [part for _, part in sorted(found.items())]}
            for word, found in sorted(topics.items(), key=str)
        ]

    async def _fetch_parts(self, name: str, drawn: Any) -> None:
        """Fetches several partitions, of which some are named twice, within few bytes."""
        topics = [
            FetchTopic(
                topic=self.session.name(topic),
                topic_id=self.ids[topic],
                partitions=[FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)],
            )
            for topic, partition, offset, size in drawn["parts"]
        ]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=drawn["bytes"], topics=topics)
        answer = await self.session.ask(name, request, drawn["version"])
        self._merge(name, "partitions", "partition_index")
        if isinstance(answer, str):
            return
        words = {self.session.name(topic): topic for topic in _TOPICS} | {self.ids[topic]: topic for topic in _TOPICS}
        for topic in answer.responses:
            for part in topic.partitions:
                place = f"{words[topic.topic or topic.topic_id]} {part.partition_index}"
                self.session.answers[f"{name} records of {place}"] = decoded(part.records)

    async def _look_up_parts(self, name: str, drawn: Any) -> None:
        parts = [(self.session.name(topic), partition, value) for topic, partition, value in drawn["parts"]]
        name += SHORTENED * any(topic in self.shortened for topic, _, _ in drawn["parts"])
        await self.session.ask(name, looked_up(drawn["what"], parts))
        if drawn["what"] == "delete_records":
            self.shortened.update(topic for topic, _, _ in drawn["parts"])
        self._merge(name, "partitions", "partition" if drawn["what"] == "epochs" else "partition_index")

    async def _fetch(self, name: str, drawn: Any) -> None:
        topic_id = self.ids.get(drawn["topic"], self.ids["plain"])
        part = (drawn["partition"], drawn["leader_epoch"], drawn["offset"], drawn["last"])
        request = fetch(
            self.session.name(drawn["topic"]),
            topic_id,
            part,
            isolation_level=drawn["isolation"],
            max_bytes=drawn["bytes"],
            max_wait_ms=0,
            min_bytes=0,
        )
        answer = await self.session.ask(name, request, drawn["version"])
        if not isinstance(answer, str) and answer.responses:
            part = answer.responses[0].partitions[0]
            if part.error_code == ErrorCode.NONE:
                self.session.answers[f"{name} records"] = decoded(part.records)

    async def _list_offsets(self, name: str, drawn: Any) -> None:
        at = _time(drawn["at"])
        part = (drawn["partition"], drawn["leader_epoch"], at)
        request = list_offsets(self.session.name(drawn["topic"]), part, isolation=drawn["isolation"])
        await self.session.ask(name + SHORTENED * (drawn["topic"] in self.shortened), request, drawn["version"])

    async def _epochs(self, name: str, drawn: Any) -> None:
        part = (drawn["partition"], drawn["leader_epoch"], drawn["of"])
        await self.session.ask(name, epochs(self.session.name(drawn["topic"]), part), drawn["version"])

    async def _delete_records(self, name: str, drawn: Any) -> None:
        self.shortened.add(drawn["topic"])
        await self.session.ask(name, deletion(self.session.name(drawn["topic"]), drawn["partition"], drawn["offset"]))


DATA_PATH: Final = Area(_Records, _draw)
