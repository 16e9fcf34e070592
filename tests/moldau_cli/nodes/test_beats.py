"""Goal: no supervisor of a healthy node waits longer than it may, however different the limits of the two are.

Method: the task that beats, with a guard and a systemd that only note the times; virtual time.
"""

from __future__ import annotations

import errno
import signal
import socket
from itertools import pairwise, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.telemetry.log import EventLogger
from moldau_cli.nodes import guard, watchdog
from moldau_cli.nodes.watchdog import BEATS_PER_LIMIT, SystemdNotifier, supervise

if TYPE_CHECKING:
    from pathlib import Path

LIMITS_MS = (0, 1_000, 7_000, 60_000)


@pytest.mark.parametrize(("silence_ms", "systemd_ms"), [pair for pair in product(LIMITS_MS, repeat=2) if any(pair)])
def test_each_supervisor_hears_the_node_in_time(
    silence_ms: int, systemd_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: dict[str, list[float]] = {"guard": [], "systemd": []}
    states: list[str] = []
    closed: list[float] = []

    def note(supervisor: str) -> bool:
        beats[supervisor].append(trio.current_time())
        return True

    def made(_: int) -> Any:
        return SimpleNamespace(beat=lambda: note("guard"), close=lambda: closed.append(trio.current_time()))

    def send(state: str) -> None:
        if state == "WATCHDOG=1":
            note("systemd")
        else:
            states.append(state)

    async def main() -> None:
        notifier: Any = SimpleNamespace(limit_ms=float(systemd_ms), send=send)
        with trio.move_on_after(130):
            await supervise(silence_ms, notifier, EventLogger("test"))

    monkeypatch.setattr(watchdog, "Guard", made)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    for supervisor, limit_ms in (("guard", silence_ms), ("systemd", systemd_ms)):
        times = beats[supervisor]
        assert bool(times) is bool(limit_ms)
        assert all(after - before <= limit_ms / 1000 / BEATS_PER_LIMIT + 1e-9 for before, after in pairwise(times))
        assert not limit_ms or 130 + times[0] - times[-1] < limit_ms / 1000
    assert states == ["READY=1", "STOPPING=1"]
    assert len(closed) == bool(silence_ms), "a guard that stays would kill a node that stops slowly"


@pytest.mark.parametrize("lost_at", [1, 2, 5])
def test_a_lost_guard_is_reported_once_and_collected(
    lost_at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """systemd still hears the node, if it watches it."""
    did: list[str] = []

    def beat() -> bool:
        did.append("beat")
        return did.count("beat") < lost_at

    async def main() -> None:
        notifier: Any = SimpleNamespace(limit_ms=1000.0, send=lambda state: did.append(state))
        with trio.move_on_after(10):
            await supervise(1000, notifier, EventLogger("test"))

    monkeypatch.setattr(watchdog, "Guard", lambda _: SimpleNamespace(beat=beat, close=lambda: did.append("close")))
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["watchdog-lost"]
    assert (did.count("beat"), did.count("close")) == (lost_at, 1)
    assert did.count("WATCHDOG=1") >= 10 * BEATS_PER_LIMIT - 1


def test_systemd_hears_of_no_node_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that no process is left to guard ends; systemd had already taken it for ready."""
    states: list[str] = []
    notifier: Any = SimpleNamespace(limit_ms=1000.0, send=states.append)
    monkeypatch.setattr(watchdog, "Guard", Mock(side_effect=OSError(errno.EAGAIN, "no process")))
    with pytest.raises(OSError, match="no process"):
        trio.run(supervise, 1000, notifier, EventLogger("test"))
    assert states == []


@given(heard=st.lists(st.booleans(), max_size=30), limit_ticks=st.integers(1, 5))
def test_the_guard_kills_after_one_whole_silence(heard: list[bool], limit_ticks: int) -> None:
    """Each sign of life begins the silence again; the end of the node's stream ends the guard without a kill."""
    silent, wanted = 0, 0
    for number, each in enumerate(heard, 1):
        silent = 0 if each else silent + 1
        if silent == limit_ticks:
            wanted = number
            break
    ticks = iter(heard)
    seen: list[Any] = []

    def select(readable: list[int], _: object, __: object, seconds: float) -> Any:
        assert seconds == guard.TICK_S
        seen.append(next(ticks, None))
        return ([] if seen[-1] is False else readable), [], []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(guard.select, "select", select)
        patched.setattr(guard.os, "read", lambda *_: b"." if seen[-1] else b"")
        patched.setattr(guard.os, "kill", lambda *killed: seen.append(killed))
        patched.setattr(guard, "read_scheduling", lambda pid: guard.Scheduling())
        patched.setattr(guard, "_write", lambda line: None)
        code = guard.main(7, round(limit_ticks * guard.TICK_S * 1000))
    assert code == bool(wanted)
    assert seen == ([*heard[:wanted], (7, signal.SIGKILL)] if wanted else [*heard, None])


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
