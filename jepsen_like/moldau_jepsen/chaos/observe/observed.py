"""Holds a run's observations of its cluster besides the clients' history, as ``run.json`` has them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau_jepsen.chaos.network.meter import BODY_BYTES_MAX, ErrorSeen
from moldau_jepsen.coverage.coverage import Coverage, MessageKind
from moldau_jepsen.coverage.rows import message_rows
from moldau_jepsen.reports.over_time import PartitionSeries, PartitionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_jepsen.chaos.network.meter import WireMeter
    from moldau_jepsen.reports.coverage import MessageRow

NO_PROXIES = "no proxies stand before the nodes"
NOT_RECORDED = "the run did not record them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Counts of messages, and partitions over time."""

    messages: Mapping[MessageKind, int] = field(default_factory=dict)
    errors: Mapping[ErrorSeen, int] = field(default_factory=dict)
    long_answers: int = 0
    unread: int = 0
    messages_missing: str = NOT_RECORDED
    """Why no messages were seen; empty if they were looked at."""
    partitions: tuple[PartitionSeries, ...] = ()

    def message_rows(self) -> tuple[MessageRow, ...]:
        """Rows of the report."""
        errors: dict[tuple[int, str], dict[str, int]] = {}
        for seen, count in sorted(self.errors.items()):
            errors.setdefault((seen.api_key, seen.server), {})[ErrorCode.of(seen.code).name] = count
        coverage = Coverage()
        coverage.messages.update(self.messages)
        return message_rows(coverage, errors)

    @property
    def hint(self) -> str:
        """Notes on the counts."""
        text = "Counted by the proxies before the nodes, in text that is not encrypted. "
        text += f"{self.long_answers:,} answers over {BODY_BYTES_MAX} bytes were not looked into for error codes."
        return text + (f" {self.unread:,} connections or answers could not be followed." if self.unread else "")


def observed(meter: WireMeter | None, partitions: tuple[PartitionSeries, ...]) -> Observed:
    """Returns the observations of a run; ``meter`` is None if no traffic passed proxies."""
    if meter is None:
        return Observed(messages_missing=NO_PROXIES, partitions=partitions)
    return Observed(
        messages=dict(meter.messages),
        errors=dict(meter.errors),
        long_answers=meter.long_answers,
        unread=meter.unread,
        messages_missing="",
        partitions=partitions,
    )


def to_json(seen: Observed) -> dict[str, object]:
    """Returns JSON values."""
    return {
        "messages": [[*kind, count] for kind, count in sorted(seen.messages.items())],
        "errors": [[*kind, count] for kind, count in sorted(seen.errors.items())],
        "long_answers": seen.long_answers,
        "unread": seen.unread,
        "messages_missing": seen.messages_missing,
        "partitions": [asdict(one) for one in seen.partitions],
    }


def from_json(document: Mapping[str, Any] | None) -> Observed:
    """Returns the inverse of ``to_json``; None for a run that recorded nothing of it."""
    if document is None:
        return Observed()
    return Observed(
        messages={MessageKind(*kind): count for *kind, count in document["messages"]},
        errors={ErrorSeen(*kind): count for *kind, count in document["errors"]},
        long_answers=document["long_answers"],
        unread=document["unread"],
        messages_missing=document["messages_missing"],
        partitions=tuple(
            PartitionSeries(
                name=one["name"],
                states=tuple(
                    PartitionState(since_s, leader, epoch, tuple(isr), replicas)
                    for since_s, leader, epoch, isr, replicas in one["states"]
                ),
                high_watermarks=tuple((at_s, offset) for at_s, offset in one["high_watermarks"]),
            )
            for one in document["partitions"]
        ),
    )
