"""Resumes paused nodes when the process that paused them has ended, even by a crash.

A node that is tied to its parent checks regularly whether the parent still runs. A paused node cannot check, and the
kernel sends no signal to a process of another session, so without this module it would stay paused for ever.
"""

from __future__ import annotations

import os
import subprocess
import weakref

# The shell reads until the writing process ends. A shell without job control detaches the input of background commands,
# so the script reads from another descriptor.
_SCRIPT = """exec 3<&0 </dev/null >/dev/null 2>&1
(while read -r pid <&3; do pids="$pids $pid"; done; [ -z "$pids" ] || kill -CONT $pids) &"""


class Waker:
    """A helper process that runs from the first ``watch`` until this object or this process is gone."""

    def __init__(self) -> None:
        """Starts no process yet."""
        self._pipe: int | None = None

    def watch(self, pid: int) -> None:
        """Registers a process to which the helper sends SIGCONT at the end; a running process ignores the signal."""
        if self._pipe is None:
            read, write = os.pipe()
            try:
                # Its own session protects the helper from signals of this process's terminal.
                subprocess.run(["sh", "-c", _SCRIPT], stdin=read, start_new_session=True, check=True)
            except BaseException:
                os.close(write)
                raise
            finally:
                os.close(read)
            self._pipe = write
            weakref.finalize(self, os.close, write)
        os.write(self._pipe, b"%d\n" % pid)
