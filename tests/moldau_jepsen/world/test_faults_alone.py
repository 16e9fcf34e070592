"""Goal: what the virtual network and the virtual disk do by themselves: overtake, be slow, stand still.

Method: two hosts, or one disk, of a simulated world; times are virtual, and compared with the profile that was set.
"""

import itertools

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.world import run_world

COUNT = 200


async def numbered(world):
    """Sends numbers in turn over two connections; returns connection and number of each, in the order of arrival."""
    listener = await world.node("server").environment.network.listen("server", 9092)
    network = world.node("client").environment.network
    senders = [await network.connect("server", 9092) for _ in range(2)]
    receivers = [await listener.accept() for _ in range(2)]
    arrived = []

    async def receive(which):
        buffer = memoryview(bytearray(4 * COUNT))
        held = b""
        while len([1 for one, _ in arrived if one == which]) < COUNT // 2:
            try:
                held += buffer[: receivers[which].receive_into_nowait(buffer)]
            except BlockingIOError:
                await receivers[which].wait_readable()
                continue
            whole = len(held) // 4 * 4
            arrived.extend((which, int.from_bytes(held[at : at + 4], "big")) for at in range(0, whole, 4))
            held = held[whole:]

    async with trio.open_nursery() as nursery:
        for which in range(2):
            nursery.start_soon(receive, which)
        for number in range(COUNT):
            await senders[number % 2].send_all([number.to_bytes(4, "big")])
            await trio.sleep(0.000_05)
    return arrived


def test_connections_overtake_each_other_but_keep_their_order():
    """Connections overtake each other, but each keeps its own order."""
    overtaken = 0
    for seed in range(5):
        arrived = run_world(numbered, seed)
        for which in range(2):
            assert [number for one, number in arrived if one == which] == list(range(which, COUNT, 2))
        numbers = [number for _, number in arrived]
        overtaken += sum(later < earlier for earlier, later in itertools.pairwise(numbers))
    assert overtaken > COUNT / 4


def test_without_jitter_nothing_is_overtaken():
    even = NetworkProfile(delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0)
    assert [number for _, number in run_world(numbered, 1, even)] == list(range(COUNT))


async def synced(world, **profile):
    """Writes and syncs once with such a disk; returns how long that took and how far another task got meanwhile."""
    node = world.node("n")
    for name, value in profile.items():
        setattr(node.disk.profile, name, value)
    disk = node.environment.disk
    file = disk.open("/f", OpenMode.CREATE)
    disk.sync_directory("/")
    file.append([b"kept"])
    steps = 0

    async def work():
        nonlocal steps
        while True:
            await trio.sleep(0.1)
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        begun = trio.current_time()
        await disk.offload(file.sync)
        seconds = trio.current_time() - begun
        nursery.cancel_scope.cancel()
    node.lose_power()
    assert node.environment.disk.open("/f", OpenMode.READ).read(0, 10) == b"kept", "late, and durable all the same"
    return seconds, steps


def times(**profile):
    found = []
    for seed in range(12):

        async def main(world):
            return await synced(world, **profile)

        found.append(run_world(main, seed))
    return found


def test_a_slow_disk_delays_only_its_own_syncs():
    """A slow disk delays its syncs, and no other node."""
    usual = [seconds for seconds, _ in times(stall_probability=0.0)]
    slow = times(stall_probability=0.0, offload_delay_min=2.0, offload_delay_jitter=0.5)
    assert max(usual) < 0.1
    assert all(seconds >= 2.0 and steps >= 19 for seconds, steps in slow)
    assert len({seconds for seconds, _ in slow}) == len(slow), "each as long as is drawn"


def test_a_disk_stalls_now_and_then():
    stalled = [seconds for seconds, _ in times(stall_probability=0.5, stall_max=3.0)]
    assert max(stalled) < 3.1
    assert sum(seconds > 0.1 for seconds in stalled) > 2
    assert sum(seconds < 0.1 for seconds in stalled) > 2


def left_after_power_loss(sync_seconds):
    """Contents of a file whose process synced it, on a disk that takes so long, when the power goes after 5 s."""

    async def main(world):
        node = world.node("n")
        node.disk.profile.offload_delay_min = sync_seconds

        async def process(environment):
            file = environment.disk.open("/f", OpenMode.CREATE)
            environment.disk.sync_directory("/")
            file.append([b"x" * 100])
            await environment.disk.offload(file.sync)

        node.start(process)
        await trio.sleep(5.0)
        node.lose_power()
        return node.environment.disk.open("/f", OpenMode.READ).read(0, 200)

    return {run_world(main, seed) for seed in range(20)}


def test_power_loss_drops_data_of_a_slow_sync():
    assert left_after_power_loss(1.0) == {b"x" * 100}
    assert b"" in left_after_power_loss(6.0)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_reads_fails_on_the_chosen_disk(share):
    async def main(world):
        node = world.node("n")
        disk = node.environment.disk
        for path in ("/data/f", "/other/f"):
            disk.make_directories(path.rpartition("/")[0])
            disk.open(path, OpenMode.CREATE).append([b"x"])
        node.disk.profile.read_error_probability = share
        node.disk.profile.unreadable_paths = ("/data",)
        if share:
            with pytest.raises(OSError, match="Input/output"):
                disk.open("/data/f", OpenMode.READ).read(0, 1)
        else:
            assert disk.open("/data/f", OpenMode.READ).read(0, 1) == b"x"
        assert disk.open("/other/f", OpenMode.READ).read(0, 1) == b"x"

    run_world(main, 1)
