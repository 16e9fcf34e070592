"""``moldau groups``: consumer groups, their members and their offsets."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, with_admin
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from moldau import Admin, TopicPartition
    from moldau.admin import GroupDescription, GroupListing

commands = typer.Typer(help="List, describe, reset and delete consumer groups.", rich_markup_mode=None)

DEAD = "Dead"
CONSUMER = "consumer"
"""The type of groups whose assignments the coordinator computes (KIP-848)."""


class ResetTo(enum.StrEnum):
    """The positions to which ``reset`` moves a group."""

    EARLIEST = "earliest"
    LATEST = "latest"


@commands.command("list")
def list_groups(bootstrap_server: BootstrapServer = None) -> None:
    """List groups with their state."""

    async def work(admin: Admin) -> list[GroupListing]:
        return await admin.list_groups()

    groups = with_admin(bootstrap_server, work)
    output.answer_rows(
        "groups",
        ["group", "type", "state"],
        [
            {"group": one.group_id, "type": one.type, "state": one.state, "protocol": one.protocol_type}
            for one in groups
        ],
    )


@commands.command()
def describe(group: Annotated[str, typer.Argument(help="Group id.")], bootstrap_server: BootstrapServer = None) -> None:
    """Show committed offset, log end offset, lag and owner of each partition of a group."""

    async def work(admin: Admin) -> tuple[GroupDescription, list[dict[str, output.Json]]]:
        description = await _existing(admin, group)
        committed = await admin.list_group_offsets(group)
        owners = {partition: member.member_id for member in description.members for partition in member.assignment}
        partitions = sorted(committed.keys() | owners.keys())
        ends = await _ends(admin, partitions)
        rows: list[dict[str, output.Json]] = []
        for partition in partitions:
            offset = committed[partition].offset if partition in committed else None
            end = ends[partition]
            rows.append(
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "offset": offset,
                    "log_end_offset": end,
                    "lag": None if offset is None or end is None else max(0, end - offset),
                    "member": owners.get(partition),
                }
            )
        return description, rows

    description, rows = with_admin(bootstrap_server, work)
    if output.wants_json():
        document: dict[str, output.Json] = {
            "group": group,
            "state": description.state,
            "coordinator": description.coordinator,
            "type": description.type,
            "protocol": description.protocol,
            "members": len(description.members),
            "partitions": list(rows),
        }
        if description.type == CONSUMER:
            document["epoch"] = description.epoch
            document["assignment_epoch"] = description.assignment_epoch
            document["member_epochs"] = {member.member_id: member.epoch for member in description.members}
        output.answer(document, "")
        return
    output.write_line(
        f"group {group}: {description.state}, {len(description.members)} members, coordinator {description.coordinator}"
    )
    if description.type == CONSUMER:
        output.write_line(
            f"consumer protocol: assignor {description.protocol}, group epoch {description.epoch}, "
            f"assignment epoch {description.assignment_epoch}"
        )
        members: list[dict[str, output.Json]] = [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "protocol": member.type,
                "epoch": member.epoch,
                "partitions": len(member.assignment),
                "target": len(member.target),
            }
            for member in description.members
        ]
        output.answer_rows("members", ["member", "instance", "protocol", "epoch", "partitions", "target"], members)
    output.answer_rows("partitions", ["topic", "partition", "offset", "log_end_offset", "lag", "member"], rows)


@commands.command()
def reset(
    group: Annotated[str, typer.Argument(help="Group id; it must have no members.")],
    topic: Annotated[str, typer.Option(help="Topic whose offsets are reset.")],
    to: Annotated[ResetTo, typer.Option("--to", help="Where the group continues.")],
    create: Annotated[bool, typer.Option("--create", help="Create the group if it does not exist.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Move the committed offsets of a group to the beginning or the end of a topic."""

    async def work(admin: Admin) -> dict[TopicPartition, int]:
        from moldau.admin import EARLIEST, LATEST

        if not create:
            await _existing(admin, group, "; --create makes it")
        described = (await admin.describe_topics([topic]))[topic]
        where = EARLIEST if to is ResetTo.EARLIEST else LATEST
        found = await admin.list_offsets({(topic, part.partition): where for part in described.partitions})
        offsets = {partition: offset for partition, (offset, _) in found.items()}
        await admin.alter_group_offsets(group, {(one.topic, one.partition): at for one, at in offsets.items()})
        return offsets

    offsets = with_admin(bootstrap_server, work)
    output.answer_rows(
        "partitions",
        ["topic", "partition", "offset"],
        [
            {"topic": partition.topic, "partition": partition.partition, "offset": offset}
            for partition, offset in sorted(offsets.items())
        ],
    )


@commands.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Groups without members.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete groups with their committed offsets."""

    async def work(admin: Admin) -> None:
        await admin.delete_groups(groups)

    with_admin(bootstrap_server, work)
    output.answer({"deleted": list(groups)}, f"deleted {', '.join(groups)}")


async def _existing(admin: Admin, group: str, hint: str = "") -> GroupDescription:
    description = (await admin.describe_groups([group]))[group]
    if description.state == DEAD:
        raise UsageError(f"there is no group {group!r}{hint}")
    return description


async def _ends(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
    """Returns log end offsets; None for partitions of deleted topics."""
    from moldau.admin import LATEST

    counts = {topic.name: topic.partition_count for topic in await admin.list_topics(include_internal=True)}
    living = [one for one in partitions if one.partition < counts.get(one.topic, 0)]
    found = await admin.list_offsets(dict.fromkeys(living, LATEST)) if living else {}
    return {one: found[one][0] if one in found else None for one in partitions}
