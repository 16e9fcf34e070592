"""``moldau server CONFIG``: runs one node of a cluster in the foreground until a signal stops it.

A node loads only this module and its imports from the command line, without typer and rich. SIGTERM and SIGINT start a
controlled shutdown (a broker hands its leaderships over first); a second signal ends the process at once. A terminal
that is closed does the same with SIGHUP, which may come twice.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import stat
import sys
import traceback
from typing import TYPE_CHECKING, NamedTuple

from moldau.runtime.tasks.exceptions import leaves
from moldau_cli import output
from moldau_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, UsageError
from moldau_cli.nodes.server_words import HELP, ServerWords, parse_words
from moldau_cli.signals import signals_of_nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    import trio

    from moldau.runtime.config import Config
    from moldau.runtime.net.serving.request_times import RequestTimes
    from moldau.runtime.net.serving.request_traces import RequestTraces
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_cli.nodes.console import NodeConsole
    from moldau_cli.nodes.telemetry import NodeTelemetry
    from moldau_cli.nodes.traces import NodeTraces
    from moldau_quorum.node.server import ControllerNode

PARENT_POLL_S = 1.0
HANGING_END_S = 2.0
"""How long a broker that has given up may take to end in order."""
COLLECT_AFTER = 20_000
"""Number of allocations between garbage collections. A node makes few reference cycles, and each collection stalls
every connection."""
PASSING = (  # a port or a lock that another process still has, an address that is not up yet, a machine short of room
    errno.EADDRINUSE,
    errno.EADDRNOTAVAIL,
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
)
"""Errors after which the same configuration may work later."""


def serve_command(arguments: Sequence[str], make_environment: Callable[[], Environment] | None = None) -> int:
    """Parses the arguments, runs the node and returns the exit code.

    ``make_environment`` returns the node's environment; the default is that of the operating system.
    """
    if any(argument in ("-h", "--help") for argument in arguments):
        sys.stdout.write(HELP)
        return EXIT_DONE
    output.use_json("--json" in arguments)  # also for callers other than the entry point
    try:
        checks = "--check" in arguments
        words = parse_words([argument for argument in arguments if argument != "--check"])
        path = words.path
        config = _read_config(path)
        configs = _chosen(config, words)
        extras = _extras_of(configs[0], path)
        if checks:
            _check_uses(configs, path)
    except UsageError as error:
        return output.fail(str(error), EXIT_USAGE)
    if checks:
        _answer_check(configs, path)
        return EXIT_DONE
    if make_environment is None:
        from moldau.runtime.ports.real import real_environment

        make_environment = real_environment
    from moldau_cli.nodes.group.layout import misplaced_data

    environment = make_environment()
    if refused := misplaced_data(environment.disk, config):
        _start_log(config, words, environment)
        _report_end(words.log_format or config.get_str("node.log.format"), "start-refused", path, refused, None)
        return EXIT_USAGE
    parent = os.getppid() if words.with_parent else None
    if len(configs) > 1:
        return _run_group(configs, words, parent, environment)
    return _run_node(configs[0], words, parent, environment, extras)


def _answer_check(configs: Sequence[Config], path: str) -> None:
    """Answers which nodes the configuration is for."""
    nodes = [(config.get_int("node.id"), config.get_list("process.roles")) for config in configs]
    document: list[output.Json] = [{"node": number, "roles": [*roles]} for number, roles in nodes]
    text = "\n".join(f"{path}: node {number} ({', '.join(roles)})" for number, roles in nodes)
    output.answer({"file": path, "nodes": document}, text)


def check_file(path: str) -> None:
    """Looks whether a node could use a configuration file, as ``--check`` does.

    Raises:
        UsageError: it could not.
    """
    configs = _chosen(_read_config(path), parse_words([path]))
    _extras_of(configs[0], path)
    _check_uses(configs, path)


def _check_uses(configs: Iterable[Config], path: str) -> None:
    """Reads all certificates and keys, and opens the object store without a request, as a node does at its start.

    Raises:
        UsageError: they cannot be used.
    """
    from moldau.runtime.config import ConfigError
    from moldau.runtime.config.listeners import listeners
    from moldau.runtime.ports.real import real_environment
    from moldau.runtime.tls.context import listener_tls
    from moldau.runtime.tls.outgoing import controllers_environment
    from moldau_broker.remote_log.storage.opening import open_object_store

    environment = real_environment()
    try:
        for config in configs:
            for each in listeners(config):
                listener_tls(environment, config, each.listener_name, each.security_protocol)
            controllers_environment(environment, config)
            if "broker" in config.get_list("process.roles") and config.get_bool("remote.log.storage.system.enable"):
                open_object_store(environment, config).close()
    except ConfigError as error:
        raise UsageError(f"{path}: {'; '.join(error.problems)}") from error


def _chosen(config: Config, words: ServerWords) -> tuple[Config, ...]:
    """Returns the configurations of the processes to run."""
    from moldau.runtime.config import process_configs

    configs = process_configs(config)
    if words.node_id is None:
        return configs
    ids = [one.get_int("node.id") for one in configs]
    if words.node_id not in ids:
        raise UsageError(f"--node {words.node_id}: {words.path} stands for {', '.join(map(str, ids))}")
    return (configs[ids.index(words.node_id)],)


def _read_config(path: str) -> Config:
    from moldau.runtime.config import ConfigError, parse_server_config
    from moldau_cli.nodes.paths import unusable_directory

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        config = parse_server_config(text, path, os.environ)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    except ConfigError as error:
        raise UsageError(f"{path}: {'; '.join(error.problems)}") from error
    if unusable := unusable_directory(config):
        raise UsageError(f"{path}: {unusable}")
    return config


class _Extras(NamedTuple):
    """The parts of a node that its configuration may switch on, and that need packages of their own."""

    console: NodeConsole | None
    traces: NodeTraces | None


def _extras_of(config: Config, path: str) -> _Extras:
    """Returns the extras of the node, checked before the node starts."""
    from moldau.runtime.config import ConfigError, console_listener

    console: NodeConsole | None = None
    traces: NodeTraces | None = None
    try:
        if console_listener(config) is not None:
            from moldau_cli.nodes.console import NodeConsole

            console = NodeConsole(config, os.environ)
        if config.get_str_or_none("otel.traces.endpoint"):
            from moldau_cli.nodes.traces import NodeTraces

            traces = NodeTraces(config)
    except ConfigError as error:
        raise UsageError(f"{path}: {'; '.join(error.problems)}") from error
    return _Extras(console, traces)


def open_files(config: Config, path: str) -> list[str]:
    """Returns the files with keys and passwords of a node that every user of this machine may read."""
    from moldau.runtime.config import parse_config_text
    from moldau.runtime.config.providers import files_of_secrets

    with open(path, encoding="utf-8") as file:
        given = parse_config_text(file.read(), path)
    secrets = [name for name in given if name in config and config.schema.key(name).is_sensitive]
    places = files_of_secrets(given, path, secrets)
    places += [str(given[name]) for name in given if name.endswith("ssl.keystore.location")]
    found = []
    for place in places:
        try:
            if os.stat(place).st_mode & stat.S_IROTH:
                found.append(place)
        except OSError:
            continue  # the reader of the file reports that it is missing
    return found


def _warn_of_open_files(config: Config, path: str) -> None:
    from moldau.runtime.telemetry.log import EventLogger

    for place in open_files(config, path):
        EventLogger("moldau.server").warning("secrets-readable-by-all", file=place, change=f"chmod o-r {place}")


def _start_log(config: Config, words: ServerWords, environment: Environment) -> None:
    import logging

    from moldau.runtime.telemetry.node_log import NodeLogHandler

    handler = NodeLogHandler(
        sys.stderr,
        words.log_format or config.get_str("node.log.format"),
        repeats_max=config.get_int("node.log.repeats.max"),
        monotonic_ms=environment.clock.monotonic_ms,
        process=words.node_id,
    )
    logging.basicConfig(level=words.level.upper(), handlers=[handler])


def _run_group(configs: Sequence[Config], words: ServerWords, parent: int | None, environment: Environment) -> int:
    import trio

    from moldau_cli.nodes.group.supervisor import Supervisor
    from moldau_cli.nodes.watchdog import SystemdNotifier

    _start_log(configs[0], words, environment)
    options = ["--log-level", words.level, *(["--log-format", words.log_format] if words.log_format else [])]
    command = [sys.executable, "-m", "moldau_cli", "server", words.path, *options]
    supervisor = Supervisor(command, configs, SystemdNotifier(os.environ, os.getpid()))

    async def run() -> int:
        async with trio.open_nursery() as nursery:
            if parent is not None:
                nursery.start_soon(_watch_parent, parent)
            code = await supervisor.run()
            nursery.cancel_scope.cancel()
        return code

    return trio.run(run, strict_exception_groups=True)


def _run_node(config: Config, words: ServerWords, parent: int | None, environment: Environment, extras: _Extras) -> int:
    import trio

    path = words.path if words.node_id is None else f"{words.path}: node {words.node_id}"
    _start_log(config, words, environment)
    _raise_limits()
    gc.set_threshold(COLLECT_AFTER, 20, 50)
    node = _Node(environment, config, parent, extras)
    try:
        _warn_of_open_files(config, words.path)
        trio.run(node.run, strict_exception_groups=True)
    except BaseException as error:  # noqa: BLE001 - the process ends: every error is reported here
        causes = list(leaves(error))
        reported = "; ".join(dict.fromkeys(_describe(cause) for cause in causes))
        if node.asked_to_stop and not node.ready and all(type(cause) is RuntimeError for cause in causes):
            return EXIT_DONE  # stopped while starting: trio raises RuntimeError because a role never reported started
        log_format = words.log_format or config.get_str("node.log.format")
        if not node.ready and all(isinstance(cause, _refusals()) for cause in causes):
            _report_end(log_format, "start-refused", path, reported, None)
            return EXIT_FAILED if any(map(may_pass, causes)) else EXIT_USAGE
        # Any other error is a defect, or an unexpected failure of a disk: print the traceback, then one line.
        is_foreseen = all(isinstance(cause, _foreseen()) for cause in causes)
        _report_end(log_format, "node-failed", path, reported, None if is_foreseen else error)
        return EXIT_FAILED
    return EXIT_DONE if node.asked_to_stop else EXIT_FAILED


def _report_end(log_format: str, event: str, path: str, reason: str, error: BaseException | None) -> None:
    """Reports why the node ends: as an object among those of a log in JSON, or else as a text for its user."""
    if log_format == "json":
        from moldau.runtime.telemetry.log import EventLogger

        EventLogger("moldau.server").error(event, exception=error, file=path, reason=reason)
        return
    if error is not None:
        traceback.print_exception(error)
    failed = "the node failed: " if event == "node-failed" else ""
    sys.stderr.write(f"moldau: {path}: {failed}{reason}\n")


def _raise_limits() -> None:
    from moldau.runtime.ports.descriptors import COMFORTABLE
    from moldau.runtime.ports.real import raise_open_files_limit
    from moldau.runtime.telemetry.log import EventLogger

    limit = raise_open_files_limit()
    if limit < COMFORTABLE:
        EventLogger("moldau.server").warning(
            "open-files-limit-low",
            limit=limit,
            wanted=COMFORTABLE,
            advice="raise the hard limit (ulimit -Hn, LimitNOFILE=): near it, partitions and connections are refused",
        )


def _refusals() -> tuple[type[Exception], ...]:
    """Returns the errors with which a node refuses to start: a port in use, a foreign directory, a damaged file."""
    from moldau_quorum.log.port import LogDamagedError
    from moldau_quorum.node.directory import NodeDirectoryError

    return (OSError, ValueError, NodeDirectoryError, LogDamagedError)


def may_pass(error: BaseException) -> bool:
    """Returns whether the same configuration may work later: another process has the port, or controllers are down.

    That is a failure, after which a service manager starts the node again, and no wrong usage.
    """
    from moldau_broker.server import BrokerStartTimeoutError, LogDirectoriesFailedError
    from moldau_quorum.broker_side.session import RegistrationTimedOutError

    waiting = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (BrokerStartTimeoutError, RegistrationTimedOutError)):
            return True
        if isinstance(one, LogDirectoriesFailedError) and one.__cause__ is None:
            return True  # they could be used at first, and failed while the broker waited for controllers
        if isinstance(one, socket.gaierror):
            return one.errno == socket.EAI_AGAIN  # after a power failure, a node may be up before the name service
        if isinstance(one, OSError) and one.errno in PASSING:
            return True
        waiting += leaves(one.__cause__) if one.__cause__ is not None else ()
    return False


def _foreseen() -> type[Exception]:
    """Returns the error that ends a node and needs no traceback."""
    from moldau_broker.server import LogDirectoriesFailedError

    return LogDirectoriesFailedError


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno:
        text = text.removeprefix(f"[Errno {error.errno}] ")
    expected = isinstance(error, _refusals())
    return text if text and expected else f"{type(error).__name__} {text}".strip()


class _Node:
    """The roles of one process under one nursery, and the signals that end them."""

    def __init__(self, environment: Environment, config: Config, parent: int | None, extras: _Extras) -> None:
        self._environment = environment
        self._config = config
        self._parent = parent
        self._console = extras.console
        self._traces = extras.traces
        self._tracer: RequestTraces | None = None  # None without ``otel.traces.endpoint``
        self.ready = False
        self.asked_to_stop = False
        self._broker_runs = False
        self._telemetry: NodeTelemetry | None = None  # None without ``metrics.listener``

    async def run(self) -> None:
        """Runs the roles until a signal arrives.

        Each role then shuts down in order: the controller ends after the broker, which needs it.
        """
        import trio

        from moldau.runtime.telemetry.log import EventLogger

        log = EventLogger("moldau.server", node=self._config.get_int("node.id"))
        work = trio.CancelScope()
        with trio.open_signal_receiver(*signals_of_nodes()) as signals:
            async with trio.open_nursery() as watchers:
                watchers.start_soon(self._watch_signals, signals, work)
                if self._parent is not None:
                    watchers.start_soon(_watch_parent, self._parent)
                if self._traces is not None:
                    self._tracer = self._traces.start(self._environment)
                with work:
                    await self._serve_telemetry(watchers, log)
                    await self._run_roles(log, watchers)
                if self._traces is not None:
                    await self._traces.close()
                watchers.cancel_scope.cancel()
        log.info("stopped", asked=self.asked_to_stop)

    async def _serve_telemetry(self, nursery: trio.Nursery, log: EventLogger) -> None:
        from moldau.runtime.config import join_address, metrics_listener

        address = metrics_listener(self._config)
        if address is None:
            return
        from moldau_cli.nodes.telemetry import NodeTelemetry

        self._telemetry = NodeTelemetry(self._environment, self._config, self._tracer)
        host, port = await nursery.start(self._telemetry.run, *address)
        log.info("metrics-served", address=join_address(host, port))

    async def _run_roles(self, log: EventLogger, watchers: trio.Nursery) -> None:
        import trio

        from moldau.runtime.config import unserved_keys, unserved_texts
        from moldau_cli.nodes.watchdog import SystemdNotifier, supervise

        for keys, reason in unserved_texts(unserved_keys(self._config)):
            log.warning("keys-not-served", keys=keys, why=reason)
        roles = self._config.get_list("process.roles")
        broker_ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._set_when_cancelled, broker_ended)
            telemetry = self._telemetry
            if "controller" in roles:
                controller: ControllerNode = await nursery.start(self._run_controller, broker_ended)
                if telemetry is not None:
                    telemetry.controller_started(controller)
            if "broker" in roles:
                broker: Broker = await nursery.start(self._run_broker, broker_ended)
                if telemetry is not None:
                    telemetry.broker_started(broker)
                if self._tracer is not None:
                    from moldau_cli.nodes.traces import name_topics

                    name_topics(self._tracer, broker)
                watchers.start_soon(_end_for_certain, broker.context.directories.gives_up, log)
                if self._console is not None:
                    from moldau_broker.server.lifecycle.startup import advertised_endpoints

                    endpoints = advertised_endpoints(self._config, broker.addresses)
                    watchers.start_soon(self._console.run, self._environment, endpoints, log)
            gc.collect()
            gc.freeze()
            notifier = SystemdNotifier(os.environ, os.getpid())
            await watchers.start(supervise, self._config.get_int("node.watchdog.ms"), notifier, log)
            self.ready = True
            log.info("ready", roles=",".join(roles), pid=os.getpid())

    @property
    def _requests(self) -> RequestTimes | None:
        if self._telemetry is not None:
            return self._telemetry.requests
        if self._tracer is None:
            return None
        from moldau.runtime.net.serving.request_times import RequestTimes

        return RequestTimes(self._tracer)

    async def _run_controller(self, shutdown: trio.Event, task_status: trio.TaskStatus[ControllerNode]) -> None:
        import trio

        from moldau_quorum.node.server import run_controller

        with trio.CancelScope(shield=True):
            await run_controller(
                self._environment, self._config, shutdown=shutdown, requests=self._requests, task_status=task_status
            )

    async def _run_broker(self, ended: trio.Event, task_status: trio.TaskStatus[Broker]) -> None:
        from moldau_broker.server import run_broker

        self._broker_runs = True
        try:
            await run_broker(
                self._environment,
                self._config,
                requests=self._requests,
                created=None if self._telemetry is None else self._telemetry.broker_created,
                task_status=task_status,
            )
        finally:
            self._broker_runs = False
            ended.set()

    async def _set_when_cancelled(self, broker_ended: trio.Event) -> None:
        """Sets the event when a signal cancels the roles, unless a broker runs, which sets it itself at its end."""
        import trio

        try:
            await trio.sleep_forever()
        finally:
            if not self._broker_runs:
                broker_ended.set()

    async def _watch_signals(self, signals: AsyncIterator[int], work: trio.CancelScope) -> None:
        async for number in signals:
            if self.asked_to_stop and number != signal.SIGHUP:
                os._exit(128 + number)
            self.asked_to_stop = True
            work.cancel()


async def _watch_parent(parent: int) -> None:
    """Ends the process at once when its parent has ended, which changes its parent process id."""
    import trio

    while os.getppid() == parent:  # noqa: ASYNC110 - trio has no event for the end of a parent process
        await trio.sleep(PARENT_POLL_S)
    os._exit(EXIT_FAILED)


async def _end_for_certain(gives_up: trio.Event, log: EventLogger) -> None:
    """Ends the process when its broker has given up, even if threads hang on a disk."""
    import trio

    await gives_up.wait()
    await trio.sleep(HANGING_END_S)
    log.error("ended-by-force", why="threads of the log directories do not return")
    os._exit(EXIT_FAILED)
