"""One contract for both environments: what ``moldau.runtime.ports.environment`` promises holds for the operating
system's sockets and files and for the simulated ones alike. Each test runs once on each, and those of connections also
with TLS on top of them.
"""

import contextlib
import io
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.connection import TlsConnection
from moldau.runtime.tls.context import client_context, server_context
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.world.world import run_world
from support.certificates import authority

WAIT_S = 120


def run_real(test, directory):
    async def main():
        environment = real_environment(1)
        # A port that no other process receives after its listener has closed.
        given = SimpleNamespace(server=environment, client=environment, host="127.0.0.1", port=take_free_ports(1)[0])
        given.directory = str(directory)
        with trio.fail_after(WAIT_S):
            await test(given)

    trio.run(main)


def run_virtual(test, directory):
    async def main(world):
        server, client = world.node("server").environment, world.node("client").environment
        server.disk.make_directories("/data")
        with trio.fail_after(20_000):
            await test(SimpleNamespace(server=server, client=client, host="server", port=0, directory="/data"))

    run_world(main, 7)


@pytest.fixture(params=[run_real, run_virtual], ids=["real", "virtual"])
def run(request, tmp_path):
    return lambda test: request.param(test, tmp_path)


@pytest.fixture(params=["real", "virtual", "real-tls1.3", "virtual-tls1.3", "virtual-tls1.2"])
def run_streams(request, tmp_path):
    """``run`` for tests of connections: ``pair`` gives them without and with TLS."""
    environment, _, version = request.param.partition("-tls")
    runner = run_real if environment == "real" else run_virtual

    async def secured(test, given):
        given.protocols = (f"TLSv{version}",) if version else ()
        await test(given)

    return lambda test: runner(lambda given: secured(test, given), tmp_path)


@contextlib.asynccontextmanager
async def pair(given):
    listener = await given.server.network.listen(given.host, 0)
    client = await given.client.network.connect(*listener.address)
    server = await listener.accept()
    if given.protocols:
        settings = authority().settings(given.host, protocols=given.protocols)
        to_server = client_context(settings, given.client.disk)
        client = TlsConnection(client, to_server, server_side=False, server_hostname=given.host)
        server = TlsConnection(server, server_context(settings, given.server.disk), server_side=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.handshake)
            nursery.start_soon(server.handshake)
    try:
        yield client, server
    finally:
        client.close()
        server.close()
        listener.close()


async def receive(connection, count):
    """Returns ``count`` bytes, fewer at the end of the stream."""
    buffer = bytearray(count)
    filled = 0
    while filled < count:
        try:
            got = connection.receive_into_nowait(memoryview(buffer)[filled:])
        except BlockingIOError:
            await connection.wait_readable()
            continue
        if got == 0:
            break
        filled += got
    return bytes(buffer[:filled])


# --- network


def test_bytes_arrive_in_order_both_ways(run_streams):
    async def test(given):
        async with pair(given) as (client, server):
            assert client.peer_address == server.local_address
            assert client.local_address == server.peer_address
            await client.send_all([b"ab", bytearray(b"cd"), memoryview(b"ef"), b""])
            assert await receive(server, 6) == b"abcdef"
            await server.send_all([b"x" * 10])
            assert await receive(client, 10) == b"x" * 10
            with pytest.raises(BlockingIOError):
                client.receive_into_nowait(memoryview(bytearray(1)))

    run_streams(test)


def test_more_buffers_than_one_call_takes(run_streams):
    async def test(given):
        async with pair(given) as (client, server):
            pieces = [bytes([n % 256]) * (n % 5) for n in range(3000)]
            received = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send_all, pieces)
                received.append(await receive(server, sum(map(len, pieces))))
            assert received == [b"".join(pieces)]

    run_streams(test)


def test_a_reader_that_does_not_read_stops_the_sender(run_streams):
    async def test(given):
        async with pair(given) as (client, server):
            chunk = b"z" * 65536
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    taken = client.send_nowait([chunk, chunk])
                    assert taken >= 1
                    sent += taken
                    assert sent < 1 << 30, "nothing stops the sender"
            with trio.move_on_after(0.05) as scope:
                await client.wait_writable()
                # A kernel may free room by moving bytes to the other side; that ends before long.
                while True:
                    try:
                        sent += client.send_nowait([chunk])
                    except BlockingIOError:
                        await client.wait_writable()
            assert scope.cancelled_caught
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def drain():
                    assert await receive(server, sent) == b"z" * sent

                await client.wait_writable()
            assert client.send_nowait([b"more"]) == 4

    run_streams(test)


def test_end_of_stream_after_the_last_byte(run_streams):
    async def test(given):
        async with pair(given) as (client, server):
            await client.send_all([b"last words"])
            client.close()
            client.close()
            assert await receive(server, 100) == b"last words"
            await server.wait_readable()
            assert server.receive_into_nowait(memoryview(bytearray(5))) == 0
            for call in (
                lambda: client.send_nowait([b"x"]),
                lambda: client.receive_into_nowait(memoryview(bytearray(1))),
            ):
                with pytest.raises(OSError):  # noqa: PT011 - which one differs
                    call()
            for wait in (client.wait_readable, client.wait_writable):
                with pytest.raises(OSError):  # noqa: PT011 - which one differs
                    await wait()

    run_streams(test)


def test_closing_with_unread_bytes_resets_the_peer(run_streams):
    async def test(given):
        async with pair(given) as (client, server):
            await client.send_all([b"never read"])
            await server.wait_readable()
            server.close()
            await client.wait_readable()
            with pytest.raises(ConnectionResetError):
                client.receive_into_nowait(memoryview(bytearray(10)))
            with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe
                client.send_nowait([b"x"])

    run_streams(test)


def test_aborting_resets_the_peer_and_keeps_nothing_to_send(run_streams):
    async def test(given):
        async with pair(given) as (client, server):
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sent < 1 << 26:
                    sent += client.send_nowait([b"z" * 65536])
            client.abort()
            client.abort()
            client.close()
            with pytest.raises(ConnectionResetError):  # and no orderly end
                await receive(server, 1 << 27)
            for call in (
                lambda: client.send_nowait([b"x"]),
                lambda: client.receive_into_nowait(memoryview(bytearray(1))),
            ):
                with pytest.raises(OSError):  # noqa: PT011 - which one differs
                    call()

    run_streams(test)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_ending_wakes_a_task_that_waits(run_streams, end):
    async def test(given):
        async with pair(given) as (client, _):
            outcome = []

            async def reader():
                try:
                    await client.wait_readable()
                except OSError:
                    outcome.append("woken")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader)
                await trio.testing.wait_all_tasks_blocked()
                getattr(client, end)()
            assert outcome == ["woken"]

    run_streams(test)


def test_waits_are_checkpoints(run_streams):
    async def test(given):
        async with pair(given) as (client, server):
            await server.send_all([b"x"])
            await client.wait_readable()
            with trio.testing.assert_checkpoints():
                await client.wait_readable()
            with trio.testing.assert_checkpoints():
                await client.wait_writable()
            with trio.CancelScope() as scope:
                scope.cancel()
                await client.wait_readable()
            assert scope.cancelled_caught

    run_streams(test)


@contextlib.asynccontextmanager
async def watched(given, count):
    """Yields a watch over the accepting ends of ``count`` connections, whose owners are numbers, and both ends."""
    arrivals = given.server.network.arrivals()
    assert arrivals is not None
    listener = await given.server.network.listen(given.host, 0)
    clients = [await given.client.network.connect(*listener.address) for _ in range(count)]
    servers = [await listener.accept() for _ in range(count)]
    for number, server in enumerate(servers):
        assert arrivals.watch(server, number)
    try:
        yield arrivals, clients, servers
    finally:
        for server in servers:
            arrivals.forget(server)
        arrivals.close()
        for each in (*clients, *servers, listener):
            each.close()


async def taken(arrivals, count, most=10):
    """Returns the first ``count`` owners that are reported."""
    found = []
    while len(found) < count:
        await arrivals.wait()
        found += arrivals.take(most)
    return found


def test_arrivals_are_reported_once(run):
    """An arrival is reported once, whether or not it is received; so is the next."""

    async def test(given):
        async with watched(given, 3) as (arrivals, clients, servers):
            assert arrivals.take(10) == []
            await clients[1].send_all([b"a"])
            assert await taken(arrivals, 1) == [1]
            assert arrivals.take(10) == []
            await clients[1].send_all([b"b"])
            assert await taken(arrivals, 1) == [1]
            assert await receive(servers[1], 2) == b"ab"
            with pytest.raises(BlockingIOError):
                servers[1].receive_into_nowait(memoryview(bytearray(1)))
            await clients[2].send_all([b"c"])
            await clients[0].send_all([b"d"])
            assert sorted(await taken(arrivals, 2)) == [0, 2]
            arrivals.forget(servers[0])
            await clients[0].send_all([b"e"])
            await clients[1].send_all([b"f"])
            assert await taken(arrivals, 1) == [1]

    run(test)


def test_arrivals_that_are_left_over_come_first(run):
    async def test(given):
        async with watched(given, 5) as (arrivals, clients, servers):
            for client, server in zip(clients, servers, strict=True):
                await client.send_all([b"x"])
                await server.wait_readable()
            first = await taken(arrivals, 2, most=2)
            await clients[first[0]].send_all([b"y"])
            others = await taken(arrivals, 3, most=3)
            assert sorted(first + others) == [0, 1, 2, 3, 4]
            assert await taken(arrivals, 1) == [first[0]]

    run(test)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_the_end_of_a_stream_is_reported_after_its_bytes(run, end):
    """A receive that leaves room need not be repeated: the end has a report of its own."""

    async def test(given):
        async with watched(given, 1) as (arrivals, clients, servers):
            buffer = memoryview(bytearray(10))
            await clients[0].send_all([b"last"])
            getattr(clients[0], end)()
            received = b""
            with trio.fail_after(20):
                while True:
                    assert await taken(arrivals, 1) == [0]
                    try:
                        count = servers[0].receive_into_nowait(buffer)
                    except BlockingIOError:
                        continue
                    except ConnectionError:
                        break
                    if not count:
                        break
                    received += bytes(buffer[:count])
            assert received == b"last" or end == "abort"

    run(test)


def test_a_connection_that_is_forgotten_is_reported_no_more(run):
    """Its owner may close it after its last bytes; another connection may get the number of its descriptor."""

    async def test(given):
        async with watched(given, 2) as (arrivals, clients, servers):
            await clients[0].send_all([b"last"])
            clients[0].close()
            assert await taken(arrivals, 1) == [0]
            arrivals.forget(servers[0])
            servers[0].close()
            await clients[1].send_all([b"x"])
            assert await taken(arrivals, 1) == [1]

    run(test)


def test_a_wait_for_arrivals_is_a_checkpoint(run):
    async def test(given):
        async with watched(given, 1) as (arrivals, clients, _):
            with trio.move_on_after(0.01) as scope:
                await arrivals.wait()
            assert scope.cancelled_caught
            await clients[0].send_all([b"x"])
            await arrivals.wait()
            with trio.testing.assert_checkpoints():
                await arrivals.wait()
            assert arrivals.take(1) == [0]

    run(test)


def test_a_wrapped_connection_is_not_watched(run):
    async def test(given):
        arrivals = given.server.network.arrivals()
        assert not arrivals.watch(SimpleNamespace(), 1)
        arrivals.close()

    run(test)


def test_refused_taken_and_closed_ports(run):
    async def test(given):
        listener = await given.server.network.listen(given.host, given.port)
        host, port = listener.address
        with pytest.raises(OSError, match=r"in use|taken"):
            await given.server.network.listen(given.host, port)
        outcome = []

        async def acceptor():
            try:
                await listener.accept()
            except OSError:
                outcome.append("closed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acceptor)
            await trio.testing.wait_all_tasks_blocked()
            listener.close()
        assert outcome == ["closed"]
        with pytest.raises(ConnectionRefusedError):
            await given.client.network.connect(host, port)
        again = await given.server.network.listen(given.host, port)
        again.close()

    run(test)


def test_accepted_connections_outlive_their_listener(run):
    async def test(given):
        listener = await given.server.network.listen(given.host, 0)
        client = await given.client.network.connect(*listener.address)
        server = await listener.accept()
        listener.close()
        await client.send_all([b"hello"])
        assert await receive(server, 5) == b"hello"
        client.close()
        server.close()

    run(test)


def test_sending_a_range_of_a_file(run_streams):
    async def test(given):
        file = given.server.disk.open(given.directory + "/f", OpenMode.CREATE)
        content = bytes(n % 251 for n in range(300_000))
        file.append([content])
        async with pair(given) as (client, server):

            async def send():
                position = 1000
                while position < len(content):
                    try:
                        taken = server.send_file_nowait(file, position, len(content))
                    except BlockingIOError:
                        await server.wait_writable()
                        continue
                    assert taken >= 1
                    position += taken

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                assert await receive(client, len(content) - 1000) == content[1000:]
            with pytest.raises(EOFError):
                server.send_file_nowait(file, len(content), 1)
        file.close()

    run_streams(test)


# --- disk


def test_append_read_and_overwrite(run):
    async def test(given):
        disk, path = given.server.disk, given.directory + "/log"
        file = disk.open(path, OpenMode.CREATE)
        assert file.append([b"abc", bytearray(b"defg"), memoryview(b"hi")]) == 9
        assert file.append([b"%d," % n for n in range(2000)]) == file.size
        assert file.size == disk.file_size(path)
        assert file.read(0, 9) == b"abcdefghi"
        assert file.read(7, 2) == b"hi"
        assert file.read(file.size - 2, 100) == b"9,"
        assert file.read(file.size, 10) == b""
        head, tail = bytearray(4), bytearray(5)
        assert file.read_into([memoryview(head), memoryview(tail)], 0) == 9
        assert (head, tail) == (b"abcd", b"efghi")
        assert file.read_into([memoryview(bytearray(10)), memoryview(bytearray(10))], file.size - 12) == 12
        file.write_at(1, b"XY")
        assert file.read(0, 4) == b"aXYd"
        file.truncate(6)
        assert (file.size, file.read(0, 100)) == (6, b"aXYdef")
        file.write_at(8, b"end")
        assert file.read(0, 100) == b"aXYdef\0\0end"
        with pytest.raises(ValueError, match="cannot truncate"):
            file.truncate(100)
        file.close()
        file.close()
        with pytest.raises(OSError):  # noqa: PT011 - bad descriptor
            file.append([b"x"])

    run(test)


def test_preallocated_space_is_no_content(run):
    async def test(given):
        disk, path = given.server.disk, given.directory + "/log"
        file = disk.open(path, OpenMode.CREATE)
        file.preallocate(1 << 20)
        assert (file.size, disk.file_size(path)) == (0, 0)
        file.append([b"abc"])
        assert (file.size, disk.file_size(path), file.read(0, 10)) == (3, 3, b"abc")
        file.truncate(3)
        file.sync()
        file.close()
        assert disk.file_size(path) == 3

    run(test)


def test_open_modes(run):
    async def test(given):
        disk, path = given.server.disk, given.directory + "/f"
        with pytest.raises(FileNotFoundError):
            disk.open(path, OpenMode.READ)
        with pytest.raises(ValueError, match="relative"):
            disk.open("f", OpenMode.WRITE)
        disk.open(path, OpenMode.WRITE).close()
        with pytest.raises(FileExistsError):
            disk.open(path, OpenMode.CREATE)
        for mode in (OpenMode.READ, OpenMode.WRITE):
            with pytest.raises(IsADirectoryError):
                disk.open(given.directory, mode)
        writer, reader = disk.open(path, OpenMode.WRITE), disk.open(path, OpenMode.READ)
        writer.append([b"seen at once"])
        assert (reader.size, reader.read(0, 100)) == (12, b"seen at once")
        for call in (lambda: reader.append([b"x"]), lambda: reader.truncate(0), reader.sync):
            with pytest.raises(io.UnsupportedOperation):
                call()
        writer.close()
        reader.close()

    run(test)


def test_names(run):
    async def test(given):
        disk, root = given.server.disk, given.directory
        disk.make_directories(root + "/a/b")
        disk.make_directories(root + "/a/b")
        for name in ("z", "y"):
            disk.open(f"{root}/a/{name}", OpenMode.CREATE).close()
        assert disk.list_directory(root + "/a") == ["b", "y", "z"]
        assert disk.is_directory(root + "/a/b")
        assert not disk.is_directory(root + "/a/z")
        assert not disk.exists(root + "/a/x")
        file = disk.open(root + "/a/z", OpenMode.WRITE)
        file.append([b"kept"])
        disk.rename(root + "/a/z", root + "/a/y")
        assert disk.list_directory(root + "/a") == ["b", "y"]
        assert disk.open(root + "/a/y", OpenMode.READ).read(0, 10) == b"kept"
        assert disk.modified_ms(root + "/a/y") > 1_600_000_000_000
        disk.set_modified_ms(root + "/a/y", 1_500_000_000_123)
        assert disk.modified_ms(root + "/a/y") == 1_500_000_000_123
        disk.remove(root + "/a/y")
        assert file.read(0, 10) == b"kept"
        file.close()
        disk.rename(root + "/a", root + "/c")
        disk.sync_directory(root)
        assert disk.list_directory(root) == ["c"]
        with pytest.raises(FileNotFoundError):
            disk.remove(root + "/c/nothing")
        with pytest.raises(FileNotFoundError):
            disk.list_directory(root + "/a")
        disk.remove_tree(root + "/c")
        disk.remove_tree(root + "/c")
        assert disk.list_directory(root) == []
        assert disk.free_bytes(root) > 0

    run(test)


def test_a_file_and_a_directory_do_not_replace_each_other(run):
    """Nor does a directory go below itself, and a file is no tree to remove: all stay."""

    async def test(given):
        disk, root = given.server.disk, given.directory
        disk.make_directories(root + "/a/b")
        disk.make_directories(root + "/empty")
        file = disk.open(root + "/file", OpenMode.CREATE)
        file.append([b"kept"])
        file.close()
        for source, target, refused in (
            ("/file", "/empty", IsADirectoryError),
            ("/file", "/a", IsADirectoryError),
            ("/empty", "/file", NotADirectoryError),
            ("/empty", "/a", OSError),
            ("/a", "/a/b", OSError),
            ("/a", "/a/c", OSError),
        ):
            with pytest.raises(refused):
                disk.rename(root + source, root + target)
        with pytest.raises(NotADirectoryError):
            disk.remove_tree(root + "/file")
        assert (disk.list_directory(root), disk.list_directory(root + "/a")) == (["a", "empty", "file"], ["b"])
        assert disk.file_size(root + "/file") == 4
        disk.rename(root + "/a", root + "/a")
        disk.rename(root + "/a", root + "/empty")
        assert disk.list_directory(root + "/empty") == ["b"]

    run(test)


def test_one_directory_is_made_below_another(run):
    """Its parent is never made: that may be a file system that is not mounted."""

    async def test(given):
        disk, root = given.server.disk, given.directory
        with pytest.raises(FileNotFoundError):
            disk.make_directory(root + "/a/b")
        assert disk.list_directory(root) == []
        for path in ("/a", "/a/b", "/a/b"):
            disk.make_directory(root + path)
        assert disk.is_directory(root + "/a/b")
        disk.open(root + "/file", OpenMode.CREATE).close()
        with pytest.raises(FileExistsError):
            disk.make_directory(root + "/file")

    run(test)


def test_locks_exclude(run):
    async def test(given):
        disk, path = given.server.disk, given.directory + "/.lock"
        lock = disk.lock(path)
        with pytest.raises(BlockingIOError):
            disk.lock(path)
        lock.release()
        lock.release()
        disk.lock(path).release()

    run(test)


def test_offload_returns_and_raises(run):
    async def test(given):
        disk = given.server.disk
        file = disk.open(given.directory + "/f", OpenMode.CREATE)
        file.append([b"x"])
        assert await disk.offload(file.sync) is None
        assert await disk.offload(lambda: 42) == 42
        with pytest.raises(ZeroDivisionError):
            await disk.offload(lambda: 1 // 0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await disk.offload(lambda: 42)
        assert scope.cancelled_caught
        file.close()

    run(test)


def test_clocks(run):
    async def test(given):
        clock = given.server.clock
        before, wall = clock.monotonic_ms(), clock.wall_ms()
        await trio.sleep(0.02)
        assert 20 <= clock.monotonic_ms() - before < 1000 * WAIT_S
        assert wall + 19 <= clock.wall_ms() < wall + 1000 * WAIT_S
        assert wall > 1_600_000_000_000
        assert isinstance(wall, int)

    run(test)
