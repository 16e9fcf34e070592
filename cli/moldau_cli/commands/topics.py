"""``moldau topics``: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, with_admin
from moldau_cli.commands.cluster import parse_settings
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from moldau import Admin, TopicPartition
    from moldau.admin import CreatedTopic, TopicDescription, TopicListing

commands = typer.Typer(help="Create, list, describe, alter and delete topics.", rich_markup_mode=None)


@commands.command()
def create(
    name: str,
    partitions: Annotated[int | None, typer.Option(min=1, help="Default: the brokers' num.partitions.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Default: the brokers' default.replication.factor.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Topic configuration.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is not an error.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Create a topic."""
    configs = parse_settings(config or [])

    async def work(admin: Admin) -> CreatedTopic | None:
        from moldau.admin import NewTopic
        from moldau.protocol.errors import ErrorCode, KafkaError

        topic = NewTopic(
            name=name, partitions=partitions or -1, replication_factor=replication_factor or -1, configs=configs
        )
        try:
            return (await admin.create_topics([topic]))[0]
        except KafkaError as error:
            if if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return None
            raise

    created = with_admin(bootstrap_server, work)
    if created is None:
        output.answer({"topic": name, "created": False}, f"{name} exists already")
        return
    output.answer(
        {
            "topic": name,
            "created": True,
            "topic_id": str(created.topic_id),
            "partitions": created.partitions,
            "replication_factor": created.replication_factor,
        },
        f"created {name}: {created.partitions} partitions, replication factor {created.replication_factor}",
    )


@commands.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """List topics."""

    async def work(admin: Admin) -> list[TopicListing]:
        return await admin.list_topics(include_internal=internal)

    topics = with_admin(bootstrap_server, work)
    output.answer_rows(
        "topics",
        ["topic", "partitions"],
        [
            {
                "topic": topic.name,
                "partitions": topic.partition_count,
                "topic_id": str(topic.topic_id),
                "internal": topic.is_internal,
            }
            for topic in topics
        ],
    )


@commands.command()
def describe(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all topics.")] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show leader, replicas and in-sync replicas of each partition."""

    async def work(admin: Admin) -> dict[str, TopicDescription]:
        wanted = names or [topic.name for topic in await admin.list_topics()]
        return await admin.describe_topics(wanted) if wanted else {}

    topics = with_admin(bootstrap_server, work)
    output.answer_rows(
        "partitions",
        ["topic", "partition", "leader", "leader_epoch", "replicas", "isr"],
        [
            {
                "topic": topic.name,
                "topic_id": str(topic.topic_id),
                "partition": part.partition,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "offline": list(part.offline_replicas),
            }
            for _, topic in sorted(topics.items())
            for part in topic.partitions
        ],
    )


@commands.command()
def alter(
    name: str,
    partitions: Annotated[int, typer.Option(min=1, help="New number of partitions; it can only grow.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Add partitions to a topic. (Configuration: ``moldau configs alter``.)"""

    async def work(admin: Admin) -> None:
        await admin.create_partitions({name: partitions})

    with_admin(bootstrap_server, work)
    output.answer({"topic": name, "partitions": partitions}, f"{name} has {partitions} partitions")


@commands.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Topics to delete, with all their records.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete topics."""
    if len(set(names)) != len(names):
        raise UsageError("a topic is named twice")

    async def work(admin: Admin) -> None:
        await admin.delete_topics(names)

    with_admin(bootstrap_server, work)
    output.answer({"deleted": list(names)}, f"deleted {', '.join(names)}")


@commands.command("delete-records")
def delete_records(
    topic: Annotated[str | None, typer.Argument(help="Topic; not with --file.")] = None,
    before: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="Delete records below this offset; end: all.")
    ] = None,
    partition: Annotated[list[int] | None, typer.Option(min=0, help="Only these partitions.")] = None,
    file: Annotated[Path | None, typer.Option(help="JSON, as for kafka-delete-records.")] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete the oldest records of partitions; consumers of them continue at the new log start offset."""
    from moldau_cli.plans.offsets import parse_deletions

    if (file is None) == (topic is None) or (topic is None) != (before is None) or (partition and topic is None):
        raise UsageError("give TOPIC with --before, or --file")
    if before is not None and before != "end" and not before.isdecimal():
        raise UsageError(f"--before: expected an offset or end, not {before!r}")
    try:
        listed = {} if file is None else parse_deletions(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error

    async def work(admin: Admin) -> dict[TopicPartition, int]:
        wanted: dict[tuple[str, int], int] = {(one.topic, one.partition): at for one, at in listed.items()}
        if topic is not None:
            known = [part.partition for part in (await admin.describe_topics([topic]))[topic].partitions]
            for number in partition or known:
                if number not in known:
                    raise UsageError(f"topic {topic} has partitions 0 to {len(known) - 1}, not {number}")
                wanted[topic, number] = -1 if before in (None, "end") else int(before)
        return await admin.delete_records(wanted)

    starts = with_admin(bootstrap_server, work)
    output.answer_rows(
        "partitions",
        ["topic", "partition", "log_start_offset"],
        [
            {"topic": one.topic, "partition": one.partition, "log_start_offset": at}
            for one, at in sorted(starts.items())
        ],
    )
