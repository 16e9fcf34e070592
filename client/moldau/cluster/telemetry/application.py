"""An application's own metrics, which its client pushes to brokers beside those of the client itself (KIP-1076)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from moldau.cluster import arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.runtime.telemetry.log import EventLogger

REGISTERED_MAX: Final = 200
"""Metrics of one application; Moldau's brokers keep 500 series of a client."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*([._-][a-z0-9]+)+")
_RESERVED: Final = ("producer", "consumer", "admin")

_Key = tuple[str, tuple[tuple[str, str], ...]]


class ApplicationMetrics:
    """The metrics that an application has registered with one client.

    Operators subscribe to them as to all client metrics, by the beginning of their names. Brokers export them with the
    client's labels. Methods can be called from any thread.
    """

    __slots__ = ("_failed", "_logger", "_read")

    def __init__(self, logger: EventLogger) -> None:
        """Has no metrics."""
        self._logger = logger
        self._read: dict[_Key, Callable[[], float]] = {}
        self._failed: dict[_Key, None] = {}

    def register(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Adds a metric, or replaces the one with the same name and labels.

        Brokers show it as ``org.apache.kafka.`` and ``name``, with dots for hyphens and underscores. A name that ends
        with ``.total`` is a sum that only grows; all others are gauges.

        Args:
            name: at least two words, such as ``orders.backlog``; the first one is none of a client's own.
            read: returns the value now, for each push, in the thread of the client. It must not wait. If it raises, the
                metric is left out, and the first error is logged.
            labels: tell metrics of one name apart.

        Raises:
            TypeError: ``read`` is no function, or a label is no string.
            ValueError: the name has another form, or 200 metrics are registered.
        """
        key = _key("register", name, labels)
        if not callable(read):
            raise TypeError(f"register: read must be a function, not {arguments.shown(read)}")
        if key not in self._read and len(self._read) >= REGISTERED_MAX:
            raise ValueError(f"register: {REGISTERED_MAX} metrics are registered already; unregister some")
        self._read[key] = read
        self._failed.pop(key, None)

    def unregister(self, name: str, **labels: str) -> None:
        """Removes a metric; does nothing if there is none with this name and these labels."""
        key = _key("unregister", name, labels)
        self._read.pop(key, None)
        self._failed.pop(key, None)

    def values(self) -> Iterator[tuple[str, float, tuple[tuple[str, str], ...]]]:
        """Yields name, value and labels of each metric."""
        for key, read in list(self._read.items()):  # other threads may register some meanwhile
            name, labels = key
            try:
                value = float(read())
            except Exception as error:  # noqa: BLE001 - a fault of the application's function must not end its client
                if key not in self._failed:
                    self._failed[key] = None
                    self._logger.error("application-metric-failed", exception=error, metric=name)
            else:
                yield name, value, labels


def _key(call: str, name: str, labels: dict[str, str]) -> _Key:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{call}: name {arguments.shown(name)} must be words of small letters and digits with dots between them, "
            "at least two, such as 'orders.backlog'"
        )
    first = re.split(r"[._-]", name, maxsplit=1)[0]
    if first in _RESERVED:
        raise ValueError(f"{call}: names that begin with {first!r} belong to the client's own metrics")
    for label, value in labels.items():
        if not isinstance(value, str):
            raise TypeError(f"{call}: the label {label} must be a string, not {arguments.shown(value)}")
    return name, tuple(sorted(labels.items()))
