"""The exactly-once proof: compares the records that a reader saw with the acknowledged ones. The module is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.reports.demo import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def tally(
    reader: str, keys: Sequence[bytes], acknowledged: bytes | bytearray, seen: Iterable[tuple[bytes | None, int]]
) -> Tally:
    """Counts lost, duplicated, unknown and disordered records of one reader.

    Args:
        reader: Its name in the report.
        keys: Key of each record, by number.
        acknowledged: One byte per record, 1 where the cluster acknowledged it.
        seen: Key and number of each record that the reader saw; records of one key in the order of the log.
    """
    times = bytearray(len(keys))
    last: dict[bytes, int] = {}
    total = unknown = disordered = duplicated = 0
    for key, number in seen:
        total += 1
        if key is None or not 0 <= number < len(keys) or keys[number] != key:
            unknown += 1
            continue
        if times[number]:
            duplicated += 1
            continue
        times[number] = 1
        if last.get(key, -1) > number:
            disordered += 1
        last[key] = number
    lost = sum(1 for wanted, found in zip(acknowledged, times, strict=True) if wanted and not found)
    return Tally(reader=reader, seen=total, lost=lost, duplicated=duplicated, unknown=unknown, disordered=disordered)
