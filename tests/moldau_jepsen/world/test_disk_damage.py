"""Goal: read errors and rot do to a virtual disk what they say, and no observer is drawn into them.

Method: one machine and its port.
"""

import random
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.rot_faults import RotFaults, closed_files, damage
from moldau_jepsen.world.disk.virtual_disk import PAGE_BYTES
from moldau_jepsen.world.world import run_world

CONTENT = bytes(range(200))


def on_a_disk(main):
    """Runs ``main(world, machine, port)`` with the files of two segments in each of two directories."""

    async def run(world):
        machine = world.node("broker-1")
        port = machine.environment.disk
        for path in ("/data/flights-0", "/data2/flights-1"):
            port.make_directories(path)
            for base in ("00", "10"):
                for suffix in (".log", ".index"):
                    with_content(port, f"{path}/{base}{suffix}")
        for path in ("/", "/data", "/data2", "/data/flights-0", "/data2/flights-1"):
            port.sync_directory(path)
        return main(world, machine, port)

    return run_world(run, 1)


def with_content(port, path):
    file = port.open(path, OpenMode.CREATE)
    file.append([CONTENT])
    file.sync()
    file.close()


def read(port, path):
    file = port.open(path, OpenMode.READ)
    try:
        return file.read(0, len(CONTENT))
    finally:
        file.close()


def test_reads_fail_where_the_device_is_bad_and_nowhere_else():
    def main(world, machine, port):
        machine.disk.profile.read_error_probability = 1.0
        machine.disk.profile.unreadable_paths = ("/data",)
        with pytest.raises(OSError, match="Input/output error"):
            read(port, "/data/flights-0/00.log")
        assert read(port, "/data2/flights-1/00.log") == CONTENT, "a name that begins alike is another device"
        machine.disk.profile.unreadable_paths = ("/",)
        with pytest.raises(OSError, match="Input/output error"):
            read(port, "/data2/flights-1/00.log")
        assert [note.text for note in world.trace.notes() if note.kind == "disk-error"] == [
            "broker-1 read /data/flights-0/00.log",
            "broker-1 read /data2/flights-1/00.log",
        ]
        machine.disk.profile.read_error_probability = 0.0
        assert read(port, "/data/flights-0/00.log") == CONTENT

    on_a_disk(main)


def test_an_observer_meets_no_read_error_and_draws_nothing():
    def main(world, machine, port):
        machine.disk.profile.read_error_probability = 0.5
        state = machine.disk.random.getstate()
        world.agenda.watching = True
        assert all(read(port, "/data/flights-0/00.log") == CONTENT for _ in range(50))
        assert machine.disk.random.getstate() == state
        world.agenda.watching = False
        failures = 0
        for _ in range(50):
            try:
                read(port, "/data/flights-0/00.log")
            except OSError:
                failures += 1
        assert 10 < failures < 40

    on_a_disk(main)


def test_rot_is_durable_unnoticed_and_not_judged():
    def main(world, machine, port):
        path = "/data/flights-0/00.log"
        machine.disk.flip_bit(path, 3, 0)
        machine.disk.cut_short("/data/flights-0/00.index", 7)
        machine.disk.forget("/data/flights-0/10.index")
        for _ in range(2):
            assert read(port, path) == bytes([*CONTENT[:3], CONTENT[3] ^ 1, *CONTENT[4:]])
            assert read(port, "/data/flights-0/00.index") == CONTENT[:7]
            assert port.list_directory("/data/flights-0") == ["00.index", "00.log", "10.log"]
            world.agenda.watching = True
            with pytest.raises(OSError, match="does not judge"):
                read(port, path)
            assert read(port, "/data/flights-0/10.log") == CONTENT
            world.agenda.watching = False
            machine.disk.lose_power()

    on_a_disk(main)


def test_rot_stays_where_a_loss_of_power_takes_other_pages():
    def main(world, machine, port):
        path = "/data/flights-0/00.log"
        file = port.open(path, OpenMode.WRITE)
        file.append([bytes(PAGE_BYTES - file.size)])
        file.sync()
        file.append([bytes(PAGE_BYTES)])  # may be lost
        machine.disk.flip_bit(path, 3, 0)
        machine.disk.lose_power()
        assert read(port, path)[:4] == bytes([*CONTENT[:3], CONTENT[3] ^ 1])

    on_a_disk(main)


@pytest.mark.parametrize("seed", range(6))
def test_what_rot_took_does_not_come_back(seed):
    """A file may be lost before its name is durable: the creation that is pending must not bring it back."""

    async def main(world):
        machine = world.node("broker-1")
        with_content(machine.environment.disk, "/new.log")
        machine.disk.forget("/new.log")
        machine.disk.lose_power()
        assert machine.disk.files() == []

    run_world(main, seed)


def test_a_new_disk_is_empty_and_takes_the_place_of_one_device():
    def main(world, machine, port):
        machine.disk.replace(["/data"])
        for _ in range(2):
            assert port.list_directory("/data") == []
            assert read(port, "/data2/flights-1/00.log") == CONTENT
            machine.disk.lose_power()

    on_a_disk(main)


def test_only_files_of_closed_segments_are_damaged():
    def main(world, machine, port):
        directories = ["/data", "/data2"]
        closed = [
            f"{place}/00{suffix}" for place in ("/data/flights-0", "/data2/flights-1") for suffix in (".index", ".log")
        ]
        assert closed_files(machine.disk, directories) == closed
        records = [damage(machine.disk, directories, random.Random(number)) for number in range(12)]
        assert {True, False} == set(records)
        affected = [note.text.split()[1] for note in world.trace.notes() if note.kind == "bit-rot"]
        assert len(affected) == 12
        assert set(affected) <= set(closed)
        assert [path.endswith(".log") for path in affected] == records

    on_a_disk(main)


def test_where_no_segment_is_closed_nothing_rots():
    def main(world, machine, port):
        for path in machine.disk.files("/data") + machine.disk.files("/data2"):
            if "/00." in path:
                port.remove(path)
        assert not damage(machine.disk, ["/data", "/data2"], random.Random(1))
        assert not [note for note in world.trace.notes() if note.kind == "bit-rot"]

    on_a_disk(main)


@pytest.mark.parametrize("ends_early", [True, False])
def test_a_broker_that_stops_during_its_fault_keeps_its_files(ends_early, monkeypatch):
    """From then on a core of the nodes must do with what it has, and it may be one of them."""
    damaged, started = [], []

    def rot(disk, directories, draw):
        damaged.append(disk)
        return False

    async def main():
        stopped = trio.Event()
        machine = SimpleNamespace(is_running=True, ended_in_order=True, disk="disk", wait_ended=stopped.wait)
        cluster = SimpleNamespace(
            machines={1: machine},
            broker_ids=[1],
            is_healthy=lambda: True,
            stop=lambda node_id: None,
            start=started.append,
            log_directories=lambda node_id: ["/data"],
        )
        async with trio.open_nursery() as nursery:
            targets = SimpleNamespace(
                world=SimpleNamespace(nursery=nursery),
                cluster=cluster,
                safekeeping=SimpleNamespace(refusal=lambda node_id: "", rotten={}),
                fault_scope=FaultScope.BROKERS,
                mark=lambda: None,
            )
            end = RotFaults(targets, replaceable=True).strike(random.Random(1))
            await trio.testing.wait_all_tasks_blocked()
            if ends_early:
                end()
            machine.is_running = False
            stopped.set()

    monkeypatch.setattr("moldau_jepsen.simulation.inject.rot_faults.damage", rot)
    trio.run(main)
    assert started == [1]
    assert bool(damaged) is not ends_early
