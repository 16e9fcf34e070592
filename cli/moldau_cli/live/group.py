"""``moldau groups describe --watch``: the lag of a group again and again, with rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli import output
from moldau_cli.errors import CommandError
from moldau_cli.live.collecting import ANSWER_S
from moldau_cli.live.core.rates import Meter, seconds_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


class Taken(NamedTuple):
    """When brokers answered with the offsets of a look, in seconds of trio's clock: one of the brokers may be slow."""

    committed_s: float
    """The time of all committed offsets: the coordinator has them."""
    ends_s: Mapping[tuple[str, int], float]
    """The times of log end offsets, by topic and partition: each leader has its own."""


class Look(NamedTuple):
    """The state of a group at one time."""

    headline: str
    document: Mapping[str, output.Json]
    """The same for JSON, as ``groups describe`` without ``--watch`` shows it."""
    rows: list[dict[str, output.Json]]
    """The partitions, without rates."""
    taken: Taken


COLUMNS: Final = [
    *("topic", "partition", "offset", "log_end_offset", "lag"),
    *("consumed_per_s", "produced_per_s", "seconds_left", "member"),
]


class GroupRates:
    """Adds rates to the rows of ``groups describe``."""

    def __init__(self) -> None:
        self._consumed: Meter[tuple[Any, Any]] = Meter()
        self._produced: Meter[tuple[Any, Any]] = Meter()

    def rows(self, rows: list[dict[str, output.Json]], taken: Taken) -> list[dict[str, output.Json]]:
        """Returns the rows with rates per second, and how long the group needs to catch up."""
        now_ms = taken.committed_s * 1000
        ends_ms = {place: at_s * 1000 for place, at_s in taken.ends_s.items()}
        consumed = self._consumed.rates(_counters(rows, "offset"), now_ms)
        produced = self._produced.rates(_counters(rows, "log_end_offset"), now_ms, ends_ms)
        found = []
        for row in rows:
            key = (row["topic"], row["partition"])
            lag = row["lag"]
            left = seconds_left(lag if isinstance(lag, int) else None, consumed[key], produced[key])
            found.append(
                {
                    **row,
                    "consumed_per_s": _rounded(consumed[key]),
                    "produced_per_s": _rounded(produced[key]),
                    "seconds_left": None if left is None else round(left),
                }
            )
        return found


def _counters(rows: list[dict[str, output.Json]], name: str) -> dict[tuple[Any, Any], float | None]:
    values: Mapping[tuple[Any, Any], Any] = {(row["topic"], row["partition"]): row[name] for row in rows}
    return dict(values)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


async def watch(look: Callable[[], Awaitable[Look]], every_s: float, times: int | None) -> None:
    """Writes a headline and the rows with rates every ``every_s`` seconds, ``times`` times or until it is cancelled.

    A look that fails is named with its reason, and the next one follows, as in ``moldau top``.

    Raises:
        KafkaError: the first look failed.
        CommandError: the first look found no such group.
    """
    rates, shown = GroupRates(), 0
    last: Look | None = None
    seen_s, limit_s = trio.current_time(), math.inf  # the first look waits as all commands do, and has its reasons
    while times is None or shown < times:
        began_s = trio.current_time()
        try:
            last = await _within(limit_s, look)
        except (KafkaError, CommandError) as error:
            if last is None:
                raise
            _write_past(last, trio.current_time() - seen_s, error)
        else:
            seen_s, limit_s = began_s, max(ANSWER_S, 3 * (trio.current_time() - began_s))
            rows = rates.rows(last.rows, last.taken)
            if output.wants_json():
                output.answer({**last.document, "partitions": list(rows), "silent_s": 0.0}, "")
            else:
                output.write_line(last.headline)
                output.answer_rows("partitions", COLUMNS, rows)
        shown += 1
        if times is None or shown < times:
            await trio.sleep_until(began_s + every_s)


async def _within(limit_s: float, look: Callable[[], Awaitable[Look]]) -> Look:
    try:
        with trio.fail_after(limit_s):
            return await look()
    except trio.TooSlowError as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no broker answered within {limit_s:.0f} s") from error


def _write_past(last: Look, silent_s: float, error: KafkaError | CommandError) -> None:
    """Writes that a look failed, and what was true before."""
    if isinstance(error, KafkaError):
        text = f"NO ANSWER for {silent_s:.0f} s ({error.message}); before: {last.headline}"
    else:
        text = f"{error}; {silent_s:.0f} s before: {last.headline}"
    if output.wants_json():
        output.note(text)
    output.answer({**last.document, "partitions": list(last.rows), "silent_s": round(silent_s, 1)}, text)
