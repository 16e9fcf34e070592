"""A TLS context that follows its files: certificates are renewed by replacing the file, on every node and client.

The files are looked at when a connection opens or is accepted, at most every ``CHECK_MS``. So there is no task to run,
and a process without new connections does nothing. A file that cannot be used (half written, key and certificate do
not match, a certificate that has expired while the former one has not) leaves the former context in use and is logged
once.
"""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config.tls import TlsSettings
    from moldau.runtime.ports.environment import Clock, Disk
    from moldau.runtime.tls.context import DatedContext

CHECK_MS: Final = 5_000.0
"""A new certificate is in use so much later at most."""
_logger = EventLogger("moldau.tls")
Mark = tuple[str, int, int]
"""Path, time of the last write, and size of a file; -1 for both if it is missing."""


class ReloadingContext:
    """Makes a context from settings, and again whenever one of their files has changed."""

    def __init__(
        self, make: Callable[[TlsSettings, Disk], DatedContext], settings: TlsSettings, disk: Disk, clock: Clock
    ) -> None:
        """Reads the files.

        Raises:
            ConfigError: a file cannot be used.
        """
        self._make = make
        self._disk = disk
        self._clock = clock
        self._read(settings)

    def take(self, settings: TlsSettings) -> None:
        """Takes settings if they are others; the files of the present ones are followed, and wrong content is refused.

        Raises:
            ConfigError: a file cannot be used; nothing has changed then.
        """
        if settings != self._settings:
            self._read(settings)

    def _read(self, settings: TlsSettings) -> None:
        marks = _marks(settings, self._disk)  # before the files are read: a change in between is seen next time
        self._context = self._make(settings, self._disk)
        fault = _fault(self._context, self._clock.wall_ms() / 1000)
        if fault is not None:  # it is used all the same: the clock of this machine may be wrong
            source = settings.keystore_location or f"{settings.prefix}ssl.keystore.certificate.chain"
            _logger.warning("certificate-not-valid", source=source, reason=f"the certificate {fault[0]}")
        self._settings = settings
        self._marks = marks
        self._refused: tuple[tuple[Mark, ...], str] | None = None
        self._next_check_ms = self._clock.monotonic_ms() + CHECK_MS

    def current(self) -> DatedContext:
        """Returns the context for a new connection."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_check_ms:
            return self._context
        self._next_check_ms = now_ms + CHECK_MS
        marks = _marks(self._settings, self._disk)
        if marks == self._marks:
            self._refused = None
        else:
            self._reload(marks)
        return self._context

    def _reload(self, marks: tuple[Mark, ...]) -> None:
        """Takes the changed files if they can be used; otherwise the next check tries again.

        Another owner or mode lets a file be read, and changes no mark of it.
        """
        paths = ",".join(path for path, _, _ in marks)
        try:
            self._context = self._valid(self._make(self._settings, self._disk))
        except ConfigError as error:
            refused = (marks, "; ".join(error.problems))
            if refused != self._refused:
                _logger.warning("certificates-refused", files=paths, error=refused[1])
            self._refused = refused
        else:
            self._marks = marks
            self._refused = None
            _logger.info("certificates-reloaded", files=paths)

    def _valid(self, context: DatedContext) -> DatedContext:
        """Returns a context that replaces the present one.

        Raises:
            ConfigError: its certificate has expired or is not valid yet, and the present one is valid.
        """
        now_s = self._clock.wall_ms() / 1000
        fault, present_fault = _fault(context, now_s), _fault(self._context, now_s)
        if fault is None or present_fault is not None or self._context.expires_s is None:
            return context
        why, former = fault
        raise ConfigError(
            [f"{self._settings.prefix}ssl.keystore.location: the certificate {why}; the former one {former}"]
        )


def _fault(context: DatedContext, now_s: float) -> tuple[str, str] | None:
    """Returns why a context's own certificate is not valid at a time, and what a valid one is; None if it is valid."""
    since_s, expires_s = context.valid_since_s, context.expires_s
    if expires_s is not None and expires_s <= now_s:
        return f"expired at {_utc(expires_s)}", "has not"
    if since_s is not None and since_s > now_s:
        return f"is not valid before {_utc(since_s)}", "is valid"
    return None


def _utc(at_s: float) -> str:
    return f"{datetime.datetime.fromtimestamp(at_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _marks(settings: TlsSettings, disk: Disk) -> tuple[Mark, ...]:
    paths = (settings.keystore_location, settings.key_location, settings.truststore_location)
    return tuple(_mark(disk, os.path.abspath(path)) for path in paths if path is not None)


def _mark(disk: Disk, path: str) -> Mark:
    try:
        return path, disk.modified_ms(path), disk.file_size(path)
    except OSError:
        return path, -1, -1
