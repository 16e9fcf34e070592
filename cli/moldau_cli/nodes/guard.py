"""Kills a node whose event loop stands still; a process of its own, which needs nothing but the standard library.

The node writes to this process's standard input while its event loop turns. Silence for the given time means that the
loop is stuck or the process stopped, and the node is killed, so that its peers and clients see broken connections. The
end of the stream means that the node has ended: the node alone holds the other end, so its process number cannot belong
to another process while the stream is open.

Silence is counted in ticks of this process, not by the clock. A machine that pauses as a whole, or runs nothing for
seconds, delays the ticks as it delays the node, so it does not count as a hung node.
"""

from __future__ import annotations

import os
import select
import signal
import sys

TICK_S = 0.1


def main(pid: int, silence_ms: int) -> int:
    """Watches until the node has ended or was killed; returns the exit code."""
    ticks_max = max(1, round(silence_ms / 1000 / TICK_S))
    silent = 0
    while silent < ticks_max:
        if not select.select([0], [], [], TICK_S)[0]:
            silent += 1
            continue
        if not os.read(0, 4096):
            return 0
        silent = 0
    sys.stderr.write(f"watchdog-killed pid={pid} node.watchdog.ms={silence_ms}: the event loop has not turned\n")
    sys.stderr.flush()
    os.kill(pid, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
