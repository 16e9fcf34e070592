"""``moldau share-groups``: share groups (KIP-932), their members and the start offsets of their share-partitions."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import answering_done
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.commands.groups.positions import (
    CREATES,
    AllTopics,
    ByDuration,
    Create,
    DryRun,
    ToDatetime,
    ToOffset,
    earliest_ms,
    held_offsets,
    named_partitions,
    offsets_since,
    refuse_members,
)
from moldau_cli.errors import UsageError
from moldau_cli.group_types import GroupType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import Admin, TopicPartition
    from moldau.admin import GroupDescription, ShareOffset

commands = typer.Typer(help="List, describe and delete share groups, and their offsets.", rich_markup_mode=None)
offsets = typer.Typer(help="Describe, reset and delete the offsets of a share group.", rich_markup_mode=None)
commands.add_typer(offsets, name="offsets")

SHARE: GroupType[GroupDescription] = GroupType(
    name="share",
    describe=lambda admin, groups: admin.describe_share_groups(groups),
    delete=lambda admin, groups: admin.delete_share_groups(groups),
)
_MEMBERS = ["member", "client", "host", "epoch", "partitions"]
_COLUMNS = ["topic", "partition", "start_offset", "lag"]
GroupId = Annotated[str, typer.Argument(help="Group id.")]
Topics = Annotated[list[str], typer.Option("--topic", metavar="NAME", help="Topic of which offsets are deleted.")]


class ResetTo(enum.StrEnum):
    """The positions to which ``reset`` moves a group."""

    EARLIEST = "earliest"
    LATEST = "latest"


@commands.command("list")
def list_groups(bootstrap_server: BootstrapServer = None) -> None:
    """List share groups with their state."""
    SHARE.list_all(bootstrap_server)


@commands.command()
def describe(group: GroupId, bootstrap_server: BootstrapServer = None) -> None:
    """Show the members of a share group with their partitions."""

    def members(found: GroupDescription) -> list[dict[str, output.Json]]:
        return [
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.client_host,
                "epoch": member.epoch,
                "partitions": " ".join(str(partition) for partition in member.assignment),
            }
            for member in found.members
        ]

    SHARE.show(bootstrap_server, group, _MEMBERS, members, lambda found: {"assignor": found.protocol})


@commands.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Share groups without members.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete share groups with the states of their partitions."""
    SHARE.delete_all(bootstrap_server, groups)


@offsets.command("describe")
def describe_offsets(group: GroupId, bootstrap_server: BootstrapServer = None) -> None:
    """Show start offset and lag of each partition of a share group."""

    async def work(admin: Admin) -> Mapping[TopicPartition, ShareOffset]:
        await SHARE.existing(admin, group)
        return await admin.list_share_group_offsets(group)

    found = with_admin(bootstrap_server, work)
    rows: list[dict[str, output.Json]] = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "start_offset": None if at.start_offset < 0 else at.start_offset,
            "lag": None if at.lag < 0 else at.lag,
        }
        for one, at in sorted(found.items())
    ]
    output.answer_rows("partitions", _COLUMNS, rows)


@offsets.command("reset")
def reset_offsets(
    group: Annotated[str, typer.Argument(help="Group id; it must have no members.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME[:0,1]", help="Topic, or some of its partitions.")
    ] = None,
    all_topics: AllTopics = False,
    to: Annotated[ResetTo | None, typer.Option("--to", help="Where the group continues.")] = None,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    dry_run: DryRun = False,
    create: Create = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Set the start offsets of a share group; records behind them are delivered again."""
    from moldau_cli.plans import offsets as plans

    if sum(one is not None for one in (to, to_offset, to_datetime, by_duration)) != 1:
        raise UsageError("give exactly one of --to, --to-offset, --to-datetime and --by-duration")
    if bool(topics) == all_topics:
        raise UsageError("give --topic, or --all-topics")
    wanted = [plans.parse_topic(topic) for topic in topics or []]
    since_ms = earliest_ms(to_datetime, by_duration)

    async def work(admin: Admin) -> None:
        if not create or group in {each.group_id for each in await admin.list_groups(types=[SHARE.name])}:
            found = await SHARE.existing(admin, group, CREATES)
            refuse_members(f"share group {group}", found.members)
        if all_topics:
            partitions = sorted(await admin.list_share_group_offsets(group))
        else:
            partitions = await named_partitions(admin, wanted)
        held = await held_offsets(admin, partitions, {})
        if since_ms is not None and partitions:
            targets = await offsets_since(admin, partitions, since_ms, held)
        elif to is not None:
            targets = {one: at.begin if to is ResetTo.EARLIEST else at.end for one, at in held.items()}
        else:
            targets = plans.within_logs(dict.fromkeys(partitions, to_offset or 0), held)

        def answer(done: Sequence[TopicPartition]) -> None:
            rows: list[dict[str, output.Json]] = [
                {"topic": one.topic, "partition": one.partition, "start_offset": targets[one]} for one in done
            ]
            output.answer_rows("partitions", _COLUMNS[:3], rows, dry_run=dry_run)

        with answering_done(sorted(targets), answer, "not reset"):
            if targets and not dry_run:
                pairs = {(one.topic, one.partition): at for one, at in targets.items()}
                await admin.alter_share_group_offsets(group, pairs)

    with_admin(bootstrap_server, work)
    if dry_run:
        output.note_unchanged()


@offsets.command("delete")
def delete_offsets(
    group: Annotated[str, typer.Argument(help="Group id; it must have no members.")],
    topics: Topics,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete what a share group knows of topics."""

    async def work(admin: Admin) -> None:
        await SHARE.existing(admin, group)
        known = {one.topic for one in await admin.list_share_group_offsets(group)}
        missing = [topic for topic in topics if topic not in known]
        if missing:
            raise UsageError(f"share group {group} has no offsets of {', '.join(missing)}")
        with answering_done(topics, answer, "not deleted"):
            await admin.delete_share_group_offsets(group, topics)

    def answer(deleted: Sequence[str]) -> None:
        output.answer({"deleted": [*deleted]}, f"deleted the offsets of {', '.join(deleted)}")

    with_admin(bootstrap_server, work)
