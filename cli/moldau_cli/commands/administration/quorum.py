"""``moldau quorum``: status, voters and leadership of the metadata quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import command_environment
from moldau_cli.endpoints import BootstrapController, with_admin_of
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.words import address_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from moldau import Admin
    from moldau.admin import ClusterDescription, QuorumDescription, QuorumReplica

commands = typer.Typer(help="Inspect the metadata quorum, and change its voters and its leader.", rich_markup_mode=None)

LEADER_S: Final = 10.0
"""How long ``status`` waits for brokers to reach a leader, in seconds; an election takes fewer."""
_NO_LEADER: Final = (
    "{}. Start controllers until a majority runs that has its data: "
    "the logs of controllers name the voters that do not answer (no-quorum-leader), and why others do not count "
    "(quorum-message-ignored)"
)


@commands.command()
def status(bootstrap_server: BootstrapServer = None, bootstrap_controller: BootstrapController = None) -> None:
    """Show leader, epoch, high watermark, and the lag of each replica of the metadata log.

    Brokers are observers; their lag is that of their last heartbeat. The lag of a replica that does not answer the
    leader is that of its last answer. Fails after 10 seconds if brokers answer, and reach no leader.
    """
    from moldau_cli.health import is_silent
    from moldau_cli.inspection import ask_quorum

    async def work(admin: Admin) -> tuple[QuorumDescription, ClusterDescription]:
        cluster = await admin.describe_cluster()  # first: the other request may hold up the connection
        found = await ask_quorum(admin, LEADER_S)
        if found.leader_id < 0 and not found.voters:
            asked = (
                "the brokers reach no controller that leads" if bootstrap_controller is None else "no controller leads"
            )
            raise CommandError(f"cluster {cluster.cluster_id}: " + _NO_LEADER.format(f"{asked} the quorum"))
        return found, cluster

    quorum, cluster = with_admin_of(bootstrap_server, bootstrap_controller, work)
    end = max((replica.log_end_offset for replica in quorum.voters), default=0)
    now_ms = next((one.last_fetch_ms for one in quorum.voters if one.replica_id == quorum.leader_id), -1)
    rows: list[dict[str, output.Json]] = [
        {
            "node": replica.replica_id,
            "role": "leader" if kind == "voter" and replica.replica_id == quorum.leader_id else kind,
            "log_end_offset": replica.log_end_offset if replica.log_end_offset >= 0 else None,
            "lag": max(0, end - replica.log_end_offset) if replica.log_end_offset >= 0 else None,
            "answers": not is_silent(replica, now_ms) if now_ms >= 0 else None,
        }
        for kind, replicas in (("voter", quorum.voters), ("observer", quorum.observers))
        for replica in replicas
    ]
    if output.wants_json():
        document: dict[str, output.Json] = {
            "cluster_id": cluster.cluster_id,
            "leader_id": quorum.leader_id,
            "leader_epoch": quorum.leader_epoch,
            "high_watermark": quorum.high_watermark,
            "replicas": list(rows),
        }
        output.answer(document, "")
        return
    output.write_line(
        f"cluster {cluster.cluster_id}: leader {quorum.leader_id}, epoch {quorum.leader_epoch}, "
        f"high watermark {quorum.high_watermark}"
    )
    output.answer_rows("replicas", ["node", "role", "log_end_offset", "lag", "answers"], rows)


VoterId = Annotated[int, typer.Argument(metavar="NODE", min=0, help="Node id of a controller.")]


def directory_of(node: int, replicas: Iterable[QuorumReplica]) -> UUID:
    """Returns the directory id of a node among the replicas; none if it is not there, or with several directories.

    Kafka's controllers need it. Moldau's take any directory where none is given.
    """
    from moldau.values import ZERO_UUID

    found = {replica.directory_id for replica in replicas if replica.replica_id == node}
    return found.pop() if len(found) == 1 else ZERO_UUID


@commands.command("add-voter")
def add_voter(
    node: VoterId,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Its controller listener.")],
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Make a running controller a voter; returns when it has caught up and the change is committed."""
    host, port = address_of(address, "")
    waits = f"waiting until the controller with the id {node} answers at {address} and has caught up"

    async def work(admin: Admin) -> None:
        from moldau_cli.quorum_watch import noting_a_wait

        directory_id = directory_of(node, (await admin.describe_quorum()).observers)
        await noting_a_wait(lambda: admin.add_voter(node, host, port, directory_id=directory_id), waits)

    with_admin_of(bootstrap_server, bootstrap_controller, work)
    output.answer({"voter": node, "address": address}, f"node {node} is a voter")


@commands.command("remove-voter")
def remove_voter(
    node: VoterId,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Remove a controller from the voters; returns when the change is committed."""

    async def work(admin: Admin) -> None:
        await admin.remove_voter(node, directory_id=directory_of(node, (await admin.describe_quorum()).voters))

    with_admin_of(bootstrap_server, bootstrap_controller, work)
    output.answer({"voter": node}, f"node {node} is no longer a voter")


@commands.command()
def transfer(
    to: Annotated[
        int,
        typer.Option("--to", metavar="NODE", show_default=False, help="New leader; default: the most advanced voter."),
    ] = -1,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Hand the leadership of the quorum to another voter.

    The command asks the brokers for the controllers, then connects to these. So its certificate and login (of
    --command-config or the profile) must suit the listeners of both.
    """

    async def work(admin: Admin) -> int:
        import trio

        from moldau_quorum.node.voters.leadership_transfer import ControllersUnreachableError, transfer_leadership

        voters = {node: (host, port) for node, host, port in (await admin.describe_quorum()).endpoints}
        if to >= 0 and to not in voters:
            raise UsageError(f"node {to} does not vote; voters are {', '.join(map(str, sorted(voters)))}")
        try:
            return await transfer_leadership(command_environment(), voters, target_id=to)
        except trio.TooSlowError as error:
            raise CommandError("no controller leads the quorum at the moment; try again") from error
        except ControllersUnreachableError as error:
            raise CommandError(
                "this command connects to the controllers themselves, and none answers with its settings: they may "
                "demand a certificate (ssl.keystore.location), or another login than the brokers; --command-config or "
                f"the profile has to suit both. {error}"
            ) from error

    leader = with_admin_of(bootstrap_server, bootstrap_controller, work)
    output.answer({"leader_id": leader}, f"leader {leader}")
