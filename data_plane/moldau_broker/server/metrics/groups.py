"""Exports how many groups a broker coordinates, by protocol and state, under Kafka's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.runtime.telemetry.metrics import Registry
    from moldau_broker.server.lifecycle.broker import Broker

_GROUPS: Final = "kafka_server_group_coordinator_metrics_"
PROTOCOLS: Final = ("classic", "consumer", "share", "streams")


def register_groups(registry: Registry, broker: Broker) -> None:
    """Adds the numbers of groups, of their states, and of the partitions that hold them."""
    by_protocol = registry.gauge(_GROUPS + "group_count", "Groups that this broker coordinates.", "protocol")
    by_state = {
        protocol: registry.gauge(f"{_GROUPS}{protocol}_group_count", f"Groups of type {protocol} by state.", "state")
        for protocol in PROTOCOLS
    }
    partitions = registry.gauge(_GROUPS + "num_partitions", "Led partitions of __consumer_offsets.", "state")

    def update() -> None:
        statistics = broker.context.groups.statistics()
        for state in ("active", "loading"):
            partitions.labels(state).set(statistics.partitions.get(state, 0))
        for protocol in PROTOCOLS:
            states = {state: count for (kind, state), count in sorted(statistics.groups.items()) if kind == protocol}
            by_protocol.labels(protocol).set(sum(states.values()))
            by_state[protocol].clear()
            for state, count in states.items():
                by_state[protocol].labels(state).set(count)

    registry.on_expose(update)
