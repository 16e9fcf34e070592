"""Spark runs this as its Python (``support.spark.forked_python``): it asks ``python_server`` for a fork, and waits.

    python -IS python_start.py PYTHON SOCKET WORDS...

It imports as little as it can. It ends as the fork ends, and SIGTERM goes to the fork. Where the words do not
begin with ``-m`` and a module of PySpark, ``PYTHON`` takes its place.
"""

import json
import os
import select
import signal
import socket
import sys


def main(python: str, path: str, *words: str) -> int:
    """Runs the words; returns an exit code."""
    if len(words) < 2 or words[0] != "-m" or not words[1].startswith("pyspark."):
        os.execv(python, [python, *words])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the fork may run before its number is known here
    request = {"module": words[1], "words": words[2:], "directory": os.getcwd(), "environment": dict(os.environ)}
    text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(path)
        socket.send_fds(server, [len(text).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(text)
        lines = server.makefile("r")
        child = int(lines.readline())
        wake, written = os.pipe()  # a signal just before a call that waits is handled only after the call
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written)
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # the fork has them; Spark sees when it closes them
            os.dup2(null, standard)
        while wake in select.select([server.fileno(), wake], [], [])[0]:
            os.read(wake, select.PIPE_BUF)
        code = os.waitstatus_to_exitcode(int(lines.readline()))
    if code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
