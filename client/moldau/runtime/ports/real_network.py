"""TCP of the operating system: plain sockets in non-blocking mode.

Nothing here buffers or copies more than the contract asks for. trio is only asked to wait after the kernel said
``EAGAIN``, because a wait costs several times more than a receive.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

import trio

from moldau.runtime.net.buffers import drop_sent
from moldau.runtime.ports import name_lookups, system_calls
from moldau.runtime.ports.descriptors import SHORTAGE_ERRNOS
from moldau.runtime.ports.environment import SYSTEM_BUFFERS, SocketBuffers
from moldau.runtime.ports.real_arrivals import real_arrivals
from moldau.runtime.ports.system_calls import BUFFERS_PER_CALL_MAX
from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.runtime.ports.environment import Arrivals, Connection, File
    from moldau.values import Buffer

SENDFILE_BYTES_MAX = 0x7FFFF000
"""Most bytes Linux moves in one ``sendfile``."""

ACCEPT_SHORTAGE_ERRNOS = (*SHORTAGE_ERRNOS, errno.ENOBUFS, errno.ENOMEM)
"""``accept`` errors that pass when other connections close."""

ABORTED_ERRNOS = (
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
    *system_calls.NETWORK_ERRNOS,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENOPROTOOPT,
    errno.EPERM,
)
"""``accept`` errors that belong to the one connection that was to be accepted (accept(2), "Error handling")."""

FAMILY_ERRNOS = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of a socket or its name on a machine without the family, such as one where IPv6 is switched off."""

SAME_PORT_ATTEMPTS = 10
"""How often another free port is looked for, if it is free in the first family only."""

SHORTAGE_WAIT_SECONDS = 0.1

ADDRESS_WAIT_MIN_S, ADDRESS_WAIT_MAX_S = 1.0, 3.0
"""How long an address may take to answer while there are others. A lost SYN is sent again after a second."""


ALL_ADDRESSES = "0.0.0.0"
"""The host that a listener on all interfaces shows, of IPv6 too: each client can read it."""

_MAPPED = "::ffff:"


def _host_and_port(name: object) -> tuple[str, int]:
    """Takes host and port out of a socket name, which has two or four members.

    A socket for both families names a peer 10.0.0.1 ``::ffff:10.0.0.1``; limits and quotas name the former.
    """
    assert isinstance(name, tuple)
    host = str(name[0])
    return host.removeprefix(_MAPPED) if "." in host else host, int(name[1])


_NO_LINGER = struct.pack("ii", 1, 0)


class RealConnection:
    """One TCP socket (or one end of a socket pair) in non-blocking mode."""

    __slots__ = ("_local", "_peer", "_socket")

    def __init__(self, connected: socket.socket, peer: tuple[str, int] | None = None) -> None:
        """Takes over ``connected``; sends small answers at once (TCP_NODELAY)."""
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._peer = peer if peer is not None else _host_and_port(connected.getpeername())
        self._local = _host_and_port(connected.getsockname())

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port of the other end."""
        return self._peer

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port of this end."""
        return self._local

    def receive_into_nowait(self, buffer: memoryview) -> int:
        """See ``Connection.receive_into_nowait``."""
        return self._socket.recv_into(buffer)

    async def wait_readable(self) -> None:
        """See ``Connection.wait_readable``."""
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise _closed_error() from error

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """See ``Connection.send_nowait``."""
        if len(buffers) == 1:
            return self._socket.send(buffers[0])
        return self._socket.sendmsg(buffers[:BUFFERS_PER_CALL_MAX])

    async def wait_writable(self) -> None:
        """See ``Connection.wait_writable``."""
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise _closed_error() from error

    def send_file_nowait(self, file: File, position: int, count: int) -> int:
        """See ``Connection.send_file_nowait``; sendfile(2)."""
        count = min(count, file.size - position, SENDFILE_BYTES_MAX)
        if count <= 0:
            raise EOFError(f"{file.path}: no content at position {position} to send (size {file.size})")
        sent = os.sendfile(self._socket.fileno(), file.fileno(), position, count)
        if sent == 0:
            raise EOFError(f"{file.path}: the file ends before position {position}")
        return sent

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """See ``Connection.send_all``. A checkpoint only when it has to wait."""
        pending: Sequence[Buffer] = buffers
        while pending:
            try:
                sent = self.send_nowait(pending)
            except BlockingIOError:
                await self.wait_writable()
                continue
            pending = drop_sent(pending, sent)

    def fileno(self) -> int:
        """Returns the descriptor of the socket; -1 once it is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """See ``Connection.close``."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def abort(self) -> None:
        """See ``Connection.abort``: a socket that does not linger is reset when it is closed (socket(7), SO_LINGER)."""
        if self._socket.fileno() >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.close()


def _closed_error() -> ConnectionAbortedError:
    return ConnectionAbortedError(errno.ECONNABORTED, "this end of the connection was closed")


class RealListener:
    """Listening TCP sockets of one port, as a rule a single one; several for a host with an address in each family."""

    __slots__ = ("_address", "_sockets")

    def __init__(self, listening: Sequence[socket.socket], host: str | None = None) -> None:
        """Takes over ``listening``, which listen already; ``host`` is shown in place of the first bound one."""
        self._sockets = list(listening)
        bound, port = _host_and_port(listening[0].getsockname())
        self._address = host or bound, port

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that were bound."""
        return self._address

    async def accept(self) -> RealConnection:
        """See ``Listener.accept``; waits ``SHORTAGE_WAIT_SECONDS`` and tries again while descriptors are short."""
        while True:
            try:
                accepted, name = self._accept_nowait()
            except BlockingIOError:
                await self._wait_acceptable()
                continue
            except OSError as error:
                if error.errno in ACCEPT_SHORTAGE_ERRNOS:
                    await trio.sleep(SHORTAGE_WAIT_SECONDS)
                    continue
                if error.errno in ABORTED_ERRNOS:
                    await trio.lowlevel.checkpoint()
                    continue
                raise
            try:
                return RealConnection(accepted, _host_and_port(name))
            except OSError:
                accepted.close()  # the peer was gone before its options could be set: not the listener's trouble

    def _accept_nowait(self) -> tuple[socket.socket, object]:
        """Accepts from one of the sockets; the next one has its turn after that."""
        for listening in self._sockets[:-1]:
            try:
                accepted = listening.accept()
            except BlockingIOError:
                continue
            self._sockets.remove(listening)
            self._sockets.append(listening)
            return accepted
        return self._sockets[-1].accept()

    async def _wait_acceptable(self) -> None:
        closed = False

        async def wait(listening: socket.socket, scope: trio.CancelScope) -> None:
            nonlocal closed
            try:
                await trio.lowlevel.wait_readable(listening)
            except (trio.ClosedResourceError, ValueError):
                closed = True
            scope.cancel()

        if len(self._sockets) == 1:
            await wait(self._sockets[0], trio.CancelScope())
        else:
            async with trio.open_nursery() as nursery:
                for listening in self._sockets:
                    nursery.start_soon(wait, listening, nursery.cancel_scope)
        if closed:
            raise OSError(errno.EBADF, "the listener was closed")

    def close(self) -> None:
        """See ``Listener.close``."""
        for listening in self._sockets:
            if listening.fileno() >= 0:
                trio.lowlevel.notify_closing(listening)
                listening.close()


def _descriptor_of(connection: Connection) -> int:
    return connection.fileno() if isinstance(connection, RealConnection) else -1


class RealNetwork:
    """TCP of the machine, IPv4 and IPv6."""

    __slots__ = ()

    async def listen(
        self, host: str, port: int, *, backlog: int = 1024, buffers: SocketBuffers = SYSTEM_BUFFERS
    ) -> RealListener:
        """See ``Network.listen``; SO_REUSEADDR is set, so that a restart need not wait for TIME_WAIT.

        An empty host, or ``*``, is one socket for IPv6 and IPv4 if the system has such. A name with addresses in both
        families, such as ``localhost``, is a socket for each family that the machine has.
        """
        host = "" if host == "*" else host  # which some look-ups take for all addresses of each family
        takes_both = not host and socket.has_dualstack_ipv6()
        host = host or ("::" if takes_both else ALL_ADDRESSES)
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        of_families: dict[int, tuple[Any, ...]] = {family: name for family, _, _, _, name in reversed(found)}
        for attempts_left in range(SAME_PORT_ATTEMPTS, -1, -1):
            try:
                listening = _listen_on(of_families, found[0][0], backlog, buffers, takes_both=takes_both)
            except OSError as error:
                if port or error.errno != errno.EADDRINUSE or not attempts_left:
                    raise
            else:
                break
        return RealListener(listening, ALL_ADDRESSES if takes_both else None)

    def arrivals(self) -> Arrivals | None:
        """See ``Network.arrivals``."""
        return real_arrivals(_descriptor_of)

    async def connect(self, host: str, port: int) -> RealConnection:
        """See ``Network.connect``; tries the addresses of ``host`` in the order of the resolver.

        All but the last one have a limit, so that one whose packets are dropped does not use up the caller's time.
        """
        lookups = name_lookups.of_this_run()
        kept = lookups.kept(host, port)
        if kept is None:
            return await self._connect_first(host, port, await lookups.addresses(host, port))
        try:
            return await self._connect_first(host, port, kept)
        except BaseException:  # also at the caller's time limit
            lookups.forget(host, port)
            raise

    async def _connect_first(self, host: str, port: int, found: Sequence[name_lookups.Address]) -> RealConnection:
        """Returns a connection to the first address that accepts one."""
        failures: list[str] = []
        for left, (family, kind, protocol, _, name) in zip(range(len(found) - 1, -1, -1), found, strict=True):
            try:
                with trio.fail_after(_address_wait_s(left)):
                    return await self._connect_one(family, kind, protocol, name)
            except trio.TooSlowError:
                failures.append(f"{name[0]}: no answer")
            except OSError as error:
                failures.append(f"{name[0]}: {error.strerror or error}")
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"no connection to {join_address(host, port)} ({'; '.join(failures)})"
        )

    async def _connect_one(self, family: int, kind: int, protocol: int, name: object) -> RealConnection:
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            assert isinstance(name, tuple)
            code = connecting.connect_ex(name)
            if code == errno.EINPROGRESS:
                await trio.lowlevel.wait_writable(connecting)
                code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            else:
                await trio.lowlevel.checkpoint()
            if code != 0:
                raise OSError(code, os.strerror(code))
            return RealConnection(connecting)
        except BaseException:
            connecting.close()
            raise


def _listen_on(
    of_families: Mapping[int, tuple[Any, ...]], first: int, backlog: int, buffers: SocketBuffers, *, takes_both: bool
) -> list[socket.socket]:
    """Returns a listening socket for the name in each family, all with one port; that of family ``first`` is in front.

    A family that the machine lacks is left out, if there is another one.

    Raises:
        OSError: a name cannot be bound, or none is of this machine.
    """
    listening: list[socket.socket] = []
    lacking: OSError | None = None
    port = 0
    try:
        for family in sorted(of_families, key=lambda family: family != first):
            host, asked, *rest = of_families[family]
            try:
                one = _bound(family, (host, asked or port, *rest), buffers, takes_both=takes_both)
            except OSError as error:
                if error.errno not in FAMILY_ERRNOS:
                    raise
                lacking = lacking or error
                continue
            listening.append(one)
            one.listen(backlog)
            port = one.getsockname()[1]
    except BaseException:
        for one in listening:
            one.close()
        raise
    if lacking is not None and not listening:
        raise lacking
    return listening


def _bound(family: int, name: tuple[Any, ...], buffers: SocketBuffers, *, takes_both: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        if takes_both:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit the sizes, which must be known before a peer is offered a window.
        for option, size in ((socket.SO_SNDBUF, buffers.send_bytes), (socket.SO_RCVBUF, buffers.receive_bytes)):
            if size >= 0:
                bound.setsockopt(socket.SOL_SOCKET, option, size)
        bound.bind(name)
    except BaseException:
        bound.close()
        raise
    return bound


def _address_wait_s(left: int) -> float:
    """Returns how long to wait for an address, if ``left`` others can be tried after it."""
    if not left:
        return math.inf
    share_s = (trio.current_effective_deadline() - trio.current_time()) / (left + 1)
    return min(max(share_s, ADDRESS_WAIT_MIN_S), ADDRESS_WAIT_MAX_S)
