"""The calls of an administrator of share groups, each sent once and noted with its outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.admin import ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import alter_share_group_offsets as alter
from moldau.protocol.messages import delete_share_group_offsets as delete
from moldau.protocol.messages import describe_share_group_offsets as describe
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.schema import Response
from moldau_jepsen.checkers.group.share_administration import (
    OPEN,
    OffsetsRead,
    Outcome,
    Setting,
    ShareAct,
    ShareAdministrationHistory,
    ShareCall,
)
from moldau_jepsen.workloads.share_administration.topics import TOPICS, labelled

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from moldau.protocol.schema import Request
    from moldau_jepsen.history import TopicPartition
    from moldau_jepsen.workloads.share_administration.asker import Asker
    from moldau_jepsen.workloads.share_administration.topics import AdministeredTopics

R = TypeVar("R", bound=Response)
Codes = dict["TopicPartition", ErrorCode]

REFUSALS = frozenset({ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND})
"""Answers of a coordinator that has changed nothing."""
AHEAD_MAX = 4
"""Greatest distance of a start offset that is set from the last record."""
KNOWN_S = 2.0
"""How long the administrator waits until all brokers have a setting."""
RETRY_S = 0.1


class Administrator:
    """Changes one group at a time; ``history`` is that of the present one."""

    def __init__(self, asker: Asker, topics: AdministeredTopics, counts: Counter[str]) -> None:
        """``counts`` receives the events, for the coverage."""
        self._asker = asker
        self._topics = topics
        self._counts = counts
        self.history = ShareAdministrationHistory(group="")

    # --- offsets and the group

    async def alter(self, *, has_member: bool = False) -> ShareCall | None:
        """Sets the start offsets of one partition or of several."""
        draw = self._asker.draw
        every = [(name, number) for name in self._topics.ids for number in range(TOPICS[name])]
        if not every:
            return None
        starts = {
            (name, number): self._draw_start(name, number)
            for name, number in draw.sample(every, draw.randint(1, len(every)))
        }
        by_name: dict[str, list[alter.AlterShareGroupOffsetsRequestPartition]] = {}
        for (name, number), start in starts.items():
            part = alter.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=start)
            by_name.setdefault(name, []).append(part)
        request = alter.AlterShareGroupOffsetsRequest(
            group_id=self.history.group,
            topics=[
                alter.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=parts)
                for name, parts in by_name.items()
            ],
        )
        asked = {self._label(name, number): start for (name, number), start in starts.items()}

        def codes_of(answer: alter.AlterShareGroupOffsetsResponse) -> Codes:
            found = _codes(asked, answer.error_code)
            for topic in answer.responses if not answer.error_code else ():
                for part in topic.partitions:
                    place = labelled(topic.topic_name, topic.topic_id, part.partition_index)
                    if place in asked:  # else the coordinator knows a former topic only
                        found[place] = ErrorCode.of(part.error_code)
            return found

        codes, begun_ms = await self._send(alter.AlterShareGroupOffsetsResponse, request, codes_of)
        return self._note(ShareAct.ALTER, asked, codes, begun_ms, has_member=has_member)

    def _draw_start(self, name: str, number: int) -> int:
        """Returns a start offset: mostly before records that are there, sometimes behind them."""
        place = self._label(name, number)
        end = max((each.place[1] + 1 for each in self._topics.written if each.place[0] == place), default=0)
        return self._asker.draw.randint(0, end + AHEAD_MAX)

    async def delete_offsets(self, *, has_member: bool = False) -> ShareCall | None:
        """Deletes the offsets of one topic or of both."""
        names = [name for name in self._topics.ids if self._asker.draw.random() < 0.7]
        if not names:
            return None
        request = delete.DeleteShareGroupOffsetsRequest(
            group_id=self.history.group,
            topics=[delete.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names],
        )
        places = {name: [self._label(name, number) for number in range(TOPICS[name])] for name in names}
        asked: dict[TopicPartition, int | None] = {each: None for parts in places.values() for each in parts}

        def codes_of(answer: delete.DeleteShareGroupOffsetsResponse) -> Codes:
            found = _codes(asked, answer.error_code)
            for topic in answer.responses if not answer.error_code else ():
                for number, place in enumerate(places[topic.topic_name]):
                    if labelled(topic.topic_name, topic.topic_id, number) == place:
                        found[place] = _code_of_topic(topic)
            return found

        codes, begun_ms = await self._send(delete.DeleteShareGroupOffsetsResponse, request, codes_of)
        return self._note(ShareAct.DELETE_OFFSETS, asked, codes, begun_ms, has_member=has_member)

    async def delete_group(self, *, has_member: bool = False) -> ShareCall | None:
        """Deletes the group.

        The share coordinators delete the states before a member may join that prevents the end of the group. So a
        refusal because of a member changes nothing only if that was there all the time.
        """
        asked: dict[TopicPartition, int | None] = dict.fromkeys(self._topics.partitions())

        def codes_of(answer: DeleteGroupsResponse) -> Codes:
            code = ErrorCode.of(answer.results[0].error_code)
            is_unsure = code is ErrorCode.NON_EMPTY_GROUP and not has_member
            return dict.fromkeys(asked, ErrorCode.UNKNOWN_SERVER_ERROR if is_unsure else code)

        request = DeleteGroupsRequest(groups_names=[self.history.group])
        codes, begun_ms = await self._send(DeleteGroupsResponse, request, codes_of)
        return self._note(ShareAct.DELETE_GROUP, asked, codes, begun_ms, has_member=has_member)

    def _label(self, name: str, number: int) -> TopicPartition:
        return labelled(name, self._topics.ids[name], number)

    async def _send(self, kind: type[R], request: Request, codes_of: object) -> tuple[Codes, float]:
        """Sends a request to the coordinator; returns the codes, none without an answer, and when it began."""
        node_id = await self._asker.find(self.history.group)
        begun_ms = self._asker.now_ms
        if node_id is None:
            return {}, OPEN
        answer = await self._asker.ask(node_id, kind, request)
        if answer is None:
            self._asker.forget(self.history.group)
            return {}, begun_ms
        assert callable(codes_of)
        codes: Codes = codes_of(answer)
        if any(code not in REFUSALS and code is not ErrorCode.NONE for code in codes.values()):
            self._asker.forget(self.history.group)
        return codes, begun_ms

    def _note(
        self,
        act: ShareAct,
        asked: Mapping[TopicPartition, int | None],
        codes: Codes,
        begun_ms: float,
        *,
        has_member: bool,
    ) -> ShareCall | None:
        """Notes a call, with one entry for each outcome; returns the accepted part."""
        if begun_ms == OPEN:
            return None  # not sent
        by_outcome: dict[Outcome, list[tuple[TopicPartition, int | None]]] = {}
        for place, start in asked.items():
            code = codes.get(place)
            outcome = Outcome.OK if code is ErrorCode.NONE else Outcome.REFUSED if code in REFUSALS else Outcome.UNKNOWN
            by_outcome.setdefault(outcome, []).append((place, start))
        accepted = None
        for outcome, starts in by_outcome.items():
            self._counts[f"{act.value}: {outcome.value}"] += 1
            call = ShareCall(
                act=act,
                outcome=outcome,
                begun_ms=begun_ms,
                answered_ms=self._asker.now_ms if codes else OPEN,
                starts=tuple(starts),
                has_member=has_member,
            )
            self.history.calls.append(call)
            if outcome is Outcome.OK:
                accepted = call
        return accepted

    async def try_amid_members(self) -> None:
        """Makes calls that must be refused because a member is in the group."""
        for call in self._asker.draw.sample([self.alter, self.delete_offsets, self.delete_group], 2):
            await call(has_member=True)

    def doubt(self, first: int) -> None:
        """Notes that no member was certainly in the group during the calls from number ``first`` on."""
        for number, call in enumerate(self.history.calls[first:], start=first):
            unsure = call.act is ShareAct.DELETE_GROUP and call.outcome is Outcome.REFUSED
            outcome = Outcome.UNKNOWN if unsure else call.outcome
            self.history.calls[number] = replace(call, has_member=False, outcome=outcome)

    # --- descriptions

    async def read(self, *, is_final: bool = False) -> bool:
        """Reads the start offsets of all partitions; returns whether there was an answer for each."""
        group, topics = self.history.group, list(self._topics.ids)
        node_id = await self._asker.find(group)
        if node_id is None:
            return False
        begun_ms = self._asker.now_ms
        request = describe.DescribeShareGroupOffsetsRequest(
            groups=[
                describe.DescribeShareGroupOffsetsRequestGroup(
                    group_id=group,
                    topics=[
                        describe.DescribeShareGroupOffsetsRequestTopic(
                            topic_name=name, partitions=list(range(TOPICS[name]))
                        )
                        for name in topics
                    ],
                )
            ]
        )
        answer = await self._asker.ask(node_id, describe.DescribeShareGroupOffsetsResponse, request)
        if answer is None or answer.groups[0].error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            self._asker.forget(group)
            return False
        places = {self._label(name, number) for name in topics for number in range(TOPICS[name])}
        found: dict[TopicPartition, int | None] = {}
        if answer.groups[0].error_code:
            found = dict.fromkeys(sorted(places))
        for topic in answer.groups[0].topics:
            for part in topic.partitions:
                place = labelled(topic.topic_name, topic.topic_id, part.partition_index)
                if place in places and not part.error_code:
                    found[place] = part.start_offset if part.start_offset >= 0 else None
        self._counts["offsets described"] += 1
        self.history.reads.append(OffsetsRead(begun_ms, self._asker.now_ms, tuple(found.items()), is_final))
        return len(found) == len(places)

    # --- settings

    async def set(self, name: str, value: str) -> None:
        """Changes a setting of the group, and waits for a while until all brokers have it."""
        group = self.history.group
        config = AlterableConfig(name=name, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name=group, configs=[config])
        begun_ms = self._asker.now_ms
        answer = await self._asker.ask_any(
            IncrementalAlterConfigsResponse, IncrementalAlterConfigsRequest(resources=[resource])
        )
        is_done = answer is not None and not answer.responses[0].error_code
        known_ms = OPEN
        answered_ms = self._asker.now_ms if is_done else OPEN
        with trio.move_on_after(KNOWN_S if is_done else 0.0):
            while not await self._all_have(name, value):  # noqa: ASYNC110 - brokers change, not a value here
                await trio.sleep(RETRY_S)
            known_ms = self._asker.now_ms
        self._counts[f"{name} set"] += is_done
        self.history.settings.append(Setting(name, value, begun_ms, answered_ms, known_ms))

    async def _all_have(self, name: str, value: str) -> bool:
        resource = DescribeConfigsResource(
            resource_type=ResourceType.GROUP, resource_name=self.history.group, configuration_keys=[name]
        )
        for broker in self._asker.nodes.broker_ids:
            answer = await self._asker.ask(
                broker, DescribeConfigsResponse, DescribeConfigsRequest(resources=[resource])
            )
            if answer is None or [each.value for each in answer.results[0].configs] != [value]:
                return False
        return True


def _codes(asked: Iterable[TopicPartition], code: int) -> Codes:
    """Returns the codes before the entries of an answer are looked at; those that it leaves out are not certain."""
    return dict.fromkeys(asked, ErrorCode.of(code) if code else ErrorCode.UNKNOWN_SERVER_ERROR)


def _code_of_topic(topic: delete.DeleteShareGroupOffsetsResponseTopic) -> ErrorCode:
    """Returns the code of a topic; that of one without a state is that of a refusal: nothing was deleted."""
    code = ErrorCode.of(topic.error_code)
    return ErrorCode.GROUP_ID_NOT_FOUND if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code
