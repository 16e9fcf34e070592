"""Goal: work that hangs on a disk and is abandoned costs no thread of the others, and other work is waited for.

Method: the real disk with one thread, and work that ends when the test allows it.
"""

from __future__ import annotations

import threading

import trio
import trio.testing

from moldau.runtime.ports.real import RealDisk


async def in_progress(disk, nursery, *, abandons):
    """Starts work that hangs; returns its scope, the event that lets it end, and the event of the ended call."""
    begun, may_end, returned = threading.Event(), threading.Event(), trio.Event()
    scope = trio.CancelScope()

    def work():
        begun.set()
        may_end.wait(60)

    async def call():
        with scope:
            await disk.offload(work, abandons=abandons)
        returned.set()

    nursery.start_soon(call)
    await trio.to_thread.run_sync(begun.wait, 60)
    return scope, may_end, returned


def test_abandoned_work_gives_its_thread_back():
    async def main():
        disk = RealDisk(threads_max=1)
        async with trio.open_nursery() as nursery:
            scope, may_end, returned = await in_progress(disk, nursery, abandons=True)
            try:
                scope.cancel()
                with trio.fail_after(60):
                    await returned.wait()
                    assert await disk.offload(lambda: 42) == 42
            finally:
                may_end.set()

    trio.run(main)


def test_other_work_is_waited_for_when_it_is_cancelled():
    async def main():
        disk = RealDisk(threads_max=1)
        async with trio.open_nursery() as nursery:
            scope, may_end, returned = await in_progress(disk, nursery, abandons=False)
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not returned.is_set()
            may_end.set()
            with trio.fail_after(60):
                await returned.wait()

    trio.run(main)


def test_work_that_never_ran_adds_no_thread():
    """Calls that are cancelled in line for a thread would otherwise raise the bound by one each."""

    async def main():
        disk = RealDisk(threads_max=1)
        async with trio.open_nursery() as nursery:
            _, may_end, _ = await in_progress(disk, nursery, abandons=False)
            try:
                for _ in range(3):
                    with trio.move_on_after(0) as scope:
                        await disk.offload(lambda: 42, abandons=True)
                    assert scope.cancelled_caught
                assert disk._threads.total_tokens == 1
            finally:
                may_end.set()

    trio.run(main)
