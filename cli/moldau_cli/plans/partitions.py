"""Filters of partitions by the state of their replicas, and assignments of replicas in Kafka's notation. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from moldau_cli.errors import UsageError
from moldau_cli.words import is_number

if TYPE_CHECKING:
    from collections.abc import Collection

    from moldau.admin import PartitionDescription


class Trouble(enum.StrEnum):
    """The filters of ``kafka-topics --describe``."""

    UNDER_REPLICATED = "under-replicated-partitions"
    UNDER_MIN_ISR = "under-min-isr-partitions"
    AT_MIN_ISR = "at-min-isr-partitions"
    UNAVAILABLE = "unavailable-partitions"


def has_trouble(
    part: PartitionDescription, trouble: Trouble, *, min_isr: int, adding: int, brokers: Collection[int]
) -> bool:
    """Returns whether a filter keeps a partition.

    ``min_isr`` is the topic's min.insync.replicas. ``adding`` counts replicas that a reassignment is adding: they need
    not be in sync yet. ``brokers`` are the live ones; a leader outside them does not serve.
    """
    match trouble:
        case Trouble.UNDER_REPLICATED:
            return len(part.isr) < len(part.replicas) - adding
        case Trouble.UNDER_MIN_ISR:
            return len(part.isr) < min_isr
        case Trouble.AT_MIN_ISR:
            return len(part.isr) == min_isr
        case Trouble.UNAVAILABLE:
            return part.leader < 0 or part.leader not in brokers


def parse_assignment(text: str, first: int = 0) -> dict[int, list[int]]:
    """Parses ``1:2,2:3``: the brokers of each partition, from partition ``first`` on; the first broker is preferred.

    Raises:
        UsageError: the text has another form, names a broker twice, or partitions have different counts.
    """
    wrong = UsageError(f"--replica-assignment: expected brokers as 1:2,2:3, not {text!r}")
    found: dict[int, list[int]] = {}
    for number, words in enumerate(text.replace(" ", "").split(","), first):
        brokers = words.split(":")
        if not all(map(is_number, brokers)):
            raise wrong
        found[number] = [int(broker) for broker in brokers]
        if len(set(found[number])) != len(brokers):
            raise UsageError(f"--replica-assignment: partition {number} names a broker twice")
        if len(brokers) != len(found[first]):
            raise UsageError("--replica-assignment: all partitions need the same number of replicas")
    return found
