"""``moldau cluster roll``: a rolling restart."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.address import bootstrap_of
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import command_environment, with_admin
from moldau_cli.client.settings import use_command_config
from moldau_cli.errors import AnsweredError, CommandError, UsageError
from moldau_cli.words import a_number, counted, parse_ids

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.runtime.ports.environment import Environment
    from moldau_cli.operations.restarts import Restarter
    from moldau_cli.operations.rolling import Rolled, RollOptions
    from moldau_cli.plans.roll import RollNode
    from moldau_jepsen.launcher import LocalCluster


DEFAULT_DIRECTORY = Path("moldau-cluster")


def roll(
    directory: Annotated[Path, typer.Option("--dir", help="Directory of a local cluster.")] = DEFAULT_DIRECTORY,
    bootstrap_server: BootstrapServer = None,
    restart_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Restarts one node: 'ssh {host} systemctl restart moldau@{roles}'. Fields: {id}, {host}, {port}, "
            "{roles} (broker, controller or controller-broker).",
        ),
    ] = None,
    nodes: Annotated[str, typer.Option("--nodes", metavar="IDS", help="Only these nodes; default: all.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Begin although partitions are out of sync, or not served meanwhile.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, callback=a_number, help="Seconds that a node, and then its replicas, may take to come back."
        ),
    ] = 600.0,
    elect: Annotated[
        bool, typer.Option("--elect/--no-elect", help="Give leadership to the preferred replicas at the end.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the order, and what is in the way.")] = False,
) -> None:
    """Restart all nodes one by one, each when the cluster is whole: controllers, the active one last, then brokers.

    Between two restarts all voters have caught up, all brokers are in service and all replicas are in sync. The command
    refuses to begin otherwise, and stops at a node that does not come back.
    """
    from moldau_cli.operations.restarts import CommandRestarter, LauncherRestarter
    from moldau_cli.operations.rolling import RollOptions

    chosen = parse_ids(nodes, "--nodes: expected different node ids such as 1,2,101", may_be_empty=True)
    options = RollOptions(timeout_s=timeout, force=force, elects=elect)
    with ExitStack() as stack:
        restarter: Restarter | None = None
        if restart_command is None and (bootstrap_server is None or not dry_run):
            if bootstrap_server is not None:
                raise UsageError("give --restart-command: how is a node of that cluster restarted?")
            cluster = _local(stack, directory)
            if cluster.client_config is not None:
                use_command_config(str(cluster.client_config))
            bootstrap, restarter = cluster.bootstrap, LauncherRestarter(cluster, timeout)
        else:
            bootstrap = bootstrap_of(bootstrap_server)
            if restart_command is not None:
                restarter = CommandRestarter(restart_command, _environment(), timeout)
            if bootstrap_server is None and directory != DEFAULT_DIRECTORY:
                raise UsageError("--dir goes without --restart-command; give --bootstrap-server with it")
        _roll(bootstrap, chosen, restarter, options, dry_run=dry_run)


def _environment() -> Environment:
    from moldau.runtime.config import ConfigError

    try:
        return command_environment()
    except ConfigError as error:
        raise UsageError("; ".join(error.problems)) from error


def _roll(
    bootstrap: str, chosen: list[int], restarter: Restarter | None, options: RollOptions, *, dry_run: bool
) -> None:
    from moldau_cli.operations.rolling import RollProgress, find_nodes, look_at_cluster, reasons_against_roll, roll

    async def plan(admin: Admin) -> tuple[list[RollNode], list[str]]:
        found = await find_nodes(admin)
        wanted = _chosen(found, chosen)
        leader = (await look_at_cluster(admin)).quorum.leader_id
        return _in_order(wanted, leader), await reasons_against_roll(admin, found, wanted)

    async def work(admin: Admin) -> Rolled:
        assert restarter is not None, "only a dry run needs none"
        found = await find_nodes(admin)
        wanted = _chosen(found, chosen)
        in_the_way = await reasons_against_roll(admin, found, wanted)
        if in_the_way and not options.force:
            raise CommandError(f"not begun: {_first_of(in_the_way)}; --force begins nevertheless")
        return await roll(admin, found, wanted, restarter, options, progress)

    if dry_run:
        _show(*with_admin(bootstrap, plan), restarter)
        return
    progress = RollProgress()
    try:
        rolled = with_admin(bootstrap, work)
    except KeyboardInterrupt:
        output.note(progress.after_interrupt())
        raise
    output.answer(
        {"restarted": list(rolled.restarted), "elected": rolled.elected},
        f"{counted(len(rolled.restarted), 'node')} restarted, {counted(rolled.elected, 'leader')} moved back",
    )


def _local(stack: ExitStack, directory: Path) -> LocalCluster:
    from moldau_cli.operations.local import launcher_errors, locked_cluster
    from moldau_jepsen.launcher.spec import FILE_NAME

    if directory == DEFAULT_DIRECTORY and not (directory / FILE_NAME).exists():
        raise UsageError(f"no cluster in {directory.absolute()}; for nodes elsewhere, give --restart-command")
    with launcher_errors():
        return stack.enter_context(locked_cluster(directory))


def _show(order: list[RollNode], in_the_way: list[str], restarter: Restarter | None) -> None:
    from moldau.runtime.config import join_address
    from moldau_cli.operations.restarts import CommandRestarter

    rows: list[dict[str, output.Json]] = [
        {
            "node": node.node_id,
            "roles": ",".join(node.roles),
            "address": join_address(node.host, node.port),
            "command": shlex.join(restarter.command(node)) if isinstance(restarter, CommandRestarter) else None,
        }
        for node in order
    ]
    if output.wants_json():
        output.answer({"order": list(rows), "in_the_way": list(in_the_way)}, "")
    else:
        output.answer_rows("order", ["node", "roles", "address", "command"], rows)
        for reason in in_the_way:
            output.note(f"in the way: {reason}")
    if in_the_way:
        raise AnsweredError(f"in the way: {_first_of(in_the_way)}")


def _first_of(in_the_way: list[str]) -> str:
    """Returns the first reason against a roll, and how many more there are."""
    more = len(in_the_way) - 1
    return f"{in_the_way[0]} (and {more} more)" if more else in_the_way[0]


def _in_order(nodes: list[RollNode], leader_id: int) -> list[RollNode]:
    from moldau_cli.plans.roll import next_node

    remaining, order = list(nodes), list["RollNode"]()
    while remaining:
        order.append(next_node(remaining, leader_id))
        remaining.remove(order[-1])
    return order


def _chosen(nodes: list[RollNode], wanted: list[int]) -> list[RollNode]:
    unknown = [node for node in wanted if node not in {one.node_id for one in nodes}]
    if unknown:
        known = ",".join(str(one.node_id) for one in nodes)
        raise UsageError(f"--nodes: no node {unknown[0]}; the nodes are {known}")
    return [one for one in nodes if not wanted or one.node_id in wanted]
