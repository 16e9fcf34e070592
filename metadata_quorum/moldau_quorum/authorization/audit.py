"""The audit log: refusals at INFO, permissions at DEBUG, a bounded number of lines a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.authorization.authorizer import Attempt

LINES_PER_SECOND: Final = 100
"""Refused requests cost nothing to send; the log must not grow with them."""
PERMISSIONS_PER_SECOND: Final = LINES_PER_SECOND // 2
"""Permissions come with each request of each client, and must leave room for refusals."""
_SECOND_MS: Final = 1000.0


class AuditLog:
    """Writes decisions about requests, and reports how many lines it left out."""

    def __init__(self, logger: EventLogger, now_ms: Callable[[], float]) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._second_ends_ms = 0.0
        self._lines = 0
        self._left_out = 0

    def note(self, attempt: Attempt) -> None:
        """Writes one decision, unless this second has had enough."""
        log = self._logger.debug if attempt.decision.is_allowed else self._logger.info
        if attempt.decision.is_allowed and not self._logger.shows_details:
            return
        now_ms = self._now_ms()
        if now_ms >= self._second_ends_ms:
            if self._left_out:
                self._logger.info("audit-lines-left-out", count=self._left_out)
            self._second_ends_ms, self._lines, self._left_out = now_ms + _SECOND_MS, 0, 0
        if self._lines >= (PERMISSIONS_PER_SECOND if attempt.decision.is_allowed else LINES_PER_SECOND):
            self._left_out += 1
            return
        self._lines += 1
        log(
            "allowed" if attempt.decision.is_allowed else "denied",
            principal=attempt.identity.principal,
            operation=attempt.operation.name,
            resource=f"{attempt.resource.name}:{attempt.name}",
            host=attempt.identity.host,
            listener=attempt.identity.listener_name,
            api="" if attempt.api is None else attempt.api.name,
            reason=attempt.decision.reason,
        )
