"""Forks processes for others that ask: the loop of ``support.started_server`` and ``support.spark.python_server``.

A request comes over a connection of its own: the length of a JSON object in four bytes, which carry the descriptors of
stdin, stdout and stderr, and the object. The answer is the number of the new process, and when that has ended, its
status as of ``os.waitpid``, each as one line.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

STANDARD_STREAMS = 3


def serve(requests: socket.socket, lives: int, become: Callable[[dict[str, Any]], NoReturn]) -> None:
    """Forks a process for each request, until the other end of the pipe ``lives`` closes; forks end by themselves.

    A fork has the standard streams of the request, and none of the descriptors of this loop. It calls ``become`` with
    the object of the request.
    """
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every page that the forks share
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing is written to the pipe
    running: dict[int, socket.socket] = {}
    while True:
        readable = select.select([requests.fileno(), ended, lives], [], [])[0]
        if lives in readable:
            return
        if ended in readable:
            os.read(ended, select.PIPE_BUF)
            _collect(running)
        if requests.fileno() not in readable:
            continue
        connection = requests.accept()[0]
        descriptors: list[int] = []
        try:
            request = _receive(connection, descriptors)
            child = os.fork()
        except EOFError:  # the process that asks was killed
            connection.close()
        else:
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (requests, connection, *running.values()):
                    each.close()
                for standard, number in enumerate(descriptors):
                    os.dup2(number, standard)
                for number in {ended, wake, lives, *descriptors}.difference(range(STANDARD_STREAMS)):
                    os.close(number)
                become(request)
            running[child] = connection
            _answer(connection, child)
        for number in descriptors:
            os.close(number)


def _receive(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
    """Returns the object of a request, and appends its descriptors, also where the rest of it is missing."""
    head, received, _, _ = socket.recv_fds(connection, 4, STANDARD_STREAMS)
    descriptors += received
    data, left = bytearray(), int.from_bytes(head, "big")
    while left:
        if not (more := connection.recv(left)):
            break
        data += more
        left -= len(more)
    if left or not data:
        raise EOFError("a request is cut short")
    request: dict[str, Any] = json.loads(data)
    return request


def _collect(running: dict[int, socket.socket]) -> None:
    """Reports how the processes have ended that have ended."""
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with running.pop(child) as connection:
            _answer(connection, status)


def _answer(connection: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # nothing waits for it any more
        connection.sendall(b"%d\n" % number)
