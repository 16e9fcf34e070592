"""Exports the metrics that clients push, and what client telemetry itself does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.runtime.telemetry.metrics import Series
from moldau_broker.server.client_metrics.core.instances import id_text

if TYPE_CHECKING:
    from moldau.runtime.telemetry.metrics import Registry
    from moldau_broker.server.client_metrics.manager import ClientMetrics

_NAMES: Final = "kafka_server_client_metrics_"
_CLIENT_ID_MAX: Final = 200
"""Characters of a client id in a label."""


def register_client_metrics(registry: Registry, clients: ClientMetrics) -> None:
    """Adds client telemetry to the registry of its process."""
    registry.gauge(
        _NAMES + "instance_count", "Client instances that asked for subscriptions lately."
    ).labels().read_from(lambda: len(clients.instances))
    registry.gauge("moldau_client_metrics_series", "Series that clients pushed.").labels().read_from(
        lambda: clients.instances.budget.used
    )
    counters = {
        field: registry.counter(name, text).labels()
        for field, name, text in (
            ("pushes", _NAMES + "plugin_export_total", "Pushes whose metrics were read."),
            ("unreadable", _NAMES + "plugin_error_total", "Pushes whose metrics could not be read."),
            ("throttled", _NAMES + "throttle_total", "Requests that came before the interval had passed."),
            (
                "unknown_subscriptions",
                _NAMES + "unknown_subscription_request_total",
                "Pushes for a subscription that has changed.",
            ),
            ("left_out", "moldau_client_metrics_left_out_total", "Pushed points without room or without a form here."),
        )
    }

    def update() -> None:
        clients.expire()
        for field, counter in counters.items():
            counter.value = getattr(clients.counts, field)

    registry.on_expose(update)
    registry.add_source(lambda: _series(clients))


def _series(clients: ClientMetrics) -> list[Series]:
    return [
        Series(
            name=point.name,
            kind="counter" if point.is_counter else "gauge",
            text="Pushed by clients (KIP-714).",
            labels=(
                ("client_id", client_id[:_CLIENT_ID_MAX]),
                ("client_instance_id", id_text(instance_id)),
                *point.labels,
            ),
            value=point.value,
        )
        for instance_id, client_id, point in clients.points()
    ]
