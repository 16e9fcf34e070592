"""Counts the requests of a node's listeners by API and version, and the time from their arrival to their answer. Pure.

A request counts once its handler has accepted it, so label values are those of known APIs: bytes that a peer sends
instead of a request add none. The time is Kafka's ``TotalTimeMs``: it begins when the last bytes of the request
arrived and ends when the transport has taken the answer. It includes a wait for records or followers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.api import ApiKey
from moldau.runtime.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from moldau.runtime.net.serving.request_traces import RequestTraces
    from moldau.runtime.telemetry.metrics import Registry

VERSION_MAX: Final = 63
"""No API of Kafka has more versions; what claims a higher one is not counted."""
_KNOWN: Final = frozenset(int(key) for key in ApiKey)


class RequestTimes:
    """The requests of one node."""

    __slots__ = ("_counts", "times", "traces")

    def __init__(self, traces: RequestTraces | None = None) -> None:
        """No request has come. ``traces`` notes the parts of each request as well."""
        self.traces = traces
        self._counts: dict[int, int] = {}  # by the head of the requests
        self.times: dict[int, Histogram] = {}
        """Milliseconds from arrival to answer by API key; requests without an answer (acks=0) are not in it."""

    @property
    def counts(self) -> dict[tuple[int, int], int]:
        """Accepted requests by API key and version."""
        return {(head >> 16, head & 0xFFFF): count for head, count in self._counts.items()}

    def received(self, head: int) -> None:
        """Counts a request that its handler has accepted; ``head`` holds its first bytes, API key and version."""
        counts = self._counts
        if head in counts:
            counts[head] += 1
        elif head >> 16 in _KNOWN and head & 0xFFFF <= VERSION_MAX:
            counts[head] = 1

    def answered(self, api_key: int, took_ms: float) -> None:
        """Counts the time of a request whose answer has left."""
        times = self.times.get(api_key)
        if times is None:
            if api_key not in _KNOWN:
                return
            times = self.times[api_key] = Histogram()
        times.observe(took_ms)


def register_request_times(registry: Registry, requests: RequestTimes) -> None:
    """Exports ``requests`` under Kafka's names."""
    counts = registry.counter(
        "kafka_network_requestmetrics_requests_total", "Requests by API and version.", "request", "version"
    )
    times = registry.histogram(
        "kafka_network_requestmetrics_totaltimems",
        "Milliseconds from the arrival of a request until its answer was sent.",
        "request",
    )

    def update() -> None:
        for (api_key, version), count in requests.counts.items():
            counts.labels(_name(api_key), version).value = count
        for api_key, histogram in requests.times.items():
            times.attach(histogram, _name(api_key))

    registry.on_expose(update)


def _name(api_key: int) -> str:
    """Returns the API's name as Kafka writes it: ``ListOffsets``."""
    return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
