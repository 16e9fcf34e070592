"""Goal: a command finds a server that answers beside silent ones, and fails in one line if none does.

Method: the first look at the addresses on virtual time, with a network that opens no connection to silent hosts.
"""

import pytest
import trio
import trio.testing

from moldau_cli.client import reachable
from moldau_cli.client.chosen import chosen
from moldau_cli.client.running import run
from moldau_cli.errors import CommandError


class Opened:
    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def open_tcp_stream(host, port):
    if host == "silent":
        await trio.sleep_forever()
    if host == "down":
        raise ConnectionRefusedError(111, "Connection refused")
    return Opened()


def looked_s(monkeypatch, hosts):
    """Returns how long the first look took."""
    monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)
    monkeypatch.setattr(chosen, "address_source", "--bootstrap-server")

    async def main():
        began = trio.current_time()
        try:
            await reachable.check_reachable(",".join(f"{host}:{9000 + at}" for at, host in enumerate(hosts)), "broker")
        finally:
            took.append(trio.current_time() - began)

    took = []
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return took[0]


@pytest.mark.parametrize("hosts", [["up"], ["silent", "up"], ["silent", "down", "up"]])
def test_a_silent_address_hides_no_other(monkeypatch, hosts):
    """Each silent one took 10 s before the next one was tried."""
    assert looked_s(monkeypatch, hosts) < 1.5


def test_all_addresses_together_have_one_time(monkeypatch):
    expected = r"no broker answers \(silent:9000 is silent; down:9001: Connection refused; silent:9002 is silent\)"
    with pytest.raises(CommandError, match=expected):
        assert looked_s(monkeypatch, ["silent", "down", "silent"]) <= reachable.PROBE_TIMEOUT_S


@pytest.mark.parametrize("text", ["no offsets of t-0 within 15000 ms", ""])
def test_a_late_answer_is_reported_in_one_line(text):
    """`moldau consume` ended with a traceback if the leader of a partition hung."""

    async def late():
        raise trio.TooSlowError(text)

    with pytest.raises(CommandError, match=text or "no answer in time"):
        run(late, "b:1", probes=False)
