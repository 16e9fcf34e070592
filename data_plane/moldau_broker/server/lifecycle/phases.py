"""The phases of a broker's start, as values: what exists once a phase is reached.

The phases are ``Opened``, ``Recovering``, ``Recovered`` and ``Built``, in this order. ``broker`` holds the present one,
and a stop closes what that phase has.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.server.cluster_metadata.applied_position import AppliedPosition
    from moldau_broker.server.coordination.transactions import Peers
    from moldau_broker.server.handlers.context import BrokerContext
    from moldau_broker.server.lifecycle.directory_watch import DirectoryWatch
    from moldau_broker.server.lifecycle.log_tasks import LogSyncs
    from moldau_broker.server.replicas.isr import IsrAlterations
    from moldau_broker.server.replicas.replica_fetcher import ReplicaFetchers


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The log directories are locked and read; no log was changed."""

    logs: LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovering:
    """The logs are being loaded and repaired."""

    logs: LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Every log in a working directory is whole."""

    logs: LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """All parts of the broker exist; they may not run yet."""

    logs: LogManager
    context: BrokerContext
    isr: IsrAlterations
    watch: DirectoryWatch
    fetchers: ReplicaFetchers
    syncs: LogSyncs
    peers: Peers
    applied: AppliedPosition

    def close(self) -> None:
        """Closes what holds connections; no task runs any more."""
        self.peers.close()
        self.context.controller.close()
        if self.context.remote_log is not None:
            self.context.remote_log.close()


Phase: TypeAlias = Opened | Recovering | Recovered | Built


class BrokerState(enum.IntEnum):
    """The state of a broker, with the numbers of Kafka's metric BrokerState."""

    STARTING = 1
    """It opens its directories, or registers and catches up with the metadata."""
    RECOVERY = 2
    """It loads and repairs its logs."""
    RUNNING = 3
    """It has been unfenced, and serves."""
    PENDING_CONTROLLED_SHUTDOWN = 6
    """It gives its leaderships away, and serves on."""
    SHUTTING_DOWN = 7
    """It ends its connections and closes its logs."""


def state_of(phase: Phase | None, *, is_serving: bool) -> BrokerState:
    """Returns the state of a broker that is not being stopped."""
    if is_serving:
        return BrokerState.RUNNING
    return BrokerState.RECOVERY if isinstance(phase, Recovering) else BrokerState.STARTING
