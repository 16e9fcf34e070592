"""Runs the processes of a group: starts them, receives their reports, forwards signals. A shell of ``Group``.

Each process is ``moldau server FILE --node ID``. It reports over a notification socket of its own, as a unit of systemd
does; the supervisor in turn is the unit's main process for systemd: READY=1 comes when all processes serve, and
WATCHDOG=1 while the supervisor's own loop turns. A process whose loop hangs is killed by its guard
(``node.watchdog.ms``), or by the supervisor after the unit's ``WatchdogSec``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.telemetry.log import EventLogger
from moldau_cli.errors import EXIT_FAILED
from moldau_cli.nodes.group.core.supervision import Exit, Group, Kill, Phase, Ready, Start, Terminate
from moldau_cli.nodes.watchdog import BEATS_PER_LIMIT
from moldau_cli.signals import signals_of_nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from moldau.runtime.config import Config
    from moldau_cli.nodes.group.core.supervision import Effect
    from moldau_cli.nodes.watchdog import SystemdNotifier

_logger = EventLogger("moldau.supervisor")

REPORT_BYTES_MAX: Final = 4096


class Supervisor:
    """The processes of one configuration file."""

    def __init__(self, command: Sequence[str], configs: Sequence[Config], notifier: SystemdNotifier) -> None:
        """``command`` runs a process when ``--node ID`` follows it; ``configs`` has one entry for each process."""
        self._command = command
        self._node_ids = [config.get_int("node.id") for config in configs]
        self._notifier = notifier
        controllers = [index for index, one in enumerate(configs) if "controller" in one.get_list("process.roles")]
        self._group = Group(count=len(configs), last=frozenset(controllers), silence_ms=notifier.limit_ms)
        self._running: dict[int, trio.Process] = {}
        self._changed = trio.Event()
        self._exit_code: int | None = None

    async def run(self) -> int:
        """Runs until the group has ended; returns the exit code."""
        with trio.open_signal_receiver(*signals_of_nodes()) as signals, tempfile.TemporaryDirectory() as room:
            try:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._room = room
                    nursery.start_soon(self._watch_signals, signals)
                    nursery.start_soon(self._beat)
                    for index in range(len(self._node_ids)):
                        await nursery.start(self._hear, index)
                    self._perform(self._group.begin(_now_ms()))
                    await self._keep_time()
                    nursery.cancel_scope.cancel()
            finally:
                for process in self._running.values():  # after an error of the supervisor itself
                    process.kill()
        assert self._exit_code is not None
        self._notifier.send("STOPPING=1")
        return self._exit_code

    async def _keep_time(self) -> None:
        while self._exit_code is None:
            deadline_ms = self._group.next_deadline_ms()
            self._changed = trio.Event()
            with trio.move_on_after(float("inf") if deadline_ms is None else max(0.0, deadline_ms - _now_ms()) / 1000):
                await self._changed.wait()
            self._perform(self._group.on_timer(_now_ms()))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(index=index):
                    self._nursery.start_soon(self._run_process, index)
                case Terminate(index=index):
                    self._signal(index, signal.SIGTERM)
                case Kill(index=index):
                    _logger.error("process-killed", node=self._node_ids[index])
                    self._signal(index, signal.SIGKILL)
                case Ready():
                    self._notifier.send("READY=1")
                    _logger.info("group-ready", processes=len(self._node_ids), pid=os.getpid())
                case Exit(code=code):
                    self._exit_code = code
        self._notifier.send(f"STATUS={self._group.serving} of {len(self._node_ids)} processes serve")
        self._changed.set()

    def _signal(self, index: int, number: signal.Signals) -> None:
        """Sends a signal; a process whose start is still under way gets it then."""
        if (process := self._running.get(index)) is not None:
            process.send_signal(number)

    async def _run_process(self, index: int) -> None:
        node_id = self._node_ids[index]
        environment = os.environ | {"NOTIFY_SOCKET": self._socket_path(index)}
        environment.pop("WATCHDOG_PID", None)  # the limit holds for each process
        try:
            process = await trio.lowlevel.open_process(
                [*self._command, "--node", str(node_id), "--with-parent"],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the supervisor, which ends its processes in order
            )
        except (OSError, RuntimeError) as error:  # no memory, or no further process or thread; others serve on
            _logger.error("process-not-started", node=node_id, error=error)
            self._perform(self._group.ended(index, EXIT_FAILED, _now_ms()))
            return
        self._running[index] = process
        if self._group.phase(index) is Phase.STOPPING:
            process.terminate()
        _logger.info("process-started", node=node_id, pid=process.pid)
        code = await process.wait()
        del self._running[index]
        effects = self._group.ended(index, code, _now_ms())
        waits = self._group.phase(index) is Phase.WAITING
        log = _logger.warning if waits else _logger.info
        log("process-ended", node=node_id, exit_code=code, starts_again=waits)
        self._perform(effects)

    def _socket_path(self, index: int) -> str:
        return f"{self._room}/{index}"

    async def _hear(self, index: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reads the reports of a process, over all its starts."""
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
            await reports.bind(self._socket_path(index))
            task_status.started()
            while True:
                for line in (await reports.recv(REPORT_BYTES_MAX)).split(b"\n"):
                    match line:
                        case b"READY=1":
                            self._perform(self._group.ready(index, _now_ms()))
                        case b"WATCHDOG=1":
                            self._group.beat(index, _now_ms())
                        case b"STOPPING=1":
                            self._group.leaving(index, _now_ms())
                        case _:
                            pass  # a report that needs no action

    async def _beat(self) -> None:
        while self._notifier.limit_ms:
            self._notifier.send("WATCHDOG=1")
            await trio.sleep(self._notifier.limit_ms / BEATS_PER_LIMIT / 1000)

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if self._group.is_stopping and number == signal.SIGHUP:
                continue  # a terminal that is closed may send it twice
            if self._group.is_stopping:
                for process in self._running.values():
                    process.kill()
                os._exit(128 + number)
            _logger.info("group-stops", signal=signal.Signals(number).name)
            self._perform(self._group.stop(_now_ms()))


def _now_ms() -> float:
    return trio.current_time() * 1000
