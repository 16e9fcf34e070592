"""Asks the process of ``support.started_server`` for a process; as a script, stands for the command ``moldau``.

The script is started with the path of that process's socket and the words of the command. It imports little, so that
it starts in a hundredth of a second. The command is a fork of the other process, with the streams, the directory and
the variables of the script, which ends with the command's exit code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

ANSWER_BYTES = 64


def ask(
    path: str,
    descriptors: tuple[int, int, int],
    *,
    module: str,
    words: list[str],
    directory: str,
    environment: dict[str, str],
    has_session: bool = False,
) -> socket.socket:
    """Sends a request (``support.forking``) with the descriptors of the standard streams.

    Returns the connection that brings the answer.
    """
    request = {
        "module": module,
        "words": words,
        "directory": directory,
        "environment": environment,
        "ignores_interrupts": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "has_session": has_session,
    }
    data = json.dumps(request).encode()
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(path)
        head = len(data).to_bytes(4, "big")
        sent = socket.send_fds(server, [head], descriptors)
        assert sent == len(head)
        server.sendall(data)
    except BaseException:
        server.close()
        raise
    return server


def main(path: str, words: list[str]) -> int:
    """Runs the command and returns its exit code, as a shell gives it; passes SIGTERM on to the command."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the command may run before its number is known here
    here, variables = os.getcwd(), dict(os.environ)
    with ask(path, (0, 1, 2), module="moldau_cli", words=words, directory=here, environment=variables) as server:
        lines = server.makefile("r")
        command = int(lines.readline())
        wake, written = os.pipe()  # a signal just before a call that waits is handled only after the call
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written)
        signal.signal(signal.SIGTERM, lambda number, frame: _pass_on(command, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        while wake in select.select([server.fileno(), wake], [], [])[0]:
            os.read(wake, select.PIPE_BUF)
        code = os.waitstatus_to_exitcode(int(lines.readline()))
    return code if code >= 0 else 128 - code


def _pass_on(command: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(command, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
