"""How long a node's attempts to open a connection to another node may take.

Where nodes neither use TLS nor log in, an attempt takes one or two round trips, and a host that has not answered after
``SETUP_MS`` is taken for silent. TLS and a login take up to ten round trips more. There an attempt that ran out of time
may have been at a silent host or at a distant one, so the next one may take twice as long: a silent host costs little
at first, and a distant one is reached.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.net.layers import LayeredNetwork

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.runtime.ports.environment import Environment

SETUP_MS: Final = 1_000.0
SECURED_SETUP_MS_MAX: Final = 8_000.0


class SetupTimes:
    """The limits of attempts, by address. Invariant: each is at least ``SETUP_MS``."""

    def __init__(self, environment: Environment) -> None:
        """``environment`` opens the connections."""
        self._max_ms = SECURED_SETUP_MS_MAX if isinstance(environment.network, LayeredNetwork) else SETUP_MS
        self._limits_ms: dict[tuple[str, int], float] = {}  # those above the least

    @contextlib.contextmanager
    def limited(self, address: tuple[str, int]) -> Iterator[None]:
        """Limits an attempt to open a connection to ``address``.

        Raises:
            trio.TooSlowError: it ran out of time.
        """
        limit_ms = self._limits_ms.pop(address, SETUP_MS)
        began_ms = trio.current_time() * 1000
        needed_ms = limit_ms / 2  # unless the attempt ends otherwise, it says nothing new
        try:
            with trio.fail_after(limit_ms / 1000):
                yield
            needed_ms = trio.current_time() * 1000 - began_ms
        except trio.TooSlowError:
            needed_ms = limit_ms
            raise
        finally:
            next_ms = min(2 * needed_ms, self._max_ms)
            if next_ms > SETUP_MS:
                self._limits_ms[address] = next_ms
