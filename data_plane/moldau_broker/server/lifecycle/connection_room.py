"""Warns if a bound of connections shuts other brokers out.

Kafka admits brokers beyond ``max.connections`` where they have a listener of their own (KIP-402). On the only listener
they count as clients do: with a low bound brokers refuse each other, replicas leave the in-sync set, and the operator
is refused as well. The bound of a single listener (``listener.name.NAME.max.connections``) holds for brokers in any
case. Such a value is legal, so the broker says what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.runtime.config import broker_listeners, key_of_listener
from moldau.runtime.net.serving.server import LowBounds

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau.runtime.telemetry.log import EventLogger

OF_A_BROKER: Final = 3
"""Connections that another broker opens here: replication, markers of transactions, and the check of transactions."""
_BOUND: Final = "max.connections"


class ConnectionRoom:
    """Compares the bounds in force with the number of brokers; one warning for each bound that is too low."""

    def __init__(self, inter_broker_listener: str, logger: EventLogger) -> None:
        self._listener_key = key_of_listener(inter_broker_listener, _BOUND)
        self._low = LowBounds(logger)

    def follow(self, config: Config, brokers: int) -> None:
        """Looks at the configuration in force, in a cluster of so many registered brokers."""
        remedies = {self._listener_key: "raise it"} if self._listener_key in config else {}
        has_clients = len(broker_listeners(config)) == 1
        if has_clients:
            remedies[_BOUND] = "raise it, or give brokers a listener of their own (inter.broker.listener.name)"
        needed = OF_A_BROKER * (brokers - 1) + has_clients
        self._low.look(config, remedies, needed, "brokers are refused like clients", brokers=brokers)
