"""A member of a share group that sends single requests, so that each acquisition is known.

It joins, fetches from the leaders, answers a part of what it was given, and leaves. A fetch without an answer may have
acquired records, and is noted as lost. While it is in the group, it may let the administrator try what must be refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import share_acknowledge as acknowledging
from moldau.protocol.messages import share_fetch as fetching
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from moldau.protocol.schema import Response
from moldau.share.core.acquired import acquired_records
from moldau_jepsen.checkers.group.share import Acknowledged, Acknowledgement, Delivered
from moldau_jepsen.checkers.group.share_administration import Presence
from moldau_jepsen.workloads.share import UNKNOWN
from moldau_jepsen.workloads.share_administration.topics import TOPICS, leaders_of, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from moldau.protocol.schema import Request
    from moldau_jepsen.checkers.group.share_administration import ShareAdministrationHistory
    from moldau_jepsen.workloads.share_administration.administrator import Administrator
    from moldau_jepsen.workloads.share_administration.asker import Asker

R = TypeVar("R", bound=Response)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
FIRST_EPOCH, FINAL_EPOCH = 0, -1
"""Epochs of a share session."""
HEARTBEATS_MAX = 15
HEARTBEAT_S = 0.1
FETCH_WAIT_MS = 100
FETCH_BYTES = 1 << 20
GONE = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
ANSWERS = {Acknowledgement.ACCEPT: 0.35, Acknowledgement.RELEASE: 0.45, Acknowledgement.REJECT: 0.1}
"""How often a record is answered in each way; the rest is held until the session ends."""


class NotAnsweredError(Exception):
    """A request had no answer, or one after which its outcome is not known."""


class Inspector:
    """One member, for one visit."""

    def __init__(self, asker: Asker, history: ShareAdministrationHistory, number: int) -> None:
        """``number`` distinguishes the members of a run."""
        self._asker = asker
        self._history = history
        self._number = number
        self._member_id = f"inspector-{number}"
        self._epoch = JOIN_EPOCH
        self._sessions: dict[int, int] = {}
        """The next epoch of the session with each broker."""
        self._names: dict[UUID, str] = {}

    async def visit(self, rounds: int, administrator: Administrator | None) -> None:
        """Joins, fetches in ``rounds`` and leaves; ``administrator`` makes calls while the member is in the group."""
        presence = Presence(begun_ms=self._asker.now_ms)
        self._history.members.append(presence)
        try:
            wanted = await self._join()
            if administrator is not None:
                await self._stay_during_calls(administrator)
            for _ in range(rounds):
                for node_id, partitions in wanted.items():
                    await self._fetch(node_id, partitions)
            for node_id in list(self._sessions):
                await self._end_session(node_id)
            await self._leave()
        except NotAnsweredError:
            return  # it may still be in the group
        presence.ended_ms = self._asker.now_ms

    async def _stay_during_calls(self, administrator: Administrator) -> None:
        first, is_member = len(self._history.calls), False
        try:
            await administrator.try_amid_members()
            await self.heartbeat()
            is_member = True
        finally:
            if not is_member:
                administrator.doubt(first)

    async def _ask(self, node_id: int, kind: type[R], request: Request) -> R:
        answer = await self._asker.ask(node_id, kind, request)
        if answer is None:
            self._asker.forget(self._history.group)
            raise NotAnsweredError
        return answer

    # --- membership

    async def heartbeat(self, topics: Sequence[str] | None = None) -> ShareGroupHeartbeatResponse:
        """Sends a heartbeat.

        Raises:
            NotAnsweredError: The coordinator was not found, or its answer was an error.
        """
        node_id = await self._asker.find(self._history.group)
        if node_id is None:
            raise NotAnsweredError
        request = ShareGroupHeartbeatRequest(
            group_id=self._history.group,
            member_id=self._member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=topics,
        )
        answer = await self._ask(node_id, ShareGroupHeartbeatResponse, request)
        if answer.error_code:
            self._asker.forget(self._history.group)
            raise NotAnsweredError
        self._epoch = answer.member_epoch
        return answer

    async def _join(self) -> dict[int, list[tuple[UUID, int]]]:
        """Joins, and returns the assigned partitions by leader, when all have been assigned or after a while."""
        draw = self._asker.draw
        topics = list(TOPICS) if draw.random() < 0.6 else [draw.choice(list(TOPICS))]
        assigned: list[tuple[UUID, int]] = []
        answer = await self.heartbeat(topics)
        for _ in range(HEARTBEATS_MAX):
            if answer.assignment is not None:
                assigned = [
                    (topic.topic_id, number)
                    for topic in answer.assignment.topic_partitions
                    for number in topic.partitions
                ]
            if len(assigned) >= sum(TOPICS[name] for name in topics):
                break
            await trio.sleep(HEARTBEAT_S)
            answer = await self.heartbeat()
        self._names = {topic.topic_id: topic.name or "" for topic in await self._asker.topics(list(TOPICS))}
        leaders = await leaders_of(self._asker)
        found: dict[int, list[tuple[UUID, int]]] = {}
        for each in assigned:
            if each in leaders and each[0] in self._names:
                found.setdefault(leaders[each], []).append(each)
        return found

    async def _leave(self) -> None:
        node_id = await self._asker.find(self._history.group)
        if node_id is None:
            raise NotAnsweredError
        request = ShareGroupHeartbeatRequest(
            group_id=self._history.group, member_id=self._member_id, member_epoch=LEAVE_EPOCH
        )
        answer = await self._ask(node_id, ShareGroupHeartbeatResponse, request)
        if ErrorCode.of(answer.error_code) not in GONE:
            self._asker.forget(self._history.group)
            raise NotAnsweredError

    # --- records

    async def _fetch(self, node_id: int, partitions: Sequence[tuple[UUID, int]]) -> None:
        """Fetches from one leader, and answers a part of the records."""
        draw, epoch = self._asker.draw, self._sessions.get(node_id, FIRST_EPOCH)
        count = draw.randint(1, 8)
        request = fetching.ShareFetchRequest(
            group_id=self._history.group,
            member_id=self._member_id,
            share_session_epoch=epoch,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=count,
            batch_size=count,
            share_acquire_mode=draw.randrange(2),
            topics=[
                fetching.FetchTopic(topic_id=topic_id, partitions=[fetching.FetchPartition(partition_index=number)])
                for topic_id, number in (partitions if epoch == FIRST_EPOCH else ())
            ],
        )
        begun_ms = self._asker.now_ms
        try:
            answer = await self._ask(node_id, fetching.ShareFetchResponse, request)
        except BaseException:
            self._history.lost_fetches.append(begun_ms)
            raise
        if answer.error_code:
            self._sessions.pop(node_id, None)
            return
        self._sessions[node_id] = epoch + 1
        held = [
            each
            for topic in answer.responses
            for part in topic.partitions
            for each in self._take(topic.topic_id, part, begun_ms)
        ]
        if held:
            await self._answer(node_id, held)

    def _take(self, topic_id: UUID, part: fetching.PartitionData, begun_ms: float) -> list[tuple[UUID, Delivered]]:
        """Notes the records of a partition, and returns them."""
        found: list[tuple[UUID, Delivered]] = []
        for record, count in acquired_records(part, check_crcs=True).records if part.acquired_records else ():
            place = place_of(bytes(record.value or b""), self._names[topic_id], part.partition_index, record.offset)
            found.append((topic_id, Delivered(place, 0, count, self._number, begun_ms, self._asker.now_ms)))
        self._history.deliveries += [each for _, each in found]
        return found

    async def _answer(self, node_id: int, held: Sequence[tuple[UUID, Delivered]]) -> None:
        draw = self._asker.draw
        kinds: list[Acknowledgement | None] = [*ANSWERS, None]
        weights = [*ANSWERS.values(), 1 - sum(ANSWERS.values())]
        chosen = [(topic_id, each, kind) for topic_id, each in held if (kind := draw.choices(kinds, weights)[0])]
        if not chosen:
            return
        by_partition: dict[tuple[UUID, int], list[acknowledging.AcknowledgementBatch]] = {}
        for topic_id, each, kind in chosen:
            offset = each.place[1]
            batch = acknowledging.AcknowledgementBatch(
                first_offset=offset, last_offset=offset, acknowledge_types=[kind.value]
            )
            by_partition.setdefault((topic_id, each.place[0].partition), []).append(batch)
        request = self._acknowledgement(self._sessions[node_id], by_partition)
        begun_ms = self._asker.now_ms
        codes: dict[tuple[UUID, int], ErrorCode] = {}
        try:
            answer = await self._ask(node_id, acknowledging.ShareAcknowledgeResponse, request)
            code = ErrorCode.of(answer.error_code)
            codes = dict.fromkeys(by_partition, code or ErrorCode.UNKNOWN_SERVER_ERROR)
            for topic in answer.responses if not code else ():
                for part in topic.partitions:
                    codes[topic.topic_id, part.partition_index] = ErrorCode.of(part.error_code)
            if code:
                self._sessions.pop(node_id)
            else:
                self._sessions[node_id] += 1
        finally:
            for topic_id, each, kind in chosen:
                is_stored = _is_stored(codes.get((topic_id, each.place[0].partition)))
                self._history.answers.append(
                    Acknowledged(each.place, self._number, kind, begun_ms, self._asker.now_ms, is_stored)
                )

    def _acknowledgement(
        self, epoch: int, by_partition: dict[tuple[UUID, int], list[acknowledging.AcknowledgementBatch]]
    ) -> acknowledging.ShareAcknowledgeRequest:
        return acknowledging.ShareAcknowledgeRequest(
            group_id=self._history.group,
            member_id=self._member_id,
            share_session_epoch=epoch,
            topics=[
                acknowledging.AcknowledgeTopic(
                    topic_id=topic_id,
                    partitions=[
                        acknowledging.AcknowledgePartition(
                            partition_index=number,
                            acknowledgement_batches=sorted(batches, key=lambda each: each.first_offset),
                        )
                    ],
                )
                for (topic_id, number), batches in by_partition.items()
            ],
        )

    async def _end_session(self, node_id: int) -> None:
        """Ends the session, which releases what is held."""
        await self._ask(node_id, acknowledging.ShareAcknowledgeResponse, self._acknowledgement(FINAL_EPOCH, {}))
        del self._sessions[node_id]


def _is_stored(code: ErrorCode | None) -> bool | None:
    if code is None or code in UNKNOWN:
        return None
    return code is ErrorCode.NONE
