"""OpenTelemetry: spans of producers and consumers, and the trace context in the headers of records.

    tracing = Tracing()
    Producer(config, interceptors=[tracing.producer])
    Consumer(config, interceptors=[tracing.consumer])
    with tracing.processing(record): ...

A producer's span lasts from ``send`` to the acknowledgement, and its context travels in the headers that the global
propagator writes (``traceparent``). A consumer's span covers one poll and links to the spans of its records. The span
of ``processing`` continues the trace of one record. Names and attributes are those of OpenTelemetry's semantic
conventions for messaging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.cluster.interceptors import ConsumerInterceptor, ProducerInterceptor
from moldau.version import VERSION

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError("moldau.tracing needs opentelemetry-api: pip install 'moldau[tracing]'") from error

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, Tracer, TracerProvider

    from moldau.consumer import ConsumedBatch, ConsumedRecord
    from moldau.producer import OutputRecord, RecordMetadata

__all__ = ["Tracing"]

LINKS_MAX = 128
"""Links of one span, the default limit of OpenTelemetry's SDK."""

Headers = list[tuple[str, "bytes | bytearray | memoryview | None"]]


class _HeaderSetter(Setter[Headers]):
    def set(self, carrier: Headers, key: str, value: str) -> None:
        carrier[:] = [each for each in carrier if each[0] != key]
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Any]):
    def get(self, carrier: Any, key: str) -> list[str] | None:  # noqa: ANN401 - the headers of a record
        found = [value.decode("utf-8", "replace") for name, value in carrier if name == key and value is not None]
        return found or None

    def keys(self, carrier: Any) -> list[str]:  # noqa: ANN401 - the headers of a record
        return [name for name, _ in carrier]


_EMPTY = Context()
_SETTER, _GETTER = _HeaderSetter(), _HeaderGetter()


def context_of(record: Any) -> Context:  # noqa: ANN401 - any record with headers
    """Returns the trace context that a record's headers carry; without one, the empty context."""
    return propagate.extract(record.headers, context=_EMPTY, getter=_GETTER)


class Tracing:
    """Interceptors for producers and consumers that share a tracer."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """Takes a tracer provider, by default the global one."""
        self._tracer = trace.get_tracer("moldau", VERSION, provider)
        self.producer: ProducerInterceptor = _ProducerTracing(self._tracer)
        self.consumer: ConsumerInterceptor = _ConsumerTracing(self._tracer)

    def processing(self, record: ConsumedRecord[Any, Any]) -> AbstractContextManager[Span]:
        """Opens the span of a record's processing for a block; it continues the trace of the record's producer."""
        attributes = _attributes(record.topic, "process") | {
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
        }
        return self._tracer.start_as_current_span(
            f"process {record.topic}", context=context_of(record), kind=SpanKind.CONSUMER, attributes=attributes
        )


class _ProducerTracing(ProducerInterceptor):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[int, tuple[object, Span]] = {}
        """The spans of records without an outcome, at most as many as the producer's buffer holds.

        The key is the id of the header that carries the span, which stays where an interceptor behind this one replaces
        the record; without such a header, that of the record.
        """

    def on_send(self, record: OutputRecord[Any, Any]) -> OutputRecord[Any, Any]:
        span = self._tracer.start_span(
            f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=_attributes(record.topic, "send")
        )
        headers: Headers = list(record.headers)
        given = [id(each) for each in headers]
        propagate.inject(headers, trace.set_span_in_context(span), _SETTER)
        sent = record._replace(headers=tuple(headers))
        carrier: object = headers[-1] if headers and id(headers[-1]) not in given else sent
        self._open[id(carrier)] = carrier, span
        return sent

    def on_acknowledgement(
        self, record: OutputRecord[Any, Any], metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        found = [self._open.pop(id(each)) for each in (*record.headers, record) if id(each) in self._open]
        if not found:
            return  # an interceptor behind this one has replaced the headers
        _, span = found[0]
        if metadata is not None:
            span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
            span.set_attribute("messaging.kafka.offset", metadata.offset)
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()


class _ConsumerTracing(ConsumerInterceptor):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def on_consume(self, batches: list[ConsumedBatch[Any, Any]]) -> list[ConsumedBatch[Any, Any]]:
        for batch in batches:
            contexts = (
                trace.get_current_span(context_of(record)).get_span_context() for record in batch.records[:LINKS_MAX]
            )
            span = self._tracer.start_span(
                f"poll {batch.topic}",
                context=_EMPTY,
                kind=SpanKind.CONSUMER,
                links=[Link(each) for each in contexts if each.is_valid],
                attributes=_attributes(batch.topic, "receive")
                | {
                    "messaging.destination.partition.id": str(batch.partition),
                    "messaging.batch.message_count": len(batch.records),
                },
            )
            span.end()
        return batches


def _attributes(topic: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.type": operation,
    }
