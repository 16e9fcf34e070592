"""Goal: every operation of a virtual disk can fail, and faults that overlap on one disk end each for itself.

Method: one machine and its port for the operations. For the faults a cluster of one broker that is not started: they
strike its disk, and the test uses the disk where it wants to.
"""

import errno
from contextlib import suppress

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.disk.disk_profile import DiskProfile, Trouble
from moldau_jepsen.world.world import run_world

TREE = ["/d/a", "/d/below/b", "/d/below/c", "/d/z"]


def with_tree(main):
    """Runs ``main(machine, port)`` on a disk that holds the files of ``TREE``, all durable."""

    async def run(world):
        machine = world.node("n")
        port = machine.environment.disk
        port.make_directories("/d/below")
        for path in TREE:
            file = port.open(path, OpenMode.CREATE)
            file.append([b"x" * 100])
            file.sync()
        for path in ("/", "/d", "/d/below"):
            port.sync_directory(path)
        return main(machine, port)

    return [run_world(run, seed) for seed in range(20)]


def changes(port, file):
    return [
        lambda: port.open("/d/new", OpenMode.WRITE),
        lambda: port.make_directories("/d/deep/deeper"),
        lambda: file.preallocate(10_000),
        lambda: port.rename("/d/a", "/d/y"),
        lambda: port.remove("/d/a"),
        lambda: port.remove_tree("/d"),
        lambda: file.truncate(0),
    ]


def numbers(calls):
    found = []
    for call in calls:
        try:
            call()
        except OSError as error:
            found.append(error.errno)
        else:
            found.append(0)
    return found


def test_failed_changes_of_names_and_sizes_have_no_effect():
    """Each change of names and sizes can fail, and has no effect then."""

    def main(machine, port):
        file = port.open("/d/a", OpenMode.WRITE)
        machine.disk.profile.write_error_probability = 1.0
        assert numbers(changes(port, file)) == [errno.EIO] * 7
        machine.disk.profile.write_error_probability = 0.0
        assert (machine.disk.files(), file.size) == (TREE, 100)
        file.preallocate(10), file.sync()  # nothing to reserve, nothing to fail
        assert numbers(changes(port, file)) == [0, 0, 0, 0, errno.ENOENT, 0, 0], "/d/a has another name by then"

    with_tree(main)


def test_names_are_not_durable_until_a_sync_succeeds():
    """Names whose sync fails are not durable until a later sync succeeds."""

    def main(machine, port):
        port.rename("/d/a", "/d/y")
        machine.disk.profile.sync_error_probability = 1.0
        assert numbers([lambda: port.sync_directory("/d")]) == [errno.EIO]
        machine.disk.profile.sync_error_probability = 0.0
        machine.lose_power()
        return machine.environment.disk.exists("/d/y")

    assert set(with_tree(main)) == {True, False}


def test_a_full_device_refuses_only_what_needs_space():
    """A full device refuses new content; all other operations succeed."""

    def main(machine, port):
        file = port.open("/d/a", OpenMode.WRITE)
        for profile in ({"full_paths": ("/d",)}, {"capacity_bytes": 400}):
            for name, value in profile.items():
                setattr(machine.disk.profile, name, value)
            assert numbers(changes(port, file)[:3]) == [errno.ENOSPC] * 3
            if "full_paths" in profile:
                port.open("/elsewhere", OpenMode.WRITE).close()
                port.remove("/elsewhere")
            machine.disk.profile.full_paths = ()
        machine.disk.profile.full_paths = ("/d",)
        assert numbers(changes(port, file)[3:]) == [0, errno.ENOENT, 0, 0]
        assert port.list_directory("/") == []

    with_tree(main)


def test_a_write_that_fails_leaves_no_more_than_fits():
    """Nor does one that begins behind the end of the content, whose gap takes space, too."""

    def main(machine, port):
        file = port.open("/d/a", OpenMode.WRITE)
        for profile in ({"write_error_probability": 1.0}, {"write_error_probability": 0.0}):
            for name, value in {"capacity_bytes": 450, **profile}.items():
                setattr(machine.disk.profile, name, value)
            assert 0 not in numbers([lambda: file.append([bytes(1_000)]), lambda: file.write_at(140, bytes(1_000))])
            assert machine.disk.used_bytes() <= 450

    with_tree(main)


def test_directories_take_descriptors_as_on_a_real_disk():
    """A tree takes one for each level and one more. A list or a sync takes one that the port keeps from then on."""

    def main(machine, port):
        profile, used = machine.disk.profile, port.open_files
        calls = [lambda: port.list_directory("/d"), lambda: port.sync_directory("/d"), lambda: port.remove_tree("/d")]
        profile.open_files_max = 0
        fresh = NodeDisk(machine.disk)
        assert numbers([lambda: fresh.list_directory("/d"), lambda: fresh.sync_directory("/d")]) == [errno.EMFILE] * 2
        for free in (0, 1):
            profile.open_files_max = used + free
            assert numbers(calls) == [0, 0, errno.EMFILE]
            assert machine.disk.files() == TREE
        profile.open_files_max = used + 2
        assert numbers(calls) == [0, 0, errno.EMFILE]
        assert machine.disk.files() == TREE[1:], "the level below lacked one"
        profile.open_files_max = used + 3
        assert numbers(calls) == [0, 0, 0]
        assert (machine.disk.files(), port.open_files) == ([], used)

    with_tree(main)


async def any_uses(world):
    """Draws uses of a disk with few names and little space; after each, space and descriptors are counted again."""
    node, draw = world.node("n"), world.random("uses")
    port, profile = node.environment.disk, node.disk.profile
    port.make_directories("/d")
    profile.capacity_bytes, profile.write_error_probability = 600, 0.1
    names, opened = ("/a", "/b", "/d/c"), []

    def handle():
        return draw.choice([file for file in opened if not file._closed])

    uses = (
        lambda: opened.append(port.open(draw.choice(names), OpenMode.WRITE)),
        lambda: opened.append(port.open(draw.choice(names), OpenMode.WRITE)),
        lambda: handle().append([bytes(draw.randint(0, 200))]),
        lambda: handle().append([bytes(draw.randint(0, 200))]),
        lambda: handle().write_at(draw.randint(0, 99), bytes(50)),
        lambda: handle().truncate(draw.randint(0, 99)),
        lambda: draw.choice(opened).close(),
        lambda: port.rename(draw.choice(names), draw.choice(names)),
        lambda: port.remove(draw.choice(names)),
        lambda: port.remove_tree(draw.choice(("/d", "/a"))),
        lambda: port.make_directories("/d"),
    )
    for _ in range(200):
        with suppress(OSError, ValueError, IndexError):
            draw.choice(uses)()
        assert port.total_bytes("/") - port.free_bytes("/") == node.disk.used_bytes()
        assert port.open_files == sum(not file._closed for file in opened)


@pytest.mark.parametrize("seed", range(8))
def test_space_and_descriptors_are_those_in_use(seed):
    run_world(any_uses, seed)


def test_each_of_several_disks_hangs_until_its_own_fault_ends():
    profile, hanging = DiskProfile(), ("/a", "/b")
    faults = [Trouble(on_effect=lambda: None, hanging_paths=(path,)) for path in hanging]
    for fault_ in faults:
        profile.begin(fault_)
    assert [path for path in hanging if profile.is_hanging(f"{path}/log")] == ["/a", "/b"]
    profile.end(faults[1])
    assert [path for path in hanging if profile.is_hanging(f"{path}/log")] == ["/a"]


@pytest.mark.parametrize("seed", range(6))
def test_a_write_that_fails_may_leave_a_part_behind(seed):
    async def main(world):
        node = world.node("n")
        file = node.environment.disk.open("/f", OpenMode.CREATE)
        node.disk.profile.write_error_probability = 1.0
        sizes = set()
        for _ in range(20):
            before = file.size
            assert numbers([lambda: file.append([b"x" * 100])]) == [errno.EIO]
            sizes.add(file.size - before)
        assert 0 <= min(sizes) < max(sizes) <= 100

    run_world(main, seed)


def test_a_process_can_die_at_any_entry_of_a_tree_removal():
    """A process can die between any two entries of a tree that it removes."""

    async def main(world, count):
        node = world.node("n")

        async def process(environment):
            disk = environment.disk
            disk.make_directories("/d/below")
            for path in TREE:
                disk.open(path, OpenMode.CREATE).close()
            node.crash_after_writes(count, node.kill)
            disk.remove_tree("/d")
            await trio.sleep_forever()

        node.start(process)
        await node.wait_ended()
        assert world.failures == []
        return node.disk.files(), node.environment.disk.exists("/d/below"), node.environment.disk.exists("/d")

    left = [run_world(lambda world, count=count: main(world, count), 1) for count in range(1, 7)]
    assert left == [
        (TREE[1:], True, True),
        (TREE[2:], True, True),
        (TREE[3:], True, True),
        (TREE[3:], False, True),
        ([], False, True),
        ([], False, False),
    ]


def test_a_power_loss_brings_a_removed_tree_back_in_part():
    """A power loss brings parts of a removed tree back."""

    def main(machine, port):
        port.remove_tree("/d")
        assert port.list_directory("/") == []
        machine.lose_power()
        found = machine.disk.files()
        assert set(found) <= set(TREE)
        return len(found)

    assert {0, 4} < set(with_tree(main)), "nothing, all, and something between"


def affected_broker(world):
    """A broker that does not run, its disk, and the hands that strike it."""
    cluster = SimulatedCluster(world, ClusterShape(brokers=1, controllers=1))
    injector = FaultInjector(cluster, ["client"], synced=True, fault_scope=FaultScope.BROKERS)
    injector.targets.start = lambda nodes: None
    return cluster.machines[1], injector


def fault(kind, begin, end, number):
    return PlannedFault(kind=kind, begin=begin, end=end, number=number)


def worst(profile):
    healthy = DiskProfile()
    return {
        "slow": profile.offload_delay_jitter > healthy.offload_delay_jitter,
        "full": profile.capacity_bytes < healthy.capacity_bytes,
        "reads": profile.read_error_probability > 0.0,
    }


async def overlapping(world):
    machine, injector = affected_broker(world)
    kinds = (FaultKind.DISK_SLOW, FaultKind.DISK_FULL, FaultKind.READ_ERROR)
    plan = [fault(kind, number, 5.0 + number, number) for number, kind in enumerate(kinds)]
    injector.schedule([*plan, fault(FaultKind.DISK_ERROR, 3.0, 4.0, 3)], trio.current_time())
    seen = []
    for _ in range(8):
        await trio.sleep(0.5 if not seen else 1.0)
        seen.append([name for name, there in worst(machine.disk.profile).items() if there])
    assert injector.targets.safekeeping._endangered == {}, "faults that are over endanger no node"
    injector.schedule([fault(FaultKind.DISK_SLOW, 0.0, 5.0, 4)], trio.current_time())
    await trio.sleep(1.0)
    assert worst(machine.disk.profile)["slow"]
    injector.end_all()
    assert machine.disk.profile == DiskProfile()
    return seen


def test_a_fault_of_a_disk_that_ends_leaves_the_others_alone():
    for seed in range(5):
        assert run_world(overlapping, seed) == [
            ["slow"],
            ["slow", "full"],
            ["slow", "full", "reads"],
            ["slow", "full", "reads"],
            ["slow", "full", "reads"],
            ["full", "reads"],
            ["reads"],
            [],
        ]


def test_the_worst_of_two_faults_of_one_kind_holds():
    async def main(world):
        machine, injector = affected_broker(world)
        profile = machine.disk.profile
        injector.schedule([fault(FaultKind.DISK_FULL, 0.0, 9.0 - number, number) for number in range(6)], 0.0)
        found = []
        await trio.sleep(0.5)
        for _ in range(9):
            found.append(profile.capacity_bytes)
            await trio.sleep(1.0)
        return found

    seen = [run_world(main, seed) for seed in range(8)]
    for found in seen:
        assert found == sorted(found)
        assert found[0] <= 5_000
        assert found[-1] < DiskProfile().capacity_bytes, "one lasts still"
    assert any(len(set(found)) > 2 for found in seen), "what is left is less and less"


DEEDS = {
    FaultKind.DISK_SLOW: lambda machine, file: None,
    FaultKind.DISK_FULL: lambda machine, file: file.append([b"x" * 10_000]),
    FaultKind.READ_ERROR: lambda machine, file: file.read(0, 1),
    FaultKind.DISK_ERROR: lambda machine, file: (file.append([b"x"]), file.sync()),
}


@pytest.mark.parametrize("kind", DEEDS)
def test_a_fault_of_a_disk_took_effect_when_it_did_something(kind):
    async def main(world):
        machine, injector = affected_broker(world)
        disk = machine.environment.disk
        file = disk.open("/f", OpenMode.CREATE)
        file.append([b"here"])
        injector.schedule([fault(kind, 0.0, 50.0, 0)], trio.current_time())
        await trio.sleep(1.0)
        armed, reported = injector.effective.total(), 0
        for _ in range(200):
            failed = numbers([lambda: DEEDS[kind](machine, file)])[0]
            assert injector.effective.total() == (reported > 0 or failed > 0)
            reported += failed > 0
        await disk.offload(lambda: None)
        return armed, reported > 0, injector.effective.total()

    outcomes = {run_world(main, seed) for seed in range(30)}
    if kind is FaultKind.DISK_SLOW:
        assert outcomes == {(0, False, 1)}
    elif kind is FaultKind.DISK_ERROR:
        assert outcomes == {(0, False, 0), (0, True, 1)}, "some are given no errors"
    else:
        assert (0, True, 1) in outcomes
