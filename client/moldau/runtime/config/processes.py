"""The brokers of one machine that share a configuration file (``broker.processes``). Pure.

Process ``i`` (from 0) of a file with ``broker.processes`` above 1 has these values instead of those of the file:

- ``node.id``, and each port of ``listeners``, ``advertised.listeners`` and ``metrics.listener``, plus ``i``; port 0
  stays.
- each directory of ``log.dirs`` and ``cordoned.log.dirs`` becomes ``DIRECTORY/broker.NODE_ID``.
- ``broker.rack``, where the file sets none: the host that the broker advertises, the same for all processes.
- ``process.roles`` of all processes but the first: ``broker``. A controller of the file runs in process 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import Config, ConfigError
from moldau.runtime.config.listeners import (
    ALL_LOG_DIRS,
    CORDONED_LOG_DIRS,
    ListenerEndpoint,
    advertised_listeners,
    broker_listeners,
    console_listener,
    listeners,
    log_dirs,
    metrics_listener,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY: Final = "broker.processes"
EVERY_INTERFACE: Final = ("", "*", "0.0.0.0", "::")
PORT_MAX: Final = 65_535


def process_count(config: Config) -> int:
    """Returns how many broker processes the file stands for."""
    return config.get_int(KEY)


def process_directory(directory: str, node_id: int) -> str:
    """Returns the log directory of one of several processes, below a directory of the file."""
    return f"{directory.rstrip('/')}/broker.{node_id}"


def process_configs(config: Config) -> tuple[Config, ...]:
    """Returns the configuration of each process; the only one of a file without ``broker.processes``.

    Raises:
        ConfigError: a derived value cannot be used, or two processes would share a port.
    """
    count = process_count(config)
    if count == 1:
        return (config,)
    if "broker" not in config.get_list("process.roles"):
        raise ConfigError([f"{KEY} = {count}: process.roles lacks broker; a controller is one process"])
    found, problems = [], []
    for index in range(count):
        try:
            found.append(_process_config(config, index))
        except ConfigError as error:
            node_id = config.get_int("node.id") + index
            problems += [f"{KEY} = {count}: process {index} (node.id = {node_id}): {text}" for text in error.problems]
    problems = problems or _shared_ports(found, count)
    if problems:
        raise ConfigError(problems)
    return tuple(found)


def check_processes(config: Config) -> list[str]:
    """Checks the values that are derived for the processes of a machine; returns problems."""
    try:
        process_configs(config)
    except ConfigError as error:
        return list(error.problems)
    return []


def _process_config(config: Config, index: int) -> Config:
    node_id = config.get_int("node.id") + index
    changes: dict[str, object] = {
        KEY: 1,
        "node.id": node_id,
        "log.dirs": [process_directory(directory, node_id) for directory in log_dirs(config)],
    }
    if config.is_set(CORDONED_LOG_DIRS):
        changes[CORDONED_LOG_DIRS] = [
            path if path == ALL_LOG_DIRS else process_directory(path, node_id)
            for path in config.get_list(CORDONED_LOG_DIRS)
        ]
    if config.get_str_or_none("broker.rack") is None and (host := _advertised_host(config)):
        changes["broker.rack"] = host
    if index > 0:
        changes["process.roles"] = ["broker"]
        if console_listener(config) is not None:
            changes["console.listener"] = ""  # the first process serves it
        changes["listeners"] = [_shifted(endpoint, index) for endpoint in broker_listeners(config)]
        if config.get("advertised.listeners") is not None:
            changes["advertised.listeners"] = [_shifted(endpoint, index) for endpoint in advertised_listeners(config)]
        if (metrics := metrics_listener(config)) is not None:
            host, port = metrics
            changes["metrics.listener"] = f"{f'[{host}]' if ':' in host else host}:{_shifted_port(port, index)}"
    return config.with_values(changes)


def _advertised_host(config: Config) -> str:
    """Returns the host of the first advertised listener; empty if the operating system decides it at the start."""
    host = next((endpoint.host for endpoint in advertised_listeners(config)), "")
    return "" if host in EVERY_INTERFACE else host


def _shifted(endpoint: ListenerEndpoint, index: int) -> str:
    return str(replace(endpoint, port=_shifted_port(endpoint.port, index)))


def _shifted_port(port: int, index: int) -> int:
    shifted = port + index if port else 0
    if shifted > PORT_MAX:
        raise ConfigError([f"port {port} + {index} is above {PORT_MAX}"])
    return shifted


def _shared_ports(configs: list[Config], count: int) -> list[str]:
    """Returns the first port that two processes, or two listeners of one, would bind."""
    taken: list[tuple[str, int, str]] = []
    for index, config in enumerate(configs):
        for name, host, port in _bound(config):
            user = f"{name} of process {index}"
            for other_host, other_port, other in taken:
                same_host = host == other_host or host in EVERY_INTERFACE or other_host in EVERY_INTERFACE
                if port and port == other_port and same_host:
                    return [
                        f"{KEY} = {count}: port {port} would belong to {other} and to {user}; process i adds i to each "
                        f"port, so leave {count} ports for each listener"
                    ]
            taken.append((host, port, user))
    return []


def _bound(config: Config) -> Iterator[tuple[str, str, int]]:
    for endpoint in listeners(config):
        yield f"listener {endpoint.listener_name}", endpoint.host, endpoint.port
    if (metrics := metrics_listener(config)) is not None:
        yield "metrics.listener", *metrics
    if (console := console_listener(config)) is not None:
        yield "console.listener", *console
