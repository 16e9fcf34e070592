"""Compares two ways to run a trio client under asyncio: a portal thread, and trio's guest mode.

    python benchmarks/client/asyncio_modes.py

The clients talk to one broker process on this machine. ``round trips`` awaits each delivery before the next record;
``burst`` sends many records and awaits them all; ``blocked loop`` counts late heartbeat ticks of the trio side while
the event loop is busy for two seconds.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

import trio

import moldau
import moldau.aio
import moldau.blocking
from moldau_jepsen.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outcome import Outcome

R = TypeVar("R")
ROUND_TRIPS = 500
BURST = 50_000
BUSY_S = 2.0
TICK_S = 0.05


async def guest(main: Callable[[], Awaitable[R]]) -> R:
    """Runs a trio function in trio's guest mode inside the running event loop."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Outcome[R]] = loop.create_future()
    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=ended.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    return (await ended).unwrap()


async def trio_side(config: dict[str, object]) -> tuple[float, float]:
    """Round trips and a burst with the trio client; the same code for native trio and guest mode."""
    async with moldau.Producer(config) as producer:
        await producer.partitions_for("t")
        began = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            await (await producer.send("t", b"x" * 100))
        trips = time.perf_counter() - began
        began = time.perf_counter()
        deliveries = [await producer.send("t", b"x" * 100) for _ in range(BURST)]
        for each in deliveries:
            await each.wait() if not each.is_done else None
        return trips, time.perf_counter() - began


async def portal_side(config: dict[str, object]) -> tuple[float, float]:
    async with moldau.aio.Producer(config) as producer:
        await producer.partitions_for("t")
        began = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            await (await producer.send("t", b"x" * 100))
        trips = time.perf_counter() - began
        began = time.perf_counter()
        deliveries = [await producer.send("t", b"x" * 100) for _ in range(BURST)]
        for each in deliveries:
            await each
        return trips, time.perf_counter() - began


async def ticks(stop: list[bool]) -> float:
    """Returns the longest time between two ticks of the trio side."""
    longest = 0.0
    while not stop:
        began = time.perf_counter()
        await trio.sleep(TICK_S)
        longest = max(longest, time.perf_counter() - began)
    return longest


async def blocked(start: Callable[[list[bool]], Awaitable[float]]) -> float:
    stop: list[bool] = []
    running = asyncio.ensure_future(start(stop))
    await asyncio.sleep(0.3)
    until = time.perf_counter() + BUSY_S
    while time.perf_counter() < until:
        pass
    stop.append(True)
    return await running


def show(name: str, seconds: tuple[float, float]) -> None:
    trips, burst = seconds
    print(f"{name:12} {ROUND_TRIPS / trips:8.0f} round trips/s   {BURST / burst:10.0f} records/s in a burst")


def main() -> None:
    with cluster(brokers=1) as local:
        config: dict[str, object] = {"bootstrap.servers": local.bootstrap}
        with moldau.blocking.Admin(config) as admin:
            admin.create_topics([moldau.NewTopic(name="t", partitions=1, replication_factor=1)])
        for _ in range(3):
            show("native trio", trio.run(trio_side, config))
            show("guest mode", asyncio.run(guest(lambda: trio_side(config))))
            show("portal", asyncio.run(portal_side(config)))
    guest_s = asyncio.run(blocked(lambda stop: guest(lambda: ticks(stop))))
    portal_s = asyncio.run(blocked(lambda stop: asyncio.to_thread(trio.run, ticks, stop)))
    print(f"longest pause of the trio side while the loop is busy for {BUSY_S:g} s:")
    print(f"guest mode {guest_s * 1000:.0f} ms, portal {portal_s * 1000:.0f} ms")


if __name__ == "__main__":
    main()
