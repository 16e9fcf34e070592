"""Goal: a broker whose host does not answer delays requests to it for one attempt to connect, however many there are.

Method: a network on which connections are never established, on virtual time.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.protocol.messages.list_transactions import ListTransactionsRequest
from moldau_broker.server.coordination import transactions
from moldau_broker.server.coordination.transactions import CONNECT_TIMEOUT_MS, Peers


class Network:
    """A network whose hosts are silent, or refuse connections."""

    def __init__(self) -> None:
        self.attempts = 0
        self.refuses = False

    async def connect(self, host, port):
        self.attempts += 1
        if self.refuses:
            raise ConnectionRefusedError
        await trio.sleep_forever()


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def peers(network):
    metadata = SimpleNamespace(inter_broker_address=lambda broker_id: ("b2", 9092), image=SimpleNamespace(brokers={}))
    return Peers(SimpleNamespace(network=network), 1, metadata)


async def ask(peers, errors):
    try:
        await peers.request(2, ListTransactionsRequest(), 1)
    except (OSError, trio.TooSlowError) as error:
        errors.append(error)


def run(main):
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_requests_to_a_silent_host_fail_together(network, peers):
    async def main():
        errors = []
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask, peers, errors)
        assert len(errors) == 50
        assert trio.current_time() == pytest.approx(CONNECT_TIMEOUT_MS / 1000)
        assert network.attempts == 1
        await ask(peers, errors)
        assert network.attempts == 2, "a later request makes an attempt of its own"

    run(main)


def test_a_request_that_came_after_a_failure_makes_an_attempt(network, peers):
    """Only those that waited for an attempt fail with it; the next ones wait for the next one."""
    network.refuses = True

    async def main():
        errors = []
        for number in range(1, 4):
            await ask(peers, errors)
            assert network.attempts == number
        assert all(isinstance(error, ConnectionRefusedError) for error in errors)

    run(main)


def test_a_connection_that_opens_after_a_fence_is_not_used(peers, monkeypatch):
    """The fence ended all requests to the broker, which may never answer; this one would wait for its whole time."""
    opened = SimpleNamespace(closed=False)

    async def open_late(*_, **__):
        await trio.sleep(1)
        return SimpleNamespace(is_open=True, close=lambda: setattr(opened, "closed", True))

    monkeypatch.setattr(transactions.RpcConnection, "open", open_late)

    async def main():
        errors = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask, peers, errors)
            await trio.sleep(0.5)
            peers.broker_fenced(2)
        assert len(errors) == 2
        assert trio.current_time() == pytest.approx(1), "neither waits for another attempt"
        assert opened.closed

    run(main)
