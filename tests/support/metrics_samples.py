"""The metrics of a simulated broker as a scraper reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moldau.runtime.net.serving.request_times import register_request_times
from moldau.runtime.telemetry.metrics import Registry
from moldau_broker.server.metrics.export import register_metrics, register_state

if TYPE_CHECKING:
    from moldau.runtime.net.serving.request_times import RequestTimes
    from moldau_broker.server.lifecycle.broker import Broker

SAMPLE = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


def scrape(broker: Broker, requests: RequestTimes | None = None) -> dict[str, float]:
    """Returns the samples of a broker by name and labels."""
    registry = Registry()
    register_metrics(registry, broker)
    register_state(registry, broker)
    if requests is not None:
        register_request_times(registry, requests)
    return {name + labels: float(value) for name, labels, value in SAMPLE.findall(registry.expose())}
