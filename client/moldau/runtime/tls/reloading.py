"""A TLS context that follows its files: certificates are renewed by replacing the file, on every node and client.

The files are looked at when a connection opens or is accepted, at most every ``CHECK_MS``. So there is no task to run,
and a process without new connections does nothing. A file that cannot be used (half written, key and certificate do
not match) leaves the former context in use and is logged once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from moldau.runtime.config.tls import TlsSettings
    from moldau.runtime.ports.environment import Clock, Disk

CHECK_MS: Final = 5_000.0
"""A new certificate is in use so much later at most."""
_logger = EventLogger("moldau.tls")
Mark = tuple[str, int, int]
"""Path, time of the last write, and size of a file; -1 for both if it is missing."""


class ReloadingContext:
    """Makes a context from settings, and again whenever one of their files has changed."""

    def __init__(
        self, make: Callable[[TlsSettings, Disk], ssl.SSLContext], settings: TlsSettings, disk: Disk, clock: Clock
    ) -> None:
        """Reads the files.

        Raises:
            ConfigError: a file cannot be used.
        """
        self._make = make
        self._disk = disk
        self._clock = clock
        self.take(settings)

    def take(self, settings: TlsSettings) -> None:
        """Takes other settings.

        Raises:
            ConfigError: a file cannot be used; nothing has changed then.
        """
        marks = _marks(settings, self._disk)  # before the files are read: a change in between is seen next time
        self._context = self._make(settings, self._disk)
        self._settings = settings
        self._marks = marks
        self._next_check_ms = self._clock.monotonic_ms() + CHECK_MS

    def current(self) -> ssl.SSLContext:
        """Returns the context for a new connection."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_check_ms:
            return self._context
        self._next_check_ms = now_ms + CHECK_MS
        marks = _marks(self._settings, self._disk)
        if marks != self._marks:
            self._marks = marks
            paths = ",".join(path for path, _, _ in marks)
            try:
                self._context = self._make(self._settings, self._disk)
            except ConfigError as error:
                _logger.warning("certificates-refused", files=paths, error="; ".join(error.problems))
            else:
                _logger.info("certificates-reloaded", files=paths)
        return self._context


def _marks(settings: TlsSettings, disk: Disk) -> tuple[Mark, ...]:
    paths = [path for path in (settings.keystore_location, settings.truststore_location) if path is not None]
    return tuple(_mark(disk, os.path.abspath(path)) for path in paths)


def _mark(disk: Disk, path: str) -> Mark:
    try:
        return path, disk.modified_ms(path), disk.file_size(path)
    except OSError:
        return path, -1, -1
