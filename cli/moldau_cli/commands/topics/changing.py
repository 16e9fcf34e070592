"""``moldau topics create``, ``alter`` and ``delete``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import answering_done, deleting, refuse_repeated
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.commands.topics.selection import IfExists, Include, bear_absent, chosen_topics, named
from moldau_cli.completion import names as completed
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.words import counted, parse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau import Admin
    from moldau.admin import CreatedTopic


def create(
    name: str,
    partitions: Annotated[int | None, typer.Option(min=1, help="Default: the brokers' num.partitions.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Default: the brokers' default.replication.factor.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Topic configuration.")
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", metavar="1:2,2:3", help="Brokers of each partition, instead of numbers."),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is not an error.")] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Create a topic."""
    from moldau_cli.plans.partitions import parse_assignment

    configs = parse_settings(config or [], "--config")
    if replica_assignment is not None and (partitions is not None or replication_factor is not None):
        raise UsageError("--replica-assignment excludes --partitions and --replication-factor")
    assignments = {} if replica_assignment is None else parse_assignment(replica_assignment)

    async def work(admin: Admin) -> CreatedTopic | None:
        from moldau.admin import NewTopic
        from moldau.protocol.errors import ErrorCode, KafkaError

        topic = NewTopic(
            name=name,
            partitions=partitions or -1,
            replication_factor=replication_factor or -1,
            assignments=assignments,
            configs=configs,
        )
        try:
            return (await admin.create_topics([topic]))[0]
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            if not if_not_exists:
                raise CommandError(f"topic {name} exists already; with --if-not-exists that is no error") from error
            return None

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
        f"created {name}: {created.partitions} {'partition' if created.partitions == 1 else 'partitions'}, "
        f"replication factor {created.replication_factor}",
    )


def alter(
    partitions: Annotated[int, typer.Option(min=1, help="New number of partitions; it can only grow.")],
    name: Annotated[
        str | None, typer.Argument(help="Topic; not with --include.", autocompletion=completed.topics)
    ] = None,
    include: Include = None,
    replica_assignment: Annotated[
        str | None, typer.Option("--replica-assignment", metavar="1:2,2:3", help="Brokers of each new partition.")
    ] = None,
    if_exists: IfExists = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Add partitions to a topic, or to all that match. (Configuration: ``moldau configs alter``.)"""
    from moldau_cli.plans.partitions import parse_assignment

    chosen = chosen_topics([name] if name is not None else [], include, if_exists=if_exists)
    placed = None if replica_assignment is None else list(parse_assignment(replica_assignment).values())

    async def work(admin: Admin) -> None:
        names = await named(admin, chosen)
        assignments = None if placed is None else dict.fromkeys(names, placed)
        with answering_done(names, answer, "not altered"):
            if names:
                counts = dict.fromkeys(names, partitions)
                await bear_absent(admin.create_partitions(counts, assignments=assignments), names, chosen)

    def answer(changed: Sequence[str]) -> None:
        if include is not None:
            output.answer_rows(
                "topics", ["topic", "partitions"], [{"topic": one, "partitions": partitions} for one in changed]
            )
        elif not changed:
            output.answer({"topic": name, "partitions": None}, f"there is no topic {name}")
        else:
            output.answer({"topic": name, "partitions": partitions}, f"{name} has {counted(partitions, 'partition')}")

    with_admin(bootstrap_server, work)


def delete(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Topics to delete, with all their records.", autocompletion=completed.topics),
    ] = None,
    include: Include = None,
    if_exists: IfExists = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted; rights are not checked.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete topics: those that are named, or all that match. Internal topics never match."""
    refuse_repeated("topic", names or [])
    chosen = chosen_topics(names or [], include, if_exists=if_exists)

    async def work(admin: Admin) -> None:
        wanted = await named(admin, chosen)
        with answering_done(wanted, would, "would not be deleted") if dry_run else deleting(wanted):
            if wanted and dry_run:
                await bear_absent(admin.describe_topics(wanted), wanted, chosen)
            elif wanted:
                await bear_absent(admin.delete_topics(wanted), wanted, chosen)

    def would(found: Sequence[str]) -> None:
        output.answer({"deleted": [*found], "dry_run": True}, f"would delete {', '.join(found) or 'nothing'}")

    with_admin(bootstrap_server, work)
