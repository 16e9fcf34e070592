"""The phases of a broker's start, as values: what exists once a phase is reached.

The phases are ``Opened``, ``Recovering``, ``Recovered`` and ``Built``, in this order. ``broker`` holds the present one,
and a stop closes what that phase has.
"""

from __future__ import annotations

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


Phase: TypeAlias = Opened | Recovering | Recovered | Built
