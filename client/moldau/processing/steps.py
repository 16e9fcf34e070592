"""Common parts of the processors of the three faces: their settings, and the way of a failed record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from inspect import isasyncgenfunction, isawaitable, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Final

from moldau.cluster.arguments import is_coroutine_function, milliseconds, shown
from moldau.processing.core.retry_topics import without_error_text
from moldau.processing.core.work import Work
from moldau.producer.core.splitting import TOO_LARGE
from moldau.protocol.errors import KafkaError
from moldau.runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from moldau.processing.core.retry_topics import RetryTopics
    from moldau.producer import OutputRecord

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
        ConfigError: the consumer commits by itself, or has no group.
        TypeError: retries and producer are not given together.
        ValueError: a number or the order is not allowed.
    """
    if consumer.commits_automatically:
        raise ConfigError(["enable.auto.commit: must be false for process, which commits what it has processed"])
    consumer.group_metadata()  # without a group the first commit would fail, after records were processed
    if (retries is None) != (producer is None):
        raise TypeError("process: retries needs the producer that sends failed records, and the producer needs retries")
    work = Work(concurrency=concurrency, order=order, pending_max=pending_max)
    return Plan(work, milliseconds("process", commit_interval_ms, "commit_interval_ms"), retries)


class HandlerError(TypeError):
    """Reports that an event loop cannot wait for a handler; this says nothing about the record."""


def awaitable(answer: object) -> Awaitable[object]:
    """Returns what a handler of an event loop returns.

    Raises:
        HandlerError: it cannot be awaited.
    """
    if not isawaitable(answer):
        text = "an ordinary function belongs to moldau.blocking.process"
        raise HandlerError(f"process: the handler must be a coroutine function; {text}")
    return answer


def check_handler(handler: object) -> None:
    """Refuses a handler whose call runs none of its code in a thread: its records would count as processed.

    Raises:
        TypeError: it is no function, or a coroutine function or a generator function.
    """
    if not callable(handler):
        raise TypeError(f"process: the handler must be a function, not {shown(handler)}")
    if is_coroutine_function(handler):
        raise TypeError(
            "process: the handler is a coroutine function, which no thread awaits; write it with def, "
            "or use moldau.aio.process or moldau.processing.process"
        )
    if isgeneratorfunction(handler) or isasyncgenfunction(handler):
        raise TypeError("process: the handler has a yield, so that a call of it runs nothing; write it without")


def shorter(output: OutputRecord[Any, Any], error: KafkaError) -> OutputRecord[Any, Any]:
    """Returns a failed record with less in its headers, after ``error`` has refused it.

    A record that was written under the same limits has no room for long headers. ``process`` would end with it again at
    each start.

    Raises:
        KafkaError: ``error``, unless the record was too large.
    """
    if error.code not in TOO_LARGE:
        raise error
    return without_error_text(output)


def no_room(output: OutputRecord[Any, Any], error: KafkaError) -> KafkaError:
    """Returns the error of a failed record that is refused in its shortest form too."""
    if error.code not in TOO_LARGE:
        return error
    text = f"{output.topic}: the failed record does not fit with the headers that say where it comes from ({error})"
    return KafkaError(error.code, f"{text}; raise max.request.size of the producer and max.message.bytes of the topic")


def wall_ms() -> int:
    """Returns the time in milliseconds since the Unix epoch, with which the due times of retry topics are compared."""
    return int(time.time() * 1000)
