"""Looks at a cluster through the admin client, with a bounded number of requests per second."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.live.core.rates import Pace
from moldau_cli.live.core.samples import GroupSample, PartitionSample, Sample
from moldau_cli.operations.partial import ask_groups, ask_offsets, describe_present

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau import Admin, TopicPartition
    from moldau.admin import ClusterDescription, TopicDescription

R = TypeVar("R")

ANSWER_S: Final = 10.0
"""Seconds that one call may take; what it would have shown is then missing in the look."""
OFFSETS_S: Final = 8.0
"""Less than ``ANSWER_S``: what came in time is in the answer of a call that ends by itself."""
LATE_S: Final = 5.0
"""After a call that took as long, a look asks whether any broker answers; it would wait for each further call."""
GROUP_REQUESTS: Final = 5
"""Requests about one group: its coordinator twice, its description in two protocols, its offsets."""
GROUPS_AT_ONCE: Final = 16


class Collector:
    """Looks at a cluster again and again.

    Groups beyond ``groups_max`` take turns: each look asks for the next ones.
    """

    def __init__(self, admin: Admin, *, requests_per_s: int, groups_max: int, with_groups: bool = True) -> None:
        self._admin = admin
        self._pace = Pace(requests_per_s)
        self._groups_max = groups_max
        self._with_groups = with_groups
        self._turn = 0
        self._unanswered: list[str] = []
        self._needed_s = float("inf")
        """Seconds for an answer that a look needs. The first look waits as all commands do, and has its reasons."""

    async def look(self) -> Sample:
        """Returns a look at topics, log directories and groups.

        Raises:
            KafkaError: no broker answers, or the topics cannot be described; from the second look on this takes
                ``ANSWER_S``, or three times what the last look took.
        """
        began_s = trio.current_time()
        cluster = await self._needed(self._admin.describe_cluster)
        names = [topic.name for topic in await self._needed(lambda: self._admin.list_topics(include_internal=True))]
        topics = await self._needed(lambda: describe_present(self._admin, names))
        self._needed_s = max(ANSWER_S, 3 * (trio.current_time() - began_s))
        self._unanswered = []
        ends = await self._end_offsets(topics)
        now_ms = trio.current_time() * 1000
        held = await self._bytes_held(cluster)
        groups, left_out = await self._groups(cluster) if self._with_groups else ({}, 0)
        return Sample(
            now_ms=now_ms,
            brokers={broker.node_id: f"{broker.host}:{broker.port}" for broker in cluster.brokers},
            controller=cluster.controller_id,
            partitions={
                (name, part.partition): PartitionSample(
                    leader=part.leader,
                    replicas=part.replicas,
                    isr=part.isr,
                    end_offset=ends.get((name, part.partition)),
                )
                for name, topic in topics.items()
                for part in topic.partitions
            },
            bytes_held=held,
            groups=groups,
            requests=self._pace.total,
            groups_left_out=left_out,
            unanswered=tuple(self._unanswered),
        )

    async def _needed(self, call: Callable[[], Awaitable[R]]) -> R:
        """Makes a call without which there is no look."""
        await self._wait_turn(1)
        try:
            with trio.fail_after(self._needed_s):
                return await call()
        except trio.TooSlowError as error:
            text = f"no broker answered within {self._needed_s:.0f} s"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from error

    async def _wait_turn(self, requests: int) -> None:
        """Waits until the next requests fit into the pace."""
        at_ms = trio.current_time() * 1000
        for _ in range(requests):
            at_ms = self._pace.next_ms(trio.current_time() * 1000)
        await trio.sleep_until(at_ms / 1000)

    async def _tried(self, what: str, requests: int, call: Callable[[], Awaitable[R]]) -> R | None:
        """Makes a call whose result a look can do without; notes what is missing if it is refused or takes too long.

        Raises:
            KafkaError: the call was late, and no broker answers any more.
        """
        await self._wait_turn(requests)
        began_s = trio.current_time()
        answer: R | None = None
        with trio.move_on_after(ANSWER_S) as patience:
            try:
                answer = await call()
            except KafkaError:
                self._miss(what)
        if patience.cancelled_caught:
            self._miss(what)
        if trio.current_time() - began_s >= LATE_S:
            await self._needed(self._admin.describe_cluster)
        return answer

    def _miss(self, what: str) -> None:
        if what not in self._unanswered:
            self._unanswered.append(what)

    async def _end_offsets(self, topics: dict[str, TopicDescription]) -> dict[tuple[str, int], int]:
        from moldau import TopicPartition
        from moldau.admin import LATEST

        led: dict[int, list[TopicPartition]] = {}
        for name, topic in topics.items():
            for part in topic.partitions:
                if part.leader >= 0:
                    led.setdefault(part.leader, []).append(TopicPartition(name, part.partition))
        found: dict[tuple[str, int], int] = {}
        for leader, partitions in sorted(led.items()):
            what, wanted = f"offsets of broker {leader}", dict.fromkeys(partitions, LATEST)
            call = partial(ask_offsets, self._admin, wanted, within_s=OFFSETS_S)
            answer = await self._tried(what, 1, call)
            if answer is None:
                continue
            if answer.failures:
                self._miss(f"{what} ({len(answer.failures)} of {len(partitions)} partitions)")
            for partition, (offset, _) in answer.found.items():
                found[partition.topic, partition.partition] = offset
        return found

    async def _bytes_held(self, cluster: ClusterDescription) -> dict[tuple[int, str], int]:
        found: dict[tuple[int, str], int] = {}
        for broker in cluster.brokers:
            node = broker.node_id
            call = partial(self._admin.describe_log_dirs, [node])
            answer = await self._tried(f"log directories of broker {node}", 1, call)
            for directory in (answer or {}).get(node, []):
                for part in directory.partitions:
                    key = (node, part.topic_partition.topic)
                    found[key] = found.get(key, 0) + part.size_bytes
        return found

    async def _groups(self, cluster: ClusterDescription) -> tuple[dict[str, GroupSample], int]:
        call = partial(ask_groups, self._admin, within_s=OFFSETS_S)
        listed, failures = await self._tried("groups", len(cluster.brokers), call) or ([], {})
        for broker in failures:
            self._miss(f"groups of {broker}")
        names = [group.group_id for group in listed]
        if len(names) > self._groups_max:
            first = self._turn % len(names)
            asked = [*names[first:], *names[:first]][: self._groups_max]
            self._turn += self._groups_max
        else:
            asked = names
        return await self._described(asked), len(names) - len(asked)

    async def _described(self, names: list[str]) -> dict[str, GroupSample]:
        """Returns the groups that are described in time; several are asked for at once, as a coordinator may hang."""
        found: dict[str, GroupSample] = {}
        failed: list[KafkaError] = []
        limit = trio.CapacityLimiter(GROUPS_AT_ONCE)
        before = len(self._unanswered)

        async def ask(name: str) -> None:
            async with limit:
                try:
                    group = await self._tried(f"group {name}", GROUP_REQUESTS, partial(self._group, name))
                except KafkaError as error:
                    failed.append(error)
                    nursery.cancel_scope.cancel()
                    return
            if group is not None:
                found[name] = group

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask, name)
        if failed:
            raise failed[0]
        self._unanswered[before:] = sorted(self._unanswered[before:])
        return {name: found[name] for name in names if name in found}

    async def _group(self, name: str) -> GroupSample:
        described = (await self._admin.describe_groups([name]))[name]
        offsets = await self._admin.list_group_offsets(name)
        return GroupSample(
            state=described.state,
            members=len(described.members),
            offsets={(one.topic, one.partition): at.offset for one, at in offsets.items() if at.offset >= 0},
        )
