"""Rate-limited log lines about whether a node reaches its controllers.

Every attempt may fail, and a quorum may be unavailable for hours. The first failure is logged at once, so that an
operator finds its cause; after that, one line every ``WARNING_INTERVAL_MS`` gives the number of failed attempts. One
more line reports the end of the failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.runtime.config import join_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger

WARNING_INTERVAL_MS: Final = 10_000.0


def named(voters: Mapping[int, tuple[str, int]]) -> str:
    """Returns the controllers in the format of ``controller.quorum.voters``."""
    return ",".join(f"{node_id}@{join_address(host, port)}" for node_id, (host, port) in sorted(voters.items()))


class Reachability:
    """Logs failures to reach controllers, and their end."""

    def __init__(self, clock: Clock, logger: EventLogger) -> None:
        """Starts without any failure."""
        self._clock = clock
        self._logger = logger
        self._since_ms = 0.0
        self._logged_ms = 0.0
        self._logged_event = ""
        self.failures = 0
        """Number of failed attempts since a controller last answered."""
        self.last_cause = ""
        """Why the last attempt failed; empty while controllers answer."""

    def failed(
        self,
        controller: int,
        cause: BaseException,
        voters: Mapping[int, tuple[str, int]],
        *,
        event: str = "controllers-unreachable",
    ) -> None:
        """Counts a failed attempt with one of ``voters``, and logs it as ``event`` if a line is due."""
        now_ms = self._clock.monotonic_ms()
        if self.failures == 0:
            self._since_ms = now_ms
        self.failures += 1
        self.last_cause = f"controller {controller}: {str(cause) or type(cause).__name__}"
        if self.failures == 1 or event != self._logged_event or now_ms - self._logged_ms >= WARNING_INTERVAL_MS:
            self._logged_ms, self._logged_event = now_ms, event
            self._logger.warning(
                event,
                cause=self.last_cause,
                controllers=named(voters),
                attempts=self.failures,
                for_ms=round(now_ms - self._since_ms),
            )

    def answered(self, controller: int) -> None:
        """Notes that a controller has answered, and logs the end of failures."""
        if self.failures == 0:
            return
        after_ms = round(self._clock.monotonic_ms() - self._since_ms)
        self._logger.info("controllers-reachable", controller=controller, attempts=self.failures, after_ms=after_ms)
        self.failures, self.last_cause = 0, ""
