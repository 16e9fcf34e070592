"""Goal: a broker that answers no request for client metrics is not asked for ever.

Method: the shell alone, with a client that has an open connection to each of two brokers; virtual time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from moldau.cluster.telemetry.shell import TelemetryShell
from moldau.runtime.telemetry.log import EventLogger


class Connection:
    """Takes requests and answers none."""

    def __init__(self) -> None:
        self.asked = 0

    def notice_end(self) -> bool:
        return True

    async def request_as(self, *_: object, **__: object) -> None:
        self.asked += 1
        await trio.sleep(1)
        raise trio.TooSlowError


def test_another_broker_is_asked_after_one_that_is_silent() -> None:
    connections = [Connection(), Connection()]

    class Client:
        environment = SimpleNamespace(random=SimpleNamespace(random=lambda: 0.5))
        logger = EventLogger("test")
        request_timeout_ms = 1_000

        @property
        def now_ms(self) -> float:
            return trio.current_time() * 1000

    counters: Any = SimpleNamespace(idlest_connection=lambda: min(connections, key=lambda each: each.asked))
    client: Any = Client()

    async def main() -> None:
        shell = TelemetryShell(client, counters, 0.0)
        with trio.move_on_after(3600):
            await shell.run(lambda: None)  # type: ignore[arg-type,return-value]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    first, second = (each.asked for each in connections)
    assert first > 1
    assert second >= first - 1
