"""Writes the commented configuration file of a new node. The module is pure.

Comments come from the declarations of the keys, so that a file never contradicts them. Keys that many installations
need later (encryption, racks) stand in the file as comments.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import BROKER_CONFIG, ConfigError, QuorumVoter, join_address, parse_address
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
CONTROLLER_PREFIX: Final = "listener.name.controller."
COMMENT_WIDTH: Final = 100
OPTIONS: Final = {
    "process.roles": "--role",
    "node.id": "--node-id",
    "controller.quorum.voters": "--voters",
    "cluster.id": "--cluster-id",
    "log.dirs": "--dir",
    "broker.rack": "--rack",
    "metrics.listener": "--metrics",
    "ssl.keystore.location": "--keystore",
    "ssl.truststore.location": "--truststore",
}
"""Keys that have an option of their own."""
INTERNAL_REPLICAS: Final = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
)
"""Replicas of the internal topics, which groups and transactions need; the defaults need three brokers."""
HEAD: Final = """\
# Configuration of a Moldau node. `moldau node check FILE` checks it on this machine, `moldau node format FILE` prepares
# the directories, `moldau server FILE` runs the node. MOLDAU_NODE_ID in the environment overrides node.id, and so on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """The operator's decisions about a new node."""

    roles: tuple[str, ...]
    node_id: int
    voters: tuple[QuorumVoter, ...]
    host: str
    """Name under which clients and other brokers reach the broker."""
    port: int
    """Port of the broker. A controller listens on the port that the list of voters has for it."""
    directories: tuple[str, ...]
    cluster_id: str = ""
    """Empty: the controllers choose it, or it is set later."""
    rack: str = ""
    metrics: str = ""
    """Address of metrics and health; empty: none."""
    keystore: str = ""
    """File with the node's private key and certificate chain; empty: listeners speak plain text."""
    truststore: str = ""
    """File with the certificates of the authorities that the node trusts; empty: those of the system."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further keys; they replace values that the file would have otherwise."""


def parse_voters(text: str) -> tuple[QuorumVoter, ...]:
    """Parses ``101@c1:9093,102@c2:9093``.

    Raises:
        UsageError: an entry has another form or port 0, or an id is there twice.
    """
    voters: list[QuorumVoter] = []
    for entry in text.split(","):
        number, at, address = entry.strip().partition("@")
        try:
            if not at or not number.isdecimal():
                raise ValueError(entry)
            host, port = parse_address(address)
            if port == 0:
                raise ValueError(entry)  # no node could reach it
        except (ValueError, ConfigError) as error:
            raise UsageError(f"--voters: expected id@host:port, not {entry.strip()!r}") from error
        if any(voter.node_id == int(number) for voter in voters):
            raise UsageError(f"--voters: id {number} is there twice")
        voters.append(QuorumVoter(node_id=int(number), host=host, port=port))
    return tuple(voters)


def configuration_text(node: NewNode) -> str:
    """Returns the file's text.

    Raises:
        UsageError: the roles and the list of voters contradict each other, or the host cannot be looked up.
    """
    own = next((voter for voter in node.voters if voter.node_id == node.node_id), None)
    if CONTROLLER in node.roles and own is None:
        raise UsageError(f"--voters must have an entry {node.node_id}@host:port, because this node is a controller")
    if CONTROLLER not in node.roles and own is not None:
        raise UsageError(f"--node-id {node.node_id} is the id of a voter; a broker needs an id of its own")
    try:
        parse_address(join_address(node.host, node.port))
    except ValueError as error:
        raise UsageError(f"--host: {error}") from error
    if node.truststore and not node.keystore:
        raise UsageError("--truststore needs --keystore: a node that serves TLS has a certificate")
    for key in node.more:
        if key in OPTIONS:
            raise UsageError(f"--set {key}: give {OPTIONS[key]} instead")
    parts, left = [HEAD], dict(node.more)
    for title, settings in _sections(node, own):
        parts.append(f"\n# {title}\n")
        for key, value, optional in settings:
            parts.append(_setting(key, left.pop(key, value), optional and key not in node.more))
    if left:
        parts.append("\n# --- further keys\n")
        parts.extend(_setting(key, value, False) for key, value in left.items())
    return "\n".join(parts)


def _sections(node: NewNode, own: QuorumVoter | None) -> Iterator[tuple[str, list[tuple[str, str, bool]]]]:
    yield (
        "--- identity",
        [
            ("process.roles", ",".join(node.roles), False),
            ("node.id", str(node.node_id), False),
            ("cluster.id", node.cluster_id, not node.cluster_id),
            ("controller.quorum.voters", ",".join(map(str, node.voters)), False),
        ],
    )
    yield "--- network", list(_network(node, own))
    storage = [("log.dirs", ",".join(node.directories), False)]
    if CONTROLLER in node.roles:
        storage.append(("metadata.log.dir", "/fast-disk/moldau", True))
    yield "--- storage", storage
    yield "--- durability and placement", list(_durability(node))
    supervision = [
        ("metrics.listener", node.metrics or "127.0.0.1:9644", not node.metrics),
        ("node.watchdog.ms", "2000", True),
    ]
    if BROKER in node.roles:
        supervision.append(("console.listener", "127.0.0.1:9080", True))
    yield "--- supervision", supervision
    title = "--- encryption" + ("" if node.keystore else " (off: each listener speaks plain text)")
    yield title, list(_encryption(node))


def _durability(node: NewNode) -> Iterator[tuple[str, str, bool]]:
    is_alone = len(node.voters) == 1 and {BROKER, CONTROLLER} <= set(node.roles)
    if BROKER in node.roles:
        yield "default.replication.factor", "1" if is_alone else "3", False
    # A topic's minimum is decided by controllers too, so both roles have it.
    yield "min.insync.replicas", "1" if is_alone else "2", False
    if is_alone:
        for key in INTERNAL_REPLICAS:
            yield key, "1", False
    if BROKER in node.roles:
        yield "broker.rack", node.rack or "a", not node.rack


def _encryption(node: NewNode) -> Iterator[tuple[str, str, bool]]:
    is_off = not node.keystore
    names = "CONTROLLER:SSL,PLAINTEXT:SSL" if is_off else "CONTROLLER:SSL,SSL:SSL"
    yield "listener.security.protocol.map", names, is_off
    if not is_off and BROKER in node.roles and "inter.broker.listener.name" not in node.more:  # Kafka takes one of them
        yield "security.inter.broker.protocol", "SSL", False
    if node.truststore and CONTROLLER in node.roles:
        yield f"{CONTROLLER_PREFIX}ssl.client.auth", "required", False
    yield "ssl.keystore.type", _store_type(node.keystore), is_off
    yield "ssl.keystore.location", node.keystore or "/etc/moldau/node.pem", is_off
    yield "ssl.truststore.type", _store_type(node.truststore), not node.truststore
    yield "ssl.truststore.location", node.truststore or "/etc/moldau/authority.pem", not node.truststore


def _store_type(path: str) -> str:
    return "PKCS12" if path.lower().endswith((".p12", ".pfx")) else "PEM"


def _network(node: NewNode, own: QuorumVoter | None) -> Iterator[tuple[str, str, bool]]:
    bound: list[str] = []
    name = "SSL" if node.keystore else "PLAINTEXT"
    if BROKER in node.roles:
        bound.append(f"{name}://:{node.port}")  # all interfaces, of IPv4 and IPv6
    if own is not None:
        bound.append(f"CONTROLLER://:{own.port}")
    yield "listeners", ",".join(bound), False
    if BROKER in node.roles:
        yield "advertised.listeners", f"{name}://{_bracketed(node.host)}:{node.port}", False
    elif own is not None:
        yield "advertised.listeners", f"CONTROLLER://{_bracketed(own.host)}:{own.port}", False
    yield "controller.listener.names", "CONTROLLER", False


def _bracketed(host: str) -> str:
    """Returns the host as an address has it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _setting(key: str, value: str, optional: bool) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")  # a file of properties has escapes
    declared = key.removeprefix(CONTROLLER_PREFIX)
    if declared not in BROKER_CONFIG.keys:  # with the prefix of another listener, or unknown: the parser refuses it
        return f"{key}={value}\n"
    comment = textwrap.fill(BROKER_CONFIG.key(declared).doc, COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")
    return f"{comment}\n{'#' if optional else ''}{key}={value}\n"
