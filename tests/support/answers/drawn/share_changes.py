"""Share groups whose locks expire, and whose topics and settings change between the steps.

A short lock is a setting of one step: the member *sleeper* takes records with it, and only these expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.answers.classic_groups import find
from support.answers.drawn.sequences import Area, DrawnSession, Step, length, weighted
from support.answers.drawn.share_groups import Groups
from support.answers.drawn.share_steps import ALL, GROUPS, PLACES, SLEEPER, WEIGHTS, WORDS, Place, one
from support.answers.records import batch, list_offsets, produce
from support.answers.session import codes_of
from support.answers.settings import GROUP, SET, change
from support.answers.share_groups import ACCEPT, RELEASE, RENEW
from support.answers.topics import WAIT_MS, enlargement, made
from support.answers.transactions import Producer, begin

if TYPE_CHECKING:
    import random

_SHORT_MS, _LONG_MS = 1_000, 15_000
_PAUSE_S: Final = 1.4
_OWN: Final = {
    "expire": 2,
    "recreate": 4,
    "grow": 3,
    "transact": 8,
    "setting": 8,
    "many_offsets": 8,
    "alter_many": 5,
    "delete_many": 3,
}
_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "share.delivery.count.limit": ("2", "3", "5"),
    "share.isolation.level": ("read_committed", "read_uncommitted"),
    "share.auto.offset.reset": ("earliest", "latest", "by_duration:PT1H"),
    "share.renew.acknowledge.enable": ("true", "false"),
}
_EXPIRIES_MAX: Final = 2
_COUNTS: Final = {"a": 2, "b": 1}


def _draw(rng: random.Random) -> list[Step]:
    groups = rng.choice((("g1",), ("g2",), ("g1", "g2")))
    words, places = rng.sample(WORDS, rng.randint(1, 3)), [*rng.sample(PLACES, rng.randint(1, 3)), ("a", 2)]
    weights = {**WEIGHTS, **_OWN, "list": 0}
    steps: list[Step] = []
    for _ in range(length(rng)):
        kind = weighted(rng, weights)
        if kind == "expire" and sum(step.kind == kind for step in steps) >= _EXPIRIES_MAX:
            kind = "fetch"
        steps.append(_own(rng, kind, groups) if kind in _OWN else one(rng, kind, groups, words, places))
    return steps


def _own(rng: random.Random, kind: str, groups: tuple[str, ...]) -> Step:
    group: dict[str, Any] = {"group": rng.choice(groups)}
    place = {"place": rng.choice(PLACES)}
    names = rng.sample(("a", "b", "unknown"), rng.randint(1, 3))
    asked = [(word, rng.sample((0, 1, 2, 7), rng.randint(0, 3))) for word in names]
    # Kafka does not answer if a partition of a known topic is unknown, and fails if none is named.
    known = [(word, [number for number in numbers if number < _COUNTS.get(word, 9)] or [0]) for word, numbers in asked]
    match kind:
        case "expire":
            return Step(kind, group | place | {"renews": rng.random() < 0.5, "count": rng.choice((ALL, 1, 2))})
        case "recreate":
            return Step(kind, {"topic": rng.choice("ab"), "all": rng.random() < 0.5})
        case "grow":
            return Step(kind, {"topic": rng.choice("ab"), "count": rng.choice((2, 3, 4))})
        case "transact":
            return Step(kind, place | {"counts": [rng.randint(1, 2) for _ in range(2)], "commits": rng.random() < 0.4})
        case "setting":
            key = rng.choice(list(_SETTINGS))
            return Step(kind, group | {"key": key, "value": rng.choice(_SETTINGS[key])})
        case "many_offsets":
            return Step(kind, {"group": rng.choice((*groups, *groups, "none")), "asked": known})
        case "alter_many":
            parts = [(word, [(number, rng.choice((0, 2, 4))) for number in numbers or [0]]) for word, numbers in asked]
            return Step(kind, {"group": rng.choice((*groups, *groups, "new")), "parts": parts})
    return Step(kind, {"group": rng.choice((*groups, *groups, "none")), "topics": names})


class _Changes(Groups):
    """Changes what the steps of share groups stand on."""

    def __init__(self, session: DrawnSession) -> None:
        super().__init__(session)
        self.locks = dict.fromkeys(GROUPS, _LONG_MS)
        self.resets = dict.fromkeys(GROUPS, "earliest")
        self.lives = 0
        self.producer: Producer | None = None

    # Settings

    async def _set(self, group: str, lock_ms: int, *others: tuple[str, str]) -> None:
        """Sets a lock that no former one had, and waits until it counts; with it, other settings count."""
        changes = [("share.record.lock.duration.ms", SET, str(lock_ms)), *((key, SET, value) for key, value in others)]
        await self.session.quietly(change(GROUP, self.session.name(group), changes))
        while True:
            opened = await self.session.quietly(self._fetch_request(group, "prober", 0, {("a", 0): []}, max_records=0))
            await self.session.quietly(self._acknowledgement(group, "prober", -1, {}), 2)
            if opened.acquisition_lock_timeout_ms == lock_ms:
                return

    async def _setting(self, name: str, drawn: Any) -> None:
        group = drawn["group"]
        self.locks[group] += 1
        if drawn["key"] == "share.auto.offset.reset":
            self.resets[group] = drawn["value"]
        await self._set(group, self.locks[group], (drawn["key"], drawn["value"]))

    async def _is_read(self, group: str, keeper: str, place: Place) -> bool:
        """Begins to read a partition; a group that begins at the end is given a record there."""
        if self.resets[group] != "latest":
            return await super()._is_read(group, keeper, place)
        opening = self._fetch_request(group, keeper, 0, {place: []}, max_records=1, max_wait_ms=500)
        answer = await self.session.quietly(opening, 2)
        taken = [each for topic in answer.responses for part in topic.partitions for each in part.acquired_records]
        if not taken:
            await self.session.quietly(produce(self.session.name(place[0]), (place[1], batch())), 12)
            return await super()._is_read(group, keeper, place)
        given = [(each.first_offset, each.last_offset, [RELEASE]) for each in taken]
        answer = await self.session.quietly(self._acknowledgement(group, keeper, 1, {place: given}), 2)
        return codes_of(answer) == {ErrorCode.NONE}

    # Locks

    async def _expire(self, name: str, drawn: Any) -> None:
        """Takes records under a short lock, renews some of them under a long one, and waits."""
        group, place = drawn["group"], drawn["place"]
        if self.moved:
            return
        self.locks[group] += 1
        await self._set(group, _SHORT_MS + self.locks[group] - _LONG_MS)
        request = self._fetch_request(group, SLEEPER, 0, {place: []}, max_records=drawn["count"])
        answer = await self.session.ask(name, request)
        self._without_silence(name, 2, answer, {})
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return
        member = self._member(group, SLEEPER)
        member.session_epoch, member.named, member.held[place] = 1, {place}, set()
        self._took(group, SLEEPER, answer)
        held = sorted(member.held[place])
        await self._set(group, self.locks[group])
        if not held:
            return
        if drawn["renews"]:
            await self._answered(f"{name} renewed", group, place, [(held[0], held[0], [RENEW])])
        await trio.sleep(_PAUSE_S)
        if drawn["renews"]:
            await self._answered(f"{name} kept", group, place, [(held[0], held[0], [ACCEPT])])
        await self._answered(f"{name} late", group, place, [(held[-1], held[-1], [ACCEPT])])
        again = self._fetch_request(group, SLEEPER, member.session_epoch, {}, max_records=ALL)
        answer = await self.session.ask(f"{name} again", again)
        self._without_silence(f"{name} again", 2, answer, {})
        member.session_epoch += 1
        member.held[place] = set()
        self._took(group, SLEEPER, answer)
        await self._rest(f"{name} again", group, SLEEPER)
        given = [(each, each, [RELEASE]) for each in sorted(member.held[place])]
        await self._answered(f"{name} released", group, place, given, epoch=-1)
        member.named, member.held, member.session_epoch = set(), {}, 1

    async def _answered(
        self, name: str, group: str, place: Place, given: list[tuple[int, int, list[int]]], *, epoch: int | None = None
    ) -> None:
        member = self._member(group, SLEEPER)
        fields = {"is_renew_ack": True} if any(RENEW in kinds for _, _, kinds in given) else {}
        request = self._acknowledgement(
            group, SLEEPER, member.session_epoch if epoch is None else epoch, {place: given}, **fields
        )
        await self.session.ask(name, request, 2)
        member.session_epoch += 1

    # Topics

    async def _recreate(self, name: str, drawn: Any) -> None:
        """Deletes a topic and creates it again, while sessions and states of the former one are there."""
        if self.inside:
            return
        word = drawn["topic"]
        topic, former = self.session.name(word), self.ids[word]
        await self.session.ask(name, DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=WAIT_MS))
        await self._is_gone(word)
        self.lives += 1
        _, self.ids[word] = await made(self.session, word, _COUNTS[word])
        self.session.known(former, f"former id of {word}")
        self.places = [each for each in self.places if each[0] != word or each in PLACES]
        for place in self.places:
            if place[0] == word:
                await self.session.served(list_offsets(topic, (place[1], -1, -1)))
                await self.session.quietly(produce(topic, (place[1], batch(2))), 12)
        for group in GROUPS:
            await self._offsets(f"{name} {group} again", {"group": group, "all": drawn["all"], "version": 1})
            await self._stale_sessions(f"{name} {group}", group, word, former)
        await self._all_begin(name)

    async def _all_begin(self, name: str) -> None:
        """Lets all groups know the topics that are new."""
        for group in GROUPS:
            await self._forget_states(group)
            for topic, partition in self.places:
                await self.session.quietly(produce(self.session.name(topic), (partition, batch(2))), 12)
            await self._initialize(group)
            await self._offsets(f"{name} {group} begun", {"group": group, "all": True, "version": 1})

    async def _is_gone(self, word: str) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.session.name(word))], allow_auto_topic_creation=False
        )
        while True:
            [topic] = (await self.session.quietly(request)).topics
            found = await self.session.quietly(list_offsets(self.session.name(word), (0, -1, -2)))
            if topic.error_code and found.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return

    async def _stale_sessions(self, name: str, group: str, word: str, former: Any) -> None:
        """Acknowledges and fetches in the sessions that name the former topic."""
        present, self.ids[word] = self.ids[word], former
        for who in WORDS:
            member = self._member(group, who)
            stale = sorted(place for place in member.named if place[0] == word and member.held.get(place))
            if not stale:
                continue
            first = min(member.held[stale[0]])
            request = self._acknowledgement(group, who, member.session_epoch, {stale[0]: [(first, first, [ACCEPT])]})
            answer = await self.session.ask(f"{name} {who} acknowledged", request, 2)
            if not isinstance(answer, str) and answer.error_code == ErrorCode.NONE:
                member.session_epoch += 1
            for place in stale:
                member.held[place] = set()
        self.ids[word] = present

    async def _grow(self, name: str, drawn: Any) -> None:
        word = drawn["topic"]
        if self.inside:
            return
        answer = await self.session.ask(name, enlargement(self.session.name(word), drawn["count"]))
        if answer.results[0].error_code != ErrorCode.NONE:
            return
        known = [number for topic, number in self.places if topic == word]
        for number in range(len(known), drawn["count"]):
            await self.session.served(list_offsets(self.session.name(word), (number, -1, -1)))
            await self.session.quietly(produce(self.session.name(word), (number, batch(2))), 12)
            self.places.append((word, number))
        await self._all_begin(name)

    async def _transact(self, name: str, drawn: Any) -> None:
        """Writes batches in a transaction, and commits or aborts it."""
        topic, partition = self.session.name(drawn["place"][0]), drawn["place"][1]
        if self.producer is None:
            word = self.session.name("writer")
            await find(self.session, word, 1)
            self.session.answers.pop("coordinator of kind 1")
            begun = await self.session.quietly(begin(word))
            self.producer = Producer(word, begun.producer_id, begun.producer_epoch)
        producer, sequence = self.producer, 0
        begun = await self.session.quietly(begin(producer.transactional_id))
        producer.took(begun)
        await self.session.quietly(producer.add((topic, [partition])), 3)
        for count in drawn["counts"]:
            data = batch(
                count,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
            request = produce(topic, (partition, data), transactional_id=producer.transactional_id)
            await self.session.ask(f"{name} {sequence}", request, 11)
            sequence += count
        await self.session.ask(name, producer.end(commit=drawn["commits"]), 4)
        ended = list_offsets(topic, (partition, -1, -1), isolation=1)
        plain = list_offsets(topic, (partition, -1, -1))
        while True:  # the marker is written after the answer
            stable, end = [(await self.session.quietly(each)).topics[0].partitions[0].offset for each in (ended, plain)]
            if stable == end:
                return

    # Offsets

    async def _many_offsets(self, name: str, drawn: Any) -> None:
        topics = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=self.session.name(word), partitions=numbers)
            for word, numbers in drawn["asked"]
        ]
        of = DescribeShareGroupOffsetsRequestGroup(group_id=self.session.name(drawn["group"]), topics=topics)
        await self.session.ask(name, DescribeShareGroupOffsetsRequest(groups=[of]), 1)
        self._without_progress(name, drawn["group"])

    def _without_progress(self, name: str, group: str) -> None:
        """Leaves out the start offset, which Kafka stores with the next write; the lag says how many are done."""
        shown: Any = self.session.answers[name]
        for topic in shown["groups"][0].get("topics") or () if group in GROUPS else ():
            for part in topic["partitions"]:
                if part.get("start_offset", -1) >= 0:
                    part["start_offset"] = "known"

    async def _alter_many(self, name: str, drawn: Any) -> None:
        topics = [
            AlterShareGroupOffsetsRequestTopic(
                topic_name=self.session.name(word),
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
                    for number, offset in parts
                ],
            )
            for word, parts in drawn["parts"]
        ]
        group = drawn["group"]
        request = AlterShareGroupOffsetsRequest(group_id=self.session.name(group), topics=topics)
        if group in GROUPS:
            await self._changed(name, group, request)
        else:
            await self.session.ask(name, request)
            await self._offsets(f"{name} offsets", {"group": group, "all": True, "version": 1})

    async def _delete_many(self, name: str, drawn: Any) -> None:
        topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=self.session.name(word)) for word in drawn["topics"]]
        group = drawn["group"]
        request = DeleteShareGroupOffsetsRequest(group_id=self.session.name(group), topics=topics)
        if group in GROUPS:
            await self._changed(name, group, request)
        else:
            await self.session.ask(name, request)


SHARE_CHANGES: Final = Area(_Changes, _draw)
"""The steps of share groups while what they stand on changes, and what is drawn for them."""
