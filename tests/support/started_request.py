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

STATUS_BYTES = 64


def ask(
    path: str,
    descriptors: tuple[int, int, int, int],
    *,
    module: str,
    words: list[str],
    directory: str,
    environment: dict[str, str],
    has_session: bool = False,
) -> None:
    """Sends a request; the last descriptor is the pipe for the number of the new process, and for its status."""
    request = {
        "module": module,
        "words": words,
        "directory": directory,
        "environment": environment,
        "ignores_interrupts": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "has_session": has_session,
    }
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        head = len(data).to_bytes(4, "big")
        sent = socket.send_fds(server, [head], descriptors)
        assert sent == len(head)
        server.sendall(data)


def main(path: str, words: list[str]) -> int:
    """Runs the command and returns its exit code, as a shell gives it."""
    heard, status = os.pipe()
    environment = dict(os.environ)
    ask(path, (0, 1, 2, status), module="moldau_cli", words=words, directory=os.getcwd(), environment=environment)
    os.close(status)
    said = b""
    while more := os.read(heard, STATUS_BYTES):
        said += more
    code = os.waitstatus_to_exitcode(int(said.split(b"\n")[1]))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
