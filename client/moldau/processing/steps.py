"""Common parts of the processors of the three faces: their settings, and the way of a failed record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.cluster.arguments import milliseconds
from moldau.processing.core.work import Work
from moldau.runtime.config import ConfigError

if TYPE_CHECKING:
    from moldau.processing.core.retry_topics import RetryTopics

POLL_MS: Final = 100.0
"""How long a processor waits in one poll: so long may a paused partition or a due record wait longer than it must."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The checked settings of a processor."""

    work: Work
    commit_interval_ms: float
    retries: RetryTopics | None


def plan_of(
    *,
    consumer: Any,  # noqa: ANN401 - the consumer of any face
    producer: object,
    retries: RetryTopics | None,
    concurrency: int,
    order: str,
    pending_max: int,
    commit_interval_ms: float,
) -> Plan:
    """Returns the checked settings.

    Raises:
        ConfigError: the consumer commits by itself.
        TypeError: retries and producer are not given together.
        ValueError: a number or the order is not allowed.
    """
    if consumer.commits_automatically:
        raise ConfigError(["enable.auto.commit: must be false for process, which commits what it has processed"])
    if (retries is None) != (producer is None):
        raise TypeError("process: retries needs the producer that sends failed records, and the producer needs retries")
    work = Work(concurrency=concurrency, order=order, pending_max=pending_max)
    return Plan(work, milliseconds("process", commit_interval_ms, "commit_interval_ms"), retries)


def wall_ms() -> int:
    """Returns the time in milliseconds since the Unix epoch, with which the due times of retry topics are compared."""
    return int(time.time() * 1000)
