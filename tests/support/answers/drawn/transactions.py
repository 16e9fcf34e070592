"""Producers and transactions: right and stale epochs, gaps, duplicates, and clients that miss an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.list_transactions import ListTransactionsRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.records import iterate_batches
from support.answers.classic_groups import commit, find
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, decoded, length, weighted
from support.answers.records import batch, deletion, epochs, fetch, list_offsets, produce
from support.answers.topics import made
from support.answers.transactions import Producer, begin

if TYPE_CHECKING:
    import random
    from uuid import UUID

_WORDS: Final = ("t1", "t2")
_PLAIN, _STRANGER = "p1", "stranger"
_STRANGER_ID: Final = 900_001
_TIMEOUT_MS: Final = 600_000
"""No transaction of a sequence ends by itself."""
_WEIGHTS: Final = {
    "begin": 10,
    "add_partitions": 9,
    "add_partitions_as_broker": 2,
    "add_offsets": 5,
    "commit_offsets": 7,
    "produce": 30,
    "end": 18,
    "describe": 5,
    "list": 3,
    "producers": 5,
    "fetch": 8,
    "list_offsets": 4,
    "stored": 5,
    "epochs": 2,
    "commit_plainly": 2,
    "delete_records": 3,
}


def _draw(rng: random.Random) -> list[Step]:
    newer = rng.random() < 0.6
    mixed = rng.random() < 0.3
    producers = rng.choices((_WORDS[:1], _WORDS, (*_WORDS, _PLAIN), (_PLAIN,)), (3, 4, 3, 1))[0]
    steps = [Step("begin", {"who": who, "how": "new", "takes": True, "version": 5}) for who in producers]
    for _ in range(length(rng)):
        is_newer = newer != (mixed and rng.random() < 0.2)
        steps.append(_one(rng, weighted(rng, _WEIGHTS), producers, is_newer))
    return steps


def _one(rng: random.Random, kind: str, producers: tuple[str, ...], newer: bool) -> Step:
    of_producer: dict[str, Any] = {
        "who": rng.choice(producers) if rng.random() < 0.97 else _STRANGER,
        "back": rng.choices((0, 1, 2), (90, 6, 4))[0],
        "epoch": rng.choices((0, -1, 50), (88, 6, 6))[0],
    }
    place = {"topic": rng.choice(("a", "b")), "partition": rng.choices((0, 1, 7), (60, 38, 2))[0]}
    group = {"group": rng.choice(("g1", "g2"))}
    match kind:
        case "begin":
            how = rng.choices(("new", "again", "retry"), (5, 4, 2))[0]
            takes, version = rng.random() < 0.85, rng.choice((2, 3, 4, 5))
            drawn = {"how": how, "takes": takes, "alone": how != "new" or rng.random() < 0.95, "version": version}
            # Kafka aborts a transaction for any former epoch of its id, and gives the newest epoch to the one before,
            # although that one is used by now. Here no other client knows the newest epoch.
            of_producer |= {"back": 0, "epoch": rng.choices((0, 50), (9, 1))[0] if drawn["alone"] else 0}
            return Step(kind, of_producer | drawn)
        case "add_partitions":
            return Step(kind, of_producer | place | {"version": rng.choice((0, 2, 3, 3))})
        case "add_partitions_as_broker":
            return Step(kind, of_producer | place | {"verify": rng.random() < 0.5, "version": rng.choice((4, 5))})
        case "add_offsets":
            return Step(kind, of_producer | group | {"version": rng.choice((2, 3, 4))})
        case "commit_offsets":
            version = 5 if newer else rng.choice((2, 3, 4))
            place["partition"] %= 6  # Kafka looks for the partitions first, Moldau for the producer
            return Step(kind, of_producer | group | place | {"offset": rng.randrange(20), "version": version})
        case "produce":
            how = rng.choices(("next", "again", "before", "gap", "zero", "back", "wrap"), (76, 8, 4, 5, 4, 2, 1))[0]
            inside = rng.choices(("yes", "flag only"), (96, 4))[0]
            if of_producer["who"] != _PLAIN:
                of_producer["epoch"] = min(0, of_producer["epoch"])  # Kafka keeps the later epoch of a refused batch
            drawn = {"how": how, "count": rng.randint(1, 3), "inside": inside, "version": 12 if newer else 11}
            return Step(kind, of_producer | place | drawn)
        case "end":
            commits, takes = rng.random() < 0.6, rng.random() < 0.85
            version = 5 if newer else rng.choice((3, 4))
            if version == 5:  # Kafka takes the epoch before for a retry after an end of the older protocol, too
                of_producer |= {"back": 0, "epoch": max(0, of_producer["epoch"])}
            return Step(kind, of_producer | {"commit": commits, "takes": takes, "version": version})
        case "describe":
            return Step(kind, {"who": rng.choice((*_WORDS, _STRANGER))})
        case "list":
            states = rng.choice(([], ["Ongoing"], ["CompleteCommit"], ["CompleteAbort", "Empty"]))
            return Step(kind, {"states": states, "of": rng.choice((None, "t1", "t2"))})
        case "fetch":
            limits = {
                "bytes": rng.choice((1 << 20, 1 << 20, 200, 1)),
                "part_bytes": rng.choice((1 << 20, 1 << 20, 100)),
            }
            drawn = {"offset": rng.choice((0, 0, 1, 2, 3, 5, 8)), "isolation": rng.choice((0, 1, 1))}
            return Step(kind, place | drawn | limits | {"version": rng.randint(4, 18)})
        case "list_offsets":
            drawn = {"at": rng.choice((-1, -1, -2, -3, 0)), "isolation": rng.choice((0, 1))}
            return Step(kind, place | drawn | {"version": rng.randint(2, 11)})
        case "epochs":
            return Step(kind, place | {"of": rng.choice((0, 0, 5, -1)), "version": rng.choice((2, 3, 4))})
        case "stored":
            return Step(kind, group | {"stable": rng.random() < 0.5})
        case "commit_plainly":
            return Step(kind, group | place | {"offset": rng.randrange(20)})
        case "delete_records":
            return Step(kind, place | {"offset": rng.choice((-1, 0, 1, 2, 4, 6))})
    return Step(kind, {"topic": place["topic"]})


class _Sequence:
    """The sequence numbers of one producer id, epoch and partition."""

    def __init__(self) -> None:
        self.next = 0
        self.batches: list[tuple[int, int]] = []

    def of(self, how: str, count: int) -> tuple[int, int]:
        """Returns first number and count of the batch to send."""
        if how in ("again", "before") and len(self.batches) >= (1 if how == "again" else 3):
            return self.batches[-1 if how == "again" else -3]
        if not self.batches:
            return 0, count
        return {"gap": self.next + 2, "zero": 0, "back": max(0, self.next - 1), "wrap": 2**31 - 1}.get(
            how, self.next
        ), count


class _Transactions(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.known: dict[str, list[tuple[int, int]]] = {_STRANGER: [(_STRANGER_ID, 0)]}
        self.retries: dict[str, tuple[int, int]] = {}
        self.sequences: dict[tuple[int, int, str, int], _Sequence] = {}
        self.ids: dict[str, UUID] = {}
        self.plain: set[str] = set()
        """Groups with a commit outside of transactions."""

    async def prepare(self) -> None:
        """Creates two topics, and waits for the coordinators."""
        session = self.session
        for word in ("a", "b"):
            name, self.ids[word] = await made(session, word, 2)
            for partition in (0, 1):
                await session.served(list_offsets(name, (partition, -1, -1)))
        await find(session, session.name("g1"), 0)
        await find(session, session.name("t1"), 1)
        session.given("producer_id", _STRANGER_ID, "the stranger's id")

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    def _producer(self, drawn: Any) -> Producer:
        who = drawn["who"]
        known = self.known.get(who, [(_STRANGER_ID, 0)])
        producer_id, epoch = known[-1 - min(drawn.get("back", 0), len(known) - 1)]
        epoch = max(0, epoch + drawn.get("epoch", 0))  # Kafka appends batches of a producer with epoch -1
        return Producer(self.session.name(who), producer_id, epoch)

    def _took(self, who: str, answer: Any) -> None:
        if answer.producer_id < 0:
            return
        known = self.known.setdefault(who, [])
        if (answer.producer_id, answer.producer_epoch) not in known[-1:]:
            if all(each != answer.producer_id for each, _ in known):
                number = len({each for each, _ in known}) + 1
                self.session.given("producer_id", answer.producer_id, f"id {number} of {who}")
            known.append((answer.producer_id, answer.producer_epoch))

    async def _settled(self, who: str) -> None:
        """Waits until the markers of a transaction are written."""
        request = DescribeTransactionsRequest(transactional_ids=[self.session.name(who)])
        for _ in range(200):
            [found] = (await self.session.quietly(request)).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                return

    async def _abort_open(self, who: str) -> None:
        """Aborts an open transaction, as a client does before it asks for another epoch."""
        request = DescribeTransactionsRequest(transactional_ids=[self.session.name(who)])
        [found] = (await self.session.quietly(request)).transaction_states
        if found.transaction_state == "Ongoing":
            producer = Producer(self.session.name(who), found.producer_id, found.producer_epoch)
            await self.session.quietly(producer.end(commit=False), 4)
            await self._settled(who)

    async def _begin(self, name: str, drawn: Any) -> None:
        who = drawn["who"]
        if drawn.get("alone"):
            await self._abort_open(who)
        producer = self._producer(drawn)
        transactional_id = None if who == _PLAIN else producer.transactional_id
        named = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        request = begin(transactional_id, _TIMEOUT_MS, **(named if drawn["how"] != "new" else {}))
        answer = await self.session.ask(name, request, drawn["version"])
        if not isinstance(answer, str) and answer.error_code == 0 and drawn["takes"]:
            self._took(who, answer)
            # The answer was shown before its id was known.
            self.session.shown(name, answer, drawn["version"])
        if transactional_id:
            await self._settled(who)

    async def _add_partitions(self, name: str, drawn: Any) -> None:
        added = (self.session.name(drawn["topic"]), [drawn["partition"]])
        await self.session.ask(name, self._producer(drawn).add(added), drawn["version"])

    async def _add_partitions_as_broker(self, name: str, drawn: Any) -> None:
        request = self._producer(drawn).add_as_broker(self.session.name(drawn["topic"]), verify=drawn["verify"])
        await self.session.ask(name, request, drawn["version"])

    async def _add_offsets(self, name: str, drawn: Any) -> None:
        request = self._producer(drawn).add_offsets(self.session.name(drawn["group"]))
        await self.session.ask(name, request, drawn["version"])

    async def _commit_offsets(self, name: str, drawn: Any) -> None:
        group, topic = self.session.name(drawn["group"]), self.session.name(drawn["topic"])
        request = self._producer(drawn).offsets(group, topic, drawn["offset"], partition=drawn["partition"])
        await self.session.ask(name, request, drawn["version"])

    async def _produce(self, name: str, drawn: Any) -> None:
        producer, who = self._producer(drawn), drawn["who"]
        place = (producer.producer_id, producer.epoch, drawn["topic"], drawn["partition"])
        sequence = self.sequences.setdefault(place, _Sequence())
        first, count = sequence.of(drawn["how"], drawn["count"])
        inside = drawn["inside"] if who != _PLAIN else "no"
        data = batch(
            count,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=first,
            is_transactional=inside != "no",
        )
        transactional_id = producer.transactional_id if inside == "yes" else None
        topic = self.session.name(drawn["topic"])
        request = produce(topic, (drawn["partition"], data), transactional_id=transactional_id)
        answer = await self.session.ask(name, request, drawn["version"])
        taken = not isinstance(answer, str) and answer.responses[0].partition_responses[0].error_code == 0
        if taken and (first, count) not in sequence.batches:
            sequence.next = (first + count) % 2**31
            sequence.batches.append((first, count))

    async def _end(self, name: str, drawn: Any) -> None:
        who = drawn["who"]
        request = self._producer(drawn).end(commit=drawn["commit"])
        answer = await self.session.ask(name, request, drawn["version"])
        if not isinstance(answer, str) and answer.error_code == 0 and drawn["takes"] and drawn["version"] >= 5:
            self._took(who, answer)
            self.session.shown(name, answer, drawn["version"])
        await self._settled(who)

    async def _describe(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, DescribeTransactionsRequest(transactional_ids=[self.session.name(drawn["who"])]))

    async def _list(self, name: str, drawn: Any) -> None:
        of = drawn["of"]
        ids = [self.known[of][-1][0]] if of in self.known else []
        mine = {self.session.name(who) for who in _WORDS}
        answer = await self.session.ask(
            name, ListTransactionsRequest(state_filters=drawn["states"], producer_id_filters=ids)
        )
        shown = [each for each in answer.transaction_states if each.transactional_id in mine]
        self.session.answers[name] = self.session.comparable(shown)

    async def _producers(self, name: str, drawn: Any) -> None:
        topics = [TopicRequest(name=self.session.name(drawn["topic"]), partition_indexes=[0, 1, 7])]
        await self.session.ask(name, DescribeProducersRequest(topics=topics))

    async def _fetch(self, name: str, drawn: Any) -> None:
        topic, part = drawn["topic"], drawn["partition"]
        request = fetch(
            self.session.name(topic),
            self.ids[topic],
            (part, -1, drawn["offset"], -1),
            isolation_level=drawn["isolation"],
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=drawn["bytes"],
        )
        request.topics[0].partitions[0].partition_max_bytes = drawn["part_bytes"]
        answer = await self.session.ask(name, request, drawn["version"])
        if not isinstance(answer, str) and answer.responses:
            compared: Any = self.session.answers[name]
            [shown] = compared["responses"][0]["partitions"]
            records = answer.responses[0].partitions[0].records
            end = max((header.last_offset for _, header in iterate_batches(bytes(records or b""))), default=-1) + 1
            # Kafka lists transactions that begin later than the records that the answer holds, too.
            aborted = [each for each in shown.get("aborted_transactions") or () if each["first_offset"] < end]
            shown["aborted_transactions"] = aborted or None
            self.session.answers[f"{name} records"] = decoded(records)

    async def _list_offsets(self, name: str, drawn: Any) -> None:
        request = list_offsets(
            self.session.name(drawn["topic"]), (drawn["partition"], -1, drawn["at"]), isolation=drawn["isolation"]
        )
        await self.session.ask(name, request, max(7, drawn["version"]) if drawn["at"] == -3 else drawn["version"])

    async def _epochs(self, name: str, drawn: Any) -> None:
        request = epochs(self.session.name(drawn["topic"]), (drawn["partition"], -1, drawn["of"]))
        await self.session.ask(name, request, drawn["version"])

    async def _stored(self, name: str, drawn: Any) -> None:
        topics = [
            OffsetFetchRequestTopic(name=self.session.name(word), partition_indexes=[0, 1, 7]) for word in ("a", "b")
        ]
        group = self.session.name(drawn["group"])
        # Kafka calls an offset unstable even if one was committed behind that of the open transaction.
        stable = drawn["stable"] and drawn["group"] not in self.plain
        request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)
        await self.session.ask(name, request, 7)

    async def _commit_plainly(self, name: str, drawn: Any) -> None:
        self.plain.add(drawn["group"])
        group, topic = self.session.name(drawn["group"]), self.session.name(drawn["topic"])
        await self.session.ask(name, commit(group, topic, drawn["offset"], partition=drawn["partition"]), 8)

    async def _delete_records(self, name: str, drawn: Any) -> None:
        topic, offset = self.session.name(drawn["topic"]), drawn["offset"]
        found = await self.session.quietly(list_offsets(topic, (drawn["partition"], -1, -1), isolation=1))
        [part] = found.topics[0].partitions
        if part.error_code == 0 and not 0 <= offset <= part.offset:
            offset = part.offset  # Kafka's stable offset stays where an open transaction began, even if that is deleted
        await self.session.ask(name, deletion(topic, drawn["partition"], offset))


TRANSACTIONS: Final = Area(_Transactions, _draw)
