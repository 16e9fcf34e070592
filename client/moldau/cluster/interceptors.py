"""Interceptors of producers and consumers: what an application may implement, and how the clients call them.

As in Kafka, an exception of an interceptor is logged and changes nothing else, and so is a result that is no record and
no list of batches. Interceptors run in their order; each
receives what the one before returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.cluster.arguments import check_no_coroutine, shown
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.values import ConsumedBatch
    from moldau.producer.core.output import OutputRecord
    from moldau.producer.delivery import RecordMetadata

I = TypeVar("I")  # noqa: E741 - a type of interceptor

_logger = EventLogger("moldau.client")


class ProducerInterceptor:
    """Sees each record before it is serialized, and its outcome. Override what you need."""

    def on_send(self, record: OutputRecord[Any, Any]) -> OutputRecord[Any, Any]:
        """Returns the record to send, by default the given one; runs where ``send`` is called."""
        return record

    def on_acknowledgement(
        self, record: OutputRecord[Any, Any], metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        """Receives the record that ``on_send`` returned, with its place or its error; runs in the client's thread.

        It must return quickly: deliveries wait meanwhile.
        """


class ConsumerInterceptor:
    """Sees the records of each poll, and each commit. Override what you need. The calls run in the client's thread."""

    def on_consume(self, batches: list[ConsumedBatch[Any, Any]]) -> list[ConsumedBatch[Any, Any]]:
        """Returns the batches that reach the application, by default the given ones."""
        return batches

    def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Receives offsets after the coordinator has committed them."""


def checked(client: str, given: Iterable[I], kind: type[I]) -> tuple[I, ...]:
    """Returns the interceptors of a client.

    Raises:
        TypeError: they are no list, or one of them is of another class, or has a coroutine function, which nothing
            would await.
    """
    if not isinstance(given, Iterable):
        raise TypeError(f"{client}: interceptors must be a list of {kind.__name__}, not {shown(given)}")
    found = tuple(given)
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"{client}: each of interceptors must be a {kind.__name__}, not {shown(each)}")
        for name in vars(kind):
            if name.startswith("on_"):
                check_no_coroutine(f"{client}: {type(each).__name__}.{name}", getattr(each, name))
    return found


def on_send(interceptors: Sequence[ProducerInterceptor], record: OutputRecord[Any, Any]) -> OutputRecord[Any, Any]:
    """Returns the record to send."""
    for each in interceptors:
        record = _called(each.on_send, record, record, kind=tuple)
    return record


def on_acknowledgement(
    interceptors: Sequence[ProducerInterceptor],
    record: OutputRecord[Any, Any],
    metadata: RecordMetadata | None,
    error: BaseException | None,
) -> None:
    """Reports the outcome of a record."""
    for each in interceptors:
        _called(each.on_acknowledgement, None, record, metadata, error)


def on_consume(
    interceptors: Sequence[ConsumerInterceptor], batches: list[ConsumedBatch[Any, Any]]
) -> list[ConsumedBatch[Any, Any]]:
    """Returns the batches that reach the application."""
    for each in interceptors:
        batches = _called(each.on_consume, batches, batches, kind=Iterable, made=list)
    return batches


def on_commit(interceptors: Sequence[ConsumerInterceptor], offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Reports a commit."""
    for each in interceptors:
        _called(each.on_commit, None, offsets)


def _called(
    function: Callable[..., Any],
    otherwise: Any,  # noqa: ANN401 - of one of the calls
    *args: object,
    kind: type = object,
    made: Callable[[Any], Any] | None = None,
) -> Any:  # noqa: ANN401 - as above
    """Returns what an interceptor returns, which must be of ``kind``, as ``made`` turns it into another form."""
    try:
        found = function(*args)
        if not isinstance(found, kind):  # a return that was forgotten, for example
            raise TypeError(f"it returned {shown(found)}")
        return found if made is None else made(found)  # a generator raises only there
    except Exception as error:  # noqa: BLE001 - as in Kafka, a fault of an interceptor is logged and changes nothing
        name = getattr(function, "__qualname__", repr(function))
        _logger.error("interceptor-failed", exception=error, interceptor=name)
        return otherwise
