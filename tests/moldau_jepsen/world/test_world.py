"""The simulated world itself: same seed, same run; what dies stays dead; what was not synced may be lost."""

import os
import subprocess
import sys

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.world import run_world


async def echo_server(environment):
    listener = await environment.network.listen("server", 9092)
    log = environment.disk.open("/log", OpenMode.WRITE)
    async with trio.open_nursery() as nursery:

        async def serve(connection):
            buffer = memoryview(bytearray(100))
            try:
                while True:
                    try:
                        count = connection.receive_into_nowait(buffer)
                    except BlockingIOError:
                        await connection.wait_readable()
                        continue
                    if count == 0:
                        break
                    log.append([buffer[:count]])
                    await environment.disk.offload(log.sync)
                    await connection.send_all([buffer[:count]])
            except OSError:
                pass
            finally:
                connection.close()

        while True:
            nursery.start_soon(serve, await listener.accept())


async def read_some(connection, count=100):
    buffer = memoryview(bytearray(count))
    while True:
        try:
            return bytes(buffer[: connection.receive_into_nowait(buffer)])
        except BlockingIOError:
            await connection.wait_readable()


async def chatter(world):
    """Three clients against a server that is killed and cut off now and then; returns the trace."""
    server = world.node("server")
    server.start(echo_server)
    random = world.random("test")

    async def client(name):
        network = world.node(name).environment.network
        for number in range(15):
            with trio.move_on_after(2):
                try:
                    connection = await network.connect("server", 9092)
                    await connection.send_all([b"%d" % number])
                    world.trace.event("echo", name, await read_some(connection))
                    connection.close()
                except OSError as error:
                    world.trace.event("error", name, type(error).__name__)
            await trio.sleep(random.random())

    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(client, name)
        for _ in range(3):
            await trio.sleep(1)
            server.kill()
            await trio.sleep(0.2)
            server.start(echo_server)
            world.network.cut_between(["a"], ["server"])
            await trio.sleep(1)
            world.network.heal_all()
    return world.trace.digest, world.trace.count


def test_same_seed_same_run_and_another_seed_another():
    first, again, other = run_world(chatter, 5), run_world(chatter, 5), run_world(chatter, 6)
    assert first == again
    assert first[0] != other[0]
    assert first[1] > 100


def test_same_run_in_fresh_interpreters_with_other_hash_seeds():
    script = (
        "import sys; sys.path[:0] = sys.argv[1].split(':'); from test_world import chatter, run_world; "
        "print(run_world(chatter, 5))"
    )
    path = ":".join([os.path.dirname(__file__), *sys.path])
    found = [
        subprocess.run(
            [sys.executable, "-c", script, path],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert found[0] == found[1] == f"{run_world(chatter, 5)}\n"


def test_a_killed_process_keeps_its_writes_and_cannot_write():
    """The writes of a killed process stay; it cannot write any more."""

    async def main(world):
        node = world.node("n")
        errors = []

        async def process(environment):
            file = environment.disk.open("/f", OpenMode.WRITE)
            file.append([b"one"])
            try:
                await trio.sleep_forever()
            finally:
                for call in (
                    lambda: file.append([b"two"]),
                    lambda: environment.disk.open("/g", OpenMode.WRITE),
                    lambda: environment.disk.list_directory("/"),
                ):
                    try:
                        call()
                    except OSError as error:
                        errors.append(error)

        node.start(process)
        await trio.sleep(1)
        node.kill()
        await node.wait_ended()
        assert len(errors) == 3
        disk = node.environment.disk
        assert disk.open("/f", OpenMode.READ).read(0, 100) == b"one"
        assert disk.list_directory("/") == ["f"]

    run_world(main, 1)


def test_a_killed_process_gives_no_lock_of_the_next_one_back():
    """Its own lock ended with it; what its ``finally`` blocks release later may be held by the next process."""
    refused = []

    async def former(environment):
        lock = environment.disk.lock("/lock")
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            lock.release()

    async def next_one(environment):
        environment.disk.lock("/lock")
        await trio.sleep(2)
        with pytest.raises(BlockingIOError):
            environment.disk.lock("/lock")
        refused.append(True)

    async def scenario(world):
        node = world.node("n")
        node.start(former)
        await trio.sleep(1)
        node.kill()
        node.start(next_one)
        await node.wait_ended()
        world.check_failures()

    run_world(scenario, 1)
    assert refused


def test_power_loss_takes_only_what_was_not_synced():
    outcomes = set()

    async def main(world):
        node = world.node("n")

        async def process(environment):
            disk = environment.disk
            kept = disk.open("/kept", OpenMode.CREATE)
            kept.append([b"k" * 10_000])
            kept.sync()
            disk.sync_directory("/")
            kept.append([b"p" * 10_000])
            disk.open("/perhaps", OpenMode.CREATE).append([b"?"])
            disk.rename("/kept", "/renamed")
            await trio.sleep_forever()

        node.start(process)
        await trio.sleep(1)
        node.lose_power()
        disk = node.environment.disk
        names = disk.list_directory("/")
        assert ("kept" in names) != ("renamed" in names)
        content = disk.open("/kept" if "kept" in names else "/renamed", OpenMode.READ).read(0, 1 << 20)
        assert content[:8192] == b"k" * 8192
        assert content[:10_000].count(b"k") == 10_000 or content[8192:10_000] == b"k" * 1808
        outcomes.add((tuple(names), len(content), content.count(b"p"), content.count(b"\0")))

    for seed in range(60):
        run_world(main, seed)
    assert {names for names, *_ in outcomes} == {("kept",), ("kept", "perhaps"), ("perhaps", "renamed")}
    assert {10_000, 20_000} < {size for _, size, *_ in outcomes}
    assert any(zeros for *_, zeros in outcomes)
    assert any(lost == 10_000 for _, _, lost, _ in outcomes)


def test_offloaded_sync_of_a_dead_process_never_happens():
    async def main(world):
        node = world.node("n")

        async def process(environment):
            file = environment.disk.open("/f", OpenMode.CREATE)
            environment.disk.sync_directory("/")
            file.append([b"x"])
            await environment.disk.offload(file.sync)
            raise AssertionError("the sync ended")

        node.disk.profile.offload_delay_min = 10
        node.start(process)
        await trio.sleep(1)
        node.lose_power()
        await node.wait_ended()
        await trio.sleep(100)
        assert world.failures == []

    run_world(main, 1)


def test_crash_between_two_writes_of_one_step():
    async def main(world):
        node = world.node("n")

        async def process(environment):
            for number in range(10):
                environment.disk.open(f"/{number}", OpenMode.CREATE).append([b"x"])
            raise AssertionError("never gets here")

        node.start(process)
        node.crash_after_writes(5, node.kill)
        await node.wait_ended()
        assert node.environment.disk.list_directory("/") == ["0", "1", "2"]
        assert node.environment.disk.file_size("/2") == 0
        assert world.failures == []

    run_world(main, 1)


def test_a_crash_point_that_was_not_reached_can_be_forgotten():
    async def main(world):
        node = world.node("n")

        async def process(environment):
            environment.disk.open("/before", OpenMode.CREATE).append([b"x"])
            await trio.sleep(1)
            for number in range(10):
                environment.disk.open(f"/{number}", OpenMode.CREATE).append([b"x"])

        node.start(process)
        node.crash_after_writes(5, node.kill)
        await trio.sleep(0.5)
        node.forget_crash_point()
        await node.wait_ended()
        assert node.environment.disk.exists("/9")
        assert world.failures == []

    run_world(main, 1)


def test_crash_between_a_send_and_a_write_of_one_step():
    async def main(world):
        listener = await world.node("peer").environment.network.listen("peer", 80)
        node = world.node("n")

        async def process(environment):
            connection = await environment.network.connect("peer", 80)
            for number in range(10):
                connection.send_nowait([b"%d" % number])
                environment.disk.open(f"/{number}", OpenMode.CREATE)
            raise AssertionError("never gets here")

        node.start(process)
        node.crash_after_sends(3, node.kill)
        connection = await listener.accept()
        await node.wait_ended()
        assert node.environment.disk.list_directory("/") == ["0", "1"], "what was sent last was not followed by a write"
        assert world.failures == []
        received = b""
        while data := await read_some(connection):
            received += data
        return received

    assert run_world(main, 1) == b"012"


def test_crash_points_can_be_cancelled_and_end_with_the_process():
    """A crash point at a send can be cancelled, and ends with its process."""

    async def main(world):
        node, sent = world.node("n"), []
        listener = await world.node("peer").environment.network.listen("peer", 80)

        async def process(environment):
            connection = await environment.network.connect("peer", 80)
            await trio.sleep(1)
            for number in range(10):
                connection.send_nowait([b"%d" % number])
            sent.append(connection.local_address)

        node.start(process)
        node.crash_after_sends(5, node.kill)
        await trio.sleep(0.5)
        node.forget_crash_point()
        await node.wait_ended()
        node.start(process)
        node.crash_after_sends(5, node.kill)
        await trio.sleep(0.5)
        node.kill()
        node.start(process)
        await node.wait_ended()
        listener.close()
        return len(sent), world.failures

    assert run_world(main, 1) == (2, [])


def test_disk_faults():
    async def main(world):
        node = world.node("n")
        disk = node.environment.disk
        file = disk.open("/f", OpenMode.CREATE)
        node.disk.profile.capacity_bytes = 10
        with pytest.raises(OSError, match="No space"):
            file.append([b"x" * 20])
        assert file.size == 10
        file.truncate(4)
        assert disk.free_bytes("/") == 6
        file.append([b"y" * 6])
        node.disk.flip_bit("/f", 0, 1)
        assert file.read(0, 2) == b"zx"
        node.disk.profile.sync_error_probability = 1.0
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        node.disk.profile.read_error_probability = 1.0
        with pytest.raises(OSError, match="Input/output"):
            file.read(0, 1)

    run_world(main, 1)


def test_a_cut_holds_bytes_and_heals_in_order():
    async def main(world):
        world.node("server").start(echo_server)
        network = world.node("a").environment.network
        await trio.sleep(0.1)
        connection = await network.connect("server", 9092)
        world.network.cut("a", "server")
        await connection.send_all([b"one "])
        await connection.send_all([b"two"])
        with trio.move_on_after(5) as scope:
            await connection.wait_readable()
        assert scope.cancelled_caught
        world.network.heal("a", "server")
        received = b""
        with trio.fail_after(5):
            while received != b"one two":
                received += await read_some(connection)

    run_world(main, 3)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "::1"])
def test_a_loopback_listener_is_its_own_machines_alone(name):
    """A console or an inner listener on the loopback is no way into a machine for others."""

    async def main(world):
        own, other = (world.node(each).environment.network for each in ("server", "other"))
        listener = await own.listen(name, 9092)
        for host in (name, "server"):
            (await own.connect(host, 9092)).close()
        for host in (name, "server"):
            with pytest.raises(ConnectionRefusedError):
                await other.connect(host, 9092)
        listener.close()
        await own.listen("0.0.0.0", 9092)
        (await other.connect("server", 9092)).close()

    run_world(main, 1)


def test_a_long_cut_times_senders_out_and_blocks_new_connections():
    """A long cut times the sender out and blocks new connections."""

    async def main(world):
        world.node("server").start(echo_server)
        network = world.node("a").environment.network
        await trio.sleep(0.1)
        unheard, idle = await network.connect("server", 9092), await network.connect("server", 9092)
        world.network.cut("server", "a")
        await unheard.send_all([b"x"])
        with trio.move_on_after(3) as scope:
            await network.connect("server", 9092)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            await network.connect("server", 9092)
        with pytest.raises(TimeoutError):
            await read_some(unheard)
        world.network.cut("a", "server")
        await idle.send_all([b"y"])
        with pytest.raises(TimeoutError):
            await read_some(idle)

    run_world(main, 3)


def test_kill_closes_connections_and_power_loss_is_silent():
    """A kill closes connections; a power loss is silent until the power returns."""

    async def main(world):
        server = world.node("server")
        server.start(echo_server)
        network = world.node("a").environment.network
        await trio.sleep(0.1)
        connection = await network.connect("server", 9092)
        server.kill()
        assert await read_some(connection) == b""
        with pytest.raises(ConnectionRefusedError):
            await network.connect("server", 9092)
        server.start(echo_server)
        await trio.sleep(0.1)
        connection = await network.connect("server", 9092)
        server.lose_power()
        with trio.move_on_after(5) as scope:
            await connection.wait_readable()
        assert scope.cancelled_caught
        await connection.send_all([b"anyone?"])
        server.start(echo_server)
        with pytest.raises(ConnectionResetError):
            await read_some(connection)

    run_world(main, 4)


def test_resets_and_slow_links():
    async def main(world):
        world.node("server").start(echo_server)
        network = world.node("a").environment.network
        await trio.sleep(0.1)
        connection = await network.connect("server", 9092)
        world.network.slow_link("a", "server", extra_delay=1.5)
        started = trio.current_time()
        await connection.send_all([b"slow"])
        assert await read_some(connection) == b"slow"
        assert trio.current_time() - started > 1.5
        assert world.network.reset_connections("a", "server") == 1
        with pytest.raises(ConnectionResetError):
            connection.send_nowait([b"x"])

    run_world(main, 3)


def test_clocks_drift_and_jump_but_monotonic_time_does_not():
    """Clocks drift and jump, but monotonic time never goes back."""

    async def main(world):
        node = world.node("n")
        clock = node.environment.clock
        wall, monotonic = clock.wall_ms(), clock.monotonic_ms()
        node.clock.jump_wall(-3_600_000)
        assert clock.wall_ms() == wall - 3_600_000
        assert clock.monotonic_ms() == monotonic
        node.clock.set_rate(1.5)
        await trio.sleep(10)
        assert clock.monotonic_ms() - monotonic == pytest.approx(15_000)

    run_world(main, 1)


def test_a_failing_process_is_reported_and_its_peers_notice():
    async def main(world):
        async def process(environment):
            listener = await environment.network.listen("server", 1)
            await listener.accept()
            raise AssertionError("broken invariant")

        world.node("server").start(process)
        await trio.sleep(0.1)
        connection = await world.node("a").environment.network.connect("server", 1)
        assert await read_some(connection) == b""
        assert [(name, str(error)) for name, error in world.failures] == [("server", "broken invariant")]
        assert not world.node("server").is_running

    run_world(main, 1)
