"""Looks at a cluster through the admin client, with a bounded number of requests per second.

All brokers are asked at the same time, each with a limit: one that hangs delays the numbers of the others for no longer
than it takes to call it silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import join_address
from moldau_cli.live.core.rates import Pace
from moldau_cli.live.core.samples import GroupSample, PartitionSample, Sample
from moldau_cli.operations.partial import ask_groups, ask_offsets, describe_present

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau import Admin, TopicPartition
    from moldau.admin import ClusterDescription, GroupListing, LogDirDescription, TopicDescription
    from moldau_cli.operations.partial import Offsets

R = TypeVar("R")

ANSWER_S: Final = 10.0
"""Seconds that one call may take at most."""
PATIENCE_S: Final = 3.0
"""Seconds that each part of a look may take at least; ``moldau cluster status`` calls a broker silent as soon."""
TIMES_SLOWER: Final = 3
"""How many times as long as the calls before them the parts of a look may take, on a cluster that is slow."""
OWN_LIMIT: Final = 0.8
"""Share of that time after which a call ends by itself, because its answer then has what came in time."""
GROUP_REQUESTS: Final = 5
"""Requests about one group: its coordinator twice, its description in two protocols, its offsets."""
GROUPS_AT_ONCE: Final = 16


@dataclass(slots=True)
class Part(Generic[R]):
    """A part of a look that the others can do without."""

    what: str
    answer: R | None = None
    """None: it was refused, or did not come in time."""
    is_late: bool = False


@dataclass(slots=True)
class Parts:
    """The parts of a look that are asked for at the same time: offsets by leader, directories by broker, groups."""

    offsets: Mapping[int, Part[Offsets]]
    directories: Mapping[int, Part[dict[int, list[LogDirDescription]]]]
    groups: Part[tuple[list[GroupListing], Mapping[str, KafkaError]]]

    @property
    def are_late(self) -> bool:
        """Whether one of them did not come in time."""
        late = [part.is_late for part in self.offsets.values()] + [part.is_late for part in self.directories.values()]
        return self.groups.is_late or any(late)

    @property
    def silent(self) -> frozenset[int]:
        """The brokers in service that answered nothing in time."""
        return frozenset(
            node
            for node, part in self.directories.items()
            if part.is_late and (node not in self.offsets or not _has_answer(self.offsets[node]))
        )


def _has_answer(part: Part[Offsets]) -> bool:
    """Returns whether a leader has said anything about its offsets."""
    late = ErrorCode.REQUEST_TIMED_OUT
    if part.answer is None:
        return not part.is_late
    return bool(part.answer.found) or any(error.code is not late for error in part.answer.failures.values())


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
        self._slowest_s = 0.0
        """Seconds that the slowest of the answers took which the present look needed."""

    async def look(self) -> Sample:
        """Returns a look at topics, log directories and groups.

        Raises:
            KafkaError: no broker answers, or the topics cannot be described; from the second look on this takes
                ``ANSWER_S``, or three times what the last look took.
        """
        began_s, self._slowest_s = trio.current_time(), 0.0
        cluster = await self._needed(self._admin.describe_cluster)
        names = [topic.name for topic in await self._needed(lambda: self._admin.list_topics(include_internal=True))]
        topics = await self._needed(lambda: describe_present(self._admin, names))
        self._needed_s = max(ANSWER_S, 3 * (trio.current_time() - began_s))
        self._unanswered = []
        limit_s = min(ANSWER_S, max(PATIENCE_S, TIMES_SLOWER * self._slowest_s))
        now_ms = trio.current_time() * 1000
        parts = await self._asked(cluster, _by_leader(topics), limit_s)
        ends, held = self._end_offsets(parts), self._bytes_held(parts)
        groups, left_out = await self._groups(parts, limit_s) if self._with_groups else ({}, 0)
        return Sample(
            now_ms=now_ms,
            brokers={broker.node_id: join_address(broker.host, broker.port) for broker in cluster.brokers},
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
            silent=parts.silent,
        )

    async def _needed(self, call: Callable[[], Awaitable[R]]) -> R:
        """Makes a call without which there is no look."""
        await self._wait_turn(1)
        began_s = trio.current_time()
        try:
            with trio.fail_after(self._needed_s):
                answer = await call()
        except trio.TooSlowError as error:
            text = f"no broker answered within {self._needed_s:.0f} s"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from error
        self._slowest_s = max(self._slowest_s, trio.current_time() - began_s)
        return answer

    async def _wait_turn(self, requests: int) -> None:
        """Waits until the next requests fit into the pace."""
        at_ms = trio.current_time() * 1000
        for _ in range(requests):
            at_ms = self._pace.next_ms(trio.current_time() * 1000)
        await trio.sleep_until(at_ms / 1000)

    async def _asked(
        self, cluster: ClusterDescription, led: Mapping[int, list[TopicPartition]], limit_s: float
    ) -> Parts:
        """Asks all brokers for their parts at the same time.

        Raises:
            KafkaError: a part was late, and no broker answers any more.
        """
        from moldau.admin import LATEST

        nodes = [broker.node_id for broker in cluster.brokers]
        parts = Parts(
            offsets={node: Part(f"offsets of broker {node}") for node in led},
            directories={node: Part(f"log directories of broker {node}") for node in nodes},
            groups=Part("groups"),
        )
        within_s = OWN_LIMIT * limit_s
        async with trio.open_nursery() as nursery:
            for node, wanted in led.items():
                ask_ends = partial(ask_offsets, self._admin, dict.fromkeys(wanted, LATEST), within_s=within_s)
                nursery.start_soon(self._try, parts.offsets[node], 1, ask_ends, limit_s)
            for node in nodes:
                ask_directories = partial(self._admin.describe_log_dirs, [node])
                nursery.start_soon(self._try, parts.directories[node], 1, ask_directories, limit_s)
            if self._with_groups:
                ask_list = partial(ask_groups, self._admin, within_s=within_s)
                nursery.start_soon(self._try, parts.groups, len(nodes), ask_list, limit_s)
        if parts.are_late or parts.silent:
            await self._needed(self._admin.describe_cluster)  # the groups would wait for each further call
        return parts

    async def _try(self, part: Part[Any], requests: int, call: Callable[[], Awaitable[Any]], limit_s: float) -> None:
        """Makes a call whose result a look can do without."""
        await self._wait_turn(requests)
        with trio.move_on_after(limit_s) as patience:
            try:
                part.answer = await call()
            except KafkaError as error:
                part.is_late = error.code is ErrorCode.REQUEST_TIMED_OUT
        part.is_late = part.is_late or patience.cancelled_caught

    def _miss(self, what: str) -> None:
        if what not in self._unanswered:
            self._unanswered.append(what)

    def _end_offsets(self, parts: Parts) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for part in parts.offsets.values():
            if part.answer is None:
                self._miss(part.what)
                continue
            if failed := len(part.answer.failures):
                self._miss(f"{part.what} ({failed} of {failed + len(part.answer.found)} partitions)")
            for partition, (offset, _) in part.answer.found.items():
                found[partition.topic, partition.partition] = offset
        return found

    def _bytes_held(self, parts: Parts) -> dict[tuple[int, str], int]:
        found: dict[tuple[int, str], int] = {}
        for node, part in parts.directories.items():
            if part.answer is None:
                self._miss(part.what)
            for directory in (part.answer or {}).get(node, []):
                for one in directory.partitions:
                    key = (node, one.topic_partition.topic)
                    found[key] = found.get(key, 0) + one.size_bytes
        return found

    async def _groups(self, parts: Parts, limit_s: float) -> tuple[dict[str, GroupSample], int]:
        if parts.groups.answer is None:
            self._miss(parts.groups.what)
        listed, failures = parts.groups.answer or ([], {})
        for broker in failures:
            self._miss(f"groups of {broker}")
        names = [group.group_id for group in listed]
        if len(names) > self._groups_max:
            first = self._turn % len(names)
            asked = [*names[first:], *names[:first]][: self._groups_max]
            self._turn += self._groups_max
        else:
            asked = names
        return await self._described(asked, limit_s), len(names) - len(asked)

    async def _described(self, names: list[str], limit_s: float) -> dict[str, GroupSample]:
        """Returns the groups that are described in time; several are asked for at once, as a coordinator may hang."""
        asked: dict[str, Part[GroupSample]] = {name: Part(f"group {name}") for name in names}
        failed: list[KafkaError] = []
        limit = trio.CapacityLimiter(GROUPS_AT_ONCE)

        async def ask(name: str) -> None:
            async with limit:
                await self._try(asked[name], GROUP_REQUESTS, partial(self._group, name), limit_s)
                if not asked[name].is_late:
                    return
                try:
                    await self._needed(self._admin.describe_cluster)
                except KafkaError as error:
                    failed.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask, name)
        if failed:
            raise failed[0]
        for part in sorted(asked.values(), key=lambda each: each.what):
            if part.answer is None:
                self._miss(part.what)
        return {name: part.answer for name, part in asked.items() if part.answer is not None}

    async def _group(self, name: str) -> GroupSample:
        described = (await self._admin.describe_groups([name]))[name]
        offsets = await self._admin.list_group_offsets(name)
        return GroupSample(
            state=described.state,
            members=len(described.members),
            taken_ms=trio.current_time() * 1000,
            offsets={(one.topic, one.partition): at.offset for one, at in offsets.items() if at.offset >= 0},
        )


def _by_leader(topics: Mapping[str, TopicDescription]) -> dict[int, list[TopicPartition]]:
    """Returns the partitions that each broker leads."""
    from moldau import TopicPartition

    led: dict[int, list[TopicPartition]] = {}
    for name, topic in topics.items():
        for part in topic.partitions:
            if part.leader >= 0:
                led.setdefault(part.leader, []).append(TopicPartition(name, part.partition))
    return dict(sorted(led.items()))
