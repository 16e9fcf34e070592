"""``moldau quorum``: the metadata quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, with_admin

if TYPE_CHECKING:
    from moldau import Admin
    from moldau.admin import ClusterDescription, QuorumDescription

commands = typer.Typer(help="Look at the metadata quorum.", rich_markup_mode=None)


@commands.callback()
def group() -> None:
    """Keeps ``status`` a subcommand while it is the only one."""


@commands.command()
def status(bootstrap_server: BootstrapServer = None) -> None:
    """Show leader, epoch, high watermark, and how far each replica of the metadata log is behind."""

    async def work(admin: Admin) -> tuple[QuorumDescription, ClusterDescription]:
        return await admin.describe_quorum(), await admin.describe_cluster()

    quorum, cluster = with_admin(bootstrap_server, work)
    end = max((replica.log_end_offset for replica in quorum.voters), default=0)
    rows: list[dict[str, output.Json]] = [
        {
            "node": replica.replica_id,
            "role": "leader" if replica.replica_id == quorum.leader_id else kind,
            "log_end_offset": replica.log_end_offset,
            "lag": max(0, end - replica.log_end_offset),
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
    output.answer_rows("replicas", ["node", "role", "log_end_offset", "lag"], rows)
