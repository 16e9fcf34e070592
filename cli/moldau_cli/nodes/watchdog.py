"""Reports to the supervisors of a node (its guard, and systemd) that its event loop turns.

The guard (``moldau_cli.nodes.guard``) kills the node after ``node.watchdog.ms`` of silence. systemd gets reports over
its notification protocol (sd_notify): ``READY=1`` when the roles serve, ``WATCHDOG=1`` again and again if the unit has
``WatchdogSec``, ``STOPPING=1`` at the end. Supervision begins when the node is ready: before that it leads nothing, and
the import of a role may take seconds.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.telemetry.node_log import NodeLogHandler

if TYPE_CHECKING:
    from collections.abc import Mapping


_logger = EventLogger("moldau.watchdog")

BEATS_PER_LIMIT: Final = 5
"""How often a node beats within the silence that is allowed."""


class SystemdNotifier:
    """The notification socket of systemd; without ``NOTIFY_SOCKET`` all calls do nothing."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        """Reads the socket's name, and the watchdog's limit if it is meant for this process."""
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        is_own = environ.get("WATCHDOG_PID", str(pid)) == str(pid)
        limit = environ.get("WATCHDOG_USEC", "")
        self.limit_ms = int(limit) / 1000 if self._address and is_own and limit.isdecimal() else 0.0
        """Silence after which systemd kills the node; 0: it does not."""
        self._has_failed = False

    def send(self, state: str) -> None:
        """Sends ``state``. A failure is logged once and ends no node: systemd decides what its silence means."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:  # no descriptor may be left for it
                sender.setblocking(False)
                sender.sendto(state.encode(), self._address)
        except BlockingIOError:
            return  # systemd is busy; the next beat follows
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("systemd-not-notified", socket=self._address, error=error)


def _form_of_log() -> list[str]:
    """Returns the format of the node's log, and the node's id if several nodes share the stream; empty if unknown."""
    handler = next((each for each in logging.getLogger().handlers if isinstance(each, NodeLogHandler)), None)
    if handler is None:
        return []
    return [handler.log_format, "" if handler.process is None else str(handler.process)]


class Guard:
    """The guard's process and the pipe to it."""

    def __init__(self, silence_ms: int) -> None:
        """Starts it."""
        read, self._write = os.pipe()
        try:
            os.set_blocking(self._write, False)
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
            self._process = subprocess.Popen(
                [*command, str(os.getpid()), str(silence_ms), *_form_of_log()],
                stdin=read,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # signals of the terminal are for the node
            )
        except BaseException:
            os.close(self._write)
            raise
        finally:
            os.close(read)

    def beat(self) -> bool:
        """Says that the event loop turns; returns False if the guard is gone."""
        try:
            os.write(self._write, b".")
        except BlockingIOError:
            return True  # the guard has not run for a long time, and will find enough to read
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        """Lets the guard end, and collects it."""
        os.close(self._write)
        self._process.wait()


async def supervise(
    silence_ms: int,
    notifier: SystemdNotifier,
    log: EventLogger,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Beats until cancelled; ``silence_ms`` 0 starts no guard. The node is started once its guard runs.

    Raises:
        OSError: there is no process or file descriptor left for the guard.
    """
    limits = [limit for limit in (float(silence_ms), notifier.limit_ms) if limit > 0]
    guard = Guard(silence_ms) if silence_ms else None
    try:
        notifier.send("READY=1")
        task_status.started()
        while limits:
            if notifier.limit_ms:
                notifier.send("WATCHDOG=1")
            if guard is not None and not guard.beat():
                log.error("watchdog-lost", advice="restart the node: nothing ends it if it hangs")
                guard.close()
                guard = None
            await trio.sleep(min(limits) / BEATS_PER_LIMIT / 1000)
        await trio.sleep_forever()
    finally:
        notifier.send("STOPPING=1")
        if guard is not None:
            guard.close()
