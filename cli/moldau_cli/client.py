"""How commands reach a cluster: where it is, a short check that somebody answers, and its errors as one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from moldau.runtime.exceptions import leaves
from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau import Admin
    from moldau.runtime.environment import Environment

R = TypeVar("R")

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        help="Brokers to ask. Default: the cluster in ./moldau-cluster, otherwise 127.0.0.1:9092.",
    ),
]
ClientSettings = Annotated[
    list[str] | None, typer.Option("--set", "-X", metavar="KEY=VALUE", help="Client configuration key (Kafka's names).")
]

CLUSTER_FILE = Path("moldau-cluster/cluster.json")
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
PROBE_TIMEOUT_S = 10.0
API_TIMEOUT_MS = 60_000


_command_config: dict[str, str] = {}
_command_config_file = ""
_NOT_SHARED = ("bootstrap.servers", "client.id")


def use_command_config(path: str | None) -> None:
    """Has the commands of this process use the client configuration keys of a properties or TOML file.

    Raises ``UsageError`` for a file that cannot be read, or a key that no client knows.
    """
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigError, parse_config_text

    global _command_config_file
    _command_config.clear()
    _command_config_file = path or ""
    if path is None:
        return
    try:
        given = parse_config_text(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--command-config: cannot read {path}: {error}") from error
    except ConfigError as error:
        raise UsageError(f"--command-config: {path}: {'; '.join(error.problems)}") from error
    for key in given:
        if not any(key in schema.keys for schema in (ADMIN_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG)):
            raise UsageError(f"--command-config: {path}: {ADMIN_CONFIG.unknown(key)}")
    for key, value in given.items():
        _command_config[key] = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def command_config(kind: str) -> dict[str, str]:
    """The keys of ``--command-config`` that a client of this kind (admin, producer, consumer) knows."""
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG

    schema = {"admin": ADMIN_CONFIG, "producer": PRODUCER_CONFIG, "consumer": CONSUMER_CONFIG}[kind]
    return {key: value for key, value in _command_config.items() if key in schema.keys}


def connection_config() -> dict[str, str]:
    """The keys of ``--command-config`` that say how any client reaches a cluster: all kinds of clients know them."""
    shared = command_config("producer").keys() & command_config("consumer").keys()
    return {key: value for key, value in command_config("admin").items() if key in shared and key not in _NOT_SHARED}


def own_config(kind: str) -> dict[str, str]:
    """The other keys of ``--command-config`` that clients of this kind know, without those of one client."""
    elsewhere = {*connection_config(), *_NOT_SHARED}
    return {key: value for key, value in command_config(kind).items() if key not in elsewhere}


def command_config_file() -> str:
    """The path given by ``--command-config``; empty when none was."""
    return _command_config_file


def command_environment() -> Environment:
    """The environment for connections of a command that speaks to nodes without a client. Raises ``ConfigError``."""
    from moldau.runtime.config import ADMIN_CONFIG
    from moldau.runtime.real import real_environment
    from moldau.runtime.tls_context import client_environment

    config = ADMIN_CONFIG.parse({"bootstrap.servers": DEFAULT_BOOTSTRAP, **command_config("admin")})
    return client_environment(real_environment(), config)


def bootstrap_of(given: str | None) -> str:
    """The bootstrap addresses: those given (also by ``--command-config``), those of the cluster in ./moldau-cluster, or
    Kafka's usual one.
    """
    given = given or _command_config.get("bootstrap.servers")
    if given is not None:
        return given
    try:
        document = json.loads(CLUSTER_FILE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return DEFAULT_BOOTSTRAP
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {CLUSTER_FILE}: {error}; give --bootstrap-server") from error
    found = document.get("bootstrap") if isinstance(document, dict) else None
    if not isinstance(found, str):
        raise UsageError(f"{CLUSTER_FILE} names no bootstrap addresses; give --bootstrap-server")
    return found


def run(work: Callable[[], Awaitable[R]], bootstrap: str) -> R:
    """Runs a coroutine function under trio, after a check that a broker answers.

    Raises ``CommandError`` with one line: ``UsageError`` where the user asked for what cannot be.
    """
    import trio

    from moldau.protocol.errors import KafkaError
    from moldau.runtime.config import ConfigError

    async def main() -> R:
        await _check_reachable(bootstrap)
        return await work()

    try:
        return trio.run(main, strict_exception_groups=True)
    except BaseException as error:
        causes = list(leaves(error))
        first = next((cause for cause in causes if not isinstance(cause, trio.Cancelled)), error)
        if isinstance(first, CommandError | KeyboardInterrupt | BrokenPipeError | typer.Exit):
            raise first from error
        if isinstance(first, ConfigError):
            raise UsageError("; ".join(first.problems)) from error
        if isinstance(first, KafkaError):
            raise _from_kafka(first) from error
        if isinstance(first, OSError):
            raise CommandError(str(first)) from error
        raise


def _from_kafka(error: Exception) -> CommandError:
    from moldau.protocol.errors import ErrorCode, KafkaError

    assert isinstance(error, KafkaError), "called for Kafka's errors only"
    failures = getattr(error, "failures", None)  # an AdminError lists what failed, by name
    told = str(error)
    if isinstance(failures, dict):
        told = "; ".join(f"{name}: {one.message} ({one.code.name})" for name, one in failures.items())
    cannot_be = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.MESSAGE_TOO_LARGE,
    )
    return UsageError(told) if error.code in cannot_be else CommandError(told)


async def _check_reachable(bootstrap: str) -> None:
    """Fails in seconds, instead of after a client's long retries, when nobody listens at the bootstrap addresses."""
    import trio

    from moldau.runtime.config import ConfigError, parse_address

    reasons = []
    for address in (part.strip() for part in bootstrap.split(",") if part.strip()):
        try:
            host, port = parse_address(address)
        except (ConfigError, ValueError) as error:
            raise UsageError(f"--bootstrap-server: expected HOST:PORT, not {address!r}") from error
        try:
            with trio.fail_after(PROBE_TIMEOUT_S):
                stream = await trio.open_tcp_stream(host, port)
            await stream.aclose()
        except trio.TooSlowError:
            reasons.append(f"{address} is silent")
        except OSError as error:
            reasons.append(f"{address}: {_plain(error)}")
        else:
            return
    if not reasons:
        raise UsageError("--bootstrap-server: no address given")
    raise CommandError(f"no broker answers ({'; '.join(reasons)}); is the cluster running?")


def _plain(error: OSError) -> str:
    """``Connection refused`` out of the layers that trio wraps around it."""
    for cause in (error.__cause__, error.__context__, error):
        for one in leaves(cause) if cause is not None else ():
            if isinstance(one, OSError) and one.errno:
                return os.strerror(one.errno)
    return str(error)


async def check_topic(topic: str, address: str) -> None:
    """Raises ``UsageError`` for a topic that no broker knows: a client might otherwise create it by asking.

    The broker that answered the creation of a topic knows it; the others learn of it a moment later.
    """
    import trio

    from moldau import Admin

    async with Admin({**command_config("admin"), "bootstrap.servers": address}) as admin:
        if await _knows(admin, topic, None):
            return
        for broker in (await admin.describe_cluster()).brokers:
            with trio.move_on_after(PROBE_TIMEOUT_S):
                if await _knows(admin, topic, broker.node_id):
                    return
        raise UsageError(f"topic {topic} does not exist; moldau topics create {topic}")


async def _knows(admin: Admin, topic: str, node_id: int | None) -> bool:
    from moldau.protocol.errors import ErrorCode, KafkaError

    try:
        await admin.describe_topics([topic], node_id=node_id)
    except KafkaError as error:
        if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.BROKER_NOT_AVAILABLE):
            return False
        raise
    return True


def with_admin(bootstrap: str | None, work: Callable[[Admin], Awaitable[R]]) -> R:
    """Runs ``work`` with an open admin client."""
    address = bootstrap_of(bootstrap)

    async def main() -> R:
        from moldau import Admin

        settings = {
            "default.api.timeout.ms": str(API_TIMEOUT_MS),
            "request.timeout.ms": str(API_TIMEOUT_MS),
            **command_config("admin"),
            "bootstrap.servers": address,
        }
        async with Admin(settings) as admin:
            return await work(admin)

    return run(main, address)
