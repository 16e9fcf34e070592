"""The process that forks Spark's Python processes for ``support.spark.forked_python``.

    python python_server.py SOCKET

Its standard input is a pipe of the process that started it; both end together. It imports libraries, but nothing of
Moldau: what a task or a data source imports of that, it imports as in an interpreter of its own.

A request comes over a connection of its own: the length of a JSON object in four bytes, which carry the descriptors of
stdin, stdout and stderr, and the object: ``module``, ``words``, ``directory`` and ``environment``. The answer is the
number of the process, and when that has ended, its status, each as one line.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

IMPORTED = (
    "cramjam",
    "crc32c",
    "fastavro",
    "fastjsonschema",
    "google.protobuf",
    "lz4.frame",
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.conversion",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "trio",
)
OWN = ("moldau", "pyspark_moldau")


def main(path: str) -> None:
    """Serves until the starter ends; its forks end by themselves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what Spark's JVM starts
    for name in IMPORTED:
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith(OWN)], "a task imports Moldau's modules itself"
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing is written to the pipe
    running: dict[int, socket.socket] = {}
    while True:
        readable = select.select([listener.fileno(), ended, 0], [], [])[0]
        if 0 in readable:
            return
        if ended in readable:
            os.read(ended, select.PIPE_BUF)
            _collect(running)
        if listener.fileno() not in readable:
            continue
        connection = listener.accept()[0]
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        try:
            request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        except EOFError:  # Spark has killed the process that asks
            connection.close()
            for number in descriptors:
                os.close(number)
            continue
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (listener, connection, *running.values()):
                each.close()
            os.close(ended)
            os.close(wake)
            _end_with(request, descriptors)
        for number in descriptors:
            os.close(number)
        running[child] = connection
        _say(connection, child)


def _collect(running: dict[int, socket.socket]) -> None:
    """Says of all processes that have ended how they did."""
    while running:
        child, how = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with running.pop(child) as connection:
            _say(connection, how)


def _say(connection: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # Spark has killed the process that waits
        connection.sendall(b"%d\n" % number)


def _exactly(connection: socket.socket, size: int) -> bytes:
    if not size:
        raise EOFError("no request")
    received = bytearray()
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise EOFError("a request is cut short")
        received += more
    return bytes(received)


def _end_with(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Runs the module, and ends this process; libraries' own ends would wait for threads that a fork does not have."""
    code: object = 0
    try:
        _become(request, descriptors)
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - this process has no other caller
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Runs the module in this new process, as ``python -m`` does."""
    for standard, number in enumerate(descriptors):
        os.dup2(number, standard)
        os.close(number)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    path = request["environment"].get("PYTHONPATH", "")
    sys.path[:0] = [request["directory"], *filter(None, path.split(os.pathsep))]
    sys.argv = ["-m", *request["words"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
