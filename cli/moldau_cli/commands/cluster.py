"""``moldau cluster``: manages local clusters of separate processes."""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.commands.operations.roll import roll
from moldau_cli.errors import AnsweredError, CommandError, UsageError
from moldau_cli.operations.local import launcher_errors, locked_cluster
from moldau_cli.signals import interrupted_by_sigterm
from moldau_cli.words import a_number, counted, parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau import Admin
    from moldau_cli.inspection import Inspection
    from moldau_jepsen.launcher import ClusterSpec, LocalCluster

commands = typer.Typer(help="Start, inspect and disturb a local cluster.", rich_markup_mode=None)

commands.command("roll")(roll)

DEFAULT_DIRECTORY = Path("moldau-cluster")
USUAL_COUNT = 3
"""Brokers, and controllers, of a new cluster."""

Directory = Annotated[Path, typer.Option("--dir", help="Directory of the cluster.")]
NodeId = Annotated[int, typer.Argument(metavar="NODE", help="Node id: brokers 1.., controllers 101..")]
TimeoutS = Annotated[
    float, typer.Option("--timeout", min=0.1, callback=a_number, help="Seconds to wait until the cluster serves.")
]


@contextmanager
def _changing(directory: Path) -> Iterator[LocalCluster]:
    """Opens a cluster for a command that changes it."""
    with launcher_errors(), locked_cluster(directory) as cluster:
        yield cluster


@commands.command()
def start(
    directory: Directory = DEFAULT_DIRECTORY,
    controllers: Annotated[int | None, typer.Option(help="Number of controllers; default: 3.")] = None,
    brokers: Annotated[int | None, typer.Option(help="Number of brokers; default: 3.")] = None,
    base_port: Annotated[
        int | None, typer.Option(help="First port; brokers come first. Default 9092, or free ports if it is taken.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Configuration key for every node.")
    ] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="TLS, SCRAM and ACLs that deny by default; the login is in client.properties."),
    ] = False,
    links: Annotated[
        bool, typer.Option("--links", help="Put a proxy before each node, for `cluster cut` and the console's buttons.")
    ] = False,
    timeout: TimeoutS = 120.0,
) -> None:
    """Start a new or stopped cluster and return when every broker serves; the nodes keep running."""
    from moldau_jepsen.chaos.network.panel import lacks_links, resume_links
    from moldau_jepsen.launcher import ClusterSpec, open_cluster, start_cluster
    from moldau_jepsen.launcher.directories import exclusive
    from moldau_jepsen.launcher.ports import usual_base_port
    from moldau_jepsen.launcher.spec import FILE_NAME

    began = time.monotonic()
    parsed = parse_settings(settings or [], "--set")
    emptied: list[str] = []
    with interrupted_by_sigterm(), launcher_errors(), exclusive(directory):
        if (directory / FILE_NAME).exists():
            if parsed or base_port is not None:
                raise UsageError(f"{directory} holds a cluster already; --set and --base-port are for a new one")
            cluster = open_cluster(directory)
            _refuse_another_shape(cluster, brokers, controllers)
            if links and not any(node.advertised_port for node in cluster.nodes):
                raise UsageError(f"{directory} holds a cluster without --links; start a new one in another --dir")
            if secure and cluster.client_config is None:
                raise UsageError(f"{directory} holds a cluster without --secure; start a new one in another --dir")
            if _runs(cluster) and not lacks_links(cluster.directory):
                raise CommandError(f"the cluster in {directory} already runs at {cluster.bootstrap}")
            resume_links(cluster.directory)
            emptied = _start_again(cluster, timeout)
        else:
            spec = ClusterSpec(
                brokers=USUAL_COUNT if brokers is None else brokers,
                controllers=USUAL_COUNT if controllers is None else controllers,
                base_port=base_port,
                secure=secure,
                settings=_with_watchdog(parsed),
            )
            if links:
                cluster = _start_with_links(directory, spec, timeout)
            else:
                spec = replace(spec, base_port=usual_base_port(spec.nodes) if base_port is None else base_port)
                cluster = start_cluster(directory, spec, ready_timeout_ms=timeout * 1000, tied_to_parent=False)
    took_ms = (time.monotonic() - began) * 1000
    output.answer(
        {
            "bootstrap": cluster.bootstrap,
            "directory": str(cluster.directory),
            "ready_ms": round(took_ms),
            **({"client_config": str(cluster.client_config)} if cluster.client_config else {}),
            "nodes": [{"id": node.node_id, "role": node.role, "pid": node.pid} for node in cluster.nodes],
        },
        cluster.bootstrap,
    )
    if not output.wants_json():
        output.note(
            f"brokers: {len(cluster.brokers)}, controllers: {len(cluster.controllers)}, "
            f"ready in {took_ms / 1000:.1f} s; state in {cluster.directory / FILE_NAME}"
        )
        if cluster.client_config is not None:
            output.note(f"the administrator's login is in {cluster.client_config} (--command-config)")
        _note_other_choice(cluster.bootstrap)
    for line in emptied:
        output.note(line)


def _refuse_another_shape(cluster: LocalCluster, brokers: int | None, controllers: int | None) -> None:
    """Refuses numbers of nodes that a cluster does not have; None is no wish.

    Raises:
        UsageError: a number differs.
    """
    has = len(cluster.brokers), len(cluster.controllers)
    if brokers not in (None, has[0]) or controllers not in (None, has[1]):
        shape = f"{counted(has[0], 'broker')} and {counted(has[1], 'controller')}"
        raise UsageError(f"{cluster.directory} holds a cluster of {shape}; for another shape, give another --dir")


def _runs(cluster: LocalCluster) -> bool:
    """Returns whether all nodes run, and none is on its way after a start or restart that was killed."""
    from moldau_jepsen.launcher.process import ProcessState

    seen = cluster.status()
    if any(status.state is ProcessState.STOPPED for status in seen):
        return False
    waits = any(status.role == "broker" and status.fenced is not False for status in seen)
    return not waits or any(status.state is ProcessState.PAUSED for status in seen)


def _start_again(cluster: LocalCluster, timeout_s: float) -> list[str]:
    """Starts the nodes that do not run; returns a line about each controller that has lost its log.

    Raises:
        CommandError: the controllers elect no leader, which comes before what brokers report.
        LauncherError: a node ended, or a broker did not serve in time.
    """
    from moldau_cli.operations.emptied_voters import advice_on_emptied, emptied_voters, wait_quorum_led
    from moldau_jepsen.launcher import LauncherError

    emptied = emptied_voters(cluster)
    began_ms, deadline_s = time.time() * 1000, time.monotonic() + timeout_s
    try:
        cluster.start_all(ready_timeout_ms=timeout_s * 1000)
    except LauncherError:
        if time.monotonic() >= deadline_s:
            wait_quorum_led(cluster, emptied, began_ms, deadline_s, time.monotonic)
        raise
    wait_quorum_led(cluster, emptied, began_ms, deadline_s, time.monotonic)
    return advice_on_emptied(cluster, emptied)


def _note_other_choice(bootstrap: str) -> None:
    """Warns that the next command would change another cluster, because a profile or variable goes first."""
    import os

    from moldau_cli.profiles.selection import other_choice

    try:
        other = other_choice(bootstrap, os.environ)
    except UsageError as error:
        output.note(f"commands need -b {bootstrap}: {error}")
        return
    if other is not None:
        output.note(f"commands do not use this cluster, but that of {other}; for this one, give -b {bootstrap}")


def _with_watchdog(settings: dict[str, str]) -> dict[str, str]:
    """Adds the watchdog, which clusters of the test kit do without."""
    from moldau.runtime.config import BROKER_CONFIG

    return {"node.watchdog.ms": str(BROKER_CONFIG.key("node.watchdog.ms").default), **settings}


def _start_with_links(directory: Path, wanted: ClusterSpec, timeout_s: float) -> LocalCluster:
    """Starts a cluster whose nodes are reached through proxies; the proxies have the ports that are asked for."""
    from moldau_jepsen.chaos.network.panel import start_links, stop_links
    from moldau_jepsen.launcher import start_cluster
    from moldau_jepsen.launcher.directories import refuse_used
    from moldau_jepsen.launcher.ports import choose_ports, take_free_ports, usual_base_port
    from moldau_jepsen.launcher.spec import CONTROLLER_ID_FIRST

    count = wanted.nodes
    refuse_used(directory)
    advertised = choose_ports(count, usual_base_port(count) if wanted.base_port is None else wanted.base_port)
    own = [port for port in take_free_ports(2 * count) if port not in advertised][:count]
    spec = replace(wanted, base_port=None, ports=tuple(own), advertised_ports=tuple(advertised))
    ids = [*range(1, spec.brokers + 1), *range(CONTROLLER_ID_FIRST, CONTROLLER_ID_FIRST + spec.controllers)]
    beside = directory.absolute()
    start_links(beside, dict(zip(ids, own, strict=True)), dict(zip(ids, advertised, strict=True)))
    try:
        return start_cluster(directory, spec, ready_timeout_ms=timeout_s * 1000, tied_to_parent=False)
    except BaseException:
        stop_links(beside)
        raise


def _report_health(bootstrap_server: str | None) -> None:
    """Answers with a verdict on a cluster that is asked over the network, and what is wrong with it.

    None stands for the address of the environment or a profile; the settings of a profile belong to its address.
    """
    from moldau_cli.client.running import with_admin
    from moldau_cli.health import shortened
    from moldau_cli.inspection import inspect_cluster
    from moldau_cli.operations.remote_copies import ask_for_copies

    now_ms = time.time_ns() // 1_000_000

    async def inspected(admin: Admin) -> Inspection:
        return await inspect_cluster(admin, ask_copies=partial(ask_for_copies, admin, now_ms=now_ms))

    seen = with_admin(bootstrap_server, inspected)
    problems, found = seen.problems, seen.verdict
    brokers, topics, partitions = len(seen.cluster.brokers), len(seen.topics), seen.partitions
    rows: list[dict[str, output.Json]] = [
        {"problem": problem.kind, "subject": problem.subject, "detail": problem.detail}
        for problem in (problems if output.wants_json() else shortened(problems))
    ]
    if output.wants_json():
        document: dict[str, output.Json] = {
            "verdict": found,
            "cluster_id": seen.cluster.cluster_id,
            "brokers": brokers,
            "topics": topics,
            "partitions": partitions,
            "problems": list(rows),
            "refused_logins": seen.refusals.total if seen.refusals.is_known else None,
        }
        output.answer(document, "")
    else:
        output.write_line(
            f"{found}: {counted(len(problems), 'problem')}; {counted(brokers, 'broker')}, {counted(topics, 'topic')}, "
            f"{counted(partitions, 'partition')}"
        )
        if seen.refusals.total:
            output.write_line(f"logins refused since the nodes started: {seen.refusals.text()}")
        if rows:
            output.answer_rows("problems", ["problem", "subject", "detail"], rows)
    if problems:
        raise AnsweredError(f"the cluster is {found}: {counted(len(problems), 'problem')}")


@commands.command()
def status(
    directory: Directory = DEFAULT_DIRECTORY,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "-b", metavar="HOST:PORT,...", help="A running cluster to judge, wherever it runs."
        ),
    ] = None,
) -> None:
    """Show every node of a local cluster, or with -b what is wrong with any cluster, the most serious first.

    Nodes that do not run or are fenced come first. Without a local cluster, this judges the cluster that the
    environment or a profile names.
    Exit code 1 if a node is down, or with -b unless the cluster is healthy.
    """
    elsewhere = bootstrap_server is not None
    if not elsewhere and directory == DEFAULT_DIRECTORY and not directory.exists():
        from moldau_cli.client.address import named_address

        elsewhere = named_address() is not None  # of the environment or a profile
    if elsewhere:
        _report_health(bootstrap_server)
        return
    import trio

    from moldau_cli.operations.refused_logins import ask_for_refusals
    from moldau_jepsen.chaos.network.panel import cut_nodes
    from moldau_jepsen.launcher import open_cluster
    from moldau_jepsen.launcher.process import ProcessState

    with launcher_errors():
        cluster = open_cluster(directory)
        nodes = cluster.status()
        quorum = cluster.quorum()
        cuts = cut_nodes(cluster.directory) or ()
    leader = quorum.leader_id if quorum else None
    refusals = trio.run(ask_for_refusals, {node.node_id: node.metrics for node in cluster.nodes if node.metrics})
    rows: list[dict[str, output.Json]] = [
        {
            "node": node.node_id,
            "role": node.role,
            "address": node.address,
            "pid": node.pid,
            "state": "cut" if node.node_id in cuts and node.state is ProcessState.RUNNING else node.state.value,
            "fenced": node.fenced,
            "leader": node.node_id == leader if node.role == "controller" else None,
            "rss_mb": round(node.rss_bytes / 1_000_000, 1),
            "refused_logins": refusals.of(node.node_id),
        }
        for node in sorted(nodes, key=lambda one: one.state is ProcessState.RUNNING and not one.fenced)
    ]
    if output.wants_json():
        document: dict[str, output.Json] = {
            "bootstrap": cluster.bootstrap,
            "quorum_leader": leader,
            "quorum_epoch": quorum.leader_epoch if quorum else None,
            "nodes": list(rows),
        }
        output.answer(document, "")
    else:
        columns = ["node", "role", "address", "pid", "state", "fenced", "leader", "rss_mb"]
        output.answer_rows("nodes", [*columns, "refused_logins"] if refusals.is_known else columns, rows)
    if failing := [f"{row['node']} ({row['state']})" for row in rows if row["state"] != ProcessState.RUNNING.value]:
        raise AnsweredError(f"not in service: node {', '.join(failing)}")


@commands.command()
def stop(
    directory: Directory = DEFAULT_DIRECTORY,
    timeout: Annotated[
        float, typer.Option(min=0.1, callback=a_number, help="Seconds until a node that does not end is killed.")
    ] = 330.0,
) -> None:
    """Stop all nodes in order (controlled shutdown). The data stays, and ``start`` uses it again."""
    from moldau_jepsen.chaos.network.panel import stop_links
    from moldau_jepsen.launcher.process import ProcessState

    with _changing(directory) as cluster:
        states = [cluster.state(node.node_id) for node in cluster.nodes]
        killed = cluster.stop_all(timeout_ms=timeout * 1000)
        stop_links(cluster.directory)
    idle = states.count(ProcessState.STOPPED)
    stopped = len(states) - idle
    others = f"; {counted(idle, 'node')} did not run" if idle else ""
    output.answer({"stopped": stopped, "killed": list(killed)}, f"stopped {counted(stopped, 'node')}{others}")
    if killed:
        raise CommandError(f"node {', '.join(map(str, killed))} did not stop within {timeout:g} s and was killed")


def _command(name: str, node: int, directory: Path) -> str:
    """Returns a command about a node of a cluster, as it can be typed."""
    where = [] if directory == DEFAULT_DIRECTORY else ["--dir", str(directory)]
    return shlex.join(["moldau", "cluster", name, str(node), *where])


@commands.command()
def kill(node: NodeId, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Kill a node with SIGKILL."""
    with _changing(directory) as cluster:
        cluster.kill(node)
    next_command = _command("restart", node, directory)
    output.answer({"node": node, "state": "stopped"}, f"node {node} is killed; {next_command} starts it")


@commands.command()
def pause(node: NodeId, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Freeze a node with SIGSTOP; its watchdog kills it if that lasts longer than node.watchdog.ms."""
    with _changing(directory) as cluster:
        cluster.pause(node)
        limit_ms = _watchdog_ms(cluster.node(node).config)
    ends = f"; its watchdog kills it in {limit_ms / 1000:g} s" if limit_ms else ""
    document: dict[str, output.Json] = {"node": node, "state": "paused", "watchdog_ms": limit_ms or None}
    output.answer(document, f"node {node} is paused{ends}; {_command('resume', node, directory)} lets it continue")


def _watchdog_ms(path: str) -> int:
    """Returns the limit of a node's watchdog; 0 if it has none."""
    import os

    from moldau.runtime.config import ConfigError, parse_server_config

    try:
        return parse_server_config(Path(path).read_text(encoding="utf-8"), path, os.environ).get_int("node.watchdog.ms")
    except (OSError, UnicodeDecodeError, ConfigError):
        return 0  # the file was changed since the node read it


@commands.command()
def resume(node: NodeId, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Let a paused node continue (SIGCONT)."""
    with _changing(directory) as cluster:
        cluster.resume(node)
    output.answer({"node": node, "state": "running"}, f"node {node} continues")


@commands.command()
def cut(node: NodeId, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Cut a node off from all others and from clients; needs a cluster that was started with --links."""
    _change_links(directory, node, cut=True)
    next_command = _command("heal", node, directory)
    output.answer({"node": node, "links": "cut"}, f"node {node} is cut off; {next_command} mends its links")


@commands.command()
def heal(node: NodeId, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Mend the links of a node that was cut off."""
    _change_links(directory, node, cut=False)
    output.answer({"node": node, "links": "whole"}, f"the links of node {node} are whole")


def _change_links(directory: Path, node: int, *, cut: bool) -> None:
    from moldau_jepsen.chaos.network.panel import change_cuts

    with _changing(directory) as cluster:
        change_cuts(cluster.directory, node, cut=cut)


@commands.command()
def restart(node: NodeId, directory: Directory = DEFAULT_DIRECTORY, timeout: TimeoutS = 120.0) -> None:
    """Stop a node in order if it runs, start it again, and wait until it serves."""
    from moldau_cli.nodes.server import check_file

    with _changing(directory) as cluster:
        check_file(cluster.node(node).config)  # a node that runs would only be stopped
        cluster.restart(node, ready_timeout_ms=timeout * 1000)
        pid = cluster.node(node).pid
    output.answer({"node": node, "state": "running", "pid": pid}, f"node {node} serves again (process {pid})")
