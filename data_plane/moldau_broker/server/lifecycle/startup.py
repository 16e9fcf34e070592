"""Reads a broker's configuration and its log directories when it starts.

``broker`` calls these functions in the order of a start. The caller closes what they open.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from moldau.runtime.config import (
    addresses,
    advertised_listeners,
    listening_refused,
    log_dirs,
    quorum_voters,
    topic_config,
)
from moldau.runtime.config.declaration import LONG_MAX
from moldau.runtime.ports.descriptors import DescriptorBudget
from moldau.runtime.ports.environment import SocketBuffers
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import decode_meta_properties, read_file
from moldau_broker.log.files.names import META_PROPERTIES
from moldau_broker.server.replicas.replica_fetcher import FetcherSettings
from moldau_quorum.broker_side.session import RegistrationTimedOutError
from moldau_quorum.metadata.records import Endpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau.runtime.config import Config, ListenerEndpoint
    from moldau.runtime.ports.environment import Disk, Environment, Listener
    from moldau.values import BrokerId


class BrokerStartError(ValueError):
    """The broker cannot start as configured; the message names the fault and a remedy."""


class BrokerStartTimeoutError(BrokerStartError):
    """The time for the start is over. The same configuration may work later, when the controllers answer."""


def known_cluster_id(disk: Disk, config: Config) -> str:
    """Returns the cluster id in the log directories, else the configured one, else an empty string."""
    for directory in log_dirs(config):
        path = f"{directory}/{META_PROPERTIES}"
        try:
            return decode_meta_properties(path, read_file(disk, path)).cluster_id
        except (OSError, CorruptLogFileError):
            continue  # the log manager reports errors of directories
    return config.get_str_or_none("cluster.id") or ""


def log_manager(environment: Environment, config: Config, broker_id: BrokerId, cluster_id: str) -> LogManager:
    """Returns the log manager of a broker before it has read or locked anything.

    Raises:
        BrokerStartError: the broker is configured for another cluster than ``cluster_id``.
    """
    configured = config.get_str_or_none("cluster.id")
    if configured and configured != cluster_id:
        raise BrokerStartError(
            f"cluster.id is {configured!r}, but the log directories belong to cluster {cluster_id!r}: "
            "give the node its own log directories, or correct cluster.id"
        )
    return LogManager(
        environment.disk,
        log_dirs(config),
        node_id=broker_id,
        cluster_id=cluster_id,
        random=environment.random,
        settings=LogManagerSettings.from_config(config),
        default_config=LogConfig.from_config(topic_config(config, {})),
        descriptors=DescriptorBudget(environment.disk.open_files_max()),
    )


async def start_in_time(config: Config, start: Callable[[], Awaitable[None]]) -> None:
    """Starts a broker within ``server.max.startup.time.ms``.

    Raises:
        BrokerStartTimeoutError: it was not ready in time.
    """
    limit_ms = config.get_int("server.max.startup.time.ms")
    with trio.move_on_after(math.inf if limit_ms == LONG_MAX else limit_ms / 1000) as scope:
        await start()
    if scope.cancelled_caught:
        raise BrokerStartTimeoutError(f"the broker was not ready within server.max.startup.time.ms = {limit_ms}")


async def known_voters(environment: Environment, config: Config, broker_id: BrokerId) -> dict[int, tuple[str, int]]:
    """Returns the controllers of the file, or those that ``controller.quorum.bootstrap.servers`` name.

    Raises:
        RegistrationTimedOutError: None of these servers answered within ``initial.broker.registration.timeout.ms``.
    """
    if voters := {voter.node_id: (voter.host, voter.port) for voter in quorum_voters(config)}:
        return voters
    from moldau_quorum.broker_side.discovery import discover_voters  # most files name the voters

    servers = addresses(config, "controller.quorum.bootstrap.servers")
    limit_ms = config.get_int("initial.broker.registration.timeout.ms")
    with trio.move_on_after(limit_ms / 1000):
        return await discover_voters(environment, servers, client_id=f"broker-{broker_id}")
    raise RegistrationTimedOutError(
        "none of controller.quorum.bootstrap.servers answered within initial.broker.registration.timeout.ms = "
        f"{limit_ms}"
    )


def clean_epoch(logs: LogManager) -> int:
    """Returns the lowest broker epoch of the clean stops; -1 if a directory was not stopped cleanly (KIP-966).

    It is -1, too, if damage has cut a log since its clean stop: as after a crash, the broker may lack acknowledged
    records, and must not lead before it has fetched them.
    """
    if logs.recovery_progress.truncated_logs:
        return -1
    epochs = [directory.broker_epoch if directory.clean else -1 for directory in logs.directories if directory.online]
    return min(epochs, default=-1)


# --- listeners


async def bind(environment: Environment, config: Config, endpoint: ListenerEndpoint) -> Listener:
    """Opens one listener.

    Raises:
        BrokerStartError: the address cannot be bound.
    """
    backlog = config.get_int("socket.listen.backlog.size")
    buffers = SocketBuffers(
        send_bytes=config.get_int("socket.send.buffer.bytes"),
        receive_bytes=config.get_int("socket.receive.buffer.bytes"),
    )
    try:
        return await environment.network.listen(endpoint.host, endpoint.port, backlog=backlog, buffers=buffers)
    except OSError as error:
        raise BrokerStartError(listening_refused(endpoint, error)) from error


def advertised_endpoints(config: Config, addresses: Mapping[str, tuple[str, int]]) -> tuple[Endpoint, ...]:
    """Returns the advertised listeners with real ports in place of 0.

    ``addresses`` are host and real port of each bound listener, by name.
    """
    advertised: list[Endpoint] = []
    for endpoint in advertised_listeners(config):
        bound_host, bound_port = addresses.get(endpoint.listener_name, ("", 0))
        advertised.append(
            Endpoint(
                name=endpoint.listener_name,
                host=endpoint.host or bound_host,
                port=endpoint.port or bound_port,
                security_protocol=int(endpoint.security_protocol),
            )
        )
    return tuple(advertised)


# --- settings


def fetcher_settings(config: Config, broker_id: BrokerId) -> FetcherSettings:
    """Returns the settings with which this broker fetches from leaders."""
    return FetcherSettings(
        broker_id=broker_id,
        fetch_wait_max_ms=config.get_int("replica.fetch.wait.max.ms"),
        fetch_min_bytes=config.get_int("replica.fetch.min.bytes"),
        fetch_max_bytes=config.get_int("replica.fetch.max.bytes"),
        fetch_response_max_bytes=config.get_int("replica.fetch.response.max.bytes"),
        fetch_backoff_ms=float(config.get_int("replica.fetch.backoff.ms")),
        socket_timeout_ms=float(config.get_int("replica.socket.timeout.ms")),
    )
