"""Access of commands to a cluster: its address, a short check that a broker answers, and errors as one line."""

from __future__ import annotations

import json
import math
import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from moldau.runtime.tasks.exceptions import leaves
from moldau.values import list_elements
from moldau_cli import output
from moldau_cli.errors import ADVICE, OF_USAGE, CommandError, OutputError, UsageError
from moldau_cli.words import address_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import trio

    from moldau import Admin, AdminError
    from moldau.protocol.errors import KafkaError
    from moldau.runtime.ports.environment import Environment
    from moldau_cli.profiles.core.document import Profile

R = TypeVar("R")
T = TypeVar("T")

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        help="Brokers to ask. Default: MOLDAU_BOOTSTRAP, the profile in use, the cluster in ./moldau-cluster, or "
        "127.0.0.1:9092.",
    ),
]
ClientSettings = Annotated[
    list[str] | None, typer.Option("--set", "-X", metavar="KEY=VALUE", help="Client configuration key (Kafka's names).")
]

CLUSTER_FILE = Path("moldau-cluster/cluster.json")
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONTROLLERS_SOURCE = "bootstrap.controllers of --command-config"
DEFAULT_SOURCE = "the default address"
PROBE_TIMEOUT_S = 10.0
API_TIMEOUT_MS = 60_000

_command_config: dict[str, str] = {}
_configured_controllers: str | None = None
_command_config_file = ""
_key_origins: dict[str, str] = {}
_named_profile: str | None = None
_address_source = "--bootstrap-server"
_NOT_SHARED = ("bootstrap.servers", "client.id")
_TOKEN_KEYS = ("sasl.oauthbearer.token", "sasl.oauthbearer.token.endpoint.url", "sasl.jaas.config")


def use_command_config(path: str | None) -> None:
    """Makes the commands of this process use the client configuration keys of a properties or TOML file.

    Raises:
        UsageError: the file cannot be read, or no client knows a key.
    """
    global _command_config_file, _named_profile, _address_source, _configured_controllers
    _command_config.clear()
    _key_origins.clear()
    _command_config_file = path or ""
    _named_profile, _address_source = None, "--bootstrap-server"
    if path is not None:
        _add_config_file(path, "--command-config")
    # Only clients that ask controllers may have it, and options override it.
    _configured_controllers = _command_config.pop("bootstrap.controllers", None)


def use_profile(name: str | None) -> None:
    """Makes the commands of this process use a profile, with its settings unless ``--command-config`` is given.

    Raises:
        UsageError: there is no such profile, or its settings cannot be used.
    """
    global _named_profile
    _named_profile = name
    if name is not None:
        from moldau_cli.profiles.store import load_profiles

        _apply(load_profiles().get(name, "--profile"))


def _add_config_file(path: str, origin: str) -> None:
    """Adds the client configuration keys of a file."""
    from moldau.runtime.config import ConfigError, parse_config_text

    try:
        given = parse_config_text(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{origin}: cannot read {path}: {reason}") from error
    except ConfigError as error:
        raise UsageError(f"{origin}: {path}: {'; '.join(error.problems)}") from error
    add_client_keys(given, f"{origin}: {path}")


def add_client_keys(given: Mapping[str, object], origin: str) -> None:
    """Adds client configuration keys for the commands of this process; ``origin`` names their source in errors.

    Raises:
        UsageError: no client knows a key, or a reference in a value cannot be resolved.
    """
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigError
    from moldau.runtime.config.providers import resolve

    try:
        resolved = resolve(given, os.environ)
    except ConfigError as error:
        raise UsageError(f"{origin}: {'; '.join(error.problems)}") from error
    for key in resolved:
        if not any(key in schema.keys for schema in (ADMIN_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG)):
            raise UsageError(f"{origin}: {ADMIN_CONFIG.unknown(key)}")
    for key, value in resolved.items():
        _command_config[key] = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        _key_origins[key] = origin


def _explained(problem: str) -> str:
    """Returns a problem of a configuration with the source of its value, if that is a file or a profile."""
    for key, origin in _key_origins.items():
        shown = (_command_config.get(key, ""), "[hidden]")
        if problem.startswith((f"{key}:", f"{key} ")) and any(value and value in problem for value in shown):
            return f"{problem} ({origin})"
    return problem


def _apply(profile: Profile) -> None:
    """Adds the settings of a profile, unless ``--command-config`` gives others."""
    from moldau_cli.profiles.selection import origin_of

    if _command_config:
        return
    if profile.command_config:
        _add_config_file(profile.command_config, origin_of(profile))
    if profile.settings:
        add_client_keys(profile.settings, origin_of(profile))
    _drop_addresses()  # the profile has an address of its own


def command_config(kind: str) -> dict[str, str]:
    """Returns the keys of ``--command-config`` that a client of this kind (admin, producer, consumer) knows."""
    from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG

    schema = {"admin": ADMIN_CONFIG, "producer": PRODUCER_CONFIG, "consumer": CONSUMER_CONFIG}[kind]
    return {key: value for key, value in _command_config.items() if key in schema.keys}


def whole_command_config() -> dict[str, str]:
    """Returns all keys of ``--command-config``, for what runs clients of several kinds."""
    return dict(_command_config)


def connection_config() -> dict[str, str]:
    """Returns the keys of ``--command-config`` that all kinds of clients know: those about the connection."""
    shared = command_config("producer").keys() & command_config("consumer").keys()
    return {key: value for key, value in command_config("admin").items() if key in shared and key not in _NOT_SHARED}


def own_config(kind: str) -> dict[str, str]:
    """Returns the keys of ``--command-config`` that only this kind of client knows.

    Keys of a single client instance (``_NOT_SHARED``) are left out.
    """
    elsewhere = {*connection_config(), *_NOT_SHARED}
    return {key: value for key, value in command_config(kind).items() if key not in elsewhere}


def command_config_file() -> str:
    """Returns the path given by ``--command-config``; empty if there was none."""
    return _command_config_file


def command_environment() -> Environment:
    """Returns the environment for a command that connects to nodes without a client.

    Raises:
        ConfigError: the keys of ``--command-config`` are invalid.
    """
    from moldau.runtime.config import ADMIN_CONFIG
    from moldau.runtime.ports.real import real_environment
    from moldau.runtime.tls.outgoing import client_environment

    config = ADMIN_CONFIG.parse({"bootstrap.servers": DEFAULT_BOOTSTRAP, **command_config("admin")})
    return client_environment(real_environment(), config)


def bootstrap_of(given: str | None) -> str:
    """Returns the bootstrap addresses.

    These are the given ones (also by ``--command-config``), else those of MOLDAU_BOOTSTRAP or a profile
    (``moldau_cli.profiles.selection`` has the order), else those of the cluster in ./moldau-cluster, else Kafka's usual
    address. The commands of this process use the settings of the chosen profile. If the addresses are those of the
    cluster in ./moldau-cluster, and it is secured, they use its administrator's login, unless ``--command-config``
    names another.

    Raises:
        UsageError: a profile or ./moldau-cluster cannot be used, or ``--command-config`` names controllers.
    """
    from moldau_cli.profiles.selection import choose

    global _address_source
    if not given and configured_controllers() is not None:
        raise UsageError(f"this command asks brokers, not those of {CONTROLLERS_SOURCE}: give --bootstrap-server")
    configured = _command_config.get("bootstrap.servers")
    choice = choose(given, config_address=configured, named=_named_profile, environ=os.environ)
    if choice.profile is not None:
        _apply(choice.profile)
    if choice.address is not None:
        _address_source = choice.source
        if choice.profile is None:
            _use_login_nearby(choice.address)
        return choice.address
    return _address_nearby()


def named_address(given: str | None = None) -> str | None:
    """Returns the addresses that an option, the environment or a profile names, without their settings; None if none.

    Raises:
        UsageError: the profile cannot be used.
    """
    from moldau_cli.profiles.selection import choose

    configured = configured_controllers() or _command_config.get("bootstrap.servers")
    return choose(given, config_address=configured, named=_named_profile, environ=os.environ).address


def _address_nearby() -> str:
    """Returns the address of the cluster in ./moldau-cluster, or Kafka's usual one."""
    global _address_source
    _address_source = str(CLUSTER_FILE)
    try:
        document = _cluster_nearby()
    except FileNotFoundError:
        _address_source = DEFAULT_SOURCE
        return DEFAULT_BOOTSTRAP
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {CLUSTER_FILE}: {error}; give --bootstrap-server") from error
    found = document.get("bootstrap")
    if not isinstance(found, str):
        raise UsageError(f"{CLUSTER_FILE} names no bootstrap addresses; give --bootstrap-server")
    _use_login_of(document)
    return found


def _cluster_nearby() -> Mapping[str, object]:
    """Returns what ``cluster.json`` of ./moldau-cluster says; nothing if it is no table.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    document = json.loads(CLUSTER_FILE.read_text(encoding="utf-8"))
    return document if isinstance(document, dict) else {}


def configured_controllers() -> str | None:
    """Returns ``bootstrap.controllers`` of ``--command-config``; None if it has none.

    Raises:
        UsageError: it has ``bootstrap.servers`` too.
    """
    if _configured_controllers and "bootstrap.servers" in _command_config:
        raise UsageError(f"{CONTROLLERS_SOURCE}: cannot be combined with bootstrap.servers; give one of them")
    return _configured_controllers or None


def use_controllers(address: str, source: str = "--bootstrap-controller") -> None:
    """Makes commands ask controllers at ``address``, which ``source`` names, with the login of a cluster nearby."""
    global _address_source
    _address_source = source
    _use_login_nearby(address, "controllers")
    _drop_addresses()


def _drop_addresses() -> None:
    for key in ("bootstrap.servers", "bootstrap.controllers"):
        _command_config.pop(key, None)


def _use_login_nearby(address: str, kind: str = "bootstrap") -> None:
    """Uses the administrator's login of the cluster in ./moldau-cluster if the addresses are of its brokers.

    ``kind`` is the key of ``cluster.json`` with their addresses.
    """
    if _command_config:
        return
    try:
        bootstrap = (document := _cluster_nearby()).get(kind)
    except (OSError, ValueError):
        return  # no cluster is needed there: the address was given
    wanted = set(list_elements(address))
    if isinstance(bootstrap, str) and wanted <= set(bootstrap.split(",")):
        _use_login_of(document)
        _drop_addresses()  # the user has named some of these addresses


def _use_login_of(document: Mapping[str, object]) -> None:
    login = document.get("client_config")
    if isinstance(login, str):
        use_login(login)


def use_login(path: str) -> None:
    """Uses the login of a local cluster, which its ``cluster.json`` names, unless ``--command-config`` gives another.

    Raises:
        UsageError: the file cannot be read, or no client knows a key.
    """
    if not _command_config:
        _add_config_file(path, str(CLUSTER_FILE))


def run(
    work: Callable[[], Awaitable[R]],
    bootstrap: str,
    *,
    probes: bool = True,
    node: str = "broker",
    settings: Mapping[str, str] | None = None,
) -> R:
    """Runs a coroutine function under trio, with ``probes`` after a check that a broker, or another ``node``, answers.

    ``settings`` are those of its client, if they differ from ``command_config``: a refused login names their user.

    Raises:
        CommandError: with one line; ``UsageError`` if the user asked for something invalid.
    """
    import trio

    from moldau.cluster.arguments import ArgumentError
    from moldau.protocol.errors import ErrorCode, KafkaError
    from moldau.runtime.config import ConfigError

    async def main() -> R:
        if probes:
            await _check_reachable(bootstrap, node)
        return await work()

    # An interrupt that came while Python ran a callback of its own, as in an import, would be lost (F277).
    try:
        return trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True, strict_exception_groups=True)
    except BaseException as error:
        causes = list(leaves(error))
        first = next((cause for cause in causes if not isinstance(cause, trio.Cancelled)), error)
        if isinstance(first, CommandError | KeyboardInterrupt | BrokenPipeError | OutputError | typer.Exit):
            raise first from error
        if isinstance(first, ConfigError):
            raise UsageError("; ".join(map(_explained, first.problems))) from error
        if isinstance(first, ArgumentError):
            raise UsageError(first.reason) from error
        if isinstance(first, KafkaError):
            reported = _from_kafka(first)
            if first.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                reported = type(reported)(f"{reported}; {_login_tried(settings, bootstrap)}")
            raise reported from error
        if isinstance(first, OSError):
            place = "" if first.filename is None else f"{first.filename}: "
            raise CommandError(f"{place}{first.strerror or first}") from error
        if isinstance(first, trio.TooSlowError):
            raise CommandError(str(first) or "no answer in time") from error
        raise


def _login_tried(settings: Mapping[str, str] | None, bootstrap: str) -> str:
    """Returns which login was refused, of which source, and where; never its password."""
    used = _command_config if settings is None else settings

    def source(key: str) -> str:
        is_given = settings is not None and settings.get(key) != _command_config.get(key)
        return f"{key} of {'-X' if is_given else _key_origins.get(key, 'the configuration')}"

    if used.get("sasl.mechanism", "").upper() == "OAUTHBEARER":
        given = next((key for key in _TOKEN_KEYS if used.get(key)), _TOKEN_KEYS[0])
        return f"the login was by the token of {source(given)} at {bootstrap}"
    for key in ("sasl.username", "sasl.jaas.config"):
        user = _user_of(key, used.get(key, ""))
        if user is not None:
            return f"the login was that of user {user!r} ({source(key)}) at {bootstrap}"
    return f"the login at {bootstrap} named no user: set sasl.username or sasl.jaas.config"


def _user_of(key: str, value: str) -> str | None:
    """Returns the user that a key names, None if it names none."""
    from moldau.runtime.sasl.core.jaas import parse_jaas

    if key == "sasl.username" or not value:
        return value or None
    try:
        return next((module.options["username"] for module in parse_jaas(value) if "username" in module.options), None)
    except ValueError:
        return None


def _from_kafka(error: Exception) -> CommandError:
    from moldau.protocol.errors import ErrorCode, KafkaError
    from moldau.runtime.net.served_versions import ControllerPeerError

    assert isinstance(error, KafkaError), "called for Kafka's errors only"
    failures = getattr(error, "failures", None)  # an AdminError lists the failures by name
    reported = str(error)
    if isinstance(failures, dict):
        # The default of all brokers has no name.
        named = {f"{name}: " if name else "": one for name, one in failures.items()}
        reported = "; ".join(f"{name}{one.message} ({one.code.name})" for name, one in named.items())
    if (advice := ADVICE.get(error.code.name)) is not None:
        reported = f"{reported.rstrip('.')}; {advice}"
    # In a call of the admin client, the user has given the offset.
    is_wrong_offset = isinstance(failures, dict) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    is_usage = error.code.name in OF_USAGE or is_wrong_offset or isinstance(error, ControllerPeerError)
    return UsageError(reported) if is_usage else CommandError(reported)


def refuse_repeated(what: str, names: Sequence[str]) -> None:
    """Refuses a list of names in which one stands twice.

    Raises:
        UsageError: it does.
    """
    if len(set(names)) != len(names):
        raise UsageError(f"a {what} is named twice")


@contextmanager
def answering_done(wanted: Sequence[T], answer: Callable[[Sequence[T]], None], failed: str) -> Iterator[None]:
    """Answers with those of ``wanted`` for which the block's call succeeded, also if it failed for others.

    Raises:
        CommandError: it begins with ``failed`` and has the names of the others with the reasons.
    """
    from moldau import AdminError

    try:
        yield
    except AdminError as error:
        done = [one for one in wanted if str(one) not in error.failures]
        if done:
            answer(done)
        raise _in_part(error, failed) from error
    answer(wanted)


async def answer_results(asked: Awaitable[R], answer: Callable[[R], None], failed: str) -> None:
    """Answers with the results of a call, also with those that it has for some names if it failed for others.

    Raises:
        CommandError: it begins with ``failed`` and has the names of the others with the reasons.
    """
    from moldau import AdminError

    try:
        results = await asked
    except AdminError as error:
        if error.results:
            answer(cast("R", error.results))
        raise _in_part(error, failed) from error
    answer(results)


def _in_part(error: AdminError, failed: str) -> CommandError:
    reported = _from_kafka(error)
    return type(reported)(f"{failed}: {reported}")


def refuse_failures(what: str, failures: Mapping[str, KafkaError]) -> None:
    """Ends a command whose answer lacks something, after the answer.

    Raises:
        CommandError: there are ``failures``; it begins with ``what`` and names the first.
    """
    if failures:
        from moldau_cli.operations.partial import summarize_failures

        raise CommandError(f"{what}: {summarize_failures(failures)}")


def deleting(names: Sequence[str]) -> AbstractContextManager[None]:
    """Answers with those of ``names`` that the block's call has deleted; raises as ``answering_done``."""

    def answer(deleted: Sequence[str]) -> None:
        output.answer({"deleted": [*deleted]}, f"deleted {', '.join(deleted) or 'nothing'}")

    return answering_done(names, answer, "not deleted")


async def _check_reachable(bootstrap: str, node: str) -> None:
    """Fails within seconds, instead of after a client's long retries, if no broker, or other node, listens.

    An address that is silent for a moment holds up none of the others, and all together have ``PROBE_TIMEOUT_S``.
    """
    import trio

    parsed = {address: address_of(address, f"{_address_source}: ") for address in list_elements(bootstrap)}
    if not parsed:
        raise UsageError(f"{_address_source}: no address given")
    reasons = {address: f"{address} is silent" for address in parsed}

    async def probe(address: str, ended: trio.Event) -> None:
        try:
            stream = await trio.open_tcp_stream(*parsed[address])
        except OSError as error:
            reasons[address] = f"{address}: {_plain(error)}"
        else:
            await stream.aclose()
            del reasons[address]
            attempts.cancel_scope.cancel()
        ended.set()

    with trio.move_on_after(PROBE_TIMEOUT_S):
        async with trio.open_nursery() as attempts:
            for address in parsed:
                attempts.start_soon(probe, address, ended := trio.Event())
                with trio.move_on_after(min(1.0, PROBE_TIMEOUT_S / 2 / len(parsed))):
                    await ended.wait()
    if len(reasons) < len(parsed):
        return
    silent = f"no {node} answers ({'; '.join(reasons.values())})"
    if _address_source == DEFAULT_SOURCE:
        raise CommandError(
            f"{silent}, the default address; name another with --bootstrap-server, or run moldau cluster start"
        )
    source = "" if _address_source.startswith("--bootstrap-") else f", the address of {_address_source}"
    raise CommandError(f"{silent}{source}; is the cluster running?")


def _plain(error: OSError) -> str:
    """Returns the system's message (such as ``Connection refused``) from the errors that trio wraps around it."""
    for cause in (error.__cause__, error.__context__, error):
        for one in leaves(cause) if cause is not None else ():
            if isinstance(one, socket.gaierror):
                return str(one.strerror)  # its numbers are those of the resolver
            if isinstance(one, OSError) and one.errno:
                return os.strerror(one.errno)
    return str(error)


def with_admin(
    bootstrap: str | None, work: Callable[[Admin], Awaitable[R]], *, looks: trio.CancelScope | None = None
) -> R:
    """Runs ``work`` with an open admin client; notes and ``looks`` as in ``explaining_waits``."""
    return run_admin({"bootstrap.servers": bootstrap_of(bootstrap)}, work, output.note, looks=looks)


def run_admin(
    place: Mapping[str, str],
    work: Callable[[Admin], Awaitable[R]],
    note: Callable[[str], None],
    *,
    node: str = "broker",
    looks: trio.CancelScope | None = None,
) -> R:
    """Runs ``work`` with an open admin client of ``place``: the one key that says where it starts, with its addresses.

    ``note`` and ``looks`` as in ``explaining_waits``, ``node`` as in ``run``.
    """

    async def main() -> R:
        from moldau import Admin
        from moldau_cli.quorum_watch import ANSWER_S, explaining_waits

        given = command_config("admin")
        limits = dict.fromkeys(("default.api.timeout.ms", "request.timeout.ms"), str(API_TIMEOUT_MS))
        settings = {**limits, **given, **place}
        async with Admin(settings) as admin:
            return await explaining_waits(
                lambda: work(admin),
                lambda: Admin(settings),
                note,
                answer_s=math.inf if "default.api.timeout.ms" in given else ANSWER_S,
                unanswered=f"no {node} of {address} answers within {ANSWER_S:g} s: it hangs or is down, or another "
                "program has its port",
                looks=looks,
            )

    (address,) = place.values()
    return run(main, address, node=node)
