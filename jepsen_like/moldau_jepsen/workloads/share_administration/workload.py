"""Runs the administration of share groups: offsets are set and deleted, groups deleted, topics recreated.

The run has *seasons*. Each has a group of its own, because nothing certain can be said of a group after a call whose
outcome is unknown: it may take effect at any later time. At first only the administrator and its inspectors use the
group, so all acquisitions are known. Then consumers join, and work until they must leave; the administrator goes on.
At the end the offsets of each group are described, and one consumer for each group accepts what is left.
``checkers.group.share_administration`` judges.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers.group.share_administration import (
    LIMIT,
    OPEN,
    RESET,
    Outcome,
    ShareAdministrationHistory,
    check_share_administration,
)
from moldau_jepsen.workloads.phases.share_evidence import PrunedLogError, archived_records
from moldau_jepsen.workloads.share_administration.administrator import Administrator
from moldau_jepsen.workloads.share_administration.asker import Asker
from moldau_jepsen.workloads.share_administration.consumers import Consumers
from moldau_jepsen.workloads.share_administration.inspector import Inspector
from moldau_jepsen.workloads.share_administration.topics import AdministeredTopics, labelled

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.checkers.group.share_administration import ShareCall
    from moldau_jepsen.workloads.questions import Nodes

GROUP = "share-administered"
LOCK = "share.record.lock.duration.ms"
LOCKS_MS = (1_500, 3_000)
LIMITS = (2, 3, 5)
LATEST_SHARE = 0.25
SESSION_MS = 2_000
STALE_MS = 10_000.0
RETRY_S = 0.2
FETCH_ROUNDS = (2, 4)
EVIDENCE_S = 30.0
CALLS = {
    "read": 4.0,
    "inspect": 4.0,
    "alter": 3.0,
    "delete_offsets": 1.5,
    "delete_group": 1.0,
    "set": 0.5,
    "recreate": 0.3,
}
"""How often the administrator does what, among each other."""
LAST_CALLS = ("alter", "delete_offsets", "delete_group", "delete_group", "read")
"""With one of them a season ends: what it left is read when nothing can change it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAdministrationOptions:
    """The options of the workload; times are virtual seconds."""

    slots: int = 2
    """Machines with a consumer each."""
    records_per_second: float = 20.0
    calls_per_second: float = 8.0
    quiet_s: tuple[float, float] = (2.0, 4.0)
    """How long no consumer is in the group."""
    busy_s: tuple[float, float] = (1.5, 3.5)
    consumers_share: float = 0.65
    """Of the seasons: those in which consumers join."""
    same_group_share: float = 0.4
    """Of the seasons that go on with a group of which all calls are certain."""

    @property
    def hosts(self) -> list[str]:
        """Names of the machines on which consumers live."""
        return [f"share-consumer-{slot}" for slot in range(self.slots)]


class ShareAdministrationWorkload:
    """The administrator, the members, and what they saw of each group."""

    def __init__(
        self, nodes: Nodes, bootstrap: str, environment: Environment, options: ShareAdministrationOptions
    ) -> None:
        """Sends nothing before ``run``."""
        self._bootstrap = bootstrap
        self._environment = environment
        self._options = options
        self._asker = Asker(nodes, environment, "share-administrator")
        self._writer = Asker(nodes, environment, "share-writer")
        self._topics = AdministeredTopics(environment.clock)
        self.counts: Counter[str] = Counter()
        """Counts of events, for the coverage."""
        self._administrator = Administrator(self._asker, self._topics, self.counts)
        self._numbers = partial(next, count(1))
        self._consumers = Consumers(bootstrap, environment.clock, self._numbers)
        self._stopping = trio.Event()
        self._is_busy = False
        self._may_have_consumers = False
        """Whether no call has been accepted since consumers were in the group."""
        self._final_ms = OPEN
        self._is_whole = False
        """Whether everything that was left was accepted at the end: then a record that is not done is lost."""
        self.groups: list[ShareAdministrationHistory] = []
        self._unjudged: set[str] = set()
        """Groups of which it is not known which records were given up."""
        self.stuck: str | None = None
        """Why the final read failed, if it did."""

    def stop(self) -> None:
        """Ends all clients after their open operations."""
        self._stopping.set()

    async def run(self) -> None:
        """Runs writer and administrator until ``stop``."""
        try:
            while not (self._stopping.is_set() or await self._topics.look(self._asker)):  # noqa: ASYNC110 - of brokers
                await trio.sleep(RETRY_S)
            async with trio.open_nursery() as nursery:
                is_over = self._stopping.is_set
                nursery.start_soon(self._topics.write, self._writer, is_over, self._options.records_per_second)
                while not self._stopping.is_set():
                    await self._season()
        finally:
            self._is_busy = False
            self._asker.close()
            self._writer.close()

    async def live(self, environment: Environment) -> None:
        """Runs the lives of consumers of one machine, while consumers may be in the group."""
        while not self._stopping.is_set():
            if not self._is_busy:
                await trio.sleep(RETRY_S)
                continue
            history = self.groups[-1]
            await self._consumers.live(environment, history, lambda: not self._is_busy or self._stopping.is_set())

    # --- the administrator

    async def _season(self) -> None:
        draw, options, administrator = self._environment.random, self._options, self._administrator
        history = administrator.history = ShareAdministrationHistory(group=f"{GROUP}-{len(self.groups)}")
        self.groups.append(history)
        self._may_have_consumers = False
        await administrator.set(RESET, "latest" if draw.random() < LATEST_SHARE else "earliest")
        await administrator.set(LIMIT, str(draw.choice(LIMITS)))
        await self._administer(draw.uniform(*options.quiet_s))
        has_consumers = draw.random() < options.consumers_share
        while has_consumers and not self._stopping.is_set():
            self._is_busy = self._may_have_consumers = True
            await self._administer(draw.uniform(*options.busy_s))
            self._is_busy = False
            await self._administer(draw.uniform(*options.quiet_s))
            is_certain = all(call.outcome is not Outcome.UNKNOWN for call in history.calls)
            if not (is_certain and draw.random() < options.same_group_share):
                break
        if not self._stopping.is_set():
            await self._call(draw.choice(LAST_CALLS))

    async def _administer(self, seconds: float) -> None:
        draw, until_s = self._environment.random, trio.current_time() + seconds
        while trio.current_time() < until_s and not self._stopping.is_set():
            await trio.sleep(draw.expovariate(self._options.calls_per_second))
            (chosen,) = draw.choices(list(CALLS), list(CALLS.values()))
            await self._call(chosen)

    async def _call(self, chosen: str) -> None:
        draw, administrator = self._environment.random, self._administrator
        match chosen:
            case "alter":
                self._accepted(await administrator.alter())
            case "delete_offsets":
                self._accepted(await administrator.delete_offsets())
            case "delete_group" if not self._may_have_consumers:
                await administrator.delete_group()
            case "inspect":
                inspector = Inspector(self._asker, administrator.history, self._numbers())
                await inspector.visit(draw.randint(*FETCH_ROUNDS), administrator if draw.random() < 0.2 else None)
            case "set":
                await administrator.set(*self._draw_setting())
            case "recreate":
                is_done = await self._topics.recreate(
                    self._asker, draw.choice(list(self._topics.ids)), self._stopping.is_set
                )
                self.counts["topic recreated"] += is_done
            case _:
                await administrator.read()

    def _accepted(self, call: ShareCall | None) -> None:
        """Takes note that no consumer is in the group any more, if a call was accepted."""
        self._may_have_consumers = self._is_busy or (self._may_have_consumers and call is None)

    def _draw_setting(self) -> tuple[str, str]:
        draw = self._environment.random
        name = draw.choice((RESET, LIMIT, LOCK))
        values = {RESET: ("earliest", "latest"), LIMIT: LIMITS, LOCK: LOCKS_MS}
        return name, str(draw.choice(values[name]))

    # --- the end

    async def final_read(self, seconds: float) -> None:
        """Describes all groups, and accepts what is left; sets ``stuck`` when that does not end within ``seconds``."""
        self._final_ms = self._environment.clock.monotonic_ms()
        with trio.move_on_after(seconds) as scope:
            try:
                while not await self._topics.look(self._asker):
                    await self._topics.restore_all(self._asker)
                    await trio.sleep(RETRY_S)
                for history in self.groups:
                    self._administrator.history = history
                    while not await self._administrator.read(is_final=True):  # noqa: ASYNC110 - others change
                        await trio.sleep(RETRY_S)
                quiet_ms = 2.0 * max(LOCKS_MS) + SESSION_MS
                scope.deadline += 2 * quiet_ms / 1000
                async with trio.open_nursery() as nursery:
                    for history in self.groups:
                        nursery.start_soon(self._consumers.drain, self._environment, history, quiet_ms)
            finally:
                self._asker.close()
        if scope.cancelled_caught:
            self.stuck = f"administered share groups did not come to their end within {seconds:g} s"
            return
        self._is_whole = True
        for history in self.groups:
            if self._wrong(history):
                await self._ask_what_was_given_up(history)

    async def _ask_what_was_given_up(self, history: ShareAdministrationHistory) -> None:
        """Adds the records that the coordinators archived: members do not see all deliveries that count."""
        reach = {"bootstrap.servers": self._bootstrap}
        try:
            with trio.fail_after(EVIDENCE_S):
                for name, topic_id in self._topics.ids.items():
                    label = labelled(name, topic_id, 0).topic
                    history.archived += await archived_records(
                        reach, self._environment, history.group, label, min(LOCKS_MS), topic_id=topic_id
                    )
        except (PrunedLogError, KafkaError, DecodeError, trio.TooSlowError):
            self._unjudged.add(history.group)
            self.counts["log of the share coordinators not read"] += 1

    def verdict(self) -> list[str]:
        """Returns what is wrong with all groups."""
        return [text for history in self.groups for text in self._wrong(history)]

    def _wrong(self, history: ShareAdministrationHistory) -> list[str]:
        return check_share_administration(
            history,
            self._topics.written,
            self._topics.partitions() if self._is_whole and history.group not in self._unjudged else (),
            undivided=self._topics.undivided(),
            final_ms=self._final_ms,
            stale_ms=STALE_MS,
        )
