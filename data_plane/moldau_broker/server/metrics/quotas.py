"""Exports the use of client quotas under Kafka's names, for the groups that used them last."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from moldau_quorum.quotas.precedence import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

if TYPE_CHECKING:
    from moldau.runtime.telemetry.metrics import Registry
    from moldau_broker.server.lifecycle.broker import Broker

GROUPS_MAX: Final = 200
"""Groups with series of their own; clients choose their ids, so there may be many more."""
_KINDS: Final = {
    PRODUCER_BYTE_RATE: ("produce", "byte_rate", "Bytes per second that the clients of a quota sent."),
    CONSUMER_BYTE_RATE: ("fetch", "byte_rate", "Bytes per second that the clients of a quota received."),
    REQUEST_PERCENTAGE: ("request", "request_time", "Percent of the event loop that the clients of a quota used."),
}


def register_quotas(registry: Registry, broker: Broker) -> None:
    """Adds rates and pauses of the groups, counts of throttled requests, and the connections that pause now."""
    labels = ("user", "client_id")
    rates = {
        key: registry.gauge(f"kafka_server_{kind}_{name}", text, *labels) for key, (kind, name, text) in _KINDS.items()
    }
    pauses = {
        key: registry.gauge(
            f"kafka_server_{kind}_throttle_time", "Mean of the pauses of the last windows, in ms.", *labels
        )
        for key, (kind, _, _) in _KINDS.items()
    }
    throttled = registry.counter(
        "moldau_throttled_requests_total", "Requests after which a client had to pause.", "quota"
    )
    paused = registry.gauge("moldau_throttled_connections", "Connections whose client pauses now.").labels()
    left_out = registry.gauge(
        "moldau_series_left_out", "Topics and partitions without series of their own.", "kind"
    ).labels("quota_group")

    def update() -> None:
        if not broker.is_built:
            return
        quotas = broker.context.quotas
        now_ms = quotas.clock.monotonic_ms()
        for family in (*rates.values(), *pauses.values()):
            family.clear()
        for group, sensor in islice(quotas.use.sensors(), GROUPS_MAX):
            key, user, client_id = cast("tuple[str, str | None, str | None]", group)
            rates[key].labels(user or "", client_id or "").set(max(0.0, sensor.rate.per_second(now_ms)))
            pauses[key].labels(user or "", client_id or "").set(sensor.throttle_time(now_ms))
        for key, count in quotas.use.throttled.items():
            throttled.labels(key).value = count
        paused.set(quotas.paused_count())
        left_out.set(max(0, len(quotas.use) - GROUPS_MAX))

    registry.on_expose(update)
