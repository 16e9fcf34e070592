"""Asks for parts of a page that may be missing: each gets a short time, and the page says what did not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

from moldau.admin import EARLIEST, LATEST
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.inspection import ask_quorum
from moldau_cli.operations import partial

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import LogDirDescription, TopicDescription
    from moldau_cli.operations.partial import Offsets

T = TypeVar("T")

PART_TIMEOUT_S: Final = 2.0
OFFSETS_S: Final = 1.8
"""Less than ``PART_TIMEOUT_S``: the offsets that came in time are in the answer of a call that ends by itself."""
ROWS_MAX: Final = 500
"""Rows of a table in one answer. The page names the total, and offers a filter."""
REQUESTS_AT_ONCE: Final = 8

Partition = tuple[str, int]


NO_LEADER: Final = (
    "the brokers reach no controller that leads the quorum, and only one that leads knows this: start controllers "
    "until a majority runs that has its data"
)


class Notes:
    """Sentences about what a page lacks. Each appears once, in order."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Adds a sentence that is not there already."""
        if text not in self.texts:
            self.texts.append(text)


async def ask_each(asked: Iterable[tuple[str, Callable[[], Awaitable[T]]]], notes: Notes) -> dict[str, T]:
    """Runs named calls side by side and returns the answers; a call that fails or is late leaves a note."""
    found: dict[str, T] = {}
    missing: dict[str, str] = {}
    limit = trio.CapacityLimiter(REQUESTS_AT_ONCE)

    async def one(name: str, call: Callable[[], Awaitable[T]]) -> None:
        async with limit:
            try:
                with trio.fail_after(PART_TIMEOUT_S):
                    found[name] = await call()
            except trio.TooSlowError:
                missing[name] = f"no answer within {PART_TIMEOUT_S:g} s"
            except KafkaError as error:
                missing[name] = f"{error.message} ({error.code.name})"

    wanted = list(asked)
    async with trio.open_nursery() as nursery:
        for name, call in wanted:
            nursery.start_soon(one, name, call)
    for name in (each for each, _ in wanted if each in missing):
        notes.add(f"{name}: {missing[name]}")
    return found


async def ask_controller(quorum_admin: Admin, call: Callable[[], Awaitable[T]]) -> T:
    """Returns the answer of ``call``, which brokers hold until a controller leads.

    Raises:
        KafkaError: as ``call``; if it got no answer because no controller leads, the text says so.
    """
    try:
        return await call()
    except KafkaError as error:
        if error.code is not ErrorCode.REQUEST_TIMED_OUT or (await ask_quorum(quorum_admin)).leader_id >= 0:
            raise
        raise KafkaError(error.code, NO_LEADER) from error


def led_partitions(topics: Mapping[str, TopicDescription]) -> dict[int, list[Partition]]:
    """Returns the partitions that have a leader, by leader."""
    led: dict[int, list[Partition]] = {}
    for name, topic in topics.items():
        for part in topic.partitions:
            if part.leader >= 0:
                led.setdefault(part.leader, []).append((name, part.partition))
    return led


async def ask_offsets(
    admin: Admin, partitions: Mapping[int, Sequence[Partition]], when: int, notes: Notes
) -> dict[Partition, int]:
    """Returns an offset of each partition; each leader is asked by itself, so that a dead one hides only its own."""

    def call(wanted: Sequence[Partition]) -> Callable[[], Awaitable[Offsets]]:
        asked = {TopicPartition(*place): when for place in wanted}
        return lambda: partial.ask_offsets(admin, asked, within_s=OFFSETS_S)

    asked = [(f"offsets of broker {leader}", call(wanted)) for leader, wanted in sorted(partitions.items())]
    answers = await ask_each(asked, notes)
    for name, answer in answers.items():
        if answer.failures:
            notes.add(f"{name}: {partial.summarize_failures(answer.failures)}")
    return {
        (place.topic, place.partition): offset
        for answer in answers.values()
        for place, (offset, _) in answer.found.items()
    }


async def ask_ends(
    admin: Admin, topics: Mapping[str, TopicDescription], notes: Notes
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Returns the log start offsets and the high watermarks of all partitions whose leaders answer."""
    led = led_partitions(topics)
    begins = await ask_offsets(admin, led, EARLIEST, notes)
    ends = await ask_offsets(admin, led, LATEST, notes)
    return begins, ends


async def ask_log_dirs(admin: Admin, brokers: Iterable[int], notes: Notes) -> dict[int, list[LogDirDescription]]:
    """Returns the log directories of the brokers that answer."""

    def call(broker: int) -> Callable[[], Awaitable[list[LogDirDescription]]]:
        async def ask() -> list[LogDirDescription]:
            return (await admin.describe_log_dirs([broker]))[broker]

        return ask

    answers = await ask_each([(f"log directories of broker {one}", call(one)) for one in sorted(brokers)], notes)
    return {int(name.rpartition(" ")[2]): found for name, found in answers.items()}


def leader_sizes(
    topics: Mapping[str, TopicDescription], log_dirs: Mapping[int, Sequence[LogDirDescription]]
) -> dict[Partition, int]:
    """Returns the bytes of each partition on its leader."""
    held = {
        (broker, part.topic_partition.topic, part.topic_partition.partition): part.size_bytes
        for broker, directories in log_dirs.items()
        for directory in directories
        for part in directory.partitions
        if not part.is_future
    }
    return {
        (name, part.partition): held[part.leader, name, part.partition]
        for name, topic in topics.items()
        for part in topic.partitions
        if (part.leader, name, part.partition) in held
    }
