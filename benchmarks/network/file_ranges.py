"""Ranges of a file for connections that catch up: sendfile in the event loop, or in threads beside it.

    python -m benchmarks.network.file_ranges [--connections 20] [--threads 2] [--seconds 3] [--rounds 3]

A process of its own reads all connections and drops the bytes, so that the sender is what limits. Each line has the
rate, the processor time of the sender for a MiB, and how late the loop serves a timer: the time that a small request
waits beside the large ones. On a busy machine only the processor time compares.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import select
import socket
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Send = Callable[[socket.socket, int, int, int], Awaitable[int]]

MIB = 1 << 20
FILE_BYTES = 256 * MIB
TICK_S = 0.001
POLL_MS = 30_000
MODES = ("loop", "threads that return", "threads that wait")


def drain(port: int, connections: int, seconds: float) -> None:
    """Reads all connections and drops the bytes."""
    poller = select.epoll()
    by_number: dict[int, socket.socket] = {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        poller.register(sock, select.EPOLLIN)
        by_number[sock.fileno()] = sock
    buffer, end = bytearray(MIB), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for number, _ in poller.poll(0.05):
            with suppress(BlockingIOError):
                by_number[number].recv_into(buffer, 0, socket.MSG_TRUNC)


async def in_loop(sock: socket.socket, file: int, position: int, count: int) -> int:
    """Sends until the socket is full; returns the bytes sent."""
    return send_now(sock.fileno(), file, position, count)


def send_now(to: int, file: int, position: int, count: int) -> int:
    """Sends until the socket is full."""
    sent = 0
    with suppress(BlockingIOError):
        while sent < count:
            sent += os.sendfile(to, file, position + sent, count - sent)
    return sent


def send_all(to: int, file: int, position: int, count: int) -> int:
    """Sends a whole range, and waits whenever the socket is full."""
    sent, poller = 0, select.poll()
    poller.register(to, select.POLLOUT)
    while sent < count:
        sent += send_now(to, file, position + sent, count - sent)
        if sent < count:
            poller.poll(POLL_MS)
    return sent


def in_threads(work: Callable[[int, int, int, int], int], threads: int) -> Send:
    """Returns a function that lets one of ``threads`` do ``work``."""
    limiter = trio.CapacityLimiter(threads)

    async def send(sock: socket.socket, file: int, position: int, count: int) -> int:
        return await trio.to_thread.run_sync(work, sock.fileno(), file, position, count, limiter=limiter)

    return send


async def measure(mode: str, file: int, options: argparse.Namespace) -> None:
    """Serves the connections for some seconds and prints a line."""
    send: Send = {
        "loop": in_loop,
        "threads that return": in_threads(send_now, options.threads),
        "threads that wait": in_threads(send_all, options.threads),
    }[mode]
    listening = trio.socket.socket()
    await listening.bind(("127.0.0.1", 0))
    listening.listen(options.connections)
    port = listening.getsockname()[1]
    reader = multiprocessing.get_context("spawn").Process(
        target=drain, args=(port, options.connections, options.seconds + 1)
    )
    reader.start()
    total = 0
    late: list[float] = []

    async def serve(sock: socket.socket, position: int) -> None:
        nonlocal total
        with suppress(OSError):
            while True:
                left = MIB
                while left:
                    sent = await send(sock, file, position + MIB - left, left)
                    total, left = total + sent, left - sent
                    if left:
                        await trio.lowlevel.wait_writable(sock)
                position = (position + MIB) % FILE_BYTES
                await trio.lowlevel.checkpoint()

    async def tick() -> None:
        while True:
            begin = time.perf_counter()
            await trio.sleep(TICK_S)
            late.append(time.perf_counter() - begin - TICK_S)

    async with trio.open_nursery() as nursery:
        for number in range(options.connections):
            accepted, _ = await listening.accept()
            sock = socket.socket(fileno=accepted.detach())
            sock.setblocking(False)
            nursery.start_soon(serve, sock, number * 7 * MIB % FILE_BYTES)
        nursery.start_soon(tick)
        begin, cpu = time.perf_counter(), time.process_time()
        await trio.sleep(options.seconds)
        elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu
        nursery.cancel_scope.cancel()
    reader.join()
    late.sort()
    half, most = (late[int(len(late) * share)] * 1000 for share in (0.5, 0.99))
    print(
        f"{mode}, {options.connections} connections: {total / elapsed / 1e6:,.0f} MB/s, "
        f"{cpu / max(1, total / MIB) * 1e6:,.0f} us of processor time per MiB, "
        f"a timer is late by {half:.2f} ms (p50), {most:.2f} ms (p99)"
    )


def main() -> None:
    """Measures all modes in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile(dir=options.directory) as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        for _ in range(options.rounds):
            for mode in MODES:
                trio.run(measure, mode, file.fileno(), options)


if __name__ == "__main__":
    main()
