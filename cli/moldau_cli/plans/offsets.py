"""Plans of committed offsets and of deleted records: where a group continues, and the files of Kafka's tools. Pure.

A file of offsets has lines ``topic,partition,offset``, as ``kafka-consumer-groups --export`` writes them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from moldau import TopicPartition
from moldau_cli.errors import UsageError
from moldau_cli.plans.documents import BYTE_ORDER_MARK, partition_entries
from moldau_cli.words import NUMBER_MAX, is_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Offsets = dict[TopicPartition, int]

UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15}(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_SHORT_DURATION: Final = re.compile(r"(?:\d{1,15}(?:ms|[dhms]))+")
OFFSET_MAX: Final = NUMBER_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The known state of a partition: the offsets of its log, and the group's committed offset, if it has one."""

    begin: int
    end: int
    committed: int | None = None


def parse_duration_ms(text: str, option: str = "") -> int:
    """Parses ``PT1H30M`` (ISO 8601) or ``1h30m``, the value of an option.

    Raises:
        UsageError: the text has another form.
    """
    found = _ISO_DURATION.fullmatch(text)
    if found is not None and any(found.groups()) and text[-1] not in "Tt":
        days, hours, minutes, seconds = found.groups("0")
        return round((int(days) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)) * 1000)
    if _SHORT_DURATION.fullmatch(text):
        return sum(int(count) * UNITS_MS[unit] for count, unit in re.findall(r"(\d+)(ms|[dhms])", text))
    raise UsageError(f"{_of(option)}expected a duration without a sign, such as 1h30m or PT1H30M, not {text!r}")


def parse_time_ms(text: str, option: str = "") -> int:
    """Parses ``2026-03-01T12:00:00`` (UTC unless it names an offset) or Unix milliseconds, the value of an option.

    Raises:
        UsageError: the text has another form.
    """
    if is_number(text):
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        expected = "expected a time such as 2026-03-01T12:00:00 or Unix milliseconds"
        raise UsageError(f"{_of(option)}{expected}, not {text!r}") from error
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _of(option: str) -> str:
    return f"{option}: " if option else ""


def parse_topic(text: str, option: str = "--topic") -> tuple[str, list[int] | None]:
    """Parses ``topic`` or ``topic:0,1`` of an option; returns the topic, and the partitions if some are named.

    Raises:
        UsageError: a partition is not a number.
    """
    name, colon, numbers = text.partition(":")
    if not colon:
        return name, None
    words = numbers.split(",")
    if not name or not all(map(is_number, words)):
        raise UsageError(f"{option}: expected NAME or NAME:0,1, not {text!r}")
    return name, [int(word) for word in dict.fromkeys(words)]


def missing_in(partitions: Collection[TopicPartition], wanted: Iterable[tuple[str, list[int] | None]]) -> list[str]:
    """Returns the topics and partitions that are named, and not among ``partitions``, as a user names them."""
    topics = {one.topic for one in partitions}
    missing: list[str] = []
    for name, numbers in wanted:
        if name not in topics:
            missing.append(name)
            continue
        missing += [f"{name}:{number}" for number in numbers or () if TopicPartition(name, number) not in partitions]
    return missing


def shifted(partitions: Mapping[TopicPartition, Held], by: int) -> Offsets:
    """Returns each committed offset moved by ``by`` records, within the log.

    Raises:
        UsageError: the group has no committed offset of a partition.
    """
    targets: Offsets = {}
    for partition, held in partitions.items():
        if held.committed is None:
            raise UsageError(f"{partition} cannot be shifted: the group has no committed offset there")
        targets[partition] = held.committed + by
    return within_logs(targets, partitions)


def within_logs(targets: Mapping[TopicPartition, int], partitions: Mapping[TopicPartition, Held]) -> Offsets:
    """Returns each target, moved to the nearest offset that the log has or will write next."""
    return {one: min(max(at, partitions[one].begin), partitions[one].end) for one, at in targets.items()}


def write_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Returns the text of a file of offsets."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(
        [one.topic, one.partition, offset] for one, offset in sorted(offsets.items())
    )
    return written.getvalue()


def parse_offsets(text: str, origin: str) -> Offsets:
    """Parses a file of offsets; ``origin`` names it in errors.

    Raises:
        UsageError: a line has another form, or a partition is there twice.
    """
    offsets: Offsets = {}
    try:
        rows = list(csv.reader(io.StringIO(text.removeprefix(BYTE_ORDER_MARK))))
    except csv.Error as error:  # a field of more than 128 KiB
        raise UsageError(f"{origin}: expected lines topic,partition,offset: {error}") from error
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        match [word.strip() for word in row]:
            case [str(topic), str(partition), str(offset)] if topic and is_number(partition) and is_number(offset):
                where = TopicPartition(topic, int(partition))
            case _:
                raise UsageError(f"{origin}:{number}: expected topic,partition,offset, not {','.join(row)!r}")
        if where in offsets:
            raise UsageError(f"{origin}:{number}: {where} is there twice")
        offsets[where] = int(offset)
    if not offsets:
        raise UsageError(f"{origin} has no offsets")
    return offsets


def parse_deletions(text: str, origin: str) -> Offsets:
    """Parses the file of ``kafka-delete-records``; the offset -1 stands for the high watermark.

    Raises:
        UsageError: the text is not such a file.
    """
    entries = partition_entries(text, origin)
    if not entries:
        raise UsageError(f"{origin} names no partitions")
    deletions: Offsets = {}
    for entry in entries:
        match entry:
            case {"topic": str(topic), "partition": int(partition), "offset": int(offset)} if (
                partition >= 0 and -1 <= offset <= OFFSET_MAX and not {type(partition), type(offset)} & {bool}
            ):
                where = TopicPartition(topic, partition)
            case _:
                raise UsageError(f"{origin}: expected topic, partition and offset, not {json.dumps(entry)}")
        if where in deletions:
            raise UsageError(f"{origin}: {where} is there twice")
        deletions[where] = offset
    return deletions
