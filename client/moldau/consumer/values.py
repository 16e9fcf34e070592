"""What the consumer hands out, and small helpers of its configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.cluster.metadata import TopicPartition

if TYPE_CHECKING:
    from moldau.records import Columns, Record

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None]]
"""Told about partitions that a rebalance gives or takes."""

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedBatch:
    """Records of one partition, in order. ``next_offset`` is the position behind them."""

    topic: str
    partition: int
    records: list[Record]
    next_offset: int
    leader_epoch: int
    high_watermark: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedColumns:
    """Records of one partition as columns in Arrow's layout (see ``moldau.records.columns``)."""

    topic: str
    partition: int
    columns: Columns
    next_offset: int
    high_watermark: int


def duration_ms(text: str) -> int:
    """Parses an ISO 8601 duration of days, hours, minutes and seconds. Raises ``ValueError``."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no duration such as P1D or PT1H30M")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
