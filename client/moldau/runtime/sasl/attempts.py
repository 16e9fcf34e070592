"""Counts of the attempts to authenticate at the listeners of a node, and their export under Kafka's names.

Label values stay bounded: a mechanism counts under its name only if the listener enables it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from moldau.runtime.net.serving.server import Server
    from moldau.runtime.telemetry.metrics import Registry

NO_MECHANISM: Final = "none"
"""Stands for peers that chose no mechanism of the listener: most of them do not use SASL at all."""
TLS: Final = "SSL"
"""Stands for TLS handshakes, in which a peer may have to show a certificate."""
_SOCKETS: Final = "kafka_server_socketservermetrics_"


@dataclass(slots=True)
class Attempts:
    """Attempts with one mechanism since the start of the node; those on connections in use are renewals (KIP-368)."""

    accepted: int = 0
    refused: int = 0
    renewals_accepted: int = 0
    renewals_refused: int = 0

    def count(self, *, accepted: bool, again: bool) -> None:
        """Counts the outcome of one attempt; ``again``: the connection has a session."""
        if again:
            self.renewals_accepted += accepted
            self.renewals_refused += not accepted
        else:
            self.accepted += accepted
            self.refused += not accepted


class ListenerAttempts:
    """The attempts at one listener with SASL."""

    def __init__(self) -> None:
        """Starts without attempts."""
        self.by_mechanism: dict[str, Attempts] = {NO_MECHANISM: Attempts()}
        self.expired = 0
        """Connections closed because their session had ended."""

    def show(self, mechanisms: Iterable[str]) -> None:
        """Shows mechanisms from now on, with zeros: a count that begins above zero is no increase to Prometheus."""
        for mechanism in mechanisms:
            self.of(mechanism)

    def of(self, mechanism: str) -> Attempts:
        """Returns the attempts with a mechanism of the listener; an empty name stands for none."""
        return self.by_mechanism.setdefault(mechanism or NO_MECHANISM, Attempts())

    @property
    def refused(self) -> int:
        """All attempts that were refused."""
        return sum(each.refused + each.renewals_refused for each in self.by_mechanism.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLogins:
    """Logins and TLS handshakes that a listener refused since the start of its node."""

    listener: str
    mechanism: str
    count: int


def refused_logins(
    listeners: Mapping[str, ListenerAttempts], servers: Iterable[tuple[str, Server]], with_tls: Collection[str]
) -> list[RefusedLogins]:
    """Returns the refused logins of each listener with SASL or TLS, by mechanism, with zeros."""
    found = [
        RefusedLogins(listener=name, mechanism=mechanism, count=counts.refused + counts.renewals_refused)
        for name, attempts in listeners.items()
        for mechanism, counts in attempts.by_mechanism.items()
    ]
    found += [
        RefusedLogins(listener=name, mechanism=TLS, count=server.handshakes_failed)
        for name, server in servers
        if name in with_tls
    ]
    return found


def register_attempts(
    registry: Registry,
    listeners: Mapping[str, ListenerAttempts],
    servers: Callable[[], Iterable[tuple[str, Server]]],
    with_tls: Collection[str],
) -> None:
    """Exports the attempts at ``listeners`` with SASL, and the failed handshakes of the ``servers`` ``with_tls``."""
    families = {
        field: registry.counter(_SOCKETS + name, text, "listener", "mechanism")
        for field, name, text in (
            ("accepted", "successful_authentication_total", "Logins that were accepted."),
            ("refused", "failed_authentication_total", "Logins, requests without one, and TLS handshakes that failed."),
            ("renewals_accepted", "successful_reauthentication_total", "Sessions renewed on their connection."),
            ("renewals_refused", "failed_reauthentication_total", "Renewals of sessions that were refused."),
        )
    }
    expired = registry.counter(
        "kafka_network_socketserver_expiredconnectionskilledcount",
        "Connections closed because their session ended and was not renewed.",
        "listener",
    )

    def update() -> None:
        for name, attempts in listeners.items():
            expired.labels(name).value = attempts.expired
            for mechanism, counts in attempts.by_mechanism.items():
                for field, family in families.items():
                    family.labels(name, mechanism).value = getattr(counts, field)
        for name, server in servers():
            if name in with_tls:
                families["refused"].labels(name, TLS).value = server.handshakes_failed

    registry.on_expose(update)
