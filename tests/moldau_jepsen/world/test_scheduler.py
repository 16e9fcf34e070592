"""Goal: a run is the same whatever else the process does. Method: trio busy in another thread while a seed runs
twice.
"""

import threading

import trio

from moldau_jepsen.world.time.scheduler import run_deterministic


async def order_of_tasks() -> list[int]:
    order: list[int] = []

    async def task(number: int) -> None:
        for _ in range(20):
            await trio.lowlevel.checkpoint()
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(task, number)
    return order


def test_trio_in_another_thread_does_not_change_a_run() -> None:
    expected = run_deterministic(order_of_tasks, 3)
    assert run_deterministic(order_of_tasks, 4) != expected
    stopping = threading.Event()
    started = threading.Event()

    async def busy() -> None:
        async def spin() -> None:
            while not stopping.is_set():
                await trio.lowlevel.checkpoint()
                started.set()

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(spin)

    other = threading.Thread(target=trio.run, args=(busy,))
    other.start()
    try:
        assert started.wait(10)
        for _ in range(20):
            assert run_deterministic(order_of_tasks, 3) == expected
    finally:
        stopping.set()
        other.join(10)
