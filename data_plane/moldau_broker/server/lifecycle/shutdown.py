"""An orderly stop, which takes bounded time and logs its phases.

The phases are controlled shutdown (the controller moves leadership away while this broker goes on serving), the end of
the connections, and syncing and closing the logs. Together they take at most ``STOP_TIMEOUT_MS``; then the broker ends
like a killed one, which loses no acknowledged record and makes the next start recover the logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.broker_side.session import BrokerSession

STOP_TIMEOUT_MS: Final = 300_000.0
"""From the signal to the closed logs. Kafka's brokers also wait five minutes for a controlled shutdown."""
CONTROLLER_SILENCE_MS: Final = 10_000.0
"""A controlled shutdown ends early when no controller has answered a heartbeat for this long."""


class OrderlyStop:
    """One stop, which begins when the object is created."""

    def __init__(self, clock: Clock, logger: EventLogger) -> None:
        self._clock = clock
        self._logger = logger
        self._begun_ms = clock.monotonic_ms()
        logger.info("stopping")

    def _left_ms(self) -> float:
        return max(0.0, self._begun_ms + STOP_TIMEOUT_MS - self._clock.monotonic_ms())

    async def give_leadership_away(self, session: BrokerSession, leading: Callable[[], int]) -> None:
        """Waits until the controller reports that no partition needs this broker, or until a timeout.

        ``leading`` returns the number of partitions that this broker leads.
        """
        self._logger.info("controlled-shutdown", leading=leading())
        with trio.move_on_after(self._left_ms() / 1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_controllers_are_silent, session, nursery.cancel_scope)
                await session.controlled_shutdown()
                nursery.cancel_scope.cancel()
        took_ms = round(self._clock.monotonic_ms() - self._begun_ms)
        if session.may_stop:
            self._logger.info("controlled-shutdown-done", took_ms=took_ms, leading=leading())
        else:
            self._logger.warning("controlled-shutdown-unanswered", after_ms=took_ms, leading=leading())

    async def _end_when_controllers_are_silent(self, session: BrokerSession, scope: trio.CancelScope) -> None:
        while True:
            heard_ms = max(self._begun_ms, session.last_contact_ms)
            silent_ms = self._clock.monotonic_ms() - heard_ms
            if silent_ms >= CONTROLLER_SILENCE_MS:
                scope.cancel()
                return
            await trio.sleep((CONTROLLER_SILENCE_MS - silent_ms) / 1000)

    async def close_logs(self, close: Callable[[], Awaitable[None]]) -> None:
        """Runs ``close`` within the rest of ``STOP_TIMEOUT_MS``."""
        with trio.move_on_after(self._left_ms() / 1000) as scope:
            await close()
        if scope.cancelled_caught:
            self._logger.error(
                "stopped-unclean", after_ms=round(STOP_TIMEOUT_MS), advice="the next start recovers the logs"
            )
