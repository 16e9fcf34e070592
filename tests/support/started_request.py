"""Asks the process of ``support.started_server`` for a process; as a script, stands for the command ``moldau``.

The script is started with the path of that process's socket and the words of the command. It imports little, so that
it starts in a hundredth of a second. The command is a fork of the other process, with the streams, the directory and
the variables of the script, which ends with the command's exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

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
    """Runs the command and returns its exit code, as a shell gives it."""
    environment = dict(os.environ)
    answer = b""
    with ask(
        path, (0, 1, 2), module="moldau_cli", words=words, directory=os.getcwd(), environment=environment
    ) as server:
        while more := server.recv(ANSWER_BYTES):
            answer += more
    code = os.waitstatus_to_exitcode(int(answer.split(b"\n")[1]))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
