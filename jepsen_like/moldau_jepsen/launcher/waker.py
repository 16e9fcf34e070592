"""Wakes paused nodes when the process that paused them has ended, however it ended.

A node that is tied to its parent looks now and then whether that still lives. A paused one cannot look, and the kernel
sends nothing to a process of another session: it would stay for ever.
"""

from __future__ import annotations

import os
import subprocess
import weakref

# The end of the pipe is the end of whoever writes to it. A shell without job control takes the input of what it puts
# into the background away, hence the other descriptor.
_SCRIPT = """exec 3<&0 </dev/null >/dev/null 2>&1
(while read -r pid <&3; do pids="$pids $pid"; done; [ -z "$pids" ] || kill -CONT $pids) &"""


class Waker:
    """A small process beside this one, from the first ``watch`` on until this object or this process is gone."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._pipe: int | None = None

    def watch(self, pid: int) -> None:
        """Has the process with this number continued (SIGCONT) after the end. Harmless to one that is not paused."""
        if self._pipe is None:
            read, write = os.pipe()
            try:
                # In a session of its own, so that what ends this process by its terminal does not end the waker.
                subprocess.run(["sh", "-c", _SCRIPT], stdin=read, start_new_session=True, check=True)
            except BaseException:
                os.close(write)
                raise
            finally:
                os.close(read)
            self._pipe = write
            weakref.finalize(self, os.close, write)
        os.write(self._pipe, b"%d\n" % pid)
