"""Goal: requests become OpenTelemetry spans, and a collector gets them. Method: the in-memory exporter, configurations
that cannot work, and a real node with a collector of a few lines that speaks OTLP over HTTP."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from moldau.admin import NewTopic
from moldau.blocking import Admin, Producer
from moldau.runtime.config import parse_server_config
from moldau.runtime.net.serving.request_traces import Stage, TracedRequest
from moldau.runtime.ports.real import real_environment
from moldau_cli.nodes.server import serve_command
from moldau_cli.nodes.traces import NodeTraces, SpanSink
from moldau_jepsen.testing import cluster
from support.interop.clients import wait_until

BEGUN_MS = 1_700_000_000_000.0
CONFIG = """process.roles=broker
node.id=1
controller.quorum.voters=9@127.0.0.1:9093
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:9092
log.dirs=/nowhere
"""


def request(**changes):
    values = {
        "api": "Produce",
        "version": 9,
        "correlation_id": 42,
        "client_id": "billing",
        "listener": "PLAINTEXT",
        "peer": "10.0.0.1:5",
        "topic": "orders",
        "result": "NONE",
        "is_slow": True,
        "begun_ms": BEGUN_MS,
        "ended_ms": BEGUN_MS + 600,
        "stages": (Stage(name="append", begun_ms=BEGUN_MS, ended_ms=BEGUN_MS + 2.5),),
    }
    return TracedRequest(**{**values, **changes})


def spans_of(*requests):
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for each in requests:
        SpanSink(provider).take(each)
    return exporter.get_finished_spans()


def test_a_request_becomes_a_span_with_children():
    append, span = spans_of(request())
    assert (span.name, span.kind, span.parent) == ("Produce", SpanKind.SERVER, None)
    assert (span.start_time, span.end_time) == (BEGUN_MS * 1e6, (BEGUN_MS + 600) * 1e6)
    assert append.parent.span_id == span.context.span_id
    assert append.end_time - append.start_time == 2_500_000
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.client.id": "billing",
        "messaging.destination.name": "orders",
        "network.peer.address": "10.0.0.1:5",
        "moldau.api.version": 9,
        "moldau.correlation.id": 42,
        "moldau.listener": "PLAINTEXT",
        "moldau.result": "NONE",
        "moldau.slow": True,
    }
    assert span.status.status_code is StatusCode.UNSET


def test_an_error_is_the_status_of_its_span():
    first, second, third = spans_of(
        *(request(result=result, stages=(), topic="") for result in ("NOT_LEADER_OR_FOLLOWER", "answered", "NONE"))
    )
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "NOT_LEADER_OR_FOLLOWER")
    assert "messaging.destination.name" not in first.attributes
    assert {second.status.status_code, third.status.status_code} == {StatusCode.UNSET}
    assert first.context.trace_id != second.context.trace_id


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("otel.traces.endpoint=localhost:4318\n", "is not an address that begins with http:// or https://"),
        (
            "otel.traces.endpoint=http://c:99999/v1\n",
            "otel.traces.endpoint: the address cannot be used: a port is a number up to 65535",
        ),
        ("otel.traces.endpoint=http://a..b/v1\n", "otel.traces.endpoint: the address cannot be used"),
        (
            "otel.traces.endpoint=http://[::1\n",
            "otel.traces.endpoint: the address cannot be used: [ and ] enclose an IPv6 address",
        ),
        ("otel.traces.endpoint=http:///v1\n", "otel.traces.endpoint: the address names no host"),
        ("otel.traces.endpoint=http://c\notel.traces.sample.ratio=2\n", "otel.traces.sample.ratio"),
        ("otel.traces.endpoint=http://c\notel.traces.slow.ms=0\n", "otel.traces.slow.ms"),
    ],
)
def test_a_wrong_configuration_is_one_line(more, words, tmp_path, capsys):
    file = tmp_path / "node.properties"
    file.write_text(CONFIG + more)
    assert serve_command([str(file), "--check"]) == 2
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert words in reported


def test_a_missing_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    file = tmp_path / "node.properties"
    file.write_text(CONFIG + "otel.traces.endpoint=http://127.0.0.1:4318/v1/traces\n")
    assert serve_command([str(file), "--check"]) == 2
    assert "pip install 'moldau[traces]'" in capsys.readouterr().err


def test_a_wrong_variable_of_opentelemetry_is_named(monkeypatch, tmp_path, capsys):
    """OpenTelemetry reads its limits when it is imported; a start ended in a traceback."""
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    for module in [name for name in sys.modules if name.startswith("opentelemetry.sdk.trace")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", raising=False)
    file = tmp_path / "node.properties"
    file.write_text(CONFIG + "otel.traces.endpoint=http://127.0.0.1:4318/v1/traces\n")
    assert serve_command([str(file), "--check"]) == 2
    assert "OpenTelemetry cannot be used: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "target", "shown"),
    [(301, "https://u:p@c/v1/traces", "https://c"), (307, "/v1/traces", "another path")],
)
def test_a_redirect_is_an_error_that_names_its_target(status, target, shown, caplog):
    """The exporter takes it for success, and all spans would be lost without a word."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra traces is not installed")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("location", target)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        traces = NodeTraces(parse_server_config(CONFIG + f"otel.traces.endpoint={address}\n", "node.properties", {}))
        traces.start(real_environment(1))
        SpanSink(traces._provider).take(request())
        trio.run(traces.close)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert f"the collector redirects to {shown} (status {status}): correct otel.traces.endpoint" in caplog.text


@pytest.fixture
def collector():
    """A collector: its address, and the spans that it has got, each with the id of the node."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers.get("content-encoding") is None
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                node = next(one.value.string_value for one in resource.resource.attributes if one.key.endswith("id"))
                spans.extend((node, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", spans
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.processes
def test_nodes_send_spans_to_a_collector(collector):
    """A broker names the topic although clients name it by id; a controller's requests are spans too."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra traces is not installed")
    url, spans = collector
    settings = {"otel.traces.endpoint": url, "otel.traces.sample.ratio": "1"}
    with cluster(brokers=1, controllers=1, links=False, settings=settings) as local:
        config = {"bootstrap.servers": local.bootstrap, "client.id": "billing"}
        with Admin(config) as admin:
            admin.create_topics([NewTopic(name="orders", partitions=1)])
        with Producer(config) as producer:
            producer.send("orders", b"3 pianos").result()

        def produced():
            return [
                (node, {one.key: one.value.string_value for one in span.attributes})
                for node, span in list(spans)
                if span.name == "Produce"
            ]

        def registered():
            return ("101", "BrokerRegistration") in [(node, span.name) for node, span in list(spans)]

        wait_until(produced, "the collector gets the Produce")
        wait_until(registered, "the controller's spans come")  # the cluster's end does not wait for the last ones
    node, attributes = produced()[0]
    assert (node, attributes["messaging.client.id"], attributes["moldau.result"]) == ("1", "billing", "NONE")
    assert attributes["messaging.destination.name"] == "orders"
    assert {"CreateTopics", "wait-for-controller", "append"} <= {span.name for sender, span in spans if sender == "1"}
