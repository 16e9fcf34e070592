"""The server loop and the client connection together, on real sockets of the loopback interface.

The handler below serves ApiVersions and a private echo API, so that order, pipelining, deferral, file ranges, bounds
and bad peers can be seen from outside.
"""

import contextlib
import gc
import struct
from collections.abc import Callable

import pytest
import trio
import trio.testing

from moldau.protocol.framing import decode_request_header, encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.runtime.net.pending import RpcBusyError
from moldau.runtime.net.rpc import CLIENT_SOFTWARE_VERSION, RpcConnection
from moldau.runtime.net.serving.answers import CloseConnection, FileRange
from moldau.runtime.net.serving.connection_loop import ConnectionLoop
from moldau.runtime.net.serving.server import Server, ServerLimits, serve
from moldau.runtime.ports.environment import Environment, OpenMode
from moldau.runtime.ports.real import real_environment
from moldau.version import VERSION

ECHO, LATER, FILE, CLOSE, SILENT, BUG, UNWRITTEN = 20001, 20002, 20003, 20004, 20005, 20006, 20007


def answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


class After:
    """A deferred answer that comes after ``seconds``."""

    def __init__(self, seconds: float, parts, log) -> None:
        self.seconds, self.parts, self.log = seconds, parts, log

    async def wait(self):
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.log.append("cancelled")
            raise
        return self.parts


class EchoHandler:
    def __init__(self, log: list, file) -> None:
        self.log, self.file = log, file
        self.unwritten = False

    def handle(self, frame):
        header = decode_request_header(frame)
        body = bytes(frame[header.body_offset :])
        key, correlation_id = header.api_key, header.correlation_id
        if key == 18:
            keys = [ApiVersion(api_key=18, min_version=0, max_version=4), ApiVersion(api_key=3, max_version=99)]
            return [encode_response(ApiVersionsResponse(api_keys=keys), header.api_version, correlation_id)]
        self.log.append(("handle", key, len(body)))
        match key:
            case 20001:
                return [answer(correlation_id, body)]
            case 20002:
                return After(struct.unpack(">d", body)[0], [answer(correlation_id, b"later")], self.log)
            case 20003:
                position, count = struct.unpack(">ii", body)
                parts = [struct.pack(">ii", 4 + 2 * count, correlation_id)]
                return [*parts, FileRange(self.file, position, count), FileRange(self.file, position, count)]
            case 20004:
                raise CloseConnection("asked to", [answer(correlation_id, b"bye")])
            case 20005:
                return None
            case 20007:
                self.unwritten = True
                return [answer(correlation_id, b"written")]
        raise KeyError(key)

    def flush(self):
        self.log.append("flush")
        if self.unwritten:
            raise CloseConnection("the disk failed")

    def closed(self):
        self.log.append("closed")


OPENED: list[RpcConnection] = []


async def serving(test: Callable, limits: ServerLimits | None = None, file=None) -> list:
    environment = real_environment(1)
    log: list = []
    async with trio.open_nursery() as nursery:
        listener = await environment.network.listen("127.0.0.1", 0)
        server = await nursery.start(
            lambda task_status: serve(
                environment,
                listener,
                lambda connection: EchoHandler(log, file),
                limits or ServerLimits(),
                task_status=task_status,
            )
        )
        with trio.fail_after(120):
            try:
                await test(environment, listener.address, log, server)
            finally:
                while OPENED:
                    OPENED.pop().close()
        nursery.cancel_scope.cancel()
    return log


async def opened(environment: Environment, address, **options) -> RpcConnection:
    OPENED.append(await RpcConnection.open(environment, *address, "test", **options))
    return OPENED[-1]


def test_connections_without_tls_wait_together():
    """Where the network can report arrivals, a connection costs no task that waits for its bytes alone."""

    async def test(environment, address, log, server: Server):
        await opened(environment, address)
        assert (server.arrivals is None) == (environment.network.arrivals() is None)

    trio.run(serving, test)


def test_negotiates_and_answers_in_order():
    async def test(environment, address, log, server: Server):
        connection = await opened(environment, address)
        assert connection.served_versions[18] == (0, 4)
        assert connection.serves(3)
        assert not connection.serves(0)
        slow = connection.submit_raw(LATER, 0, struct.pack(">d", 0.05))
        quick = connection.submit_raw(ECHO, 0, b"quick")
        results = []

        async def collect(pending):
            results.append(bytes(await pending.wait()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, quick)
            nursery.start_soon(collect, slow)
        assert results == [b"later", b"quick"] or results == [b"quick", b"later"]
        assert quick.correlation_id == slow.correlation_id + 1
        assert [entry[1] for entry in log if entry[0] == "handle"] == [LATER, ECHO]
        assert bytes(await connection.request_raw(ECHO, 0, b"")) == b""
        connection.close()
        with pytest.raises(ConnectionError):
            await connection.request_raw(ECHO, 0, b"")
        assert server.statistics().accepted == 1

    trio.run(serving, test)


def test_one_flush_for_many_pipelined_requests():
    async def test(environment, address, log, server):
        connection = await opened(environment, address)
        del log[:]
        stream = await environment.network.connect(*address)
        frame = struct.pack(">ihhih", 10, ECHO, 0, 7, -1)
        await stream.send_all([frame * 50])
        received = bytearray(1000)
        count = 0
        while count < 8 * 50:
            await stream.wait_readable()
            count += stream.receive_into_nowait(memoryview(received)[count:])
        assert bytes(received[:count]) == answer(7, b"") * 50
        assert log.count("flush") == 1
        stream.close()
        connection.close()

    trio.run(serving, test)


def test_large_frames_both_ways_and_the_budget_is_given_back():
    async def test(environment, address, log, server):
        connection = await opened(environment, address)
        body = bytes(range(256)) * 40_000
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, server.statistics().buffered_bytes)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for _ in range(3):
                assert await connection.request_raw(ECHO, 0, body) == body
            nursery.cancel_scope.cancel()
        assert most > len(body)
        while server.statistics().buffered_bytes:  # until the connection has come back from sending, and is parked
            server.reclaim()
            await trio.lowlevel.checkpoint()
        assert await connection.request_raw(ECHO, 0, body) == body

    trio.run(serving, test)


def test_closed_connections_leave_no_reference_cycles():
    """Their buffers go at once, and not with the next garbage collection of the node."""

    async def test(environment, address, log, server):
        for _ in range(3):
            connection = await opened(environment, address)
            assert await connection.request_raw(ECHO, 0, b"x") == b"x"
            connection.close()
        while server.connections:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()  # the tasks have ended too
        left = [each for each in gc.get_objects() if isinstance(each, ConnectionLoop)]
        assert len(left) <= 1, "the loop that accepts knows the last one"

    gc.collect()
    gc.disable()
    try:
        trio.run(serving, test)
    finally:
        gc.enable()


def test_many_connections_share_a_small_budget():
    async def test(environment, address, log, server):
        body = b"x" * 300_000

        async def client():
            connection = await opened(environment, address)
            for _ in range(3):
                assert await connection.request_raw(ECHO, 0, body) == body
                assert server.statistics().buffered_bytes <= 700_000
            connection.close()

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(client)

    trio.run(serving, test, ServerLimits(buffered_bytes_max=700_000))


@pytest.mark.parametrize("gather", [1024 * 1024, 1000])
@pytest.mark.parametrize("sendfile", [64 * 1024, 1, 1 << 30])
def test_file_ranges(tmp_path, gather, sendfile):
    environment = real_environment(1)
    content = bytes(i * 7 % 251 for i in range(700_000))
    file = environment.disk.open(str(tmp_path / "f"), OpenMode.CREATE)
    file.append([content])

    async def test(environment, address, log, server):
        connection = await opened(environment, address)
        for position, count in ((0, 1), (5, 1000), (0, 700_000), (699_999, 1), (3, 0)):
            found = await connection.request_raw(FILE, 0, struct.pack(">ii", position, count))
            assert bytes(found) == content[position : position + count] * 2
        connection.close()

    trio.run(serving, test, ServerLimits(gather_bytes_max=gather, sendfile_bytes_min=sendfile), file)
    file.close()


def test_close_with_an_answer_and_after_earlier_ones():
    async def test(environment, address, log, server):
        connection = await opened(environment, address)
        first = connection.submit_raw(LATER, 0, struct.pack(">d", 0.01))
        last = connection.submit_raw(CLOSE, 0, b"")
        beyond = connection.submit_raw(ECHO, 0, b"")
        assert bytes(await first.wait()) == b"later"
        assert bytes(await last.wait()) == b"bye"
        with pytest.raises(ConnectionError):
            await beyond.wait()

    trio.run(serving, test)


@pytest.mark.parametrize("earlier", [ECHO, LATER, CLOSE])
def test_failed_flush_drops_the_answers_of_its_drain_only(earlier):
    """A failed flush drops the answers of its drain and no others."""

    async def test(environment, address, log, server):
        connection = await opened(environment, address)
        body = struct.pack(">d", 0.05)
        before = connection.submit_raw(LATER, 0, body)
        while ("handle", LATER, 8) not in log:  # noqa: ASYNC110 - it is to be handled in a drain of its own
            await trio.sleep(0.001)
        lost = [connection.submit_raw(UNWRITTEN, 0, b""), connection.submit_raw(earlier, 0, body)]
        assert bytes(await before.wait()) == b"later"
        for pending in lost:
            with pytest.raises(ConnectionError):
                await pending.wait()
        assert (await (await opened(environment, address)).submit_raw(ECHO, 0, b"x").wait()) == b"x"

    trio.run(serving, test)


@pytest.mark.parametrize(
    "garbage", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\7", b"\0\0\0\x0a\x4e\x26\0\0\0\0\0\0\xff\xff"]
)
def test_a_bad_peer_loses_its_own_connection_only(garbage, caplog):
    async def test(environment, address, log, server):
        good = await opened(environment, address)
        bad = await environment.network.connect(*address)
        await bad.send_all([garbage])
        await bad.wait_readable()
        with contextlib.suppress(ConnectionResetError):
            assert bad.receive_into_nowait(memoryview(bytearray(10))) == 0
        assert bytes(await good.request_raw(ECHO, 0, b"still here")) == b"still here"
        assert server.statistics().closed_for_cause == 1
        good.close()
        bad.close()

    trio.run(serving, test)
    assert "connection-closed" in caplog.text


def test_too_many_connections():
    async def test(environment, address, log, server):
        kept = [await opened(environment, address) for _ in range(2)]
        with pytest.raises((ConnectionError, OSError)):
            await opened(environment, address)
        kept[0].close()
        while server.statistics().connections == 2:
            await trio.lowlevel.checkpoint()
        await opened(environment, address)

    trio.run(serving, test, ServerLimits(connections_per_ip_max=2))


def test_deferred_answers_are_cancelled_when_the_peer_leaves():
    async def test(environment, address, log, server):
        connection = await opened(environment, address)
        connection.submit_raw(LATER, 0, struct.pack(">d", 1000.0))
        while ("handle", LATER, 8) not in log:
            await trio.lowlevel.checkpoint()
        connection.close()
        while "closed" not in log:
            await trio.lowlevel.checkpoint()
        assert "cancelled" in log

    trio.run(serving, test)


def test_timeout_closes_the_client_connection():
    async def test(environment, address, log, server):
        connection = await opened(environment, address)
        other = connection.submit_raw(LATER, 0, struct.pack(">d", 1000.0))
        with pytest.raises(trio.TooSlowError):
            await connection.request_raw(ECHO, 0, b"behind", 30)
        assert not connection.is_open
        with pytest.raises(ConnectionError, match="no answer"):
            await other.wait()

    trio.run(serving, test)


def test_in_flight_bound_and_abandoned_requests():
    async def test(environment, address, log, server):
        connection = await opened(environment, address, in_flight_max=2)
        with trio.move_on_after(0.01):
            await connection.request_raw(LATER, 0, struct.pack(">d", 0.05))
        connection.submit_raw(ECHO, 0, b"a")
        with pytest.raises(RpcBusyError):
            connection.submit_raw(ECHO, 0, b"b")
        assert bytes(await connection.request_raw(ECHO, 0, b"c")) == b"c"

    trio.run(serving, test)


def test_deadlines_for_idle_half_sent_and_slow_reading_peers():
    async def test(environment, address, log, server):
        streams = []
        idle = await environment.network.connect(*address)
        half = await environment.network.connect(*address)
        await half.send_all([b"\0\0\0\x20abc"])
        slow = await environment.network.connect(*address)
        body = b"y" * 1_000_000
        frame = struct.pack(">ihhih", 10 + len(body), ECHO, 0, 7, -1) + body

        async def flood():
            try:
                while True:
                    await slow.send_all([frame])
            except OSError:
                log.append("cut off")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            streams.extend((idle, half, slow))
            for stream in (idle, half):
                await stream.wait_readable()
                with contextlib.suppress(ConnectionResetError):
                    assert stream.receive_into_nowait(memoryview(bytearray(10))) == 0
        assert "cut off" in log
        for stream in streams:
            stream.close()

    trio.run(serving, test, ServerLimits(idle_ms=300, frame_ms=200, send_ms=200))


def test_a_client_names_its_own_version():
    """Brokers count clients by version (KIP-511), so that an administrator finds those to upgrade."""
    assert CLIENT_SOFTWARE_VERSION == VERSION
