"""The rate at which connections are accepted: of a broker, of a listener, and of one address (KIP-612)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.runtime.config import key_of_listener
from moldau.runtime.config.declaration import INT_MAX
from moldau_quorum.quotas.ledger import Ledger
from moldau_quorum.quotas.rate import Rate, Windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.runtime.config import Config


class Arrival(NamedTuple):
    """The treatment of a connection that has arrived."""

    accept_after_ms: int
    """The listener accepts nothing for so long, and then serves this connection."""
    close_after_ms: int
    """If it is not 0, the connection is not served, and closed after this time: its address opens too many."""


class ConnectionRates:
    """Rates of accepted connections."""

    __slots__ = ("_broker", "_broker_limit", "_hosts", "_limits", "_listeners", "_protected", "_windows")

    def __init__(self, windows: Windows) -> None:
        """No rate is limited."""
        self._windows = windows
        self._broker = Rate(windows)
        self._listeners: dict[str, Rate] = {}
        self._hosts: Ledger[Rate] = Ledger(lambda: Rate(windows))
        self._broker_limit: float | None = None
        self._limits: Mapping[str, float] = {}
        self._protected: str | None = None

    def configure(self, broker: float | None, listeners: Mapping[str, float], protected: str | None) -> None:
        """Takes the limits in connections per second; None means unlimited.

        ``protected`` is the listener on which brokers ask each other, if it is not the only one: the limits of the
        broker and of addresses do not hold there, so that brokers are not locked out.
        """
        self._broker_limit, self._limits, self._protected = broker, dict(listeners), protected

    def arrived(self, listener: str, host: str, host_limit: float | None, now_ms: float) -> Arrival:
        """Counts a connection; one that is not served counts for nothing."""
        longest_ms = int(self._windows.size_ms)
        if host_limit is not None and listener != self._protected:
            rate = self._hosts.sensor(host, now_ms)
            rate.record(1, now_ms)
            close_after_ms = min(longest_ms, rate.throttle_ms(host_limit, now_ms))
            if close_after_ms:
                rate.record(-1, now_ms)
                return Arrival(0, close_after_ms)
        wait_ms = 0
        limit = self._limits.get(listener)
        if limit is not None:
            rate = self._listeners.setdefault(listener, Rate(self._windows))
            rate.record(1, now_ms)
            wait_ms = rate.throttle_ms(limit, now_ms)
        if self._broker_limit is not None and listener != self._protected:
            self._broker.record(1, now_ms)
            wait_ms = max(wait_ms, self._broker.throttle_ms(self._broker_limit, now_ms))
        return Arrival(min(longest_ms, wait_ms), 0)


class ListenerRates:
    """The rates of a node's listeners, where addresses have no quota (an ``AdmissionRates``)."""

    __slots__ = ("_names", "_rates")

    def __init__(self, config: Config, names: Iterable[str]) -> None:
        """``names`` are those of the node's listeners."""
        self._names = tuple(names)
        size_ms = float(config.get_int("quota.window.size.seconds") * 1_000)
        self._rates = ConnectionRates(Windows(config.get_int("quota.window.num"), size_ms))
        self.follow(config)

    def follow(self, config: Config) -> None:
        """Applies a changed configuration."""
        self._rates.configure(*connection_rate_limits(config, self._names), None)

    def arrived(self, listener: str, host: str, now_ms: float) -> Arrival:
        """See ``moldau.runtime.net.serving.connection_tally.AdmissionRates``."""
        return self._rates.arrived(listener, host, None, now_ms)


def connection_rate_limits(config: Config, names: Iterable[str]) -> tuple[float | None, dict[str, float]]:
    """Returns the limits of the node (None: unlimited) and of its listeners, in connections per second."""
    key = "max.connection.creation.rate"
    total = config.get_int(key)
    own: dict[str, float] = {}
    for name in names:
        listener_key = key_of_listener(name, key)
        if listener_key in config:
            own[name] = float(max(1, config.get_int(listener_key)))
    return (None if total == INT_MAX else float(max(1, total))), own
