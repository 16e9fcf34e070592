"""Retry topics and dead letters: where a record goes whose processing failed, and what its headers say. Pure.

    orders             the topic; its consumers must not wait for one record
    orders.retry.1     records that failed once; consumers process them after the first delay
    orders.retry.2     records that failed twice; after the second delay
    orders.dead        records that failed each time, or whose bytes cannot be deserialized

The record keeps key, value and headers. Added headers say where it comes from, how often it failed, why, and when it is
due. A retry topic has one delay, so its records are due in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.cluster import arguments
from moldau.cluster.troubles import check_topic_names
from moldau.producer.core.output import OutputRecord
from moldau.serialization.core.values import RecordDeserializationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.consumer.core.values import ConsumedRecord
    from moldau.values import Buffer

PREFIX: Final = "__moldau.retry."
TOPIC: Final = PREFIX + "topic"
PARTITION: Final = PREFIX + "partition"
OFFSET: Final = PREFIX + "offset"
ATTEMPTS: Final = PREFIX + "attempts"
DUE: Final = PREFIX + "due.ms"
ERROR: Final = PREFIX + "error"
ERROR_CHARACTERS_MAX: Final = 1000

Headers = tuple[tuple[str, "bytes | None"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The content of the headers of a record in a retry topic or among the dead letters.

    ``topic``, ``partition`` and ``offset`` are those of the record that failed first, ``attempts`` counts failures,
    ``due_ms`` is in milliseconds since the Unix epoch and None for a dead letter, ``error`` is the last error's text.
    """

    topic: str
    partition: int
    offset: int
    attempts: int
    due_ms: int | None
    error: str


class RetryTopics:
    """The retry topics and the dead letters of one topic."""

    def __init__(
        self,
        topic: str,
        delays_ms: Sequence[int] = (),
        *,
        dead_letters: str | None = None,
        not_retried: tuple[type[Exception], ...] = (),
    ) -> None:
        """Takes a delay for each retry; without delays each failed record is a dead letter at once.

        ``not_retried`` are errors that another attempt cannot change. ``dead_letters`` is by default ``TOPIC.dead``.

        Raises:
            TypeError: an argument is of a wrong type.
            ValueError: a delay is negative, or the dead letters go to a topic whose records are processed.
            InvalidTopicError: the topic, or the name of a retry topic or of the dead letters, is no name of a topic.
        """
        self.topic = arguments.text("RetryTopics", "topic", topic)
        self.delays_ms = tuple(
            arguments.at_least("RetryTopics", "each of delays_ms", delay, 0)
            for delay in arguments.elements(
                "RetryTopics", "delays_ms", "a list of int such as [1000, 60000]", delays_ms
            )
        )
        self.retries = tuple(f"{topic}.retry.{number}" for number in range(1, len(self.delays_ms) + 1))
        default = f"{topic}.dead"
        self.dead_letters = arguments.text(
            "RetryTopics", "dead_letters", default if dead_letters is None else dead_letters
        )
        check_topic_names([*self.topics, self.dead_letters])
        if self.dead_letters in self.topics:
            raise arguments.ArgumentValueError(
                f"RetryTopics: dead_letters is {self.dead_letters}, whose records are processed: "
                "each dead letter would come back and fail again without end"
            )
        self._not_retried: tuple[type[Exception], ...] = (RecordDeserializationError, *not_retried)

    @property
    def topics(self) -> list[str]:
        """The topics to subscribe to: the topic and its retries."""
        return [self.topic, *self.retries]

    def failed(
        self, record: ConsumedRecord[Any, Any] | RecordDeserializationError, error: BaseException, now_ms: int
    ) -> OutputRecord[Any, Any]:
        """Returns the record to send for one whose processing raised ``error``.

        A record that could not be deserialized is given as its error, and the output holds its bytes (``send_bytes``).
        Earlier failures count in the retry topics and the dead letters; elsewhere this one is the record's first.
        ``now_ms`` is in milliseconds since the Unix epoch.
        """
        if isinstance(record, RecordDeserializationError):
            topic, partition = record.topic_partition
        else:
            topic, partition = record.topic, record.partition
        # Elsewhere the headers tell of failures that are over: of a dead letter that was sent back, or of an input
        # whose headers a handler copied to its output.
        earlier = failure_of(record.headers) if topic in (*self.retries, self.dead_letters) else None
        attempts = 1 if earlier is None else earlier.attempts + 1
        target, due_ms = self.dead_letters, None
        if attempts <= len(self.retries) and not isinstance(error, self._not_retried):
            target, due_ms = self.retries[attempts - 1], now_ms + self.delays_ms[attempts - 1]
        failure = Failure(
            topic=topic if earlier is None else earlier.topic,
            partition=partition if earlier is None else earlier.partition,
            offset=record.offset if earlier is None else earlier.offset,
            attempts=attempts,
            due_ms=due_ms,
            error=f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX],
        )
        return OutputRecord(target, record.value, record.key, _with_failure(record.headers, failure))


def without_error_text(output: OutputRecord[Any, Any]) -> OutputRecord[Any, Any]:
    """Returns the record that ``RetryTopics.failed`` made with the error's type alone, for one that is too large."""
    headers = tuple(
        (name, bytes(value).partition(b":")[0] if name == ERROR and value is not None else value)
        for name, value in output.headers
    )
    return output._replace(headers=headers)


def failure_of(headers: Iterable[tuple[str, Buffer | None]]) -> Failure | None:
    """Returns what the headers say, None for a record that has not failed, or whose headers are damaged."""
    found = {name: bytes(value) for name, value in headers if name.startswith(PREFIX) and value is not None}
    try:
        return Failure(
            topic=found[TOPIC].decode(),
            partition=int(found[PARTITION]),
            offset=int(found[OFFSET]),
            attempts=int(found[ATTEMPTS]),
            due_ms=int(found[DUE]) if DUE in found else None,
            error=found[ERROR].decode(),
        )
    except (KeyError, ValueError):
        return None


def _with_failure(headers: Headers, failure: Failure) -> Headers:
    added = [
        (TOPIC, failure.topic.encode()),
        (PARTITION, b"%d" % failure.partition),
        (OFFSET, b"%d" % failure.offset),
        (ATTEMPTS, b"%d" % failure.attempts),
        # An error may quote a record's text, which need not be valid Unicode: JSON may hold half of a surrogate pair.
        (ERROR, failure.error.encode(errors="backslashreplace")),
    ]
    if failure.due_ms is not None:
        added.append((DUE, b"%d" % failure.due_ms))
    return (*(each for each in headers if not each[0].startswith(PREFIX)), *added)
