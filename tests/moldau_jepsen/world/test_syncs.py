"""Goal: a sync of a virtual disk promises what a sync promises, and no more.

Method: one machine of a simulated world. Writes before and during a sync, syncs that fail, and then a loss of power;
over many seeds, so that what may happen and what may not are both seen.
"""

import random
from itertools import product

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.disk.virtual_disk import PAGE_BYTES, Directory, Inode
from moldau_jepsen.world.world import run_world

SEEDS = 40
OLD, NEW = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES


def slow(world, seconds=1.0):
    node = world.node("n")
    profile = node.disk.profile
    profile.offload_delay_min, profile.offload_delay_jitter, profile.stall_probability = seconds, 0.0, 0.0
    return node


def content(node, path="/f"):
    file = node.environment.disk.open(path, OpenMode.READ)
    return file.read(0, file.size)


async def write_during_sync(world):
    """Whether what is written, and which names are made, while a sync is under way is durable when it has returned."""
    node = slow(world)
    disk = node.environment.disk
    file = disk.open("/f", OpenMode.CREATE)
    file.append([OLD])

    def work():
        file.sync()
        disk.sync_directory("/")

    async def write():
        await trio.sleep(0.5)
        file.append([NEW])
        disk.open("/later", OpenMode.CREATE).close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await disk.offload(work)
    node.lose_power()
    found = content(node)
    assert found[:PAGE_BYTES] == OLD, "what was written before the sync began is durable"
    return found[PAGE_BYTES:] == NEW, node.environment.disk.exists("/later")


def test_writes_during_a_sync_may_or_may_not_be_durable():
    """A write during a sync may be durable with it, but need not."""
    outcomes = [run_world(write_during_sync, seed) for seed in range(SEEDS)]
    for which in range(2):
        assert 5 < sum(outcome[which] for outcome in outcomes) < SEEDS - 5


def test_a_process_may_die_between_a_sync_and_its_return():
    """A process may die when its sync is done but has not returned."""

    async def main(world):
        node = slow(world)
        returned = []

        async def process(environment):
            file = environment.disk.open("/f", OpenMode.CREATE)
            environment.disk.sync_directory("/")
            file.append([NEW])
            await environment.disk.offload(file.sync)
            returned.append(True)

        node.start(process)
        await trio.sleep(0.5)
        node.kill()
        await node.wait_ended()
        assert trio.current_time() == 0.5, "no task waits for the disk of a dead process"
        await trio.sleep(2.0)
        assert (returned, world.failures) == ([], [])
        return bytes(node.disk.lookup("/f").durable)

    assert {run_world(main, seed) for seed in range(12)} == {b"", NEW}


async def offloaded(world, fails):
    """Instants at which offloaded work is done, and at which its caller resumes."""
    node = slow(world)
    done = []

    def work():
        done.append(trio.current_time())
        if fails:
            raise OSError("it fails")
        return "the result"

    begun = trio.current_time()
    if fails:
        with pytest.raises(OSError, match="it fails"):
            await node.environment.disk.offload(work)
    else:
        assert await node.environment.disk.offload(work) == "the result"
    assert trio.current_time() - begun == pytest.approx(1.0), "split or not, the disk takes as long"
    return done[0] - begun


@pytest.mark.parametrize("fails", [False, True])
def test_work_is_done_at_any_instant_of_its_delay(fails):
    """Offloaded work is done at the beginning, at the end or within its delay."""

    async def main(world):
        return await offloaded(world, fails)

    at = [run_world(main, seed) for seed in range(SEEDS)]
    assert sum(seconds == 0.0 for seconds in at) > 5
    assert sum(seconds == pytest.approx(1.0) for seconds in at) > 5
    assert sum(0.0 < seconds < 0.999 for seconds in at) > 5


async def failed_sync(world, then):
    """Writes two pages over two durable ones, and the sync fails; then ``then(file)``, a good sync and a loss."""
    node = world.node("n")
    disk = node.environment.disk
    file = disk.open("/f", OpenMode.CREATE)
    file.append([OLD * 2])
    file.sync()
    disk.sync_directory("/")
    file.write_at(0, NEW * 2)
    node.disk.profile.sync_error_probability = 1.0
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    node.disk.profile.sync_error_probability = 0.0
    assert file.read(0, file.size) == NEW * 2, "the page cache has it"
    then(file)
    file.sync()
    node.lose_power()
    return content(node)


def test_after_a_failed_sync_no_other_sync_writes_what_it_left():
    async def main(world):
        return await failed_sync(world, lambda file: None)

    found = [run_world(main, seed) for seed in range(SEEDS)]
    assert set(found) == {OLD * 2, OLD + NEW, NEW + OLD}, "at least one page is not durable"


def test_rewritten_pages_of_a_failed_sync_are_durable_next_time():
    """Pages that are written again after a failed sync are durable with the next sync."""

    async def main(world):
        return await failed_sync(world, lambda file: file.write_at(PAGE_BYTES, NEW))

    assert {run_world(main, seed) for seed in range(SEEDS)} == {OLD + NEW, NEW + NEW}


def test_appends_before_a_failed_sync_may_become_durable_zeros():
    """Appends before a failed sync read as zeros once a later sync makes the size durable."""

    def append(file):
        file.append([NEW])

    async def main(world):
        node = world.node("n")
        disk = node.environment.disk
        file = disk.open("/f", OpenMode.CREATE)
        disk.sync_directory("/")
        append(file)
        node.disk.profile.sync_error_probability = 1.0
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        node.disk.profile.sync_error_probability = 0.0
        append(file)
        file.sync()
        node.lose_power()
        return content(node)

    assert {run_world(main, seed) for seed in range(5)} == {bytes(PAGE_BYTES) + NEW}


def rewritten():
    """Returns a synced file of 50,000 bytes that was truncated, and got 30,000 others that are not synced."""
    inode = Inode()
    inode.content += b"d" * 50_000
    inode.touch(0, 50_000)
    inode.sync()
    inode.cut(0)
    inode.content += b"n" * 30_000
    inode.touch(0, 30_000)
    return inode


def test_a_truncated_and_rewritten_file_may_have_any_former_size():
    """After a power loss a truncated and rewritten file has one of the sizes that it had."""
    sizes = set()
    for seed in range(60):
        inode = rewritten()
        inode.lose_power(random.Random(seed))
        sizes.add(len(inode.content))
    assert {0, 30_000, 50_000} < sizes
    assert any(0 < size < 30_000 for size in sizes)
    assert any(30_000 < size < 50_000 for size in sizes)


def test_the_smallest_former_size_counts_after_several_cuts():
    """A file that is cut again, to a larger size, may still come back with the smallest one."""
    sizes = set()
    for seed in range(60):
        inode = rewritten()
        inode.cut(20_000)
        inode.lose_power(random.Random(seed))
        sizes.add(len(inode.content))
    assert {0, 20_000, 50_000} < sizes


FILE = Inode()
CHANGES = ({"a": FILE}, {"a": None, "b": FILE}, {"b": None}, None)
"""The file a is made, renamed to b, and removed; None is a sync of the directory."""


def test_a_loss_of_power_takes_the_newest_names():
    """The names that are left are those after a sync, or after one of the changes that followed it."""
    for history in product(CHANGES, repeat=3):
        left = set()
        for seed in range(24):
            directory, states = Directory(), [{}]
            for change in history:
                if change is None:
                    directory.sync()
                    states = states[-1:]
                else:
                    directory.change(change)
                    states.append(dict(directory.names))
            directory.lose_power(random.Random(seed))
            assert directory.names == directory.durable
            left.add(frozenset(directory.names))
        assert left == set(map(frozenset, states)), history
