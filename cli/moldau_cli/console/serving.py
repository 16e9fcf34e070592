"""Runs the console: its listening socket, its clients of the cluster, and the HTTP server (hypercorn on trio)."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from moldau.runtime.ports.real import real_environment
from moldau_cli.console.app import Console, application
from moldau_cli.console.certificate import context_following
from moldau_cli.console.identities import open_identity
from moldau_cli.console.pages import Local
from moldau_cli.console.probe import ReplicationProbe
from moldau_cli.console.sessions import Sessions
from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.types import ASGIApp

    from moldau.runtime.config.tls import TlsSettings
    from moldau_cli.console.avro import AvroViews
    from moldau_cli.console.faults import LocalNodes

DEFAULT_PORT: Final = 9080
STALLED_MS: Final = 10_000
"""The system closes a connection whose peer takes no data for so long; a live page would hold it for ever."""
GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings that the command line decides."""

    bootstrap: str
    settings: Mapping[str, str]
    """Client configuration of all connections, without the bootstrap addresses."""
    host: str = "127.0.0.1"
    port: int | None = None
    token: str | None = None
    login: bool = False
    read_only: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    tls: TlsSettings | None = None
    """Certificate and key for HTTPS; plain HTTP without them."""
    local: LocalNodes | None = None
    avro: AvroViews | None = None


def listen(host: str, port: int | None) -> socket.socket:
    """Returns a listening socket. Without a port it takes ``DEFAULT_PORT``, or a free one if another process has it.

    Raises:
        UsageError: the address cannot be used.
        CommandError: another process uses the port.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host}: {error.strerror}") from error
    for number in (DEFAULT_PORT, 0) if port is None else (port,):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
        try:
            made.bind((address[0], number, *address[2:]))
            made.listen()
        except OSError as error:
            made.close()
            if number == DEFAULT_PORT and port is None:
                continue
            raise CommandError(f"cannot listen on {host}:{number}: {os.strerror(error.errno or 0)}") from error
        return made
    raise AssertionError("a free port was asked for")


def url_of(options: Options, port: int) -> str:
    """Returns the address to open. A token stands behind ``#``, which browsers send to no server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(options.host, options.host)
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    scheme = "https" if options.tls else "http"
    fragment = f"#token={quote(options.token, safe='/=')}" if options.token else ""  # the page decodes it
    return f"{scheme}://{shown}:{port}/{fragment}"


class ServerConfig(Config):
    """Hypercorn's configuration, with a TLS context in place of names of files."""

    tls_context: ssl.SSLContext | None = None

    @property
    def ssl_enabled(self) -> bool:
        """Whether the server speaks TLS."""
        return self.tls_context is not None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        """Returns the TLS context."""
        return self.tls_context


def server_config(descriptor: int, options: Options) -> ServerConfig:
    """Returns the configuration of the HTTP server for a listening socket.

    Raises:
        ConfigError: a file of the certificate cannot be used, or key and certificate do not match.
    """
    config = ServerConfig()
    config.bind = [f"fd://{descriptor}"]
    if options.tls is not None:
        environment = real_environment()
        config.tls_context = context_following(options.tls, environment.disk, environment.clock)
    config.accesslog, config.errorlog, config.loglevel = None, "-", "ERROR"  # defects appear on stderr
    config.include_server_header = False
    config.graceful_timeout = GRACE_S
    config.shutdown_timeout = GRACE_S
    config.keep_alive_timeout = 30.0
    config.h11_max_incomplete_size = 32 * 1024
    return config


async def run_console(options: Options, announce: Callable[[str], None]) -> None:
    """Serves until a signal comes. ``announce`` gets the URL once the console accepts connections.

    Raises:
        CommandError: the address cannot be used.
        ConfigError: a client setting or the certificate is invalid.
    """
    stopping = trio.Event()
    bound = listen(options.host, options.port)
    port = bound.getsockname()[1]
    connection = {"bootstrap.servers": options.bootstrap, **options.settings}
    async with AsyncExitStack() as stack:
        stack.callback(bound.close)
        shared = None if options.login else await stack.enter_async_context(open_identity(connection))
        nursery = await stack.enter_async_context(trio.open_nursery())
        local = None
        if options.local is not None and shared is not None and not options.read_only:
            probe = ReplicationProbe(shared, options.local)
            nursery.start_soon(probe.run)
            local = Local(nodes=options.local, probe=probe)
        console = Console(
            sessions=Sessions(nursery, connection, shared=shared, token=options.token),
            bootstrap=options.bootstrap,
            allowed_hosts=options.allowed_hosts | {options.host.lower()},
            cookie=f"moldau_console_{port}",
            secure_cookie=options.tls is not None,
            read_only=options.read_only,
            local=local,
            avro=options.avro,
        )
        config = server_config(os.dup(bound.fileno()), options)
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            nursery.start_soon(_stop_at_signal, signals, stopping)
            async with trio.open_nursery() as serving:
                await serving.start(_serve, application(console, stopping), config, stopping)
                announce(url_of(options, port))
        nursery.cancel_scope.cancel()


async def _serve(
    app: ASGIApp, config: Config, stopping: trio.Event, *, task_status: trio.TaskStatus[list[str]]
) -> None:
    await serve(app, config, shutdown_trigger=stopping.wait, task_status=task_status, mode="asgi")  # type: ignore[arg-type]


async def _stop_at_signal(signals: AsyncIterator[int], stopping: trio.Event) -> None:
    async for _ in signals:
        stopping.set()
