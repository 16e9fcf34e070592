"""The small cluster of ``fake_cluster`` as one broker on a real socket, in a thread of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.ports.real import real_environment
from support.client.fake_cluster import FakeCluster, Handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.protocol.schema import Request
    from moldau.runtime.ports.environment import Connection

WAIT_S = 120


class OnePort(FakeCluster):
    """A single broker on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        super().__init__(None, 1)
        self.port = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, broker: int, request: Request) -> Any:
        response = super().answer(broker, request)
        for node in (*getattr(response, "brokers", ()), *getattr(response, "coordinators", ())):
            node.host, node.port = "127.0.0.1", self.port
        return response


@contextmanager
def cluster(secure: Callable[[Connection], Connection] | None = None) -> Iterator[OnePort]:
    """Runs the broker in a thread of its own; ``secure`` wraps its connections (TLS)."""
    fake = OnePort()
    started = threading.Event()
    ended = []

    async def main() -> None:
        environment = real_environment()
        listener = await environment.network.listen("127.0.0.1", 0)
        fake.port = listener.address[1]
        stop = trio.Event()
        ended.append((trio.lowlevel.current_trio_token(), stop))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: serve(environment, listener, lambda _: Handler(fake, 1), ServerLimits(), secure=secure)
            )
            started.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert started.wait(WAIT_S)
    try:
        yield fake
    finally:
        token, stop = ended[0]
        token.run_sync_soon(stop.set)
        thread.join(WAIT_S)
        assert not thread.is_alive()
