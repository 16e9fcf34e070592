"""Sessions of fetches: epochs, partitions that come and go, topics that are deleted and made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from support.answers.records import batch, deletion, fetch, produce
from support.answers.topics import NOWHERE, deleted, enlargement, made

if TYPE_CHECKING:
    from uuid import UUID

    from support.answers.session import AnswerSession

START: Final = (0, -1, 0, -1)
"""Partition 0 from offset 0."""
BY_NAME, BY_ID, NEWEST = 12, 13, 18
Part = tuple[int, int, int, int]


class FetchSession:
    """A session of one client."""

    def __init__(self, session: AnswerSession, word: str, version: int, topic: tuple[str, UUID]) -> None:
        """``word`` begins the names of its steps."""
        self._session = session
        self._word = word
        self._version = version
        self.topic = topic
        self.ids: dict[str, int] = {"session_id": 0}

    async def ask(self, step: str, epoch: int, *parts: Part, version: int | None = None, **fields: Any) -> None:
        """Fetches with an epoch of the session; an answer with an id of a session begins the next one."""
        request = fetch(*self.topic, *parts, session_epoch=epoch, **{"max_wait_ms": 0, **self.ids, **fields})
        answer = await self._session.ask(f"{self._word}: {step}", request, version or self._version)
        if not isinstance(answer, str) and not epoch:
            self.ids = {"session_id": answer.session_id}


async def fetch_sessions(session: AnswerSession) -> None:
    """Opens sessions, changes what they fetch, and breaks their rules."""
    name, topic_id = topic = await made(session, "fetched", 3)
    for number in range(4):
        await session.ask(f"produce batch {number}", produce(name, (0, batch(2)), (1, batch())), 12)
    for version in (7, BY_NAME, BY_ID, 15, NEWEST):
        await _usual(session, version, topic)
        await _broken(session, version, topic)
    await _versions_changed(session, topic)
    for version in (BY_NAME, BY_ID):
        await _deleted(session, version)
        await _grown(session, version)
    await _shortened(session)
    await _ids(session, name, topic_id)


async def _usual(session: AnswerSession, version: int, topic: tuple[str, UUID]) -> None:
    mine = FetchSession(session, f"version {version}", version, topic)
    await mine.ask("opened", 0, START, (1, -1, 2, -1), (2, -1, 0, -1))
    await mine.ask("nothing new", 1)
    await mine.ask("another offset", 2, (0, -1, 2, -1))
    await mine.ask("the end of one", 3, (0, -1, 8, -1))
    await mine.ask("the end of both", 4, (1, -1, 4, -1))
    await mine.ask("nothing to read", 5)
    await session.ask(f"version {version}: produce", produce(topic[0], (2, batch())), 12)
    await mine.ask("one has records", 6)
    await mine.ask("one has still", 7)
    await mine.ask("one less", 8, forgotten=(2,))
    await mine.ask("nothing of it", 9)
    await mine.ask("one that it lacks less", 10, forgotten=(2, 7))
    await mine.ask("one more", 11, (2, -1, 0, -1))
    await mine.ask("one more and less", 12, START, forgotten=(0,))
    await mine.ask("an unknown one", 13, (9, -1, 0, -1))
    await mine.ask("the unknown one again", 14)
    await mine.ask("beyond the end", 15, (1, -1, 10**6, -1))
    await mine.ask("beyond the end again", 16)
    await mine.ask("of a later leader", 17, (1, 9, 0, -1))
    await mine.ask("of the leader", 18, (1, 0, 0, -1))
    await mine.ask("one twice", 19, START, (0, -1, 2, -1))
    await mine.ask("without bytes", 20, (0, -1, 0, -1), max_bytes=0)
    await mine.ask("all less", 21, forgotten=(0, 1, 2, 9))
    await mine.ask("of nothing", 22)
    await mine.ask("closed with a partition", -1, START)
    await mine.ask("after its end", 23)


async def _broken(session: AnswerSession, version: int, topic: tuple[str, UUID]) -> None:
    mine = FetchSession(session, f"rules {version}", version, topic)
    await mine.ask("opened of nothing", 0)
    await mine.ask("opened", 0, START)
    former = dict(mine.ids)
    await mine.ask("an epoch again", 2)
    await mine.ask("the next after that", 1)
    await mine.ask("epoch 1 again", 1)
    await mine.ask("epoch 1000", 1000)
    await mine.ask("epoch -2", -2)
    await mine.ask("opened again with its id", 0, (1, -1, 0, -1))
    now = dict(mine.ids)
    mine.ids = former
    await mine.ask("the one before", 2)
    await mine.ask("closed before", -1)
    mine.ids = now
    await mine.ask("closed", -1)
    await mine.ask("closed again", -1)
    mine.ids = {"session_id": 0}
    await mine.ask("no session, epoch 1", 1, START)
    await mine.ask("no session, epoch -1", -1, START)
    await mine.ask("no session, epoch -1, of nothing", -1)
    await mine.ask("no session, epoch -2", -2, START)
    await mine.ask("no session, less", -1, START, forgotten=(0,))
    mine.ids = {"session_id": -5}
    await mine.ask("session -5", 1, START)
    await mine.ask("session -5, epoch -1", -1, START)
    mine.ids = {"session_id": 987_654}
    await mine.ask("an unknown session, epoch 0", 0, START)
    await mine.ask("closed at last", -1)


async def _versions_changed(session: AnswerSession, topic: tuple[str, UUID]) -> None:
    for first, then in ((BY_NAME, BY_ID), (BY_ID, BY_NAME)):
        mine = FetchSession(session, f"from version {first} to {then}", first, topic)
        await mine.ask("opened", 0, START)
        await mine.ask("another version", 1, version=then)
        await mine.ask("another version and partition", 1, (1, -1, 0, -1), version=then)
        await mine.ask("the version before", 1)
        await mine.ask("the version before, next", 2)


async def _deleted(session: AnswerSession, version: int) -> None:
    name, topic_id = topic = await made(session, f"fetched-and-deleted-{version}", 2)
    await session.ask(f"deletion {version}: produce", produce(name, (0, batch())), 12)
    mine = FetchSession(session, f"deletion {version}", version, topic)
    await mine.ask("opened", 0, START, (1, -1, 0, -1))
    await deleted(session, f"deletion {version}: delete", name, 2)
    await mine.ask("when it is deleted", 1)
    await mine.ask("when it is deleted, again", 2)
    await mine.ask("when it is deleted, one less", 3, forgotten=(1,))
    _, again = await made(session, f"fetched-and-deleted-{version}", 2)
    await session.ask(f"deletion {version}: produce again", produce(name, (0, batch(3))), 12)
    await mine.ask("when it is made again", 4)
    await mine.ask("when it is made again, with the id", 5, START)
    mine.topic = (name, again)
    await mine.ask("with the new id", 6, START)
    await mine.ask("with the new id, next", 7)
    mine.topic = (name, topic_id)
    await mine.ask("less of the former id", 8, forgotten=(0,))
    mine.topic = (name, again)
    await mine.ask("the new one after that", 9)
    await mine.ask("closed", -1)


async def _grown(session: AnswerSession, version: int) -> None:
    name, _ = topic = await made(session, f"grown-{version}")
    mine = FetchSession(session, f"growth {version}", version, topic)
    await mine.ask("opened", 0, START, (1, -1, 0, -1))
    await session.ask(f"growth {version}: enlarge", enlargement(name, 2))
    while True:
        step = f"growth {version}: produce"
        answer = await session.ask(step, produce(name, (1, batch())), 12)
        if not answer.responses[0].partition_responses[0].error_code:
            break
        session.answers.pop(step)
    await mine.ask("when there is a second", 1)
    await mine.ask("when there is a second, again", 2)
    await mine.ask("closed", -1)


async def _shortened(session: AnswerSession) -> None:
    name, _ = topic = await made(session, "fetched-and-shortened")
    mine = FetchSession(session, "shortened", NEWEST, topic)
    await session.ask("shortened: produce", produce(name, (0, batch(5))), 12)
    await mine.ask("opened", 0, (0, -1, 5, -1))
    await mine.ask("nothing new", 1)
    await session.ask("shortened: delete records", deletion(name, 0, 3))
    await mine.ask("another log start", 2)
    await mine.ask("nothing new again", 3)
    await mine.ask("before the start", 4, (0, -1, 1, -1))
    await mine.ask("before the start, again", 5)
    await mine.ask("the start", 6, (0, -1, 3, -1))


async def _ids(session: AnswerSession, name: str, topic_id: UUID) -> None:
    mine = FetchSession(session, "ids", BY_ID, (name, NOWHERE))
    await mine.ask("opened with an unknown id", 0, START)
    await mine.ask("the unknown id again", 1)
    mine.topic = (name, topic_id)
    await mine.ask("a known id more", 2, START)
    await mine.ask("both", 3)
    mine.topic = (name, NOWHERE)
    await mine.ask("the unknown one less", 4, forgotten=(0,))
    await mine.ask("one left", 5)
