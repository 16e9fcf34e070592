"""Filters that Spark hands to a batch query before it is planned: which partitions and offsets they leave.

Only what a log answers without reading records is used: the topic, the partition, the offset, and an earliest
timestamp. Records of a log are in the order of their offsets, and not of their timestamps, so a timestamp limits where
reading starts, and Spark still looks at each row. The module is pure.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter

    from pyspark_moldau.source.core.offsets import Partition

T = TypeVar("T")

NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """The records that filters leave; ``high`` is exclusive, None means no limit."""

    topics: frozenset[str] | None = None
    numbers: frozenset[int] | None = None
    low: int = 0
    high: int | None = None
    since_ms: int | None = None  # no record before the first one of this time can pass

    def admits(self, partition: Partition) -> bool:
        """Returns whether records of a partition can pass."""
        topic, number = partition
        return (self.topics is None or topic in self.topics) and (self.numbers is None or number in self.numbers)

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """Returns the part of a range of offsets that can pass."""
        low = max(start, self.low)
        return low, max(low, end if self.high is None else min(end, self.high))


def narrow(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """Returns what the filters leave, and those of them that Spark must still apply to each row."""
    left = Narrowing()
    unsupported = []
    for one in filters:
        narrower, is_exact = _narrowed(left, one)
        left = narrower
        if not is_exact:
            unsupported.append(one)
    return left, unsupported


def _narrowed(left: Narrowing, one: Filter) -> tuple[Narrowing, bool]:
    """Returns the narrowing by one more filter, and whether no row is left that the filter would drop."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    name = path[0] if len(path) == 1 else None
    if isinstance(one, IsNotNull):
        return left, name in NEVER_NULL
    value: object = getattr(one, "value", None)
    if name == "timestamp":
        return _since(left, one, value), False
    values = _values(one, value)
    if values is None:
        return (_between(left, one, value), True) if _is_limit(name, one, value) else (left, False)
    names = [each for each in values if isinstance(each, str)]
    numbers = [each for each in values if isinstance(each, int)]
    if name == "topic" and len(names) == len(values):
        return replace(left, topics=_common(names, left.topics)), True
    if len(numbers) != len(values) or not numbers:
        return left, False
    if name == "partition":
        return replace(left, numbers=_common(numbers, left.numbers)), True
    if name == "offset":
        first, last = min(numbers), max(numbers)
        limits = replace(left, low=max(left.low, first), high=_lower(left.high, last + 1))
        return limits, last - first + 1 == len(values)
    return left, False


def _values(one: Filter, value: object) -> frozenset[object] | None:
    """Returns the values of which the column must have one, None for another kind of filter."""
    if isinstance(one, EqualTo | EqualNullSafe):
        return frozenset([value])
    if isinstance(one, In):
        return frozenset(one.value)
    return None


def _common(values: Iterable[T], left: frozenset[T] | None) -> frozenset[T]:
    return frozenset(values) if left is None else left & frozenset(values)


def _is_limit(name: str | None, one: Filter, value: object) -> bool:
    kinds = GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    return name == "offset" and isinstance(one, kinds) and type(value) is int


def _between(left: Narrowing, one: Filter, value: object) -> Narrowing:
    assert isinstance(value, int), "an offset is a number"
    if isinstance(one, GreaterThan):
        return replace(left, low=max(left.low, value + 1))
    if isinstance(one, GreaterThanOrEqual):
        return replace(left, low=max(left.low, value))
    return replace(left, high=_lower(left.high, value + 1 if isinstance(one, LessThanOrEqual) else value))


def _lower(high: int | None, value: int) -> int:
    return max(0, value if high is None else min(high, value))


def _since(left: Narrowing, one: Filter, value: object) -> Narrowing:
    if not isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        return left
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return left
    # Records have milliseconds, so a time within a millisecond is later than that millisecond's records only.
    since_ms = round(value.timestamp() * 1_000_000) // 1000
    if since_ms < 0:  # a record without a timestamp has the one of the moment before 1970, and no look-up finds it
        return left
    return replace(left, since_ms=max(since_ms, left.since_ms or 0))
