"""Defines the options of a chaos run, checks them for contradictions, and builds the command that repeats a run."""

from __future__ import annotations

import enum
import math
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.runtime.config import ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, TOPIC_CONFIG
from moldau_jepsen.chaos.clients import ClientOptions, Workload
from moldau_jepsen.chaos.foreign import FOREIGN_WORKLOADS, foreign_kinds
from moldau_jepsen.chaos.nemesis.schedule import PROXY_KINDS
from moldau_jepsen.chaos.network.namespaces import refusal
from moldau_jepsen.chaos.network.rules import DELAY, LOSS, RATE, RESET
from moldau_jepsen.chaos.spark import workload as spark
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.launcher import ClusterSpec, LauncherUsageError
from moldau_jepsen.launcher.cluster import refuse_wrong

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from moldau_jepsen.chaos.controls import Control
    from moldau_jepsen.chaos.outside import OutsideNode

CONTROL_BROKERS = 3


class Network(enum.Enum):
    """The mechanism that controls the links of a fresh cluster."""

    PROXIES = "proxies"  # a TCP proxy before every node
    NAMESPACES = "namespaces"  # every node in a network namespace of its own; needs root


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """The options of a chaos run."""

    directory: Path
    """Where report, history and cluster go; created, must be empty."""
    duration_s: float = 60.0
    seed: int = 1
    kinds: Sequence[FaultKind] = PROXY_KINDS
    network: Network = Network.PROXIES
    window_s: float = 30.0
    churn: bool = False
    """Reassignments, preferred elections and changes of voters go on from the beginning to the end."""
    brokers: int = 3
    controllers: int = 3
    bootstrap: str | None = None
    """An existing cluster instead of a fresh one; topics, groups and transactional ids get names of the run's own."""
    nodes: Sequence[OutsideNode] = ()
    """With ``bootstrap``: the nodes of that cluster, which the run starts, strikes and ends."""
    command_config: str = ""
    """The file with ``clients.connection``, to be named where the run says how to repeat it."""
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Configuration keys of the fresh cluster's nodes."""
    clients: ClientOptions = field(default_factory=ClientOptions)
    control: Control | None = None
    """A negative control instead of drawn faults; it is judged by the full promise."""
    final_read_s: float = 90.0
    keep_data: bool = False
    """Keeps the nodes' data and logs also when no anomaly was found; on an existing cluster, the topics."""


def refuse_impossible(options: ChaosOptions) -> None:
    """Refuses options that cannot work.

    Raises:
        LauncherUsageError: Options contradict each other, the directory is in use, or the machine has no network
            namespaces.
        ConfigError: Clients or topics do not know a key.
    """
    for name, seconds in (("duration", options.duration_s), ("window", options.window_s)):
        if not math.isfinite(seconds):
            raise LauncherUsageError(f"{name} must be a number of seconds, not {seconds}")
    _refuse_unknown_keys(options)
    if options.clients.workload is Workload.SPARK and (reason := spark.refusal()) is not None:
        raise LauncherUsageError(f"workload {Workload.SPARK.value}: {reason}")
    if options.bootstrap is None:
        _refuse_for_a_fresh_cluster(options)
    else:
        _refuse_for_a_running_cluster(options)
    if options.directory.exists() and (not options.directory.is_dir() or any(options.directory.iterdir())):
        raise LauncherUsageError(f"{options.directory} is not an empty directory")
    above = next(one for one in options.directory.absolute().parents if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise LauncherUsageError(f"cannot make {options.directory}: {above} is no directory that can be written to")


def _refuse_for_a_fresh_cluster(options: ChaosOptions) -> None:
    if options.nodes:
        raise LauncherUsageError("nodes that are started by commands need their address: give --bootstrap")
    if options.control is not None and options.brokers != CONTROL_BROKERS:
        raise LauncherUsageError(f"controls run on a fresh cluster of {CONTROL_BROKERS} brokers")
    if options.clients.connection:
        keys = ", ".join(options.clients.connection)
        raise LauncherUsageError(f"{keys}: how to reach a cluster is for one that runs already: give --bootstrap")
    refuse_wrong(ClusterSpec(brokers=options.brokers, controllers=options.controllers, settings=options.settings))
    if options.network is Network.PROXIES and FaultKind.LOSS in options.kinds:
        raise LauncherUsageError(f"fault {FaultKind.LOSS.value} needs packets: give --network namespaces")
    if options.network is Network.NAMESPACES and (reason := refusal()) is not None:
        raise LauncherUsageError(f"no --network namespaces: {reason}")


def _refuse_for_a_running_cluster(options: ChaosOptions) -> None:
    control = options.control
    if options.settings:
        keys = ", ".join(options.settings)
        raise LauncherUsageError(f"{keys}: configuration of nodes is for a fresh cluster, not for one at --bootstrap")
    if control is not None and not control.clients_only:
        raise LauncherUsageError(f"control {control.name} is for a fresh cluster: it needs the cluster's own processes")
    if options.network is Network.NAMESPACES:
        raise LauncherUsageError("no --network namespaces: they are for a fresh cluster")
    if options.clients.workload not in FOREIGN_WORKLOADS:
        raise LauncherUsageError(f"workload {options.clients.workload.value} is for a fresh cluster")
    if len({node.node_id for node in options.nodes}) < len(options.nodes):
        raise LauncherUsageError("two nodes have the same id")
    kinds = foreign_kinds(processes=bool(options.nodes))
    refused = [kind.value for kind in options.kinds if kind not in kinds]
    if refused:
        allowed = ", ".join(kind.value for kind in kinds)
        raise LauncherUsageError(
            f"faults {', '.join(refused)} need the cluster's own processes; with --bootstrap only {allowed} work"
            + ("" if options.nodes else "; give --node to let the run start the nodes")
        )


def _refuse_unknown_keys(options: ChaosOptions) -> None:
    clients = options.clients
    TOPIC_CONFIG.parse(dict(options.topic_configs))
    for schema, given in (
        (ADMIN_CONFIG, {}),
        (PRODUCER_CONFIG, clients.queue.producer),
        (CONSUMER_CONFIG, clients.queue.consumer),
    ):
        schema.parse({**clients.connection, **given, "bootstrap.servers": options.bootstrap or "127.0.0.1:9092"})


def possible_kinds(kinds: Sequence[FaultKind], lacks: Mapping[str, str]) -> tuple[tuple[FaultKind, ...], list[str]]:
    """Returns the kinds that links with these lacks support, and a line for each unsupported or changed kind."""
    left_out: dict[FaultKind, str] = {}
    notes = []
    for kind, need in ((FaultKind.LOSS, LOSS), (FaultKind.RESET, RESET)):
        if need in lacks:
            left_out[kind] = lacks[need]
    if DELAY in lacks and RATE in lacks:
        left_out[FaultKind.SLOW] = lacks[DELAY]
    elif DELAY in lacks and FaultKind.SLOW in kinds:
        notes.append(f"slow links have a low rate instead of a delay: {lacks[DELAY]}")
    notes += [f"left out {kind.value}: {reason}" for kind, reason in left_out.items() if kind in kinds]
    return tuple(kind for kind in kinds if kind not in left_out), notes


def once_more(options: ChaosOptions) -> str:
    """Returns the command that runs the same plan of faults again."""
    file = f" --command-config {shlex.quote(options.command_config)}" if options.command_config else ""
    if options.control is not None:
        place = f" --network {options.network.value}" if options.network is not Network.PROXIES else ""
        place += f" --bootstrap {options.bootstrap} --brokers {options.brokers}" if options.bootstrap else ""
        place += file
        return f"moldau chaos run --control {options.control.name} --seed {options.seed}{place}"
    words = ["moldau chaos run", f"--seed {options.seed}", f"--duration {options.duration_s:g}"]
    words += [f"--window {options.window_s:g}", f"--workload {options.clients.workload.value}"]
    words.append(f"--faults {','.join(kind.value for kind in options.kinds) or 'none'}")
    words += ["--churn"] if options.churn else []
    words += [f"--brokers {options.brokers}", f"--controllers {options.controllers}"]
    words += [f"--partitions {options.clients.queue.partitions}"]
    words += [f"--bootstrap {options.bootstrap}"] if options.bootstrap else []
    words += [f"--node {shlex.quote(f'{node.node_id}={shlex.join(node.command)}')}" for node in options.nodes]
    words += [f"--network {options.network.value}"] if options.network is not Network.PROXIES else []
    for flag, values in (
        ("config", options.topic_configs),
        ("set", options.settings),
        ("producer", options.clients.queue.producer),
        ("consumer", options.clients.queue.consumer),
    ):
        words += [f"--{flag} {shlex.quote(f'{key}={value}')}" for key, value in values.items()]
    return " ".join(words) + file
