"""Goal: no supervisor of a healthy node waits longer than it may, however different the limits of the two are.

Method: the task that beats, with a guard and a systemd that only note the times; virtual time.
"""

from __future__ import annotations

import errno
import socket
from itertools import pairwise, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from moldau.runtime.telemetry.log import EventLogger
from moldau_cli.nodes import watchdog
from moldau_cli.nodes.watchdog import BEATS_PER_LIMIT, SystemdNotifier, supervise

if TYPE_CHECKING:
    from pathlib import Path

LIMITS_MS = (0, 1_000, 7_000, 60_000)


@pytest.mark.parametrize(("silence_ms", "systemd_ms"), [pair for pair in product(LIMITS_MS, repeat=2) if any(pair)])
def test_each_supervisor_hears_the_node_in_time(
    silence_ms: int, systemd_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: dict[str, list[float]] = {"guard": [], "systemd": []}

    def note(supervisor: str) -> bool:
        beats[supervisor].append(trio.current_time())
        return True

    def guard(_: int) -> Any:
        return SimpleNamespace(beat=lambda: note("guard"), close=lambda: None)

    def send(state: str) -> None:
        if state == "WATCHDOG=1":
            note("systemd")

    async def main() -> None:
        notifier: Any = SimpleNamespace(limit_ms=float(systemd_ms), send=send)
        with trio.move_on_after(130):
            await supervise(silence_ms, notifier, EventLogger("test"))

    monkeypatch.setattr(watchdog, "Guard", guard)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    for supervisor, limit_ms in (("guard", silence_ms), ("systemd", systemd_ms)):
        times = beats[supervisor]
        assert bool(times) is bool(limit_ms)
        assert all(after - before <= limit_ms / 1000 / BEATS_PER_LIMIT + 1e-9 for before, after in pairwise(times))
        assert not limit_ms or 130 + times[0] - times[-1] < limit_ms / 1000


def test_a_beat_without_a_descriptor_ends_no_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The system had none left for a moment: the error of the socket, which no beat had expected, ended the node."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        notifier = SystemdNotifier({"NOTIFY_SOCKET": str(address)}, 1)
        with monkeypatch.context() as short:
            short.setattr(watchdog.socket, "socket", Mock(side_effect=OSError(errno.ENFILE, "too many open files")))
            notifier.send("WATCHDOG=1")
        notifier.send("STOPPING=1")
        assert systemd.recv(99) == b"STOPPING=1"
