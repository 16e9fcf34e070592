"""GetTelemetrySubscriptions and PushTelemetry (KIP-714). Neither needs a right: a client reports about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from moldau_broker.server.client_metrics.core.instances import Client

if TYPE_CHECKING:
    from moldau.protocol.messages.get_telemetry_subscriptions import (
        GetTelemetrySubscriptionsRequest,
        GetTelemetrySubscriptionsResponse,
    )
    from moldau.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
    from moldau_broker.server.client_metrics.manager import ClientMetrics
    from moldau_broker.server.handlers.context import Call


class TelemetryContext(Protocol):
    """The part of a broker needed for client telemetry."""

    @property
    def client_metrics(self) -> ClientMetrics | None: ...


def handle_get_telemetry_subscriptions(
    context: TelemetryContext, request: GetTelemetrySubscriptionsRequest, call: Call
) -> GetTelemetrySubscriptionsResponse:
    """Answers which metrics the client is to push."""
    assert context.client_metrics is not None, "a broker without telemetry does not offer the API"
    return context.client_metrics.get(request, _client(call))


async def handle_push_telemetry(
    context: TelemetryContext, request: PushTelemetryRequest, call: Call
) -> PushTelemetryResponse:
    """Takes the metrics of the client; other tasks run between two pushes, also of two clients.

    A push of a hundred bytes may hold a megabyte, which takes a tenth of a second to read, and one drain may hold many
    such pushes.
    """
    metrics = context.client_metrics
    assert metrics is not None, "a broker without telemetry does not offer the API"
    async with metrics.lane:
        response = metrics.push(request, _client(call))
        await trio.lowlevel.checkpoint()
    return response


def _client(call: Call) -> Client:
    return Client(
        client_id=call.client_id or "",
        client_software_name=call.software[0],
        client_software_version=call.software[1],
        client_source_address=call.client_host,
        client_source_port=str(call.client_port),
    )
