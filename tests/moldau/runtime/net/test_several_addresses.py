"""Goal: a name with several addresses leads to a server as long as one of them answers.

Method: the network of the system with a resolver and connections that are made up, on virtual time.
"""

import errno
import socket

import pytest
import trio
import trio.testing

from moldau.runtime.ports.real_network import RealNetwork

SILENT, REFUSING, GOOD = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def connected(monkeypatch, addresses, *, limit_s=10.0, answers_after_s=0.0):
    """Connects to a name with these addresses; returns the address that answered, and after how many seconds."""

    async def resolve(host, port, **_):
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def connect_one(self, family, kind, protocol, name):
        if name[0] == SILENT:
            await trio.sleep_forever()
        if name[0] == REFUSING:
            raise OSError(errno.ECONNREFUSED, "Connection refused")
        await trio.sleep(answers_after_s)
        return name[0]

    async def main():
        began = trio.current_time()
        with trio.fail_after(limit_s):
            found = await RealNetwork().connect("brokers", 9092)
        return found, trio.current_time() - began

    monkeypatch.setattr(trio.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(RealNetwork, "_connect_one", connect_one)
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("limit_s", [10.0, 600.0])
def test_an_address_that_drops_packets_is_passed_over(monkeypatch, limit_s):
    """Packets to a machine that is gone get no answer; the limit of a connection was over before the next address."""
    found, seconds = connected(monkeypatch, [SILENT, GOOD], limit_s=limit_s)
    assert (found, round(seconds)) == (GOOD, 3)


def test_the_last_of_several_addresses_is_reached_in_time(monkeypatch):
    found, seconds = connected(monkeypatch, [SILENT, SILENT, REFUSING, SILENT, GOOD])
    assert (found, seconds < 8) == (GOOD, True)


def test_a_short_limit_is_not_divided(monkeypatch):
    """The first address is slow, and would not answer in half of the time."""
    found, seconds = connected(monkeypatch, [GOOD, SILENT], limit_s=1.0, answers_after_s=0.8)
    assert (found, seconds) == (GOOD, pytest.approx(0.8))


def test_the_last_address_has_all_the_time_that_is_left(monkeypatch):
    found, seconds = connected(monkeypatch, [REFUSING, GOOD], answers_after_s=9.0)
    assert (found, seconds) == (GOOD, pytest.approx(9.0))


def test_an_error_names_all_addresses(monkeypatch):
    with pytest.raises(
        ConnectionRefusedError, match=r"brokers:9092 \(10.0.0.1: no answer; 10.0.0.2: Connection refused"
    ):
        connected(monkeypatch, [SILENT, REFUSING])
