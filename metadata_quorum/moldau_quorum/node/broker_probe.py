"""Distinguishes a dead broker from a broken connection, so that failover need not wait out the grace period.

A process that is killed takes its connection to the controller with it, but so does a network that drops it. The
difference shows at once: the host of a dead process refuses a connection to its listener, while a cut network answers
nothing and a living broker accepts. Only a refusal counts, and only until the broker is heard of again. A wrong guess
(a firewall that refuses for the broker) costs one fencing that the broker's next heartbeat undoes; safety never depends
on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.tasks.supervision import TaskHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Environment

PROBE_INTERVAL_MS: Final = 20.0
"""Between two attempts. A dying process closes its sockets one by one: its listener may outlive the connection by a
moment.
"""
PROBE_TIMEOUT_MS: Final = 250.0
"""Of one attempt; a host that does not answer is not dead for certain."""
PROBES_MAX: Final = 1_000
"""Brokers probed at a time; those beyond wait out their grace period."""


class BrokerProbes:
    """The probes that are under way, one for each broker that went silent."""

    def __init__(self, environment: Environment) -> None:
        """Connections are made through ``environment``."""
        self._environment = environment
        self._probes = TaskHost()
        self._running = 0

    def start(self, host: str, port: int, *, is_silent: Callable[[], bool], refused: Callable[[], None]) -> None:
        """Probes a listener as long as ``is_silent()`` holds; calls ``refused`` once if its host refuses."""
        if not self._probes.accepts or self._running >= PROBES_MAX:
            return  # not running yet, or too many: the grace period decides
        self._running += 1
        self._probes.start(self._probe, host, port, is_silent, refused)

    async def run(self) -> None:
        """Probes until cancelled."""
        async with self._probes.running():  # connections that end with this process are no reason to probe
            await trio.sleep_forever()

    async def _probe(self, host: str, port: int, is_silent: Callable[[], bool], refused: Callable[[], None]) -> None:
        try:
            while is_silent():
                try:
                    with trio.fail_after(PROBE_TIMEOUT_MS / 1000):
                        connection = await self._environment.network.connect(host, port)
                except ConnectionRefusedError:
                    if is_silent():
                        refused()
                    return
                except (OSError, trio.TooSlowError):
                    pass  # unreachable, which is no proof of anything: ask again while it is silent
                else:
                    connection.close()
                await trio.sleep(PROBE_INTERVAL_MS / 1000)
        finally:
            self._running -= 1
