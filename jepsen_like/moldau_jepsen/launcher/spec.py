"""Describes a local cluster: the values behind ``cluster.json`` and the nodes' configuration files.

The functions are pure: they turn a ``ClusterSpec`` and port numbers into nodes, configuration texts and JSON, and back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from moldau.values import join_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from moldau.runtime.config.sasl import LoginSettings

HOST = "127.0.0.1"
"""Address of listeners without a ``Place``: a literal, because some clients resolve ``localhost`` to two addresses."""

FILE_NAME = "cluster.json"
FILE_VERSION = 1
CONTROLLER_ID_FIRST = 101
NODES_MAX = 99


class LauncherError(Exception):
    """The cluster failed to perform an operation; the message is one sentence for the user."""


class LauncherUsageError(LauncherError):
    """The operation does not apply to this cluster or directory (exit code 2 on the command line)."""


def no_such_node(node_id: object, known: Iterable[int]) -> LauncherUsageError:
    """Returns the error for a node that is not in ``known``."""
    return LauncherUsageError(f"no node {node_id!r} in this cluster; its nodes are {', '.join(map(str, known))}")


class Door(NamedTuple):
    """Address at which the harness reaches a node: its own listener, past proxies and cuts."""

    host: str
    port: int
    source: str = ""
    """Local address of the harness's connection; empty: the kernel chooses."""
    tls: ssl.SSLContext | None = None
    """TLS configuration of the connection; None: the listener does not use TLS."""
    login: LoginSettings | None = None
    """User and password of a SCRAM login; None: the listener does not use SASL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A network namespace and its address (``moldau_jepsen.chaos.network.namespaces``)."""

    host: str
    namespace: str
    asked_from: str = ""
    """Local address of the harness's connections (``Door.source``)."""


PROMPT_GROUPS = MappingProxyType({"group.initial.rebalance.delay.ms": "0"})
"""A new group does not wait 3 s for more members, because groups in tests and on local clusters mostly have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The shape and the settings of a cluster to start.

    With ``base_port`` None the nodes get free ports; otherwise brokers listen on ``base_port`` and following,
    controllers on the ports behind. ``settings`` are configuration keys for every node; they override the launcher's
    own (`node_properties`).

    ``ports`` names the listening port of each node (brokers first) instead. ``advertised_ports``, one per node, are the
    ports that the nodes advertise to each other and to clients, for clusters whose links pass a proxy
    (``moldau_jepsen.chaos.network.links``); the proxies must forward to ``ports`` before the cluster starts.

    ``places``, one per node, are the network namespaces in which the nodes run instead of this machine's own; they must
    exist, and ``ports`` must be given.
    """

    brokers: int = 3
    controllers: int = 3
    base_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    advertised_ports: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
    hostile: bool = False
    """Whether the harness controls the nodes' disks and clocks (``launcher.hostile``), as ``LocalCluster.lose_power``
    and ``LocalCluster.control`` require."""

    secure: bool = False
    """Whether all listeners get TLS, SCRAM and ACLs that deny by default (``launcher.secured``)."""

    def __post_init__(self) -> None:
        for name, count in (("brokers", self.brokers), ("controllers", self.controllers)):
            if not isinstance(count, int) or not 1 <= count <= NODES_MAX:
                raise LauncherUsageError(f"number of {name} must be 1..{NODES_MAX}, not {count!r}")
        if self.base_port is not None and not 1024 <= self.base_port <= 65535 - self.nodes:
            raise LauncherUsageError(f"base port must be 1024..{65535 - self.nodes}, not {self.base_port}")
        given = (("ports", self.ports), ("advertised ports", self.advertised_ports), ("places", self.places))
        for name, ports in given:
            if ports and len(ports) != self.nodes:
                raise LauncherUsageError(f"{name} must be one per node ({self.nodes}), not {len(ports)}")
        if self.places and not self.ports:
            raise LauncherUsageError("places need ports, because free ports of another namespace are not known")

    @property
    def nodes(self) -> int:
        """Number of processes."""
        return self.brokers + self.controllers


@dataclass(slots=True, kw_only=True)
class Node:
    """One process of the cluster. ``pid`` and ``started`` (see ``process.start_mark``) change with every start."""

    node_id: int
    role: str
    port: int
    directory: str
    config: str
    log: str
    pid: int = 0
    started: str = ""
    advertised_port: int = 0  # 0: The node advertises its listener's port.
    hostile: str = ""  # Directory of undo journal and control file; empty: real disk and clocks.
    host: str = HOST
    namespace: str = ""  # Network namespace of the node; empty: the namespace of this process.
    asked_from: str = ""  # see ``Door.source``
    secured: bool = False  # see ``ClusterSpec.secure``
    metrics: str = ""  # Address of metrics and counts of logins, host:port; empty: none.

    @property
    def address(self) -> str:
        """Returns the ``host:port`` that the node advertises: its listener, or the proxy in front of it."""
        return f"{self.host}:{self.advertised_port or self.port}"

    @property
    def door(self) -> Door:
        """Returns the address at which the harness reaches the node."""
        return Door(self.host, self.port, self.asked_from)

    @property
    def listener(self) -> str:
        """Returns the node's listener as ``NAME://host:port``."""
        return f"{self.listener_name}://{join_address(self.host, self.port)}"

    @property
    def listener_name(self) -> str:
        """Returns the name of the node's only listener."""
        if self.role == "controller":
            return "CONTROLLER"
        return "SASL_SSL" if self.secured else "PLAINTEXT"


def plan_nodes(spec: ClusterSpec, directory: Path, ports: Sequence[int]) -> list[Node]:
    """Lays out the nodes: ``ports`` holds one free port per node, brokers first."""
    assert len(ports) == spec.nodes, f"{len(ports)} ports for {spec.nodes} nodes"
    names = [(number, "broker") for number in range(1, spec.brokers + 1)]
    names += [(CONTROLLER_ID_FIRST + number, "controller") for number in range(spec.controllers)]
    nodes = []
    advertised = spec.advertised_ports or (0,) * spec.nodes
    places = spec.places or (Place(host=HOST, namespace=""),) * spec.nodes
    for (node_id, role), port, advertised_port, place in zip(names, ports, advertised, places, strict=True):
        home = directory / f"{role}-{node_id}"
        nodes.append(
            Node(
                node_id=node_id,
                role=role,
                port=port,
                directory=str(home / "data"),
                config=str(home / "server.properties"),
                log=str(home / "server.log"),
                advertised_port=advertised_port,
                hostile=str(home / "hostile") if spec.hostile else "",
                host=place.host,
                namespace=place.namespace,
                asked_from=place.asked_from,
                secured=spec.secure,
            )
        )
    return nodes


def node_properties(node: Node, nodes: Sequence[Node], settings: Mapping[str, str]) -> str:
    """Returns the text of a node's configuration file (Kafka's properties)."""
    brokers = sum(1 for other in nodes if other.role == "broker")
    replicas = min(3, brokers)
    voters = ",".join(f"{other.node_id}@{other.address}" for other in nodes if other.role == "controller")
    values = {
        "process.roles": node.role,
        "node.id": str(node.node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": node.listener,
        "log.dirs": node.directory,
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(max(1, replicas - 1)),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(max(1, replicas - 1)),
        "share.coordinator.state.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        **PROMPT_GROUPS,
        "node.watchdog.ms": "0",  # harnesses pause nodes on purpose and resume them
    }
    if node.advertised_port and node.role == "broker":
        values["advertised.listeners"] = f"{node.listener_name}://{node.address}"
    if node.metrics:
        values["metrics.listener"] = node.metrics
    values.update(settings)
    return properties_text(values)


def properties_text(values: Mapping[str, str]) -> str:
    """Returns the text of a properties file."""
    return "".join(f"{key}={escape_value(value)}\n" for key, value in values.items())


def escape_value(value: str) -> str:
    """Escapes backslashes, line ends and a leading blank, which the properties format would interpret."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith((" ", "\t", "\f")) else text


def bootstrap_of(nodes: Sequence[Node]) -> str:
    """Returns the brokers' addresses as ``host:port,...``."""
    return ",".join(node.address for node in nodes if node.role == "broker")


def to_json(nodes: Sequence[Node], client_config: str = "") -> str:
    """Returns the text of ``cluster.json``; ``client_config`` is the file with the administrator's login, if any."""
    document: dict[str, object] = {
        "version": FILE_VERSION,
        "bootstrap": bootstrap_of(nodes),
        "controllers": ",".join(node.address for node in nodes if node.role == "controller"),
        **({"client_config": client_config} if client_config else {}),
        "nodes": [
            {
                "id": node.node_id,
                "role": node.role,
                "host": node.host,
                "port": node.port,
                "advertised_port": node.advertised_port,
                "pid": node.pid,
                "started": node.started,
                "directory": node.directory,
                "config": node.config,
                "log": node.log,
                "hostile": node.hostile,
                "namespace": node.namespace,
                "asked_from": node.asked_from,
                "secured": node.secured,
                "metrics": node.metrics,
            }
            for node in nodes
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def from_json(text: str, origin: str) -> list[Node]:
    """Parses the text of ``cluster.json``; ``origin`` names the file in errors.

    Raises:
        LauncherUsageError: The text is not a cluster file of this version.
    """
    try:
        document = json.loads(text)
        if document["version"] != FILE_VERSION:
            raise LauncherUsageError(f"{origin} has version {document['version']!r}, this Moldau reads {FILE_VERSION}")
        return [
            Node(
                node_id=int(entry["id"]),
                role=str(entry["role"]),
                port=int(entry["port"]),
                pid=int(entry["pid"]),
                started=str(entry["started"]),
                directory=str(entry["directory"]),
                config=str(entry["config"]),
                log=str(entry["log"]),
                advertised_port=int(entry.get("advertised_port", 0)),
                hostile=str(entry.get("hostile", "")),
                host=str(entry.get("host", HOST)),
                namespace=str(entry.get("namespace", "")),
                asked_from=str(entry.get("asked_from", "")),
                secured=bool(entry.get("secured", False)),
                metrics=str(entry.get("metrics", "")),
            )
            for entry in document["nodes"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise LauncherUsageError(f"{origin} is not a cluster file: {type(error).__name__} {error}") from error
