"""Typed values of the keys that name addresses and log directories.

Addresses are those of listeners, with their security protocols, of quorum voters and of bootstrap servers.
"""

from __future__ import annotations

import enum
import errno
import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import ConfigError
from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.config.declaration import Config

_LISTENER = re.compile(r"([A-Za-z][A-Za-z0-9_]*)://(.*):(-?\d+)")
_VOTER = re.compile(r"(\d+)@(.+):(\d+)")

LISTENER_PREFIX: Final = "listener.name."
CORDONED_LOG_DIRS: Final = "cordoned.log.dirs"
ALL_LOG_DIRS: Final = "*"
"""Value of ``cordoned.log.dirs`` that stands for all log directories."""


def key_of_listener(listener_name: str, key: str) -> str:
    """Returns the name under which one listener has a key of its own; the listener's name is in lower case there."""
    return f"{LISTENER_PREFIX}{listener_name.lower()}.{key}"


class SecurityProtocol(enum.IntEnum):
    """The protocol below Kafka's on a listener; the numbers are Kafka's."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerEndpoint:
    """One listener. An empty host binds all interfaces; port 0 takes a free one."""

    listener_name: str
    security_protocol: SecurityProtocol
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener_name}://{join_address(self.host, self.port)}"


def listening_refused(endpoint: ListenerEndpoint, error: OSError) -> str:
    """Returns why a node cannot listen at an address, and what its operator can do."""
    if error.errno == errno.EADDRINUSE:
        advice = "; stop what uses the port, or configure another one"
    elif error.errno in (errno.EACCES, errno.EPERM):
        advice = "; allow the node to use this port (CAP_NET_BIND_SERVICE), or configure one from 1024"
    elif error.errno == errno.EADDRNOTAVAIL or error.errno not in errno.errorcode:  # the name could not be looked up
        advice = "; name an address of this machine, or none for all of them; others belong into advertised.listeners"
    else:
        advice = ""
    return f"listeners: cannot listen on {endpoint}: {error.strerror or error}{advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumVoter:
    """One voter of the metadata quorum."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.node_id}@{join_address(self.host, self.port)}"


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]"):
        if ":" in text and not _is_ipv6(text[1:-1]):
            raise ValueError(f"{text[1:-1]!r} is no host: give a name without a scheme and a port, or an IPv6 address")
        return text[1:-1]
    if ":" in text:
        raise ValueError("an IPv6 address must stand in brackets")
    if any(character.isspace() for character in text):
        raise ValueError("a host name has no blanks")
    if text and not _can_be_looked_up(text):
        raise ValueError("the parts between the dots of a host name must have 1 to 63 characters")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _can_be_looked_up(name: str) -> bool:
    """Returns whether a name can be sent to a name service; the error of the look-up would name no key."""
    if name.isascii():
        return all(0 < len(label) < 64 for label in name.removesuffix(".").split("."))
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(f"port {port} is not from 0 to 65535")
    return port


def parse_address(text: str) -> tuple[str, int]:
    """Parses ``host:port`` (an IPv6 host in brackets).

    Raises:
        ValueError: a value is not allowed.
    """
    scheme, is_url, _ = text.strip().partition("://")
    if is_url:
        raise ValueError(f"{text!r} is not host:port; leave {scheme}:// out")
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"{text!r} is not host:port")
    try:
        return _host(host), _port(port)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def parse_protocol_map(entries: Sequence[str]) -> dict[str, SecurityProtocol]:
    """Parses ``NAME:PROTOCOL`` entries of ``listener.security.protocol.map``, in any case and with blanks, as Kafka.

    Raises:
        ValueError: a value is not allowed.
    """
    protocols: dict[str, SecurityProtocol] = {}
    for entry in entries:
        name, colon, protocol = (part.strip() for part in entry.upper().partition(":"))
        if not name or not colon or protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ValueError(f"{entry!r} is not NAME:PROTOCOL with a protocol of {known}")
        if name in protocols:
            raise ValueError(f"listener {name} is mapped twice")
        protocols[name] = SecurityProtocol[protocol]
    return protocols


def _parse_endpoints(entries: Sequence[str], protocols: dict[str, SecurityProtocol]) -> tuple[ListenerEndpoint, ...]:
    endpoints: dict[str, ListenerEndpoint] = {}
    for entry in entries:
        match = _LISTENER.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry!r} is not NAME://host:port")
        name = match[1].upper()
        if name not in protocols:
            raise ValueError(f"listener {name} has no protocol in listener.security.protocol.map")
        if name in endpoints:
            raise ValueError(f"listener {name} is given twice")
        try:
            endpoints[name] = ListenerEndpoint(
                listener_name=name, security_protocol=protocols[name], host=_host(match[2]), port=_port(match[3])
            )
        except ValueError as error:
            raise ValueError(f"{entry!r}: {error}") from None
    return tuple(endpoints.values())


def _protocols(config: Config) -> dict[str, SecurityProtocol]:
    try:
        protocols = parse_protocol_map(config.get_list("listener.security.protocol.map"))
    except ValueError as error:
        raise ConfigError([f"listener.security.protocol.map: {error}"]) from None
    # A controller listener without a mapping of its own is PLAINTEXT, as in Kafka.
    if not config.is_set("listener.security.protocol.map"):
        for name in config.get_list("controller.listener.names"):
            protocols.setdefault(name.upper(), SecurityProtocol.PLAINTEXT)
    return protocols


def listeners(config: Config) -> tuple[ListenerEndpoint, ...]:
    """Returns the endpoints of ``listeners``.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    try:
        return _parse_endpoints(config.get_list("listeners"), _protocols(config))
    except ValueError as error:
        raise ConfigError([f"listeners: {error}"]) from None


def controller_listener_names(config: Config) -> tuple[str, ...]:
    """Returns the upper-case names of ``controller.listener.names``."""
    return tuple(name.upper() for name in config.get_list("controller.listener.names"))


def broker_listeners(config: Config) -> tuple[ListenerEndpoint, ...]:
    """Returns the listeners that clients and brokers use (all but those of the controller)."""
    controllers = controller_listener_names(config)
    return tuple(endpoint for endpoint in listeners(config) if endpoint.listener_name not in controllers)


def controller_listeners(config: Config) -> tuple[ListenerEndpoint, ...]:
    """Returns the listeners that only the controller serves."""
    controllers = controller_listener_names(config)
    return tuple(endpoint for endpoint in listeners(config) if endpoint.listener_name in controllers)


def advertised_listeners(config: Config) -> tuple[ListenerEndpoint, ...]:
    """Returns the addresses for clients: ``advertised.listeners``, or by default the broker's listeners.

    An empty host or a port of 0 stays; the server replaces it by the bound one. A controller listener of this node may
    be among them, as in Kafka's example files; it is not advertised to clients.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    given = config.get("advertised.listeners")
    if given is None:
        return broker_listeners(config)
    try:
        advertised = _parse_endpoints(config.get_list("advertised.listeners"), _protocols(config))
    except ValueError as error:
        raise ConfigError([f"advertised.listeners: {error}"]) from None
    own_controllers = {endpoint.listener_name for endpoint in controller_listeners(config)}
    return tuple(endpoint for endpoint in advertised if endpoint.listener_name not in own_controllers)


def inter_broker_listener_name(config: Config) -> str:
    """Returns the name of the listener over which brokers talk to each other.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    name = config.get_str_or_none("inter.broker.listener.name")
    if name is not None:
        return name.upper()
    wanted = SecurityProtocol[config.get_str("security.inter.broker.protocol")]
    for endpoint in broker_listeners(config):
        if endpoint.security_protocol is wanted:
            return endpoint.listener_name
    raise ConfigError(
        [f"inter.broker.listener.name: not set, and no listener speaks {wanted.name} (security.inter.broker.protocol)"]
    )


def _protocol_of(config: Config, listener_name: str) -> SecurityProtocol:
    found = _protocols(config).get(listener_name)
    if found is None:
        raise ConfigError([f"listener.security.protocol.map: listener {listener_name} has no protocol"])
    return found


def inter_broker_protocol(config: Config) -> SecurityProtocol:
    """Returns the security protocol of the listener between brokers.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    return _protocol_of(config, inter_broker_listener_name(config))


def bootstraps_from_itself(config: Config) -> bool:
    """Returns whether ``controller.quorum.bootstrap.servers`` names this controller alone: a new one finds no quorum.

    Kafka's example files do so; in Kafka the command that formats the directory makes the node a voter.
    """
    own = {("localhost", endpoint.port) for endpoint in controller_listeners(config)}
    own |= {("127.0.0.1", port) for _, port in own} | {("::1", port) for _, port in own}
    own |= {(endpoint.host, endpoint.port) for endpoint in controller_listeners(config)}
    return bool(own) and set(addresses(config, "controller.quorum.bootstrap.servers")) <= own


def controller_protocol(config: Config) -> SecurityProtocol:
    """Returns the security protocol of the controllers' first listener, to which this node connects.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    return _protocol_of(config, controller_listener_names(config)[0])


def quorum_voters(config: Config) -> tuple[QuorumVoter, ...]:
    """Returns the voters of ``controller.quorum.voters``, ascending by node id.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    voters: dict[int, QuorumVoter] = {}
    for entry in config.get_list("controller.quorum.voters"):
        match = _VOTER.fullmatch(entry)
        if match is None:
            raise ConfigError([f"controller.quorum.voters: {entry!r} is not id@host:port"])
        node_id = int(match[1])
        if node_id in voters:
            raise ConfigError([f"controller.quorum.voters: node {node_id} is given twice"])
        try:
            voters[node_id] = QuorumVoter(node_id=node_id, host=_host(match[2]), port=_port(match[3]))
        except ValueError as error:
            raise ConfigError([f"controller.quorum.voters: {entry!r}: {error}"]) from None
    return tuple(voters[node_id] for node_id in sorted(voters))


def addresses(config: Config, key: str) -> tuple[tuple[str, int], ...]:
    """Returns the ``host:port`` pairs of a list key such as ``bootstrap.servers``.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    try:
        return tuple(parse_address(entry) for entry in config.get_list(key))
    except ValueError as error:
        raise ConfigError([f"{key}: {error}"]) from None


def metrics_listener(config: Config) -> tuple[str, int] | None:
    """Returns host and port of ``metrics.listener``; None where it is not set.

    Raises:
        ConfigError: it is not host:port.
    """
    given = config.get_str_or_none("metrics.listener")
    try:
        return None if given is None else parse_address(given)
    except ValueError as error:
        raise ConfigError([f"metrics.listener: {error}"]) from None


def console_listener(config: Config) -> tuple[str, int] | None:
    """Returns host and port of ``console.listener``; None where it is not set, or empty.

    Raises:
        ConfigError: it is not host:port, or this node is no broker.
    """
    given = config.get_str_or_none("console.listener")
    if not given:
        return None
    if "broker" not in config.get_list("process.roles"):
        raise ConfigError(["console.listener: process.roles lacks broker; the console asks a broker"])
    try:
        return parse_address(given)
    except ValueError as error:
        raise ConfigError([f"console.listener: {error}"]) from None


def log_dirs(config: Config) -> tuple[str, ...]:
    """Returns the log directories: ``log.dirs``, or where that is not set ``log.dir``."""
    given = config.get("log.dirs")
    return (config.get_str("log.dir"),) if given is None else config.get_list("log.dirs")


def cordoned_log_dirs(config: Config) -> tuple[str, ...]:
    """Returns those of the log directories that ``cordoned.log.dirs`` cordons; it may name others, which are gone."""
    named = config.get_list(CORDONED_LOG_DIRS)
    return tuple(path for path in log_dirs(config) if path in named or ALL_LOG_DIRS in named)


def cordon_problem(config: Config, named: Sequence[str]) -> str | None:
    """Returns why a node cannot cordon the log directories ``named``; None if it can."""
    known = log_dirs(config)
    unknown = [path for path in named if path not in known and path != ALL_LOG_DIRS]
    if unknown:
        return f"{CORDONED_LOG_DIRS}: {unknown[0]} is not one of log.dirs: {', '.join(known)}"
    return None


def metadata_log_dir(config: Config) -> str:
    """Returns the directory of the metadata log: ``metadata.log.dir``, or the first log directory."""
    return config.get_str_or_none("metadata.log.dir") or log_dirs(config)[0]


def check_server(config: Config) -> list[str]:
    """Checks a node's configuration where several keys depend on each other; returns problems."""
    problems: list[str] = []
    roles = config.get_list("process.roles")
    try:
        endpoints = listeners(config)
        voters = quorum_voters(config)
        advertised = advertised_listeners(config)
        addresses(config, "controller.quorum.bootstrap.servers")
        metrics_listener(config)
        console_listener(config)
    except ConfigError as error:
        return list(error.problems)
    names = {endpoint.listener_name: endpoint for endpoint in endpoints}
    node_id = config.get_int("node.id")
    controllers = controller_listener_names(config)
    if not roles:
        problems.append("process.roles: must name broker, controller or both")
    if not voters and not config.get_list("controller.quorum.bootstrap.servers"):
        problems.append("controller.quorum.voters: no controller is known; give id@host:port of each voter")
    if not controllers:
        problems.append("controller.listener.names: must name the listener of the controllers, for example CONTROLLER")
    if "controller" in roles:
        problems.extend(
            f"controller.listener.names: listener {name} is not in listeners"
            for name in controllers
            if name not in names
        )
        if voters and node_id not in [voter.node_id for voter in voters]:
            problems.append(f"node.id = {node_id}: a controller must be one of controller.quorum.voters")
    elif voters and node_id in [voter.node_id for voter in voters]:
        problems.append(f"node.id = {node_id}: is among controller.quorum.voters, but process.roles lacks controller")
    if "broker" in roles:
        if not any(name not in controllers for name in names):
            problems.append("listeners: a broker needs a listener besides those of controller.listener.names")
        else:
            try:
                inter_broker = inter_broker_listener_name(config)
            except ConfigError as error:
                problems.extend(error.problems)
            else:
                if inter_broker not in [endpoint.listener_name for endpoint in advertised]:
                    problems.append(f"inter.broker.listener.name: {inter_broker} is not among the advertised listeners")
        problems.extend(
            f"advertised.listeners: {endpoint.listener_name} is a controller listener or not in listeners"
            for endpoint in advertised
            if endpoint.listener_name in controllers or endpoint.listener_name not in names
        )
    cordoned = config.get_list(CORDONED_LOG_DIRS)
    if ALL_LOG_DIRS in cordoned and len(cordoned) > 1:
        problems.append(f"{CORDONED_LOG_DIRS}: {ALL_LOG_DIRS} stands for all log directories, and must stand alone")
    if not log_dirs(config):
        problems.append("log.dirs: must name at least one directory")
    if config.get_int("broker.session.timeout.ms") <= config.get_int("broker.heartbeat.interval.ms"):
        problems.append("broker.session.timeout.ms: must be above broker.heartbeat.interval.ms")
    if config.get_int("group.min.session.timeout.ms") > config.get_int("group.max.session.timeout.ms"):
        problems.append("group.min.session.timeout.ms: must not be above group.max.session.timeout.ms")
    return problems


def connections_of_ips(config: Config) -> dict[str, int]:
    """Returns ``max.connections.per.ip.overrides`` by address.

    Raises:
        ConfigError: an entry is not an address and a number.
    """
    key = "max.connections.per.ip.overrides"
    found: dict[str, int] = {}
    for entry in config.get_list(key):
        text, _, number = entry.rpartition(":")
        try:
            address = str(ipaddress.ip_address(text.strip().strip("[]")))
            if not number.strip().isdecimal():
                raise ValueError(number)
        except ValueError as error:
            raise ConfigError([f"{key} = {entry!r}: must be address:number, as in 10.0.0.1:100"]) from error
        found[address] = int(number)
    return found
