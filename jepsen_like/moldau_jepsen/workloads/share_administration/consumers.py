"""Share consumers of administered groups: each life takes records, answers them, and ends by leaving or by a crash."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import KafkaError
from moldau.share import AcknowledgeType, ShareConsumer, ShareRecord
from moldau_jepsen.checkers.group.share import Acknowledged, Acknowledgement, Delivered
from moldau_jepsen.checkers.group.share_administration import Presence
from moldau_jepsen.workloads.share import FETCH_WAIT_MS, stored
from moldau_jepsen.workloads.share_administration.topics import TOPICS, place_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from moldau.runtime.ports.environment import Clock, Environment
    from moldau_jepsen.checkers.group.share import Place
    from moldau_jepsen.checkers.group.share_administration import ShareAdministrationHistory

Member = ShareConsumer[bytes, bytes]
POLL_MS = 300.0
POLLED_MAX = 10
COMMIT_MS = 5_000.0
REQUEST_TIMEOUT_MS = 600
MARGIN_MS = 100.0
RETRY_S = 0.2
CRASH_SHARE = 0.5
LIFE_S = 2.5
"""Mean length of a life."""
DAWDLE_SHARE = 0.1
DAWDLE_S = 2.0
ANSWERS: Mapping[AcknowledgeType, float] = {
    AcknowledgeType.ACCEPT: 0.55,
    AcknowledgeType.RELEASE: 0.3,
    AcknowledgeType.REJECT: 0.1,
    AcknowledgeType.RENEW: 0.05,
}


@dataclass(slots=True, kw_only=True)
class _Life:
    """One member; ``emptied_ms`` is when its buffer was surely empty."""

    member: Member
    number: int
    history: ShareAdministrationHistory
    begun_ms: float
    emptied_ms: float = field(init=False)

    def __post_init__(self) -> None:
        self.emptied_ms = self.begun_ms


class Consumers:
    """Runs the lives of share consumers in the present group."""

    def __init__(self, bootstrap: str, clock: Clock, numbers: Callable[[], int]) -> None:
        """``clock`` tells the time of the run: machines have clocks of their own. ``numbers`` numbers the members."""
        self._bootstrap = bootstrap
        self._clock = clock
        self._numbers = numbers

    def consumer(self, environment: Environment, group: str) -> Member:
        """Returns a consumer of a group, not opened."""
        return ShareConsumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "share.acquire.mode": "record_limit",
                "max.poll.records": POLLED_MAX,
                "fetch.max.wait.ms": FETCH_WAIT_MS,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
            },
            environment=environment,
        )

    async def live(
        self, environment: Environment, history: ShareAdministrationHistory, is_over: Callable[[], bool]
    ) -> None:
        """Runs one life: until ``is_over``, or a drawn end."""
        draw, now_ms = environment.random, self._clock.monotonic_ms()
        history.members.append(Presence(begun_ms=now_ms, is_exact=False))  # its requests may arrive after its end
        with trio.move_on_after(draw.expovariate(1 / LIFE_S)):
            try:
                async with self.consumer(environment, history.group) as member:
                    life = _Life(member=member, number=self._numbers(), history=history, begun_ms=now_ms)
                    try:
                        await self._work(life, draw, is_over)
                    finally:
                        if draw.random() < CRASH_SHARE:
                            member.abandon()
            except KafkaError:
                await trio.sleep(RETRY_S)  # refused for good; the next life joins again

    async def _work(self, life: _Life, draw: random.Random, is_over: Callable[[], bool]) -> None:
        life.member.subscribe(list(TOPICS) if draw.random() < 0.7 else [draw.choice(list(TOPICS))])
        while not is_over():
            for record, place in await self.poll(life, draw.randint(1, 5)):
                await self._handle(life, record, place, draw)

    async def poll(self, life: _Life, limit: int) -> list[tuple[ShareRecord[bytes, bytes], Place]]:
        """Polls, and notes the deliveries.

        A broker acquired the records when the buffer was last empty, or later, but for a fetch that was under way then.
        """
        begun_ms = self._clock.monotonic_ms()
        records = await life.member.poll(POLL_MS, max_records=limit)
        now_ms = self._clock.monotonic_ms()
        since_ms = max(life.begun_ms, life.emptied_ms - FETCH_WAIT_MS - REQUEST_TIMEOUT_MS - MARGIN_MS)
        found: list[tuple[ShareRecord[bytes, bytes], Place]] = []
        for record in records:
            partition = record.topic_partition
            place = place_of(record.value or b"", partition.topic, partition.partition, record.offset)
            life.history.deliveries.append(Delivered(place, 0, record.delivery_count, life.number, since_ms, now_ms))
            found.append((record, place))
        if len(records) < limit:
            life.emptied_ms = begun_ms
        return found

    async def _handle(
        self,
        life: _Life,
        record: ShareRecord[bytes, bytes],
        place: Place,
        draw: random.Random,
    ) -> None:
        if draw.random() < DAWDLE_SHARE:
            await trio.sleep(draw.uniform(0.2, DAWDLE_S))
        kinds = list(ANSWERS)
        (kind,) = draw.choices(kinds, [ANSWERS[each] for each in kinds])
        if kind is AcknowledgeType.RENEW:
            await self.acknowledge(life, record, place, kind)
            kind = AcknowledgeType.ACCEPT
        await self.acknowledge(life, record, place, kind)

    async def acknowledge(
        self,
        life: _Life,
        record: ShareRecord[bytes, bytes],
        place: Place,
        kind: AcknowledgeType,
    ) -> None:
        """Answers a record, and notes whether that was stored."""
        begun_ms = self._clock.monotonic_ms()
        is_stored: bool | None = None
        try:
            life.member.acknowledge(record, kind)
        except RuntimeError:  # the session with the broker has ended, so the member no longer holds the record
            return
        try:
            is_stored = stored(await life.member.commit(COMMIT_MS), record.topic_partition)
        except trio.TooSlowError:
            is_stored = None
        finally:  # a cancelled acknowledgement may have been stored
            life.history.answers.append(
                Acknowledged(
                    place, life.number, Acknowledgement(int(kind)), begun_ms, self._clock.monotonic_ms(), is_stored
                )
            )

    async def drain(self, environment: Environment, history: ShareAdministrationHistory, quiet_ms: float) -> None:
        """Accepts whatever comes, until nothing has come for ``quiet_ms``; the caller sets a deadline."""
        now_ms = self._clock.monotonic_ms()
        history.members.append(Presence(begun_ms=now_ms, is_exact=False))
        async with self.consumer(environment, history.group) as member:
            life = _Life(member=member, number=self._numbers(), history=history, begun_ms=now_ms)
            member.subscribe(list(TOPICS))
            while self._clock.monotonic_ms() - now_ms < quiet_ms:
                for record, place in await self.poll(life, POLLED_MAX):
                    now_ms = self._clock.monotonic_ms()
                    await self.acknowledge(life, record, place, AcknowledgeType.ACCEPT)
