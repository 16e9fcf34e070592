"""The quotas of one broker: they follow the metadata, and pause the connections of clients that use too much.

While no quota is set, a request costs one look at ``is_active``. Otherwise a connection resolves the limits of its
client once for each change of quotas, and each request pays a ``Toll``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.server.quotas.toll import UNLIMITED, ClientLimits, Toll
from moldau_quorum.quotas.client_quotas import BROKER_QUOTAS, ClientQuotas
from moldau_quorum.quotas.connections import ConnectionRates
from moldau_quorum.quotas.precedence import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaIndex,
)
from moldau_quorum.quotas.rate import Windows

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau.runtime.net.serving.throttle import Throttle
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.metadata.image import MetadataDelta


def quota_windows(config: Config) -> Windows:
    """Returns the windows over which a broker counts."""
    return Windows(config.get_int("quota.window.num"), float(config.get_int("quota.window.size.seconds") * 1_000))


class BrokerQuotas:
    """The quotas that all connections of a broker share. Invariant: ``is_active`` if the index limits any client."""

    def __init__(self, clock: Clock, windows: Windows) -> None:
        """Starts without quotas."""
        self.clock = clock
        self.use = ClientQuotas(windows)
        self.index = QuotaIndex()
        self.is_active = False
        self._paused: dict[Throttle, None] = {}
        self.connections = ConnectionRates(windows)

    def arrived(self, listener: str, host: str, now_ms: float) -> tuple[int, int]:
        """See ``moldau.runtime.net.serving.connection_tally.AdmissionRates``."""
        return self.connections.arrived(listener, host, self.index.connection_rate(host), now_ms)

    def follow(self, delta: MetadataDelta) -> None:
        """Takes changed quotas; pauses end, since they may be too long now, and the next requests are judged again."""
        self.index = self.index.changed(delta.image.quotas, delta.changed_quotas)
        self.is_active = any(key in self.index.uses for key in BROKER_QUOTAS)
        if any(entity[0][0] != "ip" for entity in delta.changed_quotas):
            paused, self._paused = self._paused, {}
            for throttle in paused:
                throttle.lift()

    def limits(self, user: str, client_id: str) -> ClientLimits:
        """Returns the limits of a client as of now."""
        index = self.index
        return ClientLimits(
            index.limit(PRODUCER_BYTE_RATE, user, client_id),
            index.limit(CONSUMER_BYTE_RATE, user, client_id),
            index.limit(REQUEST_PERCENTAGE, user, client_id),
        )

    def pause(self, throttle: Throttle, pause_ms: float) -> None:
        """Lets a connection handle no request for a time."""
        throttle.extend(self.clock.monotonic_ms() + pause_ms)
        self._paused[throttle] = None

    def forget(self, throttle: Throttle) -> None:
        """Removes a connection that has ended."""
        self._paused.pop(throttle, None)

    def paused_count(self) -> int:
        """Returns how many connections pause now."""
        now_ms = self.clock.monotonic_ms()
        for throttle in [each for each in self._paused if each.until_ms <= now_ms]:
            del self._paused[throttle]
        return len(self._paused)


class ClientAccount:
    """The limits of the client of one connection, looked up again when quotas, user or client id change."""

    __slots__ = ("_client_id", "_identity", "_index", "_limits", "_quotas", "throttle")

    def __init__(self, quotas: BrokerQuotas, throttle: Throttle) -> None:
        self._quotas = quotas
        self.throttle = throttle
        self._index: QuotaIndex | None = None
        self._identity: Identity | None = None
        self._client_id: bytes = b""
        self._limits: ClientLimits | None = None  # None if nothing limits the client

    def toll(self, identity: Identity, client_id: bytes) -> Toll | None:
        """Returns the toll of a request that begins now; None if nothing limits its client.

        ``client_id`` is as it is in the request's header.
        """
        quotas = self._quotas
        if self._index is not quotas.index or self._client_id != client_id or self._identity is not identity:
            self._index, self._client_id, self._identity = quotas.index, client_id, identity
            found = quotas.limits(identity.name, client_id.decode("utf-8", "replace"))
            self._limits = None if found == UNLIMITED else found
        limits = self._limits
        return None if limits is None else Toll(quotas, limits, self.throttle)
