"""The data path: batches of all kinds in, and records, offsets and epochs out of topics with different settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.records import Compression
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, decoded, length, weighted
from support.answers.records import batch, deletion, epochs, fetch, list_offsets, produce
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
}
"""Topics with their settings."""
_BEGIN_MS: Final = 1_000_000_000_000
_LATEST_IN_TIME: Final = -3
_WEIGHTS: Final = {
    "produce": 40,
    "fetch": 20,
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
                "at": rng.choice((0, 1, 2, 3, 50, -1)),
                "keyed": rng.random() < 0.8,
                "acks": rng.choices((-1, 1, 2), (70, 25, 5))[0],
                "who": rng.choice((None, None, "p1", "p2", "stranger")),
                "how": rng.choices(("next", "again", "gap", "zero", "negative"), (70, 12, 8, 6, 4))[0],
                "epoch": rng.choices((0, 1, -1), (90, 6, 4))[0],
                "version": rng.choice((3, 5, 7, 8, 9, 11, 12, 13)),
            }
            return Step(kind, place | drawn)
        case "fetch":
            drawn = {
                "offset": offset,
                "last": rng.choices((-1, 0, 3), (8, 2, 1))[0],
                "bytes": rng.choice((1 << 20, 1 << 20, 1, 0)),
                "isolation": rng.choice((0, 1)),
                "version": rng.choice((4, 7, 9, 11, 12, 13, 16, 18)),
            }
            return Step(kind, place | leader_epoch | drawn)
        case "list_offsets":
            at = rng.choice((-1, -2, -3, -4, -5, 0, 1, 2, 3, 4, 60))
            drawn = {"at": at, "isolation": rng.choice((0, 1)), "version": rng.choice((1, 2, 4, 6, 7, 8, 9, 10))}
            return Step(kind, place | leader_epoch | drawn)
        case "epochs":
            return Step(
                kind, place | leader_epoch | {"of": rng.choice((-1, 0, 1, 7)), "version": rng.choice((2, 3, 4))}
            )
        case "delete_records":
            return Step(kind, place | {"offset": offset})
    return Step(kind, {"who": rng.choice(("p1", "p2"))})


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
            _, self.ids[word] = await made(self.session, word, 1, **{"retention_ms": "-1"} | settings)
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
        time_ms = -1 if drawn["at"] < 0 else _BEGIN_MS + drawn["at"] * 1000
        record_key = b"k" if drawn["keyed"] else None
        data = batch(count, time_ms=time_ms, key=record_key, compression=Compression[drawn["codec"]], **fields)
        topic = self._topic(drawn, drawn["version"], 13)
        request = produce(topic, (drawn["partition"], data), acks=drawn["acks"])
        answer = await self.session.ask(name, request, drawn["version"])
        if who and not isinstance(answer, str) and not answer.responses[0].partition_responses[0].error_code:
            sent.append((first, count))

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
        if drawn["at"] == _LATEST_IN_TIME and drawn["topic"] in self.shortened:
            return  # Kafka names a record that is deleted
        at = drawn["at"] if drawn["at"] < 0 else _BEGIN_MS + drawn["at"] * 1000
        part = (drawn["partition"], drawn["leader_epoch"], at)
        request = list_offsets(self.session.name(drawn["topic"]), part, isolation=drawn["isolation"])
        await self.session.ask(name, request, drawn["version"])

    async def _epochs(self, name: str, drawn: Any) -> None:
        part = (drawn["partition"], drawn["leader_epoch"], drawn["of"])
        await self.session.ask(name, epochs(self.session.name(drawn["topic"]), part), drawn["version"])

    async def _delete_records(self, name: str, drawn: Any) -> None:
        self.shortened.add(drawn["topic"])
        await self.session.ask(name, deletion(self.session.name(drawn["topic"]), drawn["partition"], drawn["offset"]))


DATA_PATH: Final = Area(_Records, _draw)
