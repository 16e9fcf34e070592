"""What a local cluster consists of: the values behind ``cluster.json`` and the nodes' configuration files.

Nothing here starts or asks anything: the functions turn a ``ClusterSpec`` and port numbers into nodes, files' text
and JSON, and back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

HOST = "127.0.0.1"
"""Address of listeners that have no place of their own: a literal, because ``localhost`` means two addresses to some
clients."""

FILE_NAME = "cluster.json"
FILE_VERSION = 1
CONTROLLER_ID_FIRST = 101
NODES_MAX = 99


class LauncherError(Exception):
    """The cluster could not do what was asked; the text is one sentence for the user."""


class LauncherUsageError(LauncherError):
    """What was asked cannot be asked of this cluster or directory (exit code 2 on the command line)."""


def no_such_node(node_id: object, known: Iterable[int]) -> LauncherUsageError:
    """The error of whoever is asked for a node that is none of those ``known``."""
    return LauncherUsageError(f"no node {node_id!r} in this cluster; its nodes are {', '.join(map(str, known))}")


class Door(NamedTuple):
    """Where the harness asks a node: its own listener, past proxies and cuts."""

    host: str
    port: int
    source: str = ""
    """Address of this machine to ask from; empty: the kernel chooses."""
    tls: ssl.SSLContext | None = None
    """What TLS is spoken with; None: the listener speaks without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A network namespace with an address of its own (``moldau_jepsen.chaos.namespaces``)."""

    host: str
    namespace: str
    asked_from: str = ""
    """Address that the harness asks from (``Door.source``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What to start.

    ``base_port`` None takes free ports; otherwise brokers listen on ``base_port`` and following, controllers behind
    them. ``settings`` are configuration keys for every node and win over the launcher's own.

    ``ports`` names the listening port of each node (brokers first) instead. ``advertised_ports``, as many, are what the
    nodes tell each other and clients, for clusters whose links pass a proxy (``moldau_jepsen.chaos.links``); the
    proxies must forward to ``ports`` before the cluster starts.

    ``places``, as many again, are the network namespaces that the nodes run in instead of this machine's own; they must
    be there, and ``ports`` must name the ports.
    """

    brokers: int = 3
    controllers: int = 3
    base_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    advertised_ports: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
    hostile: bool = False
    """Nodes run on disks and clocks that the harness rules (``launcher.hostile``): ``LocalCluster.lose_power`` and
    ``LocalCluster.control`` work."""

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
            raise LauncherUsageError("places need ports: nobody knows which are free in another namespace")

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
    advertised_port: int = 0  # 0: the listener's own
    hostile: str = ""  # directory of the undo journal and the control file; empty: the machine's own disk and clocks
    host: str = HOST
    namespace: str = ""  # network namespace it runs in; empty: the one of this process
    asked_from: str = ""  # see ``Door.source``

    @property
    def address(self) -> str:
        """``host:port`` where others reach it: its listener, or the proxy in front of it."""
        return f"{self.host}:{self.advertised_port or self.port}"

    @property
    def door(self) -> Door:
        """Where the harness asks it."""
        return Door(self.host, self.port, self.asked_from)

    @property
    def listener(self) -> str:
        """``NAME://host:port`` of its listener."""
        return f"{self.listener_name}://{self.host}:{self.port}"

    @property
    def listener_name(self) -> str:
        """Name of its one listener."""
        return "CONTROLLER" if self.role == "controller" else "PLAINTEXT"


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
            )
        )
    return nodes


def node_properties(node: Node, nodes: Sequence[Node], settings: Mapping[str, str]) -> str:
    """Text of a node's configuration file (Kafka's properties)."""
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
        "transaction.state.log.num.partitions": "8",
    }
    if node.advertised_port and node.role == "broker":
        values["advertised.listeners"] = f"{node.listener_name}://{node.address}"
    values.update(settings)
    return "".join(f"{key}={escape_value(value)}\n" for key, value in values.items())


def escape_value(value: str) -> str:
    """Escapes what the properties format would read otherwise (backslashes, ends of lines, a leading blank)."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith((" ", "\t")) else text


def bootstrap_of(nodes: Sequence[Node]) -> str:
    """``host:port,...`` of the brokers."""
    return ",".join(node.address for node in nodes if node.role == "broker")


def to_json(nodes: Sequence[Node]) -> str:
    """Text of ``cluster.json``."""
    document = {
        "version": FILE_VERSION,
        "bootstrap": bootstrap_of(nodes),
        "controllers": ",".join(node.address for node in nodes if node.role == "controller"),
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
            }
            for node in nodes
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def from_json(text: str, origin: str) -> list[Node]:
    """Reads ``cluster.json``; ``origin`` names it in errors. Raises ``LauncherUsageError`` if it is not one."""
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
            )
            for entry in document["nodes"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise LauncherUsageError(f"{origin} is not a cluster file: {type(error).__name__} {error}") from error
