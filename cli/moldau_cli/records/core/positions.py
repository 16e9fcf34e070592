"""Where ``moldau consume`` begins and ends in each partition. Pure.

Positions are kcat's: ``beginning``, ``end``, ``stored``, an offset, ``-100`` for the last 100 records of each
partition, ``s@TIME`` and ``e@TIME``; and rpk's: ``+100`` skips the first 100 records of each partition, and
in ``10:20``, ``10:``, ``:20``, ``10:end`` and ``:end`` the end is exclusive.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from moldau_cli.errors import UsageError
from moldau_cli.plans.offsets import parse_duration_ms, parse_time_ms
from moldau_cli.words import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import TopicPartition

_WORDS: Final = {
    "beginning": "earliest",
    "earliest": "earliest",
    "start": "earliest",
    "end": "latest",
    "latest": "latest",
    "stored": "stored",
}
_RANGE: Final = re.compile(r"(\d*):(\d*|end)")


class Origin(enum.StrEnum):
    """The kinds of beginnings."""

    EARLIEST = "earliest"
    LATEST = "latest"
    STORED = "stored"
    OFFSET = "offset"
    LAST = "last"
    SKIP = "skip"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The range to read of each partition.

    ``number`` belongs to OFFSET (the offset), LAST and SKIP (counts of records) and TIME (milliseconds). The ends are
    exclusive: an offset, a time, and the end of the log when the command began, which limits the others.
    """

    origin: Origin = Origin.LATEST
    number: int = 0
    to_offset: int | None = None
    to_time_ms: int | None = None
    to_end: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether reading ends by itself."""
        return self.to_end or self.to_offset is not None or self.to_time_ms is not None

    @property
    def from_time_ms(self) -> int | None:
        """The time of the first record to read, if there is one."""
        return self.number if self.origin is Origin.TIME else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """The offsets of a partition's log: its log start offset, and its exclusive end."""

    begin: int
    end: int


def parse_when_ms(text: str, now_ms: int, option: str) -> int:
    """Parses a time, or a duration before now such as ``1h30m`` or ``-1h30m``; returns Unix milliseconds from 0 on.

    Raises:
        UsageError: the text is neither.
    """
    try:
        return max(0, parse_time_ms(text))
    except UsageError as error:
        try:
            return max(0, now_ms - parse_duration_ms(text.removeprefix("-")))
        except UsageError:
            raise UsageError(f"{option}: {error}, or a duration before now such as 1h30m") from None


def parse_span(words: Sequence[str], now_ms: int, *, default: Origin) -> Span:
    """Parses the values of ``--offset``; without a beginning the span has ``default``.

    Raises:
        UsageError: a word has another form, or two words name a beginning, or an end.
    """
    span = Span(origin=default)
    has_start = has_stop = False
    for word in words:
        start, stop = _parse_word(word, now_ms)
        if (start is not None and has_start) or (stop is not None and has_stop):
            raise UsageError("--offset: give one beginning and one end")
        if start is not None:
            span, has_start = replace(span, origin=start.origin, number=start.number), True
        if stop is not None:
            span = replace(span, to_offset=stop.to_offset, to_time_ms=stop.to_time_ms, to_end=stop.to_end)
            has_stop = True
    return span


def _parse_word(word: str, now_ms: int) -> tuple[Span | None, Span | None]:
    """Returns the beginning and the end that a word names."""
    if word in _WORDS:
        return Span(origin=Origin(_WORDS[word])), None
    if is_number(word):
        return Span(origin=Origin.OFFSET, number=int(word)), None
    if word[:1] in ("-", "+") and is_number(word[1:]):
        return Span(origin=Origin.LAST if word[0] == "-" else Origin.SKIP, number=int(word[1:])), None
    if word.startswith("s@"):
        return Span(origin=Origin.TIME, number=parse_when_ms(word[2:], now_ms, "--offset s@")), None
    if word.startswith("e@"):
        return None, Span(to_time_ms=parse_when_ms(word[2:], now_ms, "--offset e@"))
    found = _RANGE.fullmatch(word)
    if found is not None and word != ":":
        return _parse_range(found[1], found[2], word)
    raise _unknown(word)


def _parse_range(begin: str, end: str, word: str) -> tuple[Span, Span | None]:
    """Returns the beginning and the end of ``begin:end``; one of them may be missing."""
    if not all(is_number(text) for text in (begin, end) if text not in ("", "end")):
        raise _unknown(word)
    start = Span(origin=Origin.OFFSET, number=int(begin)) if begin else Span(origin=Origin.EARLIEST)
    if end.isdecimal() and int(end) < start.number:
        raise _unknown(word)
    if not end:
        return start, None
    return start, Span(to_end=True) if end == "end" else Span(to_offset=int(end))


def _unknown(word: str) -> UsageError:
    return UsageError(
        f"--offset: expected beginning, end, stored, an offset, -N, +N, FROM:TO, s@TIME or e@TIME, not {word!r}"
    )


def starts(
    span: Span, logs: Mapping[TopicPartition, LogRange], times: Mapping[TopicPartition, int], *, within: bool = True
) -> dict[TopicPartition, int]:
    """Returns the first offset to read of each partition.

    With ``within``, an offset outside a log is moved to its nearest end. ``times`` holds the offset of the first record
    at the beginning's time, -1 where there is none. A span that begins at ``stored`` has no starts: the group's
    committed offsets decide.
    """
    found: dict[TopicPartition, int] = {}
    for partition, log in logs.items():
        match span.origin:
            case Origin.EARLIEST:
                found[partition] = log.begin
            case Origin.LATEST:
                found[partition] = log.end
            case Origin.OFFSET:
                found[partition] = min(max(span.number, log.begin), log.end) if within else span.number
            case Origin.LAST:
                found[partition] = max(log.begin, log.end - span.number)
            case Origin.SKIP:
                found[partition] = min(log.begin + span.number, log.end)
            case Origin.TIME:
                at = times.get(partition, -1)
                found[partition] = at if at >= 0 else log.end
            case Origin.STORED:
                continue
    return found


def stops(
    span: Span, logs: Mapping[TopicPartition, LogRange], times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Returns the exclusive end of each partition; empty if the span has none.

    ``times`` holds the offset of the first record at the end's time. No end lies behind the present end of a log, so
    bounded reading always ends.
    """
    if not span.is_bounded:
        return {}
    found: dict[TopicPartition, int] = {}
    for partition, log in logs.items():
        ends = [log.end]
        if span.to_offset is not None:
            ends.append(span.to_offset)
        if span.to_time_ms is not None and times.get(partition, -1) >= 0:
            ends.append(times[partition])
        found[partition] = min(ends)
    return found
