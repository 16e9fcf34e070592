"""Kills a node whose event loop stands still; a process of its own, which needs nothing but the standard library.

The node writes to this process's standard input while its event loop turns. Silence for the given time means that the
loop is stuck or the process stopped, and the node is killed, so that its peers and clients see broken connections. The
end of the stream means that the node has ended: the node alone holds the other end, so its process number cannot belong
to another process while the stream is open.

Silence is counted in ticks of this process, not by the clock. A machine that pauses as a whole, or runs nothing for
seconds, delays the ticks as it delays the node, so it does not count as a hung node. Time that the node's main thread
was ready to run and got no processor does not count either: on an overloaded machine a kill would make things worse.
The kernel adds a wait for a processor to its sum when the wait is over. So a thread that is ready and has not run since
the last tick counts as waiting too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time

TICK_S = 0.1
WITHOUT_PROCESSOR_MAX = 10
"""A node that gets no processor may be silent for so many times the limit."""
LINE_S = 1.0
"""The node is killed after so long even if its log has not taken the line about it."""


class Scheduling:
    """Times that the kernel counts for the main thread of a node; all zero where it counts none."""

    def __init__(self, ran_s: float = 0.0, waited_s: float = 0.0, *, is_ready: bool = False) -> None:
        """Takes the times that the thread has run and has waited for a processor; ready: it runs or waits for one."""
        self.ran_s = ran_s
        self.waited_s = waited_s
        self.is_ready = is_ready


class Silence:
    """How long a node's event loop has stood still, without the time in which the node got no processor."""

    def __init__(self, limit_s: float, before: Scheduling) -> None:
        """``before`` was read when the node was heard last."""
        self._limit_s = limit_s
        self._before = before
        self._silent_s = 0.0
        self._elapsed_s = 0.0

    def tick(self, now: Scheduling) -> bool:
        """Adds a tick in which the node said nothing; returns whether the limit is reached."""
        before, self._before = self._before, now
        waits = now.is_ready and now.ran_s == before.ran_s
        waited_s = TICK_S if waits else now.waited_s - before.waited_s
        self._elapsed_s += TICK_S
        self._silent_s += max(0.0, TICK_S - waited_s)
        # A tenth of a tick makes up for the rounding of sums.
        least = self._limit_s - TICK_S / 10
        return self._silent_s >= least or self._elapsed_s >= least * WITHOUT_PROCESSOR_MAX


def read_scheduling(pid: int) -> Scheduling:
    """Reads ``/proc``; returns zeros where the kernel does not count, or for a process that has ended."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as times, open(f"/proc/{pid}/stat", "rb") as state:
            ran_ns, waited_ns, _ = times.read().split()
            # The name in parentheses before the state may itself have parentheses and spaces.
            is_ready = state.read().rpartition(b")")[2].split()[0] == b"R"
            return Scheduling(int(ran_ns) / 1e9, int(waited_ns) / 1e9, is_ready=is_ready and int(ran_ns) > 0)
    except (OSError, ValueError, IndexError):
        return Scheduling()


def last_line(now_s: float, pid: int, silence_ms: int, log_format: str, process: str) -> str:
    """Returns the line about a kill in the form of the node's log; ``process`` is empty unless nodes share the stream.

    It says what ``moldau.runtime.telemetry.node_log`` would, which this process does not load.
    """
    milliseconds = int(now_s % 1 * 1000)
    fields = {"pid": pid, "node.watchdog.ms": silence_ms}
    reason = "the event loop has not turned"
    if log_format == "json":
        when = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{milliseconds:03d}Z"
        shared = {"process": int(process)} if process else {}
        head = {"time": when, "level": "CRITICAL", "logger": "moldau.watchdog", **shared, "event": "watchdog-killed"}
        return json.dumps({**head, **fields, "reason": reason})
    when = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(now_s))}.{milliseconds:03d}"
    node = f" [{process}]" if process else ""
    pairs = " ".join(f"{key}={value}" for key, value in fields.items())
    return f'{when}{node} CRITICAL moldau.watchdog watchdog-killed {pairs} reason="{reason}"'


def main(pid: int, silence_ms: int, log_format: str = "text", process: str = "") -> int:
    """Watches until the node has ended or was killed; returns the exit code."""
    limit_s = max(TICK_S, silence_ms / 1000)
    silence = Silence(limit_s, read_scheduling(pid))
    while True:
        if select.select([0], [], [], TICK_S)[0]:
            if not os.read(0, 4096):
                return 0
            silence = Silence(limit_s, read_scheduling(pid))
        elif silence.tick(read_scheduling(pid)):
            break
    try:
        line = last_line(time.time(), pid, silence_ms, log_format, process)
        writing = threading.Thread(target=_write, args=(line,), daemon=True)
        writing.start()
        writing.join(LINE_S)
    finally:
        os.kill(pid, signal.SIGKILL)
    return 1


def _write(line: str) -> None:
    """Writes a line to the node's log, which may be on the disk that is full, or that the node hangs on."""
    try:
        os.write(2, line.encode() + b"\n")
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
