"""``moldau groups describe --watch``: the lag of a group again and again, with rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau_cli import output
from moldau_cli.live.core.rates import Meter, seconds_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

COLUMNS: Final = [
    *("topic", "partition", "offset", "log_end_offset", "lag"),
    *("consumed_per_s", "produced_per_s", "seconds_left", "member"),
]


class GroupRates:
    """Adds rates to the rows of ``groups describe``."""

    def __init__(self) -> None:
        self._consumed: Meter[tuple[Any, Any]] = Meter()
        self._produced: Meter[tuple[Any, Any]] = Meter()

    def rows(self, rows: list[dict[str, output.Json]], now_ms: float) -> list[dict[str, output.Json]]:
        """Returns the rows with rates per second, and how long the group needs to catch up."""
        consumed = self._consumed.rates(_counters(rows, "offset"), now_ms)
        produced = self._produced.rates(_counters(rows, "log_end_offset"), now_ms)
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


async def watch(
    look: Callable[[], Awaitable[tuple[str, list[dict[str, output.Json]]]]], every_s: float, times: int | None
) -> None:
    """Writes a headline and the rows with rates every ``every_s`` seconds, ``times`` times or until it is cancelled."""
    rates, shown = GroupRates(), 0
    while times is None or shown < times:
        began_ms = trio.current_time() * 1000
        headline, rows = await look()
        rows = rates.rows(rows, began_ms)
        if output.wants_json():
            output.answer({"group": headline, "partitions": list(rows)}, "")
        else:
            output.write_line(headline)
            output.answer_rows("partitions", COLUMNS, rows)
        shown += 1
        if times is None or shown < times:
            await trio.sleep_until(began_ms / 1000 + every_s)
