"""Goal: no offset sync is lost by a flush that fails, because a group could then not be translated past the last one.

Method: every sequence of three flushes that succeed, or fail when they send or later, against a producer made by hand;
further records are copied before and during each flush.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau import TopicPartition
from moldau.mirror.core.batches import Run
from moldau.mirror.core.formats import OffsetSync, Position
from moldau.mirror.core.progress import Span
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.statistics import SourceStatistics
from moldau.mirror.syncs import PER_PARTITION_MAX, SyncWriter
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Generator

T0 = TopicPartition("t", 0)
SETTINGS = (
    'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n[sources.e]'
)
SUCCEEDS, FAILS_TO_SEND, FAILS_LATER = "succeeds", "fails to send", "fails later"


class Target:
    """The producer, and what each successful flush has written."""

    def __init__(self) -> None:
        (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
        self.writer = SyncWriter(settings, SourceStatistics(alias="e"))
        self.outcome = SUCCEEDS
        self.copied: list[int] = []
        self.sent: list[int] = []

    def copy(self) -> None:
        """Copies one record behind a gap of the source, whose pair is due at once."""
        upstream = 10 * (len(self.copied) + 1)
        self.copied.append(upstream)
        self.writer.copied(Span(T0, 1, (Run(upstream, 0, 1),), Position(upstream + 1)), len(self.copied))

    async def send(self, topic: str, value: bytes, *, key: bytes, partition: int) -> Any:
        await trio.lowlevel.checkpoint()
        if not self.sent:
            self.copy()
        if self.outcome == FAILS_TO_SEND and self.sent:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        self.sent.append(OffsetSync.parse(key, value).upstream)
        return self

    def __await__(self) -> Generator[Any, Any, None]:
        return self._delivered().__await__()

    async def _delivered(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.outcome == FAILS_LATER:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    async def flush(self, outcome: str) -> list[int]:
        """Returns the source's offsets that the target has after a flush."""
        self.outcome, self.sent = outcome, []
        producer: Any = self
        try:
            await self.writer.flush(producer)
        except KafkaError:
            return []
        return self.sent


@pytest.mark.parametrize("outcomes", list(product((SUCCEEDS, FAILS_TO_SEND, FAILS_LATER), repeat=3)))
def test_what_a_failed_flush_held_is_written_later(outcomes: tuple[str, ...]) -> None:
    async def main() -> None:
        target, written = Target(), list[int]()
        for outcome in (*outcomes, SUCCEEDS, SUCCEEDS):
            target.copy()
            target.copy()
            written += await target.flush(outcome)
        assert written == target.copied[:-1], "the last one came during the last flush"

    trio.run(main)


def test_the_newest_syncs_stay_where_many_wait() -> None:
    """Groups stand near the end: without the newest pairs they would be translated to far behind."""

    async def main() -> None:
        target = Target()
        for _ in range(5 * PER_PARTITION_MAX):
            target.copy()
        newest = target.copied[-10:]
        written = await target.flush(SUCCEEDS)
        assert len(written) == PER_PARTITION_MAX
        assert written[-10:] == newest

    trio.run(main)
