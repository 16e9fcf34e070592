"""Goal: each record's span ends with its outcome, and the tracing keeps nothing of a record that has one.

Method: the interceptor alone, with OpenTelemetry's exporter in memory.
"""

import pytest
from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from moldau.producer import OutputRecord, RecordMetadata
from moldau.tracing import Tracing

PLACE = RecordMetadata(topic="t", partition=0, offset=7, timestamp=0)


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def producer(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider).producer


def replaced(record):
    """Returns what an interceptor behind the tracing may make of a record."""
    return record._replace(value=b"new", headers=(*record.headers, ("more", b"")))


@pytest.mark.parametrize("later", [lambda record: record, replaced], ids=["as it is", "replaced"])
@pytest.mark.parametrize("given", [(), (("a", b"1"),)], ids=["no header", "a header"])
def test_a_span_ends_with_its_record(producer, spans, later, given):
    """The span of a record that a later interceptor had replaced was kept without end, and never exported."""
    sent = [later(producer.on_send(OutputRecord("t", b"x", None, given))) for _ in range(3)]
    assert not spans.get_finished_spans()
    for record in reversed(sent):
        producer.on_acknowledgement(record, PLACE, None)
    assert [each.attributes["messaging.kafka.offset"] for each in spans.get_finished_spans()] == [7, 7, 7]
    assert not producer._open


def test_a_span_without_a_header_ends_too(producer, spans, monkeypatch):
    """The application has configured no propagator."""
    monkeypatch.setattr(propagate, "inject", lambda *_: None)
    sent = [producer.on_send(OutputRecord("t", b"x", None, ())) for _ in range(2)]
    for record in sent:
        producer.on_acknowledgement(record, None, ValueError("refused"))
    assert [each.status.is_ok for each in spans.get_finished_spans()] == [False, False]
    assert not producer._open
