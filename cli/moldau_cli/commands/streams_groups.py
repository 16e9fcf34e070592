"""``moldau streams-groups``: groups of Kafka Streams applications (KIP-1071), their tasks and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, with_admin
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from moldau import Admin, TopicPartition
    from moldau.admin import GroupListing, StreamsGroupDescription

commands = typer.Typer(help="List, describe, reset and delete streams groups.", rich_markup_mode=None)

STREAMS = "streams"
GroupId = Annotated[str, typer.Argument(help="Group id: the application.id of the application.")]


@commands.command("list")
def list_groups(bootstrap_server: BootstrapServer = None) -> None:
    """List streams groups with their state."""

    async def work(admin: Admin) -> list[GroupListing]:
        return await admin.list_groups(types=[STREAMS])

    found = with_admin(bootstrap_server, work)
    output.answer_rows("groups", ["group", "state"], [{"group": one.group_id, "state": one.state} for one in found])


@commands.command()
def describe(group: GroupId, bootstrap_server: BootstrapServer = None) -> None:
    """Show the members of a streams group with their tasks."""

    async def work(admin: Admin) -> StreamsGroupDescription:
        return await _existing(admin, group)

    found = with_admin(bootstrap_server, work)
    members: list[dict[str, output.Json]] = [
        {
            "member": member.member_id,
            "process": member.process_id,
            "host": member.client_host,
            "epoch": member.epoch,
            "active": " ".join(member.active),
            "standby": " ".join(member.standby),
        }
        for member in found.members
    ]
    if output.wants_json():
        document: dict[str, output.Json] = {
            "group": group,
            "state": found.state,
            "coordinator": found.coordinator,
            "epoch": found.epoch,
            "assignment_epoch": found.assignment_epoch,
            "topology_epoch": found.topology_epoch,
            "subtopologies": {part: list(topics) for part, topics in found.subtopologies.items()},
            "internal_topics": list(found.internal_topics),
            "members": list(members),
        }
        output.answer(document, "")
        return
    output.write_line(
        f"streams group {group}: {found.state}, {len(members)} members, coordinator {found.coordinator}, "
        f"group epoch {found.epoch}, assignment epoch {found.assignment_epoch}, topology epoch {found.topology_epoch}"
    )
    for part, topics in found.subtopologies.items():
        output.write_line(f"subtopology {part} reads {', '.join(topics)}")
    output.answer_rows("members", ["member", "process", "host", "epoch", "active", "standby"], members)


@commands.command()
def reset(
    group: Annotated[str, typer.Argument(help="Group id; it must have no members.")],
    topics: Annotated[
        list[str], typer.Option("--topic", metavar="NAME[:0,1]", help="Input topic, or some of its partitions.")
    ],
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="Continue at this offset; by default at the earliest.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets, and change nothing.")] = False,
    delete_internal_topics: Annotated[
        bool, typer.Option("--delete-internal-topics", help="Also delete repartition and changelog topics.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Set the offsets from which a stopped application reads its input topics again."""
    from moldau_cli.commands.groups import held_offsets, named_partitions
    from moldau_cli.plans import offsets as plans

    wanted = [plans.parse_topic(topic) for topic in topics]

    async def work(admin: Admin) -> tuple[dict[TopicPartition, int], tuple[str, ...]]:
        found = await _existing(admin, group)
        if found.members:
            raise UsageError(f"streams group {group} has {len(found.members)} members: stop the application first")
        partitions = await named_partitions(admin, wanted)
        held = await held_offsets(admin, partitions, {})
        if to_offset is None:
            targets = {one: at.begin for one, at in held.items()}
        else:
            targets = plans.within_logs(dict.fromkeys(partitions, to_offset), held)
        gone = found.internal_topics if delete_internal_topics else ()
        if not dry_run:
            if targets:
                pairs = {(one.topic, one.partition): at for one, at in targets.items()}
                await admin.alter_streams_group_offsets(group, pairs)
            if gone:
                present = {topic.name for topic in await admin.list_topics()}
                await admin.delete_topics([name for name in gone if name in present])
        return targets, gone

    targets, gone = with_admin(bootstrap_server, work)
    rows: list[dict[str, output.Json]] = [
        {"topic": one.topic, "partition": one.partition, "offset": at} for one, at in sorted(targets.items())
    ]
    output.answer_rows("partitions", ["topic", "partition", "offset"], rows)
    if not output.wants_json():
        if gone:
            output.note(f"internal topics: {', '.join(gone)}")
        if dry_run:
            output.note("nothing was changed (--dry-run)")


@commands.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Streams groups without members.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete streams groups with their committed offsets; internal topics stay."""

    async def work(admin: Admin) -> None:
        for group in groups:
            await _existing(admin, group)
        await admin.delete_streams_groups(groups)

    with_admin(bootstrap_server, work)
    output.answer({"deleted": list(groups)}, f"deleted {', '.join(groups)}")


async def _existing(admin: Admin, group: str) -> StreamsGroupDescription:
    from moldau import AdminError
    from moldau.protocol.errors import ErrorCode

    try:
        return (await admin.describe_streams_groups([group]))[group]
    except AdminError as error:
        failure = error.failures[group]
        if failure.code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise UsageError(f"there is no streams group {group!r}") from error
        if failure.code is ErrorCode.UNSUPPORTED_VERSION:
            remedy = "moldau features upgrade --feature streams.version=1"
            raise UsageError(f"the cluster does not serve streams groups: {remedy}") from error
        raise
