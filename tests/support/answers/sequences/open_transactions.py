"""Transactions in each of their states, of producers with an epoch for each transaction and of older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from support.answers.classic_groups import commit, find
from support.answers.records import batch, deletion, fetch, list_offsets, produce
from support.answers.topics import deleted, made
from support.answers.transactions import Producer, begin

if TYPE_CHECKING:
    from uuid import UUID

    from support.answers.session import AnswerSession

OLD: Final = {"produce": 11, "offsets": 4, "end": 4}
NEW: Final = {"produce": 12, "offsets": 5, "end": 5}
"""Versions of the requests of a producer that gets another epoch after each transaction (KIP-890)."""


class Writer:
    """A producer whose requests have the versions of one generation of clients."""

    def __init__(self, session: AnswerSession, word: str, versions: dict[str, int], topic: str) -> None:
        """``word`` begins the names of all its steps."""
        self._session = session
        self._word = word
        self._versions = versions
        self._topic = topic
        self.producer = Producer(session.name(word), -1, -1)
        self.group = session.name("group")

    @property
    def is_new(self) -> bool:
        """Whether its partitions are added by its writes."""
        return self._versions is NEW

    async def begin(self, step: str, *, known: bool = False, timeout_ms: int = 60_000) -> None:
        """Begins, as a new producer or as one that knows its id and epoch; goes on with what the answer names."""
        mine = self.producer
        named: dict[str, Any] = {"producer_id": mine.producer_id, "producer_epoch": mine.epoch} if known else {}
        answer = await self._session.ask(f"{self._word}: {step}", begin(mine.transactional_id, timeout_ms, **named))
        if not answer.error_code:
            mine.took(answer)

    async def add(self, step: str, partition: int = 0) -> None:
        """Adds a partition, as only older producers do."""
        if not self.is_new:
            await self._session.ask(f"{self._word}: {step}", self.producer.add((self._topic, [partition])), 3)

    async def write(self, step: str, sequence: int, partition: int = 0, **fields: int) -> None:
        """Writes one record. Of the answer the code and the offset are kept."""
        name = f"{self._word}: {step}"
        request = self.producer.records(self._topic, partition, sequence, **fields)
        answer = await self._session.ask(name, request, self._versions["produce"])
        [part] = answer.responses[0].partition_responses
        self._session.answers[name] = [self._session.comparable(part.error_code, "error_code"), part.base_offset]

    async def offsets(self, step: str, offset: int = 5, **fields: int) -> None:
        """Adds an offset of the group."""
        request = self.producer.offsets(self.group, self._topic, offset, **fields)
        await self._session.ask(f"{self._word}: {step}", request, self._versions["offsets"])

    async def add_group(self, step: str) -> None:
        """Adds the group, as only older producers do."""
        if not self.is_new:
            await self._session.ask(f"{self._word}: {step}", self.producer.add_offsets(self.group), 3)

    async def end(self, step: str, *, commit: bool, takes: bool = True, **fields: int) -> None:
        """Ends the transaction; goes on with the epoch of the answer, unless it is lost on the way."""
        request = self.producer.end(commit=commit, **fields)
        answer = await self._session.ask(f"{self._word}: {step}", request, self._versions["end"])
        if takes and self.is_new and not answer.error_code:
            self.producer.took(answer)
        await self._settled("settled")
        self._session.answers.pop("settled")

    async def _settled(self, step: str) -> None:
        """Waits until no marker is outstanding; keeps the answer."""
        request = DescribeTransactionsRequest(transactional_ids=[self.producer.transactional_id])
        while True:
            [found] = (await self._session.ask(step, request)).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                return
            self._session.answers.pop(step)

    async def look(self, step: str, topic_id: UUID) -> None:
        """Asks for the state, for what is stable, and for the offsets of the group."""
        session, topic = self._session, self._topic
        await self._settled(f"{self._word}: state {step}")
        stable = list_offsets(topic, (0, -1, -1), (1, -1, -1), isolation=1)
        await session.ask(f"{self._word}: stable offsets {step}", stable)
        fetched = fetch(topic, topic_id, (0, -1, 0, -1), isolation_level=1)
        await session.ask(f"{self._word}: aborted transactions {step}", fetched)
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        committed = OffsetFetchRequest(group_id=self.group, topics=topics)
        await session.ask(f"{self._word}: offsets of the group {step}", committed, 7)


async def open_transactions(session: AnswerSession) -> None:
    """Sends each request of a transaction in each of its states."""
    await find(session, session.name("group"), 0)
    await find(session, session.name("old"), 1)
    for word, versions in (("old", OLD), ("new", NEW)):
        name, topic_id = await made(session, f"written-by-{word}", 2)
        await _in_order(Writer(session, word, versions, name), topic_id)
        await _ended_twice(Writer(session, f"{word} that ends twice", versions, name))
        await _fenced(Writer(session, f"{word} that is fenced", versions, name), topic_id)
        await _recovering(Writer(session, f"{word} that recovers", versions, name))
        await _deleted_meanwhile(session, word, versions)
        await _offsets_beside(session, Writer(session, f"{word} with offsets", versions, name), topic_id)
    await _mixed(session)


async def _in_order(writer: Writer, topic_id: UUID) -> None:
    await writer.end("commit before it begins", commit=True)
    await writer.offsets("offsets before it begins")
    await writer.begin("begin")
    await writer.look("when it has begun", topic_id)
    await writer.write("write without adding", 0, 1)
    await writer.offsets("offsets without adding")
    await writer.end("end what was added by writing", commit=False)
    await writer.add("add")
    await writer.add("add again")
    await writer.write("write", 0)
    await writer.write("write the next", 1)
    await writer.look("while it is open", topic_id)
    await writer.end("abort", commit=False)
    await writer.look("after the abort", topic_id)
    await writer.write("write after the abort", 2)
    await writer.end("end after the abort", commit=False)
    await writer.add("add for a second time")
    await writer.write("write in the second", 2)
    await writer.write("write in the second, from 0", 0)
    await writer.end("commit", commit=True)
    await writer.look("after the commit", topic_id)
    await writer.end("commit of nothing", commit=True)
    await writer.end("abort of nothing", commit=False)
    await writer.look("after nothing", topic_id)


async def _ended_twice(writer: Writer) -> None:
    for commits in (True, False):
        word, other = ("commit", "abort") if commits else ("abort", "commit")
        await writer.begin(f"begin to {word}")
        await writer.add(f"add to {word}")
        await writer.write(f"write to {word}", 0)
        await writer.end(f"{word} without the answer", commit=commits, takes=False)
        await writer.end(f"{other} after the {word}", commit=not commits, takes=False)
        await writer.write(f"write without the answer to the {word}", 1)
        await writer.end(f"{word} again", commit=commits)
        await writer.end(f"{word} a third time", commit=commits)
        await writer.write(f"write from 0 after the {word}", 0, 1)
        await writer.end(f"{other} at last", commit=not commits)


async def _fenced(writer: Writer, topic_id: UUID) -> None:
    await writer.begin("begin")
    await writer.add("add")
    await writer.write("write", 0)
    old = (writer.producer.producer_id, writer.producer.epoch)
    await writer.begin("begin while it is open")
    await writer.look("after a second beginning", topic_id)
    new = (writer.producer.producer_id, writer.producer.epoch)
    writer.producer.producer_id, writer.producer.epoch = old
    await writer.add("add, fenced")
    await writer.write("write, fenced", 1)
    await writer.write("write elsewhere, fenced", 0, 1)
    await writer.add_group("add the group, fenced")
    await writer.offsets("offsets, fenced")
    await writer.end("commit, fenced", commit=True)
    await writer.end("abort, fenced", commit=False)
    await writer.begin("begin with id and epoch, fenced", known=True)
    writer.producer.producer_id, writer.producer.epoch = new
    await writer.add("add, as the new one")
    await writer.write("write, as the new one", 0)
    await writer.end("commit, as the new one", commit=True)


async def _recovering(writer: Writer) -> None:
    await writer.begin("begin")
    await writer.add("add")
    await writer.write("write", 0)
    first = (writer.producer.producer_id, writer.producer.epoch)
    await writer.begin("begin with id and epoch while it is open", known=True)
    second = (writer.producer.producer_id, writer.producer.epoch)
    writer.producer.producer_id, writer.producer.epoch = first
    await writer.begin("begin with the id and epoch before", known=True)
    await writer.begin("begin with the newest id and epoch", known=True)
    writer.producer.producer_id, writer.producer.epoch = second
    await writer.begin("begin with the epoch of the second", known=True)
    writer.producer.epoch += 100
    await writer.begin("begin with an epoch of the future", known=True)
    writer.producer.producer_id += 5_000
    await writer.begin("begin with another id", known=True)
    await writer.begin("begin at last")


async def _deleted_meanwhile(session: AnswerSession, word: str, versions: dict[str, int]) -> None:
    name, topic_id = await made(session, f"deleted-under-{word}", 2)
    writer = Writer(session, f"{word} whose topic goes", versions, name)
    await writer.begin("begin")
    await writer.add("add")
    await writer.write("write", 0)
    await session.ask(f"{word}: delete records of an open transaction", deletion(name, 0, -1))
    await session.ask(f"{word}: delete records behind", deletion(name, 0, 1))
    await writer.look("after the deletion of records", topic_id)
    await writer.write("write the next", 1)
    await deleted(session, f"{word}: delete the topic", name, 2)
    await writer.write("write to the deleted topic", 2)
    await writer.end("commit", commit=True)


async def _offsets_beside(session: AnswerSession, writer: Writer, topic_id: UUID) -> None:
    word = "new" if writer.is_new else "old"
    topic = session.name(f"written-by-{word}")
    writer.group = group = session.name(f"group-of-{word}")
    await find_group(session, f"{word}: coordinator of the group", group)
    await session.ask(f"{word}: commit beside, before", commit(group, topic, 3))
    await writer.begin("begin")
    await writer.add_group("add the group")
    await writer.offsets("offsets", 7)
    await session.ask(f"{word}: commit beside", commit(group, topic, 4))
    await session.ask(f"{word}: delete the group of an open transaction", DeleteGroupsRequest(groups_names=[group]))
    topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
    await session.ask(f"{word}: offsets beside", OffsetFetchRequest(group_id=group, topics=topics), 7)
    await writer.offsets("offsets again", 8)
    await writer.end("commit", commit=True)
    await writer.look("after the commit", topic_id)
    await writer.add_group("add the group again")
    await writer.offsets("offsets that are aborted", 9)
    await writer.offsets("offsets of -1", -1)
    await writer.end("abort", commit=False)
    await writer.look("after the abort", topic_id)


async def find_group(session: AnswerSession, step: str, group: str) -> None:
    """Waits until the coordinator of a group serves."""
    await session.ask(step, FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))


async def _mixed(session: AnswerSession) -> None:
    name, topic_id = await made(session, "mixed", 3)
    first, second = (Writer(session, word, NEW, name) for word in ("first of two", "second of two"))
    for writer in (first, second):
        await writer.begin("begin")
        await writer.write("write", 0)
    mine, other = first.producer, second.producer

    def of_first(sequence: int, *, is_transactional: bool = True) -> bytes:
        named: dict[str, Any] = {
            "producer_id": mine.producer_id,
            "producer_epoch": mine.epoch,
            "base_sequence": sequence,
        }
        return batch(is_transactional=is_transactional, **named)

    both = ((0, of_first(1)), (1, of_first(0, is_transactional=False)))
    cases = {
        "one partition in, one outside of the transaction": produce(
            name, *both, transactional_id=mine.transactional_id
        ),
        "a plain batch with the id of a transaction": produce(
            name, (2, batch()), transactional_id=mine.transactional_id
        ),
        "the batch of one in the transaction of another": produce(
            name, (0, of_first(2)), transactional_id=other.transactional_id
        ),
        "a transactional batch with acks=1": produce(
            name, (0, of_first(3)), acks=1, transactional_id=mine.transactional_id
        ),
    }
    await session.ask_all("mixed", cases, 12)
    await second.end("commit", commit=True)
    await second.look("when the first is open", topic_id)
    await first.end("abort", commit=False)
    await first.look("when both have ended", topic_id)
