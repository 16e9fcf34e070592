"""Runs the web console of a node (``console.listener``) as a process of its own, and starts it again when it ends.

The console's pages would take turns of the node's event loop, so they do not run in it. The process gets its settings
over its standard input, which the node alone holds open: secrets appear in no list of processes, and the console ends
when the node does, however that ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.config import ConfigError, console_listener, join_address
from moldau.runtime.tasks.supervision import BackoffPolicy, run_with_restarts
from moldau_cli.console.core.logins import MECHANISMS, needs_login, with_any_login

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.runtime.config import Config, SecurityProtocol
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.metadata.records import Endpoint

MODULE: Final = "moldau_cli.console.attached"
NEEDED: Final = ("starlette", "hypercorn")
PROTOCOL: Final = "security.protocol"
RESTARTS: Final = BackoffPolicy(initial_ms=1_000.0, max_ms=60_000.0)
HEALTHY_MS: Final = 60_000.0
"""A console that ran for so long counts as healthy: its next restart comes after a second."""
STOP_S: Final = 3.0
"""How long the console may take to end with its node; then it is killed."""
OUTPUT_BYTES_MAX: Final = 4096
"""Bytes kept of the console's last output, for the node's log."""


class ConsoleEndedError(Exception):
    """The console's process has ended by itself. The text says why."""


class NodeConsole:
    """The console of one node, as its configuration wants it."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        """Checks the configuration; ``console.listener`` must be set.

        Raises:
            ConfigError: the console could not serve with it.
        """
        from moldau_cli.console.core.access import TOKEN_LENGTH_MIN, is_loopback

        address = console_listener(config)
        assert address is not None, "the key switches the console on"
        self._host, self._port = address
        if self._port == 0:
            raise ConfigError(["console.listener: port 0 would be another one at each start; give a number"])
        self._token = config.get_str_or_none("console.token") or None
        self._read_only = config.get_bool("console.read.only")
        self._client = _client_keys(config.get_str_or_none("console.client.config"), environ)
        self._protocol = _protocol(config, self._client)
        self._mechanism = _mechanism(config, self._protocol)
        self._tls = _tls(config)
        if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
            raise ConfigError(
                [f"console.listener: {' and '.join(absent)} not installed; run: pip install 'moldau[console]'"]
            )
        if self._token is not None and len(self._token) < TOKEN_LENGTH_MIN:
            raise ConfigError([f"console.token: {len(self._token)} characters, at least {TOKEN_LENGTH_MIN} are needed"])
        if self._token is None and not is_loopback(self._host):
            raise ConfigError(
                [f"console.listener: {self._host} can be reached from other machines, so console.token is needed"]
            )
        if self._tls is not None:
            from moldau_cli.console.certificate import check, stored

            check(stored(**self._tls))
        self._is_open = self._tls is None and not is_loopback(self._host)

    async def run(self, environment: Environment, endpoints: Sequence[Endpoint], log: EventLogger) -> None:
        """Runs the console until cancelled; ``endpoints`` are the listeners that the broker advertises.

        An end of the process is logged, and it is started again after a wait that grows to a minute.
        """
        endpoint = next(one for one in endpoints if one.security_protocol == self._protocol)
        names = [one.host for one in endpoints]
        settings = json.dumps(self.settings(endpoint.host, endpoint.port, names)).encode() + b"\n"
        address = f"{'http' if self._tls is None else 'https'}://{join_address(self._host, self._port)}"
        if self._is_open:
            log.warning("console-without-tls", address=address, remedy="console.ssl.keystore.location")

        async def once() -> None:
            await _run_process(settings, address, log)

        await run_with_restarts(
            environment,
            "console",
            once,
            restart_on=(ConsoleEndedError, OSError),
            policy=RESTARTS,
            healthy_ms=HEALTHY_MS,
            logger=log,
        )

    def settings(self, host: str, port: int, names: Sequence[str]) -> dict[str, object]:
        """Returns what the process reads from its input; host and port are those of the broker's listener.

        ``names`` are the hosts that the broker advertises: browsers may use them in addresses, as clients do.
        """
        settings = {**self._mechanism, **self._client, PROTOCOL: self._protocol.name}
        return {
            "bootstrap": join_address(host, port),
            "settings": settings,
            "host": self._host,
            "port": self._port,
            "names": list(names),
            "token": self._token,
            "login": needs_login(settings),
            "read_only": self._read_only,
            "tls": self._tls,
        }


def _tls(config: Config) -> dict[str, str] | None:
    """Returns the arguments of ``certificate.stored`` that are given; None for plain HTTP."""
    names = {
        "location": "console.ssl.keystore.location",
        "kind": "console.ssl.keystore.type",
        "password": "console.ssl.keystore.password",
        "key_password": "console.ssl.key.password",
    }
    found = {name: value for name, key in names.items() if key in config.explicit() and (value := config.get_str(key))}
    if found and "location" not in found:
        raise ConfigError([f"{names[next(iter(found))]}: needs console.ssl.keystore.location"])
    return found or None


def _client_keys(path: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys of ``console.client.config`` that the three kinds of clients know."""
    if not path:
        return {}
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, parse_config_text
    from moldau.runtime.config.providers import resolve

    key = "console.client.config"
    schemas = (ADMIN_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG)
    try:
        with open(path, encoding="utf-8") as file:
            given = resolve(parse_config_text(file.read(), path), environ)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{key}: cannot read {path}: {getattr(error, 'strerror', None) or error}"]) from error
    except ConfigError as error:
        raise ConfigError([f"{key}: {path}: {problem}" for problem in error.problems]) from error
    if unknown := [name for name in given if not any(name in schema.keys for schema in schemas)]:
        raise ConfigError([f"{key}: {path}: {ADMIN_CONFIG.unknown(name)}" for name in unknown])
    shared = {
        name: ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in given.items()
        if name != "bootstrap.servers" and all(name in schema.keys for schema in schemas)
    }
    for schema in schemas:
        try:
            schema.parse({"bootstrap.servers": "127.0.0.1:9092", **with_any_login(shared)})
        except ConfigError as error:
            raise ConfigError([f"{key}: {path}: {problem}" for problem in error.problems]) from error
    return shared


def _protocol(config: Config, client: Mapping[str, str]) -> SecurityProtocol:
    """Returns the security protocol of the console's connections, which a listener of the broker must speak."""
    from moldau.runtime.config import SecurityProtocol, advertised_listeners

    spoken = [endpoint.security_protocol for endpoint in advertised_listeners(config)]
    if PROTOCOL in client:
        wanted = SecurityProtocol[client[PROTOCOL].upper()]
        if wanted not in spoken:
            raise ConfigError([f"console.client.config: no listener of this broker speaks {wanted.name}"])
        return wanted
    for protocol in (SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT):
        if protocol in spoken:
            return protocol
    raise ConfigError(
        ["console.listener: each listener uses TLS: give security.protocol and trust store in console.client.config"]
    )


def _mechanism(config: Config, protocol: SecurityProtocol) -> dict[str, str]:
    """Returns the key with the likeliest mechanism that the console's listener offers, with which its form begins."""
    from moldau.runtime.config import advertised_listeners
    from moldau.runtime.config.sasl import listener_sasl

    if not protocol.uses_sasl:
        return {}
    listener = next(one for one in advertised_listeners(config) if one.security_protocol is protocol)
    offered = listener_sasl(config, listener.listener_name).mechanisms
    found = next((each for each in MECHANISMS if each in offered), None)
    return {} if found is None else {"sasl.mechanism": found}


async def _run_process(settings: bytes, address: str, log: EventLogger) -> None:
    """Runs the process once.

    Raises:
        ConsoleEndedError: it has ended.
        OSError: it could not be started.
    """
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the node
        env=os.environ | {"MOLDAU_PROFILE": ""},
    )
    assert process.stdin is not None
    assert process.stderr is not None
    written = b""
    try:
        log.info("console-started", address=address, pid=process.pid)
        try:
            await process.stdin.send_all(settings)
            while data := await process.stderr.receive_some(OUTPUT_BYTES_MAX):
                written = (written + data)[-OUTPUT_BYTES_MAX:]
        except trio.BrokenResourceError:
            log.debug("console-pipe-broken", pid=process.pid)  # it ends; its exit code says why
        code = await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)
    last = written.decode(errors="replace").strip().rpartition("\n")[2]
    raise ConsoleEndedError(f"exit code {code}: {last or 'no message'}")


async def _end(process: trio.Process) -> None:
    """Ends the process in order, or by force if it takes too long; it may have ended already."""
    if process.stdin is not None:
        await process.stdin.aclose()  # the console reads the end of its input, and ends
    with trio.move_on_after(STOP_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    if process.stderr is not None:
        await process.stderr.aclose()
