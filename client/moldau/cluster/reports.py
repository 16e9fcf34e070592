"""Reports of a client's statistics to the application, every ``statistics.interval.ms``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.cluster.arguments import shown
from moldau.runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.cluster.client import ClusterClient
    from moldau.runtime.config import Config

S = TypeVar("S")


def interval_of(kind: str, config: Config, callback: object) -> int:
    """Returns ``statistics.interval.ms``; 0 means no reports.

    Raises:
        ConfigError: only one of interval and callback is given.
        TypeError: the callback is no function.
    """
    interval_ms = config.get_int("statistics.interval.ms")
    if callback is not None and not callable(callback):
        raise TypeError(f"{kind}: on_statistics must be a function, not {shown(callback)}")
    if (callback is None) != (interval_ms == 0):
        raise ConfigError([f"statistics.interval.ms = {interval_ms}: it and on_statistics need each other"])
    return interval_ms


async def report_forever(
    client: ClusterClient, interval_ms: int, read: Callable[[], S], callback: Callable[[S], object]
) -> None:
    """Passes the statistics to a function every ``interval_ms``. Its exceptions are logged."""
    while True:
        await trio.sleep(interval_ms / 1000)
        statistics = read()
        try:
            callback(statistics)
        except Exception as error:  # noqa: BLE001 - a fault of the application's function must not end its client
            client.logger.error("on-statistics-failed", exception=error)
