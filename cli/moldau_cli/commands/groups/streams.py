"""``moldau streams-groups``: groups of Kafka Streams applications (KIP-1071), their tasks and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import answering_done, refuse_failures
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.commands.groups.positions import DryRun, held_offsets, log_ends, named_partitions, refuse_members
from moldau_cli.group_types import GroupType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import Admin, TopicPartition
    from moldau.admin import StreamsGroupDescription
    from moldau.protocol.errors import KafkaError

commands = typer.Typer(help="List, describe, reset and delete streams groups.", rich_markup_mode=None)

STREAMS: GroupType[StreamsGroupDescription] = GroupType(
    name="streams",
    describe=lambda admin, groups: admin.describe_streams_groups(groups),
    delete=lambda admin, groups: admin.delete_streams_groups(groups),
)
_COLUMNS = ["member", "process", "host", "epoch", "active", "standby"]
GroupId = Annotated[str, typer.Argument(help="Group id: the application.id of the application.")]


@commands.command("list")
def list_groups(bootstrap_server: BootstrapServer = None) -> None:
    """List streams groups with their state."""
    STREAMS.list_all(bootstrap_server)


@commands.command()
def describe(group: GroupId, bootstrap_server: BootstrapServer = None) -> None:
    """Show the members of a streams group with their tasks."""

    def members(found: StreamsGroupDescription) -> list[dict[str, output.Json]]:
        return [
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

    def more(found: StreamsGroupDescription) -> dict[str, output.Json]:
        return {
            "topology_epoch": found.topology_epoch,
            "subtopologies": {part: list(topics) for part, topics in found.subtopologies.items()},
            "internal_topics": list(found.internal_topics),
        }

    def lines(found: StreamsGroupDescription) -> list[str]:
        return [f"subtopology {part} reads {', '.join(topics)}" for part, topics in found.subtopologies.items()]

    STREAMS.show(bootstrap_server, group, _COLUMNS, members, more, lines)


@commands.command()
def offsets(group: GroupId, bootstrap_server: BootstrapServer = None) -> None:
    """Show committed offset and lag of each partition that a streams group reads."""

    async def work(admin: Admin) -> tuple[list[dict[str, output.Json]], Mapping[str, KafkaError]]:
        await STREAMS.existing(admin, group)
        committed = await admin.list_streams_group_offsets(group)
        ends, _, failures = await log_ends(admin, sorted(committed))
        rows: list[dict[str, output.Json]] = [
            {
                "topic": one.topic,
                "partition": one.partition,
                "offset": at.offset,
                "end": ends.get(one),
                "lag": max(0, ends[one] - at.offset) if one in ends else None,
            }
            for one, at in sorted(committed.items())
        ]
        return rows, failures

    rows, failures = with_admin(bootstrap_server, work)
    output.answer_rows("partitions", ["topic", "partition", "offset", "end", "lag"], rows)
    refuse_failures("offsets are missing", failures)


@commands.command()
def reset(
    group: Annotated[str, typer.Argument(help="Group id; it must have no members.")],
    topics: Annotated[
        list[str], typer.Option("--topic", metavar="NAME[:0,1]", help="Input topic, or some of its partitions.")
    ],
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="Continue at this offset; by default at the earliest.")
    ] = None,
    dry_run: DryRun = False,
    delete_internal_topics: Annotated[
        bool, typer.Option("--delete-internal-topics", help="Also delete repartition and changelog topics.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Set the offsets from which a stopped application reads its input topics again."""
    from moldau_cli.plans import offsets as plans

    wanted = [plans.parse_topic(topic) for topic in topics]

    async def work(admin: Admin) -> None:
        found = await STREAMS.existing(admin, group)
        refuse_members(f"streams group {group}", found.members, whom="the application")
        partitions = await named_partitions(admin, wanted)
        held = await held_offsets(admin, partitions, {})
        if to_offset is None:
            targets = {one: at.begin for one, at in held.items()}
        else:
            targets = plans.within_logs(dict.fromkeys(partitions, to_offset), held)

        def answer(done: Sequence[TopicPartition]) -> None:
            rows: list[dict[str, output.Json]] = [
                {"topic": one.topic, "partition": one.partition, "offset": targets[one]} for one in done
            ]
            output.answer_rows("partitions", ["topic", "partition", "offset"], rows, dry_run=dry_run)

        with answering_done(sorted(targets), answer, "not reset"):
            if targets and not dry_run:
                pairs = {(one.topic, one.partition): at for one, at in targets.items()}
                await admin.alter_streams_group_offsets(group, pairs)
        await remove(admin, found.internal_topics if delete_internal_topics else ())

    async def remove(admin: Admin, internal: tuple[str, ...]) -> None:
        present = {topic.name for topic in await admin.list_topics()} if internal else set()
        gone = [name for name in internal if name in present]
        with answering_done(gone, note_gone, "internal topics not deleted"):
            if gone and not dry_run:
                await admin.delete_topics(gone)

    def note_gone(gone: Sequence[str]) -> None:
        if gone and not output.wants_json():
            output.note(f"internal topics: {', '.join(gone)}")

    with_admin(bootstrap_server, work)
    if dry_run:
        output.note_unchanged()


@commands.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Streams groups without members.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete streams groups with their committed offsets; internal topics stay."""
    STREAMS.delete_all(bootstrap_server, groups)
