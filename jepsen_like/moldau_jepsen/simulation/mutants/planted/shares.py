"""Bugs in the delivery of records to share groups, by brokers and by the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.share import ShareConsumer
from moldau_broker.server.share.core.runs import Run
from moldau_broker.server.share.core.share_partition import SharePartition
from moldau_broker.server.share.core.values import NO_EFFECTS, AcquiredRange, Effects, RecordState
from moldau_broker.server.share.dead_letters import origin
from moldau_broker.server.share.dead_letters.letters import Found, find_records
from moldau_broker.server.share.dead_letters.writer import DeadLetterWriter
from moldau_broker.server.share.share_partition_manager import SharePartitionManager

if TYPE_CHECKING:
    from moldau.share import ShareRecord
    from moldau_broker.server.share.core.values import DeadLetters, Persist
    from moldau_broker.server.share.dead_letters.writer import DeadLetterSource
    from moldau_broker.server.share.led_partition import LedPartition
    from moldau_jepsen.planted_bug import Patch


def share_acquires_acquired() -> list[Patch]:
    """A record is delivered to a second member while the first still holds it, and the first may acknowledge it."""

    def is_acquirable(self: Run) -> bool:
        return self.state in (RecordState.AVAILABLE, RecordState.ACQUIRED) and self.change is None

    def is_held_by(self: Run, member: str) -> bool:
        return self.state is RecordState.ACQUIRED and self.change is None

    return [(Run, "is_acquirable", property(is_acquirable)), (Run, "is_held_by", is_held_by)]


def share_any_member_acknowledges() -> list[Patch]:
    """A member whose lock has expired acknowledges a record that another member holds now."""

    def is_held_by(self: Run, member: str) -> bool:
        return self.state is RecordState.ACQUIRED and self.change is None

    return [(Run, "is_held_by", is_held_by)]


def share_state_not_written() -> list[Patch]:
    """Acknowledgements are answered without being stored."""

    async def write(self: SharePartitionManager, led: LedPartition, core: SharePartition, write: Persist) -> None:
        self._perform(led, core.persisted(ErrorCode.NONE))

    return [(SharePartitionManager, "_write", write)]


def share_delivery_count_kept() -> list[Patch]:
    """Each delivery counts as the first."""
    acquire = SharePartition.acquire

    def forgetful(self: SharePartition, *arguments: object, **options: object) -> tuple[AcquiredRange, ...]:
        ranges = acquire(self, *arguments, **options)  # type: ignore[arg-type]
        for run in self._runs.runs:
            run.delivery_count = min(run.delivery_count, 1)
        return tuple(AcquiredRange(each.first, each.last, 1) for each in ranges)

    return [(SharePartition, "acquire", forgetful)]


def share_released_is_done() -> list[Patch]:
    """The start offset passes records that were released."""

    def is_terminal(self: Run) -> bool:
        return self.state.is_terminal or (self.state is RecordState.AVAILABLE and self.delivery_count > 0)

    return [(Run, "is_terminal", property(is_terminal))]


def share_lock_never_expires() -> list[Patch]:
    """Records of a member that does not answer stay with it for ever, also when its session ends."""

    def on_timer(self: SharePartition, now_ms: float) -> Effects:
        return NO_EFFECTS

    def release(self: SharePartitionManager, key: tuple[str, str]) -> list[object]:
        return []

    return [
        (SharePartition, "on_timer", on_timer),
        (SharePartition, "next_deadline_ms", lambda self: None),
        (SharePartitionManager, "release", release),
    ]


def dead_letters_not_written() -> list[Patch]:
    """Records that are given up are archived without a dead letter."""

    async def write(self: DeadLetterWriter, origin: DeadLetterSource, letters: DeadLetters, since_ms: float) -> bool:
        return True

    return [(DeadLetterWriter, "write", write)]


def dead_letters_of_the_next_record() -> list[Patch]:
    """A dead letter copies the record behind the one that it names."""
    find = find_records

    def shifted(data: bytes, first: int, end: int, bytes_max: int) -> Found:
        records, reached = find(data, first, end + 1, bytes_max)
        return Found({offset - 1: record for offset, record in records.items()}, min(reached, end))

    return [(origin, "find_records", shifted)]


def share_values_exchanged() -> list[Patch]:
    """A member gets the first record's value with the second one's offset, and the other way round."""
    take = ShareConsumer._take

    async def exchanged(self: ShareConsumer[bytes, bytes], limit: int) -> list[ShareRecord[bytes, bytes]]:
        found = await take(self, limit)
        if len(found) > 1:
            one, two = found[:2]
            found[:2] = [one._replace(value=two.value), two._replace(value=one.value)]
        return found

    return [(ShareConsumer, "_take", exchanged)]
