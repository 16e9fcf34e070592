"""Share groups (KIP-932): members, their sessions, acquired and acknowledged records, and the offsets of groups.

Records are compared by their offsets and delivery counts. A keeper has a session with each partition, so that a leader
forgets no state that it would have to read again while a fetch waits.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import share_acknowledge, share_fetch
from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from support.answers.classic_groups import find
from support.answers.drawn.epochs import observe, with_words
from support.answers.drawn.sequences import Area, DrawnSession, Step, World
from support.answers.drawn.share_steps import ALL, GROUPS, PLACES, SLEEPER, STRANGER, WORDS, Place, draw
from support.answers.records import batch, deletion, list_offsets, produce
from support.answers.session import codes_of
from support.answers.settings import GROUP, SET, change
from support.answers.share_groups import RELEASE, RENEW, beat
from support.answers.topics import made

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

_WAIT_MS: Final = 100
Batch = tuple[int, int, list[int]]
"""First and last offset, and one type for all or one for each."""


def joined(taken: Sequence[Any]) -> list[str]:
    """Returns acquired records with adjacent ranges of one delivery count as one: sizes of ranges are advice."""
    found: list[list[int]] = []
    for first, last, count in sorted((each.first_offset, each.last_offset, each.delivery_count) for each in taken):
        if found and found[-1][1:] == [first - 1, count]:
            found[-1][1] = last
        else:
            found.append([first, last, count])
    return [f"{first} to {last}, delivery {count}" for first, last, count in found]


class _Member:
    """The knowledge of a member of a group: its epochs, and the records that it holds."""

    def __init__(self) -> None:
        self.epoch = 1
        self.session_epoch = 1
        self.named: set[Place] = set()
        self.held: dict[Place, set[int]] = {}
        self.done: dict[Place, set[int]] = {}


class Groups(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.places = list(PLACES)
        self.ids: dict[str, UUID] = {}
        self.members: dict[tuple[str, str], _Member] = {}
        self.last: Any = None
        self.inside: set[tuple[str, str]] = set()
        self.begun: set[str] = set()
        """Groups in which records were acknowledged: Kafka stores their new start with the write after that."""
        self.moved = False
        """Whether records were deleted: the leader of Kafka notices in a fetch that returns nothing."""
        self.seen: dict[str, list[int]] = {group: [] for group in GROUPS}

    async def prepare(self) -> None:
        """Creates two topics and two groups that know them, and reads the states of all share-partitions."""
        for word, count in (("a", 2), ("b", 1)):
            name, self.ids[word] = await made(self.session, word, count)
            for partition in range(count):
                await self.session.served(list_offsets(name, (partition, -1, -1)))
                await self.session.quietly(produce(name, (partition, batch())), 12)
        for group, settings in GROUPS.items():
            changes = [(key, SET, value) for key, value in (settings | {"share.auto.offset.reset": "earliest"}).items()]
            await self.session.quietly(change(GROUP, self.session.name(group), changes))
        await find(self.session, self.session.name("g1"), 0)
        for group in GROUPS:
            await self._initialize(group)

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    async def finish(self) -> None:
        """Ends all sessions: a broker has room for 2,000, and Kafka keeps those of closed connections."""
        for group in GROUPS:
            await self._forget_states(group)

    async def _initialize(self, group: str) -> None:
        """Lets a group know all partitions, and keepers read their states."""
        named = {"member_id": self._id("first"), "subscribed_topic_names": [self.session.name(word) for word in "ab"]}
        epoch, count = 0, 0
        while count < len(self.places):
            answer = await self.session.quietly(beat(self.session.name(group), member_epoch=epoch, **named))
            epoch = answer.member_epoch
            if answer.assignment is not None:
                count = sum(len(each.partitions) for each in answer.assignment.topic_partitions)
        await self.session.quietly(beat(self.session.name(group), member_epoch=-1, **named))
        await self._read_states(group)

    async def _read_states(self, group: str) -> None:
        """Opens a session with each partition; a record that comes with it is released."""
        for place in self.places:
            keeper = f"keeper-{place[0]}{place[1]}"
            while not await self._is_read(group, keeper, place):
                pass

    async def _is_read(self, group: str, keeper: str, place: Place) -> bool:
        """Opens a session with a partition, and returns whether its leader knows the stored state.

        The leader of Kafka learns by a write only that the state was replaced.
        """
        epoch = 0
        taken: list[Any] = []
        while not taken:
            request = self._fetch_request(group, keeper, epoch, {place: []}, max_records=1, max_wait_ms=500)
            answer = await self.session.quietly(request, 2)
            assert answer.error_code == ErrorCode.NONE, answer
            taken = [each for topic in answer.responses for part in topic.partitions for each in part.acquired_records]
            epoch += 1
        given = [(each.first_offset, each.last_offset, [RELEASE]) for each in taken]
        answer = await self.session.quietly(self._acknowledgement(group, keeper, epoch, {place: given}), 2)
        return codes_of(answer) == {ErrorCode.NONE}

    async def _forget_states(self, group: str) -> None:
        """Ends all sessions of a group, whose states have changed."""
        keepers = [f"keeper-{topic}{partition}" for topic, partition in self.places]
        for who in (*keepers, *WORDS, STRANGER, SLEEPER):
            held = self._member(group, who).held
            given = {place: [(each, each, [RELEASE]) for each in sorted(held[place])] for place in held if held[place]}
            await self.session.quietly(self._acknowledgement(group, who, -1, given), 2)
            self.begun.discard(group)
            known = self._member(group, who)
            known.named, known.held, known.session_epoch = set(), {}, 1

    # Members

    def _id(self, who: str) -> str:
        member_id = f"id-of-{who}"
        self.session.known(member_id, member_id)
        return member_id

    def _member(self, group: str, who: str) -> _Member:
        return self.members.setdefault((group, who), _Member())

    async def _observe(self, name: str, group: str) -> int:
        """Shows epochs by their number; returns how many members the group has."""
        described = await self.session.quietly(ShareGroupDescribeRequest(group_ids=[self.session.name(group)]))
        if described.groups[0].error_code == ErrorCode.NONE:
            observe(self.seen[group], described.groups[0].group_epoch)
        self.session.answers[name] = with_words(self.session.answers[name], self.seen[group])
        return len(described.groups[0].members)

    async def _beats(self, name: str, drawn: Any, epoch: int, topics: list[str] | None) -> None:
        subscribed = None if topics is None else [self.session.name(word) for word in topics]
        request = beat(
            self.session.name(drawn["group"]),
            member_id=self._id(drawn["who"]),
            member_epoch=epoch,
            subscribed_topic_names=subscribed,
        )
        answer = await self.session.ask(name, request)
        count = await self._observe(name, drawn["group"])
        self._without_order(self.session.answers[name], count)
        if not isinstance(answer, str) and answer.error_code == ErrorCode.NONE:
            self._member(drawn["group"], drawn["who"]).epoch = answer.member_epoch
            key = (drawn["group"], drawn["who"])
            (self.inside.add if answer.member_epoch > 0 else self.inside.discard)(key)

    def _without_order(self, shown: Any, count: int) -> None:
        """Leaves out what one of several members is given: that depends on the ids of the topics."""
        if count > 1:
            shown.pop("assignment", None)

    async def _enter(self, name: str, drawn: Any) -> None:
        await self._beats(name, drawn, 0, drawn["topics"])

    async def _heartbeat(self, name: str, drawn: Any) -> None:
        epoch = self._member(drawn["group"], drawn["who"]).epoch
        await self._beats(name, drawn, max(1, epoch + (99 if drawn["epoch"] > 0 else drawn["epoch"])), drawn["topics"])

    async def _leave(self, name: str, drawn: Any) -> None:
        await self._beats(name, drawn, -1, None)

    async def _describe(self, name: str, drawn: Any) -> None:
        await self.session.ask(name, ShareGroupDescribeRequest(group_ids=[self.session.name(drawn["group"])]))
        count = await self._observe(name, drawn["group"])
        compared: Any = self.session.answers[name]
        for each in compared["groups"][0].get("members") or ():
            self._without_order(each, count)
        if compared["groups"][0].get("group_state") == "Empty":
            compared["groups"][0].pop("assignment_epoch")  # Kafka computes an assignment of nothing

    async def _list(self, name: str, drawn: Any) -> None:
        request = ListGroupsRequest(states_filter=drawn["states"], types_filter=drawn["types"])
        answer = await self.session.ask(name, request)
        mine = {self.session.name(group) for group in GROUPS}
        self.session.shown(name, [each for each in answer.groups if each.group_id in mine], 5)

    # Records

    async def _produce(self, name: str, drawn: Any) -> None:
        topic, partition = drawn["place"]
        await self.session.ask(name, produce(self.session.name(topic), (partition, batch(drawn["count"]))), 12)

    async def _delete_records(self, name: str, drawn: Any) -> None:
        topic, partition = drawn["place"]
        self.moved = True
        await self.session.ask(name, deletion(self.session.name(topic), partition, drawn["offset"]))

    def _topic_id(self, word: str) -> UUID:
        return self.ids.get(word, self.ids["a"])

    def _fetch_request(
        self, group: str, who: str, epoch: int, named: dict[Place, list[Batch]], **fields: Any
    ) -> share_fetch.ShareFetchRequest:
        topics = []
        for word, places in groupby(sorted(named), key=lambda place: place[0]):
            parts = [
                share_fetch.FetchPartition(
                    partition_index=place[1],
                    acknowledgement_batches=[
                        share_fetch.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                        for first, last, types in named[place]
                    ],
                )
                for place in places
            ]
            topics.append(share_fetch.FetchTopic(topic_id=self._topic_id(word), partitions=parts))
        usual: dict[str, Any] = {"max_wait_ms": _WAIT_MS, "min_bytes": 1, "max_records": ALL, "batch_size": 100}
        return share_fetch.ShareFetchRequest(
            group_id=self.session.name(group),
            member_id=self._id(who),
            share_session_epoch=epoch,
            topics=topics,
            **usual | fields,
        )

    def _acknowledgement(
        self, group: str, who: str, epoch: int, named: dict[Place, list[Batch]], **fields: Any
    ) -> share_acknowledge.ShareAcknowledgeRequest:
        topics = []
        for (word, partition), batches in named.items():
            part = share_acknowledge.AcknowledgePartition(
                partition_index=partition,
                acknowledgement_batches=[
                    share_acknowledge.AcknowledgementBatch(
                        first_offset=first, last_offset=last, acknowledge_types=types
                    )
                    for first, last, types in batches
                ],
            )
            topics.append(share_acknowledge.AcknowledgeTopic(topic_id=self._topic_id(word), partitions=[part]))
        return share_acknowledge.ShareAcknowledgeRequest(
            group_id=self.session.name(group),
            member_id=self._id(who),
            share_session_epoch=epoch,
            topics=topics,
            **fields,
        )

    def _batches(self, group: str, who: str, place: Place, drawn: Sequence[dict[str, Any]]) -> list[Batch]:
        """Returns the offsets of what was drawn; the first ones, if the member holds nothing of the partition."""
        member, found = self._member(group, who), []
        others = [each for (of, word), each in self.members.items() if of == group and word != who]
        for each in drawn:
            held = sorted(member.held.get(place, ()))
            if each["which"] == "of another":
                held = sorted(offset for other in others for offset in other.held.get(place, ()))
            elif each["which"] == "done":
                held = sorted(member.done.get(place, ()))
            first = held[min(each["from"], len(held) - 1)] if held else each["from"]
            first += 50 if each["which"] == "beyond" else 0
            last = first + (each["count"] if len(each["types"]) == 1 else len(each["types"])) - 1
            while each["which"] == "held" and held and last not in held:
                last -= 1
            kinds = each["types"][: last - first + 1]
            found.append((last, first - 1, kinds) if each["which"] == "reversed" else (first, last, kinds))
        if any(each["which"] == "reversed" for each in drawn):
            return found
        found.sort()  # Kafka takes batches that overlap in one offset
        return [each for index, each in enumerate(found) if not index or each[0] != found[index - 1][1]]

    def _settled(self, group: str, who: str, place: Place, batches: Sequence[Batch], code: int) -> None:
        """Takes the acknowledged records from those that a member holds."""
        if code != ErrorCode.NONE:
            return
        self.begun.add(group)
        member = self._member(group, who)
        for first, last, kinds in batches:
            for offset in range(first, last + 1):
                kind = kinds[0] if len(kinds) == 1 else kinds[offset - first]
                if kind != RENEW and offset in member.held.get(place, ()):
                    member.held[place].discard(offset)
                    member.done.setdefault(place, set()).add(offset)

    @property
    def words(self) -> dict[UUID, str]:
        """The words of topics by their ids."""
        return {topic_id: word for word, topic_id in self.ids.items()}

    def _took(self, group: str, who: str, answer: Any) -> None:
        words, self.last = self.words, answer
        for topic in answer.responses:
            for part in topic.partitions:
                held = self._member(group, who).held.setdefault((words[topic.topic_id], part.partition_index), set())
                for each in part.acquired_records:
                    held.update(range(each.first_offset, each.last_offset + 1))

    def _without_silence(self, name: str, version: int, answer: Any, named: dict[Place, list[Batch]]) -> None:
        """Leaves out partitions that the answer says nothing of: Kafka names some of them."""
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return
        asked = {(self._topic_id(word), partition) for (word, partition), batches in named.items() if batches}
        for topic in answer.responses:
            topic.partitions = [
                part
                for part in topic.partitions
                if part.error_code or part.acquired_records or (topic.topic_id, part.partition_index) in asked
            ]
        answer.responses = [topic for topic in answer.responses if topic.partitions]
        self.session.shown(name, answer, version)
        shown: Any = self.session.answers[name]
        for topic in shown.get("responses") or ():
            for part in topic["partitions"]:
                ranges = part.get("acquired_records")
                if ranges:
                    part["acquired_records"] = joined([share_fetch.AcquiredRecords(**each) for each in ranges])

    def _session_epoch(self, drawn: Any) -> int:
        epoch = self._member(drawn["group"], drawn["who"]).session_epoch
        return max(1, epoch + (9 if drawn["epoch"] > 0 else drawn["epoch"]))

    async def _open(self, name: str, drawn: Any) -> None:
        group, who = drawn["group"], drawn["who"]
        most = ALL if self.moved else drawn["most"]
        places = drawn["places"] if most == ALL else drawn["places"][:1]
        request = self._fetch_request(group, who, 0, {place: [] for place in places}, max_records=most)
        answer = await self.session.ask(name, request, drawn["version"])
        self._without_silence(name, drawn["version"], answer, {})
        if not isinstance(answer, str) and answer.error_code == ErrorCode.NONE:
            member = self._member(group, who)
            member.session_epoch, member.named = 1, set(places)
            self._took(group, who, answer)
            if most == ALL:
                await self._rest(name, group, who)

    async def _fetch(self, name: str, drawn: Any) -> None:
        group, who, place = drawn["group"], drawn["who"], drawn["place"]
        member, named = self._member(group, who), {}
        knows = not self.moved or bool(member.held.get(place))
        if drawn["acknowledged"] and place[0] in self.ids and knows:
            named[place] = self._batches(group, who, place, drawn["acknowledged"])
        if drawn["added"]:
            named.setdefault(drawn["added"], [])
        forgotten = []
        if drawn["forgotten"]:
            topic, partition = drawn["forgotten"]
            forgotten = [share_fetch.ForgottenTopic(topic_id=self.ids[topic], partitions=[partition])]
        few = len(member.named | set(named)) < 2 and not self.moved  # of several partitions, which comes first is open
        request = self._fetch_request(
            group,
            who,
            self._session_epoch(drawn),
            named,
            max_records=drawn["most"] if few or not drawn["most"] else ALL,
            batch_size=drawn["batch"],
            share_acquire_mode=int(drawn["exact"] and drawn["version"] > 1),
            forgotten_topics_data=forgotten,
        )
        answer = await self.session.ask(name, request, drawn["version"])
        self._without_silence(name, drawn["version"], answer, named)
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return
        member.session_epoch += 1
        member.named = (member.named | set(named)) - {drawn["forgotten"]}
        for each, batches in named.items():
            self._settled(group, who, each, batches, self._code(answer, each, "acknowledge_error_code"))
        self._took(group, who, answer)
        if request.max_records == ALL:
            await self._rest(name, group, who)

    async def _rest(self, name: str, group: str, who: str) -> None:
        """Fetches until nothing comes, and compares it all: Kafka gives it in one answer or in several."""
        taken: dict[str, list[Any]] = {}
        member, answer, silent = self._member(group, who), self.last, 0
        while True:
            found = False
            for topic in answer.responses:
                for part in topic.partitions:
                    word = f"{self.words[topic.topic_id]} {part.partition_index}"
                    taken.setdefault(word, []).extend(part.acquired_records)
                    found = found or bool(part.acquired_records)
            silent += not found
            if silent > self.moved:
                break
            answer = await self.session.quietly(self._fetch_request(group, who, member.session_epoch, {}), 2)
            member.session_epoch += 1
            self._took(group, who, answer)
        self.session.answers[f"{name} taken"] = {word: joined(taken[word]) for word in sorted(taken)}
        shown: Any = self.session.answers[name]
        for topic in shown.get("responses") or ():
            topic["partitions"] = [each for each in topic["partitions"] if each.pop("acquired_records", None) is None]
        if isinstance(shown, dict) and shown.get("responses"):
            shown["responses"] = [each for each in shown["responses"] if each["partitions"]] or None

    def _code(self, answer: Any, place: Place, field: str) -> int:
        for topic in answer.responses:
            for part in topic.partitions:
                if (topic.topic_id, part.partition_index) == (self._topic_id(place[0]), place[1]):
                    return int(getattr(part, field))
        return 0

    async def _acknowledge(self, name: str, drawn: Any) -> None:
        group, who, place = drawn["group"], drawn["who"], drawn["place"]
        if place[0] not in self.ids or (self.moved and not self._member(group, who).held.get(place)):
            return
        batches = self._batches(group, who, place, drawn["acknowledged"])
        fields = {"is_renew_ack": True} if drawn["renews"] and drawn["version"] > 1 else {}
        request = self._acknowledgement(group, who, self._session_epoch(drawn), {place: batches}, **fields)
        answer = await self.session.ask(name, request, drawn["version"])
        if not isinstance(answer, str) and answer.error_code == ErrorCode.NONE:
            self._member(group, who).session_epoch += 1
            self._settled(group, who, place, batches, self._code(answer, place, "error_code"))

    async def _close(self, name: str, drawn: Any) -> None:
        group, who = drawn["group"], drawn["who"]
        held = {place: sorted(offsets) for place, offsets in self._member(group, who).held.items() if offsets}
        given = {place: [(each, each, [RELEASE]) for each in offsets] for place, offsets in held.items()}
        build: Any = self._fetch_request if drawn["by"] == "fetch" else self._acknowledgement
        answer = await self.session.ask(name, build(group, who, -1, given if drawn["releases"] else {}))
        if isinstance(answer, str) or answer.error_code != ErrorCode.NONE:
            return
        member = self._member(group, who)
        member.named, member.held = set(), {}
        # Kafka answers before the releases are stored: its coordinator has done so when it answers this.
        of = DescribeShareGroupOffsetsRequestGroup(group_id=self.session.name(group), topics=None)
        await self.session.quietly(DescribeShareGroupOffsetsRequest(groups=[of]))
        if held and not drawn["releases"]:
            place = min(held)
            request = self._fetch_request(group, "another", 0, {place: []}, max_records=1)
            answer = await self.session.ask(f"{name} again", request)
            self._without_silence(f"{name} again", 2, answer, {})
            shown: Any = self.session.answers[f"{name} again"]
            for topic in shown.get("responses") or ():
                for part in topic["partitions"]:  # Kafka gives together what was taken together
                    part["acquired_records"] = [re.sub(" to .*,", ",", each) for each in part["acquired_records"][:1]]

    # Offsets

    async def _offsets(self, name: str, drawn: Any) -> None:
        topics = None
        if not drawn["all"]:
            asked = (("a", (0, 1)),)
            topics = [
                DescribeShareGroupOffsetsRequestTopic(topic_name=self.session.name(word), partitions=partitions)
                for word, partitions in asked
            ]
        of = DescribeShareGroupOffsetsRequestGroup(group_id=self.session.name(drawn["group"]), topics=topics)
        await self.session.ask(name, DescribeShareGroupOffsetsRequest(groups=[of]), drawn["version"])
        self._without_progress(name, drawn["group"])

    def _without_progress(self, name: str, group: str) -> None:
        """Leaves out what Kafka stores with the next write."""
        shown: Any = self.session.answers[name]
        for topic in shown["groups"][0].get("topics") or () if group in self.begun else ():
            for part in topic["partitions"]:
                part.pop("start_offset", None)
                part.pop("lag", None)

    async def _alter_offsets(self, name: str, drawn: Any) -> None:
        topic, partition = drawn["place"]
        part = AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=drawn["offset"])
        topics = [AlterShareGroupOffsetsRequestTopic(topic_name=self.session.name(topic), partitions=[part])]
        request = AlterShareGroupOffsetsRequest(group_id=self.session.name(drawn["group"]), topics=topics)
        await self._changed(name, drawn["group"], request)

    async def _delete_offsets(self, name: str, drawn: Any) -> None:
        topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=self.session.name(drawn["place"][0]))]
        request = DeleteShareGroupOffsetsRequest(group_id=self.session.name(drawn["group"]), topics=topics)
        await self._changed(name, drawn["group"], request)

    async def _delete_group(self, name: str, drawn: Any) -> None:
        if any(
            group == drawn["group"] for group, _ in self.inside
        ):  # a deleted one begins anywhere in what it had read
            await self.session.ask(name, DeleteGroupsRequest(groups_names=[self.session.name(drawn["group"])]))

    async def _changed(self, name: str, group: str, request: Any) -> None:
        """Asks for a change of the states of a group, which is then read again with new records."""
        state = (await self.session.quietly(ShareGroupDescribeRequest(group_ids=[self.session.name(group)]))).groups[0]
        await self.session.ask(name, request)
        if state.group_state != "Empty":
            return
        await self._forget_states(group)
        for topic, partition in self.places:
            await self.session.quietly(produce(self.session.name(topic), (partition, batch(5))), 12)
        await self._initialize(group)


SHARE_GROUPS: Final = Area(Groups, draw)
