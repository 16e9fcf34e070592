"""Sends spans of a node's requests to an OpenTelemetry collector (``otel.traces.endpoint``).

The sink of ``RequestTraces``: a request becomes a span with a child for each of its stages. OpenTelemetry's batch
processor keeps at most ``QUEUE_MAX`` spans and drops others; a thread of its own sends them, so a collector that is
slow or gone delays no request. Records carry the trace context of their producers, requests carry none: the spans of a
node have no parent, and client id, correlation id and topic join them with those of clients.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import trio

from moldau.runtime.config import ConfigError
from moldau.runtime.config.urls import split_url
from moldau.runtime.net.serving.request_traces import RequestTraces
from moldau.version import VERSION

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from moldau.runtime.config import Config
    from moldau.runtime.net.serving.request_traces import TracedRequest
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.server.lifecycle.broker import Broker

ENDPOINT: Final = "otel.traces.endpoint"
QUEUE_MAX: Final = 2_048
BATCH_MAX: Final = 512
PERIOD_MS: Final = 2_000
EXPORT_S: Final = 5.0
"""A request to the collector takes at most so long."""
_LOGIN_VARIABLES: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)
FLUSH_S: Final = 2.0
"""How long a stopping node waits for the last spans."""


class NodeTraces:
    """The traces of one node."""

    def __init__(self, config: Config) -> None:
        """Checks the configuration; ``otel.traces.endpoint`` must be set.

        Raises:
            ConfigError: the spans could not be sent.
        """
        self._endpoint = config.get_str(ENDPOINT)
        if not self._endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                [f"{ENDPOINT}: {self._endpoint!r} is not an address that begins with http:// or https://"]
            )
        if problem := _address_problem(self._endpoint):
            raise ConfigError([f"{ENDPOINT}: {problem}"])
        try:
            is_installed = _is_installed()
        except ValueError as error:  # of a variable, which OpenTelemetry reads when it is imported
            raise ConfigError([f"{ENDPOINT}: OpenTelemetry cannot be used: {error}"]) from error
        if not is_installed:
            raise ConfigError(
                [f"{ENDPOINT}: OpenTelemetry's exporter is not installed; run: pip install 'moldau[traces]'"]
            )
        self._config = config
        self._provider: TracerProvider | None = None  # None until the node starts

    def start(self, environment: Environment, exporter: SpanExporter | None = None) -> RequestTraces:
        """Starts the sending thread; returns the tracer for the node's listeners.

        ``exporter`` takes the place of the one for ``otel.traces.endpoint``.
        """
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        config = self._config
        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=self._endpoint, timeout=EXPORT_S, session=_session())
        resource = {
            "service.name": "moldau",
            "service.version": VERSION,
            "service.instance.id": str(config.get_int("node.id")),
            "moldau.roles": ",".join(config.get_list("process.roles")),
        }
        self._provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=QUEUE_MAX,
                max_export_batch_size=BATCH_MAX,
                schedule_delay_millis=PERIOD_MS,
                export_timeout_millis=EXPORT_S * 1000,
            )
        )
        return RequestTraces(
            environment.clock,
            environment.random,
            SpanSink(self._provider).take,
            slow_ms=config.get_int("otel.traces.slow.ms"),
            sample_ratio=config.get_double("otel.traces.sample.ratio"),
            waits=_waits(),
        )

    async def close(self) -> None:
        """Sends the last spans, or gives them up after ``FLUSH_S``."""
        if self._provider is not None:
            with trio.move_on_after(FLUSH_S, shield=True):
                await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)


def _session() -> requests.Session | None:
    """Returns what sends the spans; None leaves it to the variables of OpenTelemetry that name a source of logins.

    The exporter takes a redirect for success, and the spans would be lost without a word.
    """
    if any(os.environ.get(name) for name in _LOGIN_VARIABLES):
        return None
    import requests  # the exporter needs it too

    def refuse_redirect(response: requests.Response, **_: object) -> None:
        if response.is_redirect:
            target = urlsplit(response.headers["location"])
            host = target.netloc.rpartition("@")[2]  # without a login
            shown = f"{target.scheme}://{host}" if host else "another path"
            response.close()
            raise requests.RequestException(
                f"the collector redirects to {shown} (status {response.status_code}): correct {ENDPOINT}"
            )

    session = requests.Session()
    session.hooks["response"].append(refuse_redirect)
    return session


def _address_problem(endpoint: str) -> str:
    """Returns what is wrong with the address; empty if nothing. The text does not show it, as it may have a login."""
    try:
        parts = split_url(endpoint)
    except ValueError as error:
        return f"the address cannot be used: {error}"
    return "" if parts.hostname else "the address names no host"


def _is_installed() -> bool:
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401 - only looks whether they are there
    except ImportError:
        return False
    return True


def name_topics(traces: RequestTraces, broker: Broker) -> None:
    """Lets spans name topics that requests name by id."""
    import uuid

    def name_of(topic_id: bytes) -> str | None:
        topic = broker.metadata.image.topics_by_id.get(uuid.UUID(bytes=topic_id))
        return None if topic is None else topic.name

    traces.topic_name = name_of


def _waits() -> dict[int, str]:
    """Returns the name of the waiting stage of each API that the controller decides."""
    from moldau_quorum.controller.dispatch import DECIDED_APIS

    return dict.fromkeys((int(api.key) for api in DECIDED_APIS), "wait-for-controller")


def _ns(time_ms: float) -> int:
    """Returns a time in nanoseconds, rounded to microseconds."""
    return round(time_ms * 1000) * 1000


class SpanSink:
    """Makes spans of requests."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("moldau.node", VERSION)

    def take(self, request: TracedRequest) -> None:
        """Makes the spans of one request; they are sent later."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        attributes: dict[str, str | int | bool] = {
            "messaging.system": "kafka",
            "messaging.client.id": request.client_id,
            "network.peer.address": request.peer,
            "moldau.api.version": request.version,
            "moldau.correlation.id": request.correlation_id,
            "moldau.listener": request.listener,
            "moldau.result": request.result,
            "moldau.slow": request.is_slow,
        }
        if request.topic:
            attributes["messaging.destination.name"] = request.topic
        span = self._tracer.start_span(
            request.api,
            context=Context(),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=_ns(request.begun_ms),
        )
        within = set_span_in_context(span, Context())
        for stage in request.stages:
            child = self._tracer.start_span(stage.name, context=within, start_time=_ns(stage.begun_ms))
            child.end(_ns(stage.ended_ms))
        if request.result not in ("NONE", "answered"):
            span.set_status(Status(StatusCode.ERROR, request.result))
        span.end(_ns(request.ended_ms))
