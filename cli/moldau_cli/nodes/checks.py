"""Checks a machine against a node's configuration: ports, directories, certificates, object store, voters, clocks.

Nothing is changed; ports are bound for a moment. A fact that cannot be known yet (voters that do not run) is a warning.
"""

from __future__ import annotations

import datetime
import errno
import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.config import (
    ConfigError,
    advertised_listeners,
    console_listener,
    join_address,
    key_of_listener,
    log_dirs,
    metadata_log_dir,
    metrics_listener,
    process_configs,
    quorum_voters,
)
from moldau.runtime.config.listeners import listeners
from moldau.runtime.config.processes import EVERY_INTERFACE
from moldau.runtime.config.tls import CLIENT_AUTH, leaves_clients_to_sasl, tls_problems, tls_settings
from moldau.runtime.ports.descriptors import COMFORTABLE
from moldau.runtime.ports.objects import ObjectNotFoundError, ObjectStoreError
from moldau.runtime.tls.context import server_context
from moldau.runtime.tls.outgoing import controllers_environment
from moldau_broker.log.directories.directory import CHANGED_IDENTITY
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import decode_meta_properties, read_file
from moldau_broker.log.files.checksums import damaged_files
from moldau_broker.log.files.names import CLEAN_SHUTDOWN
from moldau_cli.nodes.certificates import is_for_servers, unnamed_host
from moldau_cli.nodes.format import directories, foreign_files
from moldau_cli.nodes.group.layout import misplaced_data
from moldau_quorum.node.directory import META_PROPERTIES, NodeDirectoryError, read_identity
from moldau_quorum.node.voters.voter_address import FAILURES, ask_leader_wall_ms, ask_quorum_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.config import Config, QuorumVoter
    from moldau.runtime.ports.environment import Disk, Environment
    from moldau.runtime.tls.context import DatedContext
    from moldau_quorum.node.voters.voter_address import QuorumView

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"
CLOCK_OFFSET_MAX_MS: Final = 500
"""Retention, timestamps of records and lifetimes of tokens follow wall clocks; replication does not."""
FREE_BYTES_MIN: Final = 1 << 30
CERTIFICATE_DAYS_MIN: Final = 14
"""With fewer days left an operator should renew a certificate now."""
ASK_TIMEOUT_S: Final = 3.0
"""For each voter; a machine behind a firewall does not answer at all."""
DESCRIPTORS_MIN: Final = 64
"""A node with both roles has 33 open when it is ready, and some more while it starts."""
STORE_TIMEOUT_S: Final = 15.0
"""For the object store, whose client repeats what fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    subject: str
    state: str
    detail: str


async def check_node(environment: Environment, config: Config, descriptors: int) -> list[Finding]:
    """Makes all checks; ``descriptors`` is the number of files that a process of this user may open.

    Ports and directories are checked for each process of ``broker.processes``.
    """
    found: list[Finding] = []
    with ExitStack() as held:  # so that two listeners with the same port are found
        ports: dict[int, str] = {}
        for one in process_configs(config):
            found += await check_ports(environment, one, held, ports)
            found += check_directories(environment, one)
    if misplaced := misplaced_data(environment.disk, config):
        found.append(Finding(check="processes", subject="log.dirs", state=PROBLEM, detail=misplaced))
    found.append(check_open_files(descriptors))
    found += check_addresses(config)
    found += check_certificates(environment, config)
    found += await check_object_store(environment, config)
    return found + await check_quorum(environment, config)


async def check_ports(
    environment: Environment, config: Config, held: ExitStack, ports: dict[int, str]
) -> list[Finding]:
    """Binds each listener until ``held`` is closed; ``ports`` holds the subjects of those before, by port."""
    addresses = [(str(endpoint), endpoint.host, endpoint.port) for endpoint in listeners(config)]
    if (metrics := metrics_listener(config)) is not None:
        addresses.append((f"metrics {join_address(*metrics)}", *metrics))
    if (console := console_listener(config)) is not None:
        addresses.append((f"console {join_address(*console)}", *console))
    found: list[Finding] = []
    for subject, host, port in addresses:
        try:
            held.callback((await environment.network.listen(host, port)).close)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            other = ports.get(port) if taken else None
            detail = f"cannot listen: {_reason(error) if other is None else f'{other} has this port'}"
            if other is None and taken:
                detail += ", by this node if it runs"
            found.append(Finding(check="port", subject=subject, state=PROBLEM, detail=detail))
        else:
            ports[port] = subject
            found.append(Finding(check="port", subject=subject, state=OK, detail="free"))
    return found


def check_open_files(descriptors: int) -> Finding:
    """Judges the number of files that a process may open."""
    state = OK if descriptors >= COMFORTABLE else WARNING if descriptors >= DESCRIPTORS_MIN else PROBLEM
    least = f"; a node without partitions needs {DESCRIPTORS_MIN}" if state == PROBLEM else ""
    advice = "" if state == OK else f"; {COMFORTABLE} are comfortable (LimitNOFILE= in the unit, ulimit -Hn)"
    return Finding(check="files", subject="limit", state=state, detail=f"{descriptors} open{least}{advice}")


def check_addresses(config: Config) -> list[Finding]:
    """Looks whether other machines can use the addresses that a broker advertises."""
    if "broker" not in config.get_list("process.roles"):
        return []
    detail = "names no machine, so clients and brokers elsewhere connect to themselves; set advertised.listeners"
    return [
        Finding(check="address", subject=str(endpoint), state=WARNING, detail=detail)
        for endpoint in advertised_listeners(config)
        if endpoint.host in EVERY_INTERFACE
    ]


def check_certificates(environment: Environment, config: Config) -> list[Finding]:
    """Looks when the certificates of the listeners with TLS are valid, for what, and whether they name the hosts.

    Raises:
        ConfigError: a file cannot be used.
    """
    found: list[Finding] = []
    for endpoint in listeners(config):
        if not endpoint.security_protocol.uses_tls:
            continue
        server = _server_context(environment, config, endpoint.listener_name)
        if (node_wide := config.get_str(CLIENT_AUTH)) != "none" and leaves_clients_to_sasl(
            config, endpoint.listener_name
        ):
            key = key_of_listener(endpoint.listener_name, CLIENT_AUTH)
            detail = f"asks for none of clients, which log in by SASL: {key}={node_wide} would demand one as well"
            found.append(Finding(check="certificate", subject=str(endpoint), state=WARNING, detail=detail))
        if server.expires_s is None:
            continue
        state, detail = _validity(server.valid_since_s or 0.0, server.expires_s, environment.clock.wall_ms() / 1000)
        found.append(Finding(check="certificate", subject=str(endpoint), state=state, detail=detail))
        if not is_for_servers(server):
            detail = "is not for servers (its extended key usage lacks serverAuth): clients and nodes refuse it"
            found.append(Finding(check="certificate", subject=str(endpoint), state=WARNING, detail=detail))
        if (host := unnamed_host(server, config, endpoint)) is not None:
            detail = f"does not name {host}, the host that others connect to: they refuse it"
            found.append(Finding(check="certificate", subject=str(endpoint), state=WARNING, detail=detail))
    return found


def _server_context(environment: Environment, config: Config, listener_name: str) -> DatedContext:
    """Returns the context of a listener with TLS; each file is read once.

    Raises:
        ConfigError: a key or a file cannot be used.
    """
    settings = tls_settings(config, listener_name)
    if problems := tls_problems(settings, server=listener_name):
        raise ConfigError(problems)
    return server_context(settings, environment.disk)


def _validity(since_s: float, expires_s: float, now_s: float) -> tuple[str, str]:
    """Returns the state of a certificate and its reason."""
    since, ends = (
        f"{datetime.datetime.fromtimestamp(at_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC" for at_s in (since_s, expires_s)
    )
    if expires_s <= now_s:
        return PROBLEM, f"expired at {ends}"
    if since_s > now_s:
        return (
            PROBLEM,
            f"is not valid before {since}: others refuse it, unless this machine's clock is slow",
        )
    return WARNING if expires_s - now_s < CERTIFICATE_DAYS_MIN * 86_400 else OK, f"expires at {ends}"


async def check_object_store(environment: Environment, config: Config) -> list[Finding]:
    """Lists a folder of the object store and reads the broker's object there, as a broker does when it starts.

    A page of anything else counts as an empty listing: that of a console of the service, or of a proxy.

    Raises:
        ConfigError: the store cannot be opened with this configuration.
    """
    if "broker" not in config.get_list("process.roles") or not config.get_bool("remote.log.storage.system.enable"):
        return []
    # Its library is loaded by nodes with a store alone.
    from moldau_broker.remote_log.core.names import probe_name
    from moldau_broker.remote_log.storage.opening import URL, open_object_store
    from moldau_broker.server.remote_log.store_probe import advice_for

    store = open_object_store(environment, config)
    cluster_id, _ = own_cluster(process_configs(config)[0])
    name = probe_name(cluster_id or "unknown", config.get_int("node.id"))
    folder, slash, _ = name.rpartition("/")
    state, detail = OK, "answers"
    try:
        with trio.fail_after(STORE_TIMEOUT_S):
            await store.list(folder + slash)
            with suppress(ObjectNotFoundError):
                await store.read(name, 0, 1)
    except (ObjectStoreError, trio.TooSlowError) as error:
        slow = isinstance(error, trio.TooSlowError)
        cause = f"no answer within {STORE_TIMEOUT_S:g} s" if slow else " ".join(str(error).split())
        state, detail = PROBLEM, f"{cause}; {advice_for(cause)}"
    finally:
        store.close()
    return [Finding(check="object store", subject=config.get_str(URL), state=state, detail=detail)]


def check_directories(environment: Environment, config: Config) -> list[Finding]:
    """Looks whether the directories can be made and written, whose they are, and how much space is there."""
    disk = environment.disk
    found: list[Finding] = []
    for path in dict.fromkeys([*log_dirs(config), metadata_log_dir(config)]):
        existing = _existing_ancestor(Path(path))
        if not existing.is_dir() or not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
            detail = f"user {os.geteuid()} cannot write to {existing}"
            if not existing.is_dir():
                detail = f"{existing} is not a directory"
            found.append(Finding(check="directory", subject=path, state=PROBLEM, detail=detail))
            continue
        free = disk.free_bytes(str(existing))
        state = OK if free >= FREE_BYTES_MIN else WARNING
        detail = f"{free / (1 << 30):.1f} GiB free"
        found.append(Finding(check="directory", subject=path, state=state, detail=detail))
    for path, is_controllers in directories(config):
        found.append(_whose(environment, config, path, is_controllers))
    return found


def _existing_ancestor(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _whose(environment: Environment, config: Config, path: str, is_controllers: bool) -> Finding:
    """Compares ``meta.properties`` of a directory with the configuration and the node's other directories."""
    state, detail = OK, "not formatted"
    try:
        reason = foreign_files(environment.disk, config, path) or _damage(environment.disk, path, is_controllers)
        if reason:
            state, detail = PROBLEM, reason
        elif (values := _identity(path)) is not None:
            node_id, cluster_id = values.get("node.id", ""), values.get("cluster.id", "")
            own, _ = own_cluster(config)
            detail = f"node {node_id} of cluster {cluster_id or '(not known yet)'}"
            if node_id != str(config.get_int("node.id")) or (own and cluster_id not in ("", own)):
                state, detail = PROBLEM, f"belongs to {detail}"
    except (OSError, UnicodeDecodeError) as error:
        state, detail = PROBLEM, f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return Finding(check="identity", subject=path, state=state, detail=detail)


def _damage(disk: Disk, path: str, is_controllers: bool) -> str:
    """Returns why a node would refuse ``meta.properties`` of a directory, also of its own one; empty if it does not.

    Raises:
        OSError: The file cannot be read.
    """
    properties = f"{path}/{META_PROPERTIES}"
    if not disk.exists(properties):
        return ""
    try:
        if is_controllers:
            read_identity(disk, path)
            return ""
        decode_meta_properties(properties, read_file(disk, properties))
        is_clean = disk.exists(f"{path}/{CLEAN_SHUTDOWN}")
        return CHANGED_IDENTITY if is_clean and properties in damaged_files(disk, path) else ""
    except (NodeDirectoryError, CorruptLogFileError) as error:
        return str(error)


def _identity(path: str) -> dict[str, str] | None:
    """Returns the values of ``meta.properties`` of a directory; None if it is not formatted.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is no text.
    """
    properties = Path(path) / META_PROPERTIES
    if not properties.exists():
        return None
    return dict(line.partition("=")[::2] for line in properties.read_text("utf-8").splitlines())


def own_cluster(config: Config) -> tuple[str, str]:
    """Returns the id of the node's cluster, and what says so: its file, else the first directory that knows one."""
    if configured := config.get_str_or_none("cluster.id"):
        return configured, "cluster.id is"
    for path, _ in directories(config):
        try:
            cluster_id = (_identity(path) or {}).get("cluster.id", "")
        except (OSError, UnicodeDecodeError):
            continue  # the check of the directory says so
        if cluster_id:
            return cluster_id, f"{path} to cluster"
    return "", ""


async def check_quorum(environment: Environment, config: Config) -> list[Finding]:
    """Asks the other voters for the cluster id, and their leader for its clock."""
    voters = quorum_voters(config)
    node_id = config.get_int("node.id")
    outgoing = controllers_environment(environment, config)
    views = await ask_voters(outgoing, voters, node_id)
    own_id, source = own_cluster(process_configs(config)[0])
    found: list[Finding] = []
    for voter in voters:
        if voter.node_id == node_id:
            continue
        view = views[voter.node_id]
        if isinstance(view, str):
            found.append(Finding(check="voter", subject=str(voter), state=WARNING, detail=f"no answer: {view}"))
        elif own_id and view.cluster_id and view.cluster_id != own_id:
            detail = f"belongs to cluster {view.cluster_id}, but {source} {own_id}"
            found.append(Finding(check="voter", subject=str(voter), state=PROBLEM, detail=detail))
        else:
            leader = f"leader {view.leader_id}" if view.leader_id >= 0 else "no leader"
            detail = f"cluster {view.cluster_id or '(no id yet)'}, {leader}"
            found.append(Finding(check="voter", subject=str(voter), state=OK, detail=detail))
    answered = [view for view in views.values() if not isinstance(view, str)]
    leaders = [view.addresses[view.leader_id] for view in answered if view.leader_id in view.addresses]
    own = next(((voter.host, voter.port) for voter in voters if voter.node_id == node_id), None)
    if leaders and leaders[0] != own:
        found.append(await _check_clock(environment, outgoing, leaders[0], node_id))
    return found


async def ask_voters(
    environment: Environment, voters: Sequence[QuorumVoter], node_id: int
) -> dict[int, QuorumView | str]:
    """Asks all voters but this node at once; a text says why one has no answer."""
    views: dict[int, QuorumView | str] = {}

    async def ask(voter: QuorumVoter) -> None:
        views[voter.node_id] = f"nothing in {ASK_TIMEOUT_S:.0f} s"
        with trio.move_on_after(ASK_TIMEOUT_S):
            try:
                views[voter.node_id] = await ask_quorum_view(environment, (voter.host, voter.port), node_id)
            except FAILURES as error:
                views[voter.node_id] = _reason(error)

    async with trio.open_nursery() as nursery:
        for voter in voters:
            if voter.node_id != node_id:
                nursery.start_soon(ask, voter)
    return dict(sorted(views.items()))


def _reason(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno:
        usual = os.strerror(error.errno)
        said = error.strerror or usual
        return usual if usual in said else said  # the number of an error of TLS or of a name's look-up says nothing
    return " ".join(str(error).split()) or type(error).__name__


async def _check_clock(
    environment: Environment, outgoing: Environment, leader: tuple[str, int], node_id: int
) -> Finding:
    subject = join_address(*leader)
    before_ms = environment.clock.wall_ms()
    try:
        with trio.fail_after(ASK_TIMEOUT_S):
            leader_ms = await ask_leader_wall_ms(outgoing, leader, node_id)
    except FAILURES as error:
        return Finding(check="clock", subject=subject, state=WARNING, detail=f"no answer: {_reason(error)}")
    offset_ms = clock_offset_ms(before_ms, leader_ms, environment.clock.wall_ms())
    near = abs(offset_ms) <= CLOCK_OFFSET_MAX_MS
    detail = f"{offset_ms:+d} ms against the leader" if offset_ms else "agrees with the leader"
    advice = "" if near else "; synchronise the clocks (chrony, systemd-timesyncd)"
    return Finding(check="clock", subject=subject, state=OK if near else PROBLEM, detail=detail + advice)


def clock_offset_ms(before_ms: int, leader_ms: int, after_ms: int) -> int:
    """Returns how far the own clock is certainly ahead of the leader's (below 0: behind), in milliseconds.

    The leader read its clock between ``before_ms`` and ``after_ms``; between them nothing is
    certain, and the answer is 0.
    """
    if leader_ms < before_ms:
        return before_ms - leader_ms
    return min(0, after_ms - leader_ms)
