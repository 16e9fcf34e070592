"""The use of a broker's client quotas: bytes produced, bytes fetched, and the time of the request handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_quorum.quotas.ledger import Ledger
from moldau_quorum.quotas.precedence import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, Limit
from moldau_quorum.quotas.rate import Rate, Windows

if TYPE_CHECKING:
    from collections.abc import Iterator

BROKER_QUOTAS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
"""The quotas that a broker counts for itself: a client has the allowance on each broker."""
BURST_MAX: Final = 2**53
"""Largest allowance at once, in bytes: a quota may be any number, and no number of bytes is infinite."""
PERCENT_PER_MS: Final = 0.1
"""One millisecond of a handler, in percent of a second."""


class ClientSensor:
    """The use of one quota by one group."""

    __slots__ = ("_pauses", "_throttled", "rate")

    def __init__(self, windows: Windows) -> None:
        self.rate = Rate(windows)
        self._pauses = Rate(windows)
        self._throttled = Rate(windows)

    def note_pause(self, pause_ms: float, now_ms: float) -> None:
        """Counts a pause after a request."""
        self._pauses.record(pause_ms, now_ms)
        self._throttled.record(1, now_ms)

    def throttle_time(self, now_ms: float) -> float:
        """Returns the mean pause of the last windows, in milliseconds; 0 if there was none."""
        throttled = self._throttled.per_second(now_ms)
        return self._pauses.per_second(now_ms) / throttled if throttled > 0 else 0.0


class ClientQuotas:
    """The sensors of one broker."""

    __slots__ = ("_ledger", "throttled", "windows")

    def __init__(self, windows: Windows) -> None:
        """Nothing is used yet; ``Ledger`` bounds the groups whose use is remembered."""
        self.windows = windows
        self._ledger: Ledger[ClientSensor] = Ledger(lambda: ClientSensor(windows))
        self.throttled = dict.fromkeys(BROKER_QUOTAS, 0)
        """Throttled requests by quota."""

    def __len__(self) -> int:
        return len(self._ledger)

    @property
    def evicted(self) -> int:
        """Groups that were forgotten because there were too many."""
        return self._ledger.evicted

    def sensors(self) -> Iterator[tuple[object, ClientSensor]]:
        """Yields groups (``Limit.group``) with their sensors, the last used first."""
        return self._ledger.items()

    def charge(self, limit: Limit, amount: float, now_ms: float) -> int:
        """Records what a request used; returns for how many milliseconds its group must pause.

        A pause for the time of handlers is at most one window, as in Kafka: the processor is free again afterwards.
        """
        sensor = self._ledger.sensor(limit.group, now_ms)
        sensor.rate.record(amount, now_ms)
        pause_ms = sensor.rate.throttle_ms(limit.value, now_ms)
        if limit.key == REQUEST_PERCENTAGE:
            pause_ms = min(pause_ms, int(self.windows.size_ms))
        return self._note(limit, sensor, pause_ms, now_ms)

    def record(self, limit: Limit, amount: float, now_ms: float) -> None:
        """Records a use that delays only later requests."""
        self._ledger.sensor(limit.group, now_ms).rate.record(amount, now_ms)

    def charge_if_within(self, limit: Limit, amount: float, now_ms: float) -> int:
        """Records ``amount`` unless the group must pause first; returns for how many milliseconds.

        An amount that is above the whole allowance passes when nothing was recorded before it: it could never pass
        otherwise.
        """
        sensor = self._ledger.sensor(limit.group, now_ms)
        before = sensor.rate.per_second(now_ms)
        sensor.rate.record(amount, now_ms)
        pause_ms = sensor.rate.throttle_ms(limit.value, now_ms) if before > 0 else 0
        if pause_ms:
            sensor.rate.record(-amount, now_ms)
        return self._note(limit, sensor, pause_ms, now_ms)

    def refund(self, limit: Limit, amount: float, now_ms: float) -> None:
        """Takes back what was recorded for an answer that another quota made empty."""
        self._ledger.sensor(limit.group, now_ms).rate.record(-amount, now_ms)

    def burst(self, limit: Limit) -> int:
        """Returns what an idle group may use at once, from 1 to ``BURST_MAX``."""
        return max(1, int(min(limit.value * self.windows.burst_ms / 1_000.0, BURST_MAX)))

    def _note(self, limit: Limit, sensor: ClientSensor, pause_ms: int, now_ms: float) -> int:
        if pause_ms:
            sensor.note_pause(pause_ms, now_ms)
            self.throttled[limit.key] += 1
        return pause_ms
