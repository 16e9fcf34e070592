"""Goal: a peer that falls silent ends its connection, and is no failed request of the server.

Method: the production server on a virtual network; nothing gets to the peer any more while an answer is on its way, so
that the kernel gives up with ETIMEDOUT, which is no ``ConnectionError``. Found by brokers that lost power.
"""

import logging

import trio

from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau_jepsen.world.world import run_world


class Chatter:
    """Answers each request with more than fits into the window of a connection."""

    def handle(self, frame):
        return [bytes(4_000_000)]

    def flush(self):
        pass

    def closed(self):
        pass


def test_an_unreachable_peer_is_gone_and_is_no_failure(caplog):
    """An unreachable peer counts as gone, and nothing has failed."""
    limits = ServerLimits(send_ms=120_000, idle_ms=120_000)

    async def main(world):
        async def listen(environment):
            listener = await environment.network.listen("server", 80)
            await serve(environment, listener, lambda connection: Chatter(), limits)

        world.node("server").start(listen)
        await trio.sleep(0.1)
        connection = await world.node("peer").environment.network.connect("server", 80)
        connection.send_nowait([(40).to_bytes(4, "big"), bytes(40)])
        world.network.cut("server", "peer")
        await trio.sleep(1.0)
        assert len(world.network.host("server").connections) == 1
        await trio.sleep(60.0)
        return len(world.network.host("server").connections)

    with caplog.at_level(logging.INFO, logger="moldau"):
        assert run_world(main, 1) == 0
    assert not [record for record in caplog.records if "request-failed" in record.getMessage()]
