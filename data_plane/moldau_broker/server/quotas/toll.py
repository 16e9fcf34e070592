"""The cost of one request for its client: bytes, and the time of its handler.

The toll is due when the answer is about to be encoded, because the answer names the pause (KIP-219). The time that the
handler takes afterwards is charged too, and delays only later requests. A handler that waits is not charged for the
wait.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from moldau_quorum.quotas.client_quotas import PERCENT_PER_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from moldau.runtime.net.serving.throttle import Throttle
    from moldau_broker.server.quotas.broker_quotas import BrokerQuotas
    from moldau_quorum.quotas.precedence import Limit

T = TypeVar("T")


class ClientLimits(NamedTuple):
    """The limits of one client; None where it has none."""

    produce: Limit | None
    fetch: Limit | None
    request: Limit | None


UNLIMITED: Final = ClientLimits(None, None, None)


class Toll:
    """The toll of one request.

    Invariant: ``_spent_ms`` is the time before ``_begun_ms`` that was not charged; no time is counted without a quota
    of request time.
    """

    __slots__ = ("_begun_ms", "_limits", "_quotas", "_spent_ms", "_throttle", "throttle_time_ms")

    def __init__(self, quotas: BrokerQuotas, limits: ClientLimits, throttle: Throttle) -> None:
        """The handler begins now."""
        self._quotas = quotas
        self._limits = limits
        self._throttle = throttle
        self._spent_ms = 0.0
        self._begun_ms: float | None = None if limits.request is None else quotas.clock.monotonic_ms()
        self.throttle_time_ms = 0

    @property
    def fetch_bytes_max(self) -> int | None:
        """The most bytes that a fetch may return; None if that is not limited."""
        limit = self._limits.fetch
        return None if limit is None else self._quotas.use.burst(limit)

    def waive(self) -> None:
        """Drops the charge of a request that no quota limits."""
        self._limits = UNLIMITED
        self._begun_ms = None

    def resumed(self) -> None:
        """Notes that the handler runs again."""
        if self._limits.request is not None:
            self._begun_ms = self._quotas.clock.monotonic_ms()

    def suspended(self) -> None:
        """Notes that the handler waits, or has ended."""
        if self._begun_ms is not None:
            self._spent_ms += self._quotas.clock.monotonic_ms() - self._begun_ms
            self._begun_ms = None

    def ended(self) -> None:
        """Notes that the handler has ended, and charges without a pause for what was not due with the answer."""
        limit = self._limits.request
        if limit is None:
            return
        self.suspended()
        if self._spent_ms > 0:
            self._quotas.use.record(limit, self._spent_ms * PERCENT_PER_MS, self._quotas.clock.monotonic_ms())
        self._spent_ms = 0.0

    def due(self, produced: int | None = None, *, delivered: int | None = None) -> int:
        """Charges the time until now, and bytes; returns the pause in milliseconds, which begins now.

        ``produced`` are those of records that the client sent; ``delivered`` those of records that it gets in any case,
        because a share group counts their delivery.
        """
        now_ms = self._quotas.clock.monotonic_ms()
        pause_ms = self._time_due(now_ms)
        for limit, count in ((self._limits.produce, produced), (self._limits.fetch, delivered)):
            if count is not None and limit is not None:
                pause_ms = max(pause_ms, self._quotas.use.charge(limit, count, now_ms))
        return self._pause(pause_ms)

    def due_for_fetch(self, fetched: int) -> int:
        """Charges the time until now and the bytes of an answer.

        Returns the pause in milliseconds; unless it is 0, the answer must be empty, and its bytes are not charged.
        """
        now_ms = self._quotas.clock.monotonic_ms()
        pause_ms = self._time_due(now_ms)
        limit = self._limits.fetch
        if limit is not None:
            fetch_pause_ms = self._quotas.use.charge_if_within(limit, fetched, now_ms)
            if pause_ms and not fetch_pause_ms:
                self._quotas.use.refund(limit, fetched, now_ms)
            pause_ms = max(pause_ms, fetch_pause_ms)
        return self._pause(pause_ms)

    def _time_due(self, now_ms: float) -> int:
        limit = self._limits.request
        if limit is None:
            return 0
        if self._begun_ms is not None:
            self._spent_ms += now_ms - self._begun_ms
            self._begun_ms = now_ms
        spent_ms, self._spent_ms = self._spent_ms, 0.0
        return self._quotas.use.charge(limit, spent_ms * PERCENT_PER_MS, now_ms)

    def _pause(self, pause_ms: int) -> int:
        if pause_ms:
            self._quotas.pause(self._throttle, pause_ms)
            self.throttle_time_ms = max(self.throttle_time_ms, pause_ms)
        return pause_ms


@types.coroutine
def timed(toll: Toll, work: Awaitable[T]) -> Generator[Any, Any, T]:
    """Awaits ``work``, and counts the time in which it runs, not that in which it waits."""
    steps = work.__await__()
    given: Any = None
    error: BaseException | None = None
    while True:
        toll.resumed()
        try:
            # The steps of trio's tasks are resumed with values and errors; both belong to ``work``.
            asked = steps.send(given) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            toll.suspended()
        error = None
        try:
            given = yield asked
        except BaseException as raised:  # noqa: BLE001 - it is thrown into ``work``
            error = raised
