"""``moldau topics``: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from moldau_cli import output
from moldau_cli.client.answers import answer_results, answering_done, deleting, refuse_repeated
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.completion import names as completed
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.words import absent_partition, counted, expression_of, is_number, parse_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau import Admin, TopicPartition
    from moldau.admin import ConfigEntry, ConfigResource, CreatedTopic, TopicDescription, TopicListing

Internal = Annotated[bool, typer.Option("--internal/--exclude-internal", help="Show internal topics too.")]
Include = Annotated[
    str | None, typer.Option("--include", metavar="REGEX", help="Only topics whose whole name matches.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="A topic that does not exist is not an error.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Topics, and what filters need: min.insync.replicas, replicas that are being added, and live brokers."""

    topics: Mapping[str, TopicDescription]
    min_isr: Mapping[str, int] = field(default_factory=dict)
    adding: Mapping[tuple[str, int], int] = field(default_factory=dict)
    brokers: frozenset[int] = frozenset()


class Chosen(NamedTuple):
    """The topics that the user asks about."""

    names: list[str]
    """Empty: all that match."""
    matches: Callable[[str], bool]
    if_exists: bool
    internal: bool


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


@commands.command("list")
def list_topics(
    include: Include = None,
    internal: Internal = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """List topics."""

    wanted = _pattern(include)

    async def work(admin: Admin) -> list[TopicListing]:
        return [one for one in await admin.list_topics(include_internal=internal) if wanted(one.name)]

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
    names: Annotated[
        list[str] | None, typer.Argument(help="Default: all topics.", autocompletion=completed.topics)
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with replicas out of sync.")
    ] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr-partitions", help="Only partitions below min.insync.replicas.")
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr-partitions", help="Only partitions at min.insync.replicas.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a live leader.")
    ] = False,
    overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="Only topics with a configuration of their own, and that.")
    ] = False,
    include: Include = None,
    if_exists: IfExists = False,
    internal: Internal = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show leader, replicas and in-sync replicas of each partition."""
    from moldau_cli.plans.partitions import Trouble, has_trouble

    flags = {
        Trouble.UNDER_REPLICATED: under_replicated,
        Trouble.UNDER_MIN_ISR: under_min_isr,
        Trouble.AT_MIN_ISR: at_min_isr,
        Trouble.UNAVAILABLE: unavailable,
    }
    wanted = [trouble for trouble, is_given in flags.items() if is_given]
    if len(wanted) + overrides > 1:
        raise UsageError("the filters of partitions and --topics-with-overrides exclude each other")
    if names and include is not None:
        raise UsageError("names and --include exclude each other")
    trouble = wanted[0] if wanted else None
    chosen = Chosen(names or [], _pattern(include), if_exists, internal)

    async def work(admin: Admin) -> Described:
        return await _described(admin, chosen, configured=bool(trouble))

    if overrides:
        _answer_overrides(chosen, bootstrap_server)
        return
    found = with_admin(bootstrap_server, work)
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
            for _, topic in sorted(found.topics.items())
            for part in topic.partitions
            if trouble is None
            or has_trouble(
                part,
                trouble,
                min_isr=found.min_isr.get(topic.name, 1),
                adding=found.adding.get((topic.name, part.partition), 0),
                brokers=found.brokers,
            )
        ],
    )


def _pattern(include: str | None) -> Callable[[str], bool]:
    """Returns whether a name matches an expression as a whole; every name does without one.

    Raises:
        UsageError: it is no regular expression.
    """
    pattern = expression_of(".*" if include is None else include, "--include")
    return lambda name: pattern.fullmatch(name) is not None


async def _described(admin: Admin, chosen: Chosen, *, configured: bool) -> Described:
    """Describes topics, and with ``configured`` what the filters need to know of them."""
    from moldau_cli.operations.partial import describe_present

    names = await _names(admin, chosen)
    if chosen.names and not chosen.if_exists:
        topics = await admin.describe_topics(names)
    else:
        topics = await describe_present(admin, names)
    if not configured or not topics:
        return Described(topics=topics)
    configs = await _configs(admin, topics, chosen)
    moves = await admin.list_partition_reassignments()
    return Described(
        topics={one.name: topics[one.name] for one in configs},
        min_isr={one.name: int(entries["min.insync.replicas"].value or 1) for one, entries in configs.items()},
        adding={(one.topic, one.partition): len(move.adding) for one, move in moves.items()},
        brokers=frozenset(broker.node_id for broker in (await admin.describe_cluster()).brokers),
    )


async def _configs(
    admin: Admin, names: Iterable[str], chosen: Chosen
) -> Mapping[ConfigResource, Mapping[str, ConfigEntry]]:
    """Returns the configurations of topics; those that were deleted meanwhile are left out, unless they have to exist.

    Raises:
        AdminError: another configuration cannot be described.
    """
    from moldau.admin import AdminError, ConfigResource, ResourceType
    from moldau.protocol.errors import ErrorCode
    from moldau_cli.operations.partial import results_of

    resources = [ConfigResource(type=ResourceType.TOPIC, name=name) for name in names]
    try:
        return await admin.describe_configs(resources) if resources else {}
    except AdminError as error:
        must_exist = chosen.names and not chosen.if_exists
        if must_exist or {one.code for one in error.failures.values()} != {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
            raise
        return results_of(error, dict)


def _chosen(names: list[str], include: str | None, *, if_exists: bool) -> Chosen:
    """Returns the topics of a command that changes some: by name, or by an expression.

    Raises:
        UsageError: neither or both are given, or the expression is wrong.
    """
    if bool(names) == (include is not None):
        raise UsageError("give either names or --include")
    return Chosen(names, _pattern(include), if_exists, internal=False)


async def _names(admin: Admin, chosen: Chosen) -> list[str]:
    """Returns the names of the chosen topics, as far as the broker that is asked knows them."""
    return await _existing(admin, chosen.names) if chosen.names and chosen.if_exists else await _named(admin, chosen)


async def _named(admin: Admin, chosen: Chosen) -> list[str]:
    """Returns the names that the user gives, or those that match."""
    if chosen.names:
        return [*chosen.names]
    return [one.name for one in await admin.list_topics(include_internal=chosen.internal) if chosen.matches(one.name)]


async def _bear_absent(asked: Awaitable[object], wanted: list[str], chosen: Chosen) -> None:
    """Waits for a change of topics; takes those that do not exist out of ``wanted``, unless they have to.

    The controller knows which topics exist. A broker that is behind lists a deleted topic, or lacks a new one.

    Raises:
        AdminError: the change failed for other topics.
    """
    from moldau.admin import AdminError
    from moldau.protocol.errors import ErrorCode

    try:
        await asked
    except AdminError as error:
        if chosen.names and not chosen.if_exists:
            raise
        gone = [name for name, one in error.failures.items() if one.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        wanted[:] = [name for name in wanted if name not in gone]
        left = {name: one for name, one in error.failures.items() if name not in gone}
        if left:
            raise AdminError(left, error.results) from error


async def _existing(admin: Admin, names: list[str]) -> list[str]:
    known = {topic.name for topic in await admin.list_topics(include_internal=True)}
    return [name for name in names if name in known]


def _answer_overrides(chosen: Chosen, bootstrap_server: str | None) -> None:
    async def work(admin: Admin) -> list[dict[str, output.Json]]:
        from moldau.runtime.config import ConfigSource

        found = await _described(admin, chosen, configured=False)
        configs = await _configs(admin, sorted(found.topics), chosen)
        own = {
            one.name: [
                f"{entry.name}={entry.value}"
                for entry in entries.values()
                if entry.source is ConfigSource.DYNAMIC_TOPIC
            ]
            for one, entries in configs.items()
        }
        return [
            {
                "topic": name,
                "partitions": len(found.topics[name].partitions),
                "replication_factor": max((len(part.replicas) for part in found.topics[name].partitions), default=0),
                "configs": [*own[name]],
            }
            for name in sorted(own)
            if own[name]
        ]

    output.answer_rows(
        "topics", ["topic", "partitions", "replication_factor", "configs"], with_admin(bootstrap_server, work)
    )


@commands.command()
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

    chosen = _chosen([name] if name is not None else [], include, if_exists=if_exists)
    placed = None if replica_assignment is None else list(parse_assignment(replica_assignment).values())

    async def work(admin: Admin) -> None:
        names = await _named(admin, chosen)
        assignments = None if placed is None else dict.fromkeys(names, placed)
        with answering_done(names, answer, "not altered"):
            if names:
                counts = dict.fromkeys(names, partitions)
                await _bear_absent(admin.create_partitions(counts, assignments=assignments), names, chosen)

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


@commands.command()
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
    chosen = _chosen(names or [], include, if_exists=if_exists)

    async def work(admin: Admin) -> None:
        wanted = await _named(admin, chosen)
        with answering_done(wanted, would, "would not be deleted") if dry_run else deleting(wanted):
            if wanted and dry_run:
                await _bear_absent(admin.describe_topics(wanted), wanted, chosen)
            elif wanted:
                await _bear_absent(admin.delete_topics(wanted), wanted, chosen)

    def would(found: Sequence[str]) -> None:
        output.answer({"deleted": [*found], "dry_run": True}, f"would delete {', '.join(found) or 'nothing'}")

    with_admin(bootstrap_server, work)


@commands.command("delete-records")
def delete_records(
    topic: Annotated[
        str | None, typer.Argument(help="Topic; not with --file.", autocompletion=completed.topics)
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="OFFSET", help="Delete records below this offset; end: all.")
    ] = None,
    partition: Annotated[list[int] | None, typer.Option(min=0, help="Only these partitions; default: all.")] = None,
    file: Annotated[Path | None, typer.Option(help="JSON, as for kafka-delete-records.")] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete the oldest records of partitions; consumers of them continue at the new log start offset."""
    from moldau_cli.plans.offsets import parse_deletions

    if (file is None) == (topic is None) or (topic is None) != (before is None) or (partition and topic is None):
        raise UsageError("give TOPIC with --before, or --file")
    if before is not None and before != "end" and not is_number(before):
        raise UsageError(f"--before: expected an offset or end, not {before!r}")
    try:
        listed = {} if file is None else parse_deletions(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error

    async def work(admin: Admin) -> None:
        wanted: dict[tuple[str, int], int] = {(one.topic, one.partition): at for one, at in listed.items()}
        if topic is not None:
            known = [part.partition for part in (await admin.describe_topics([topic]))[topic].partitions]
            for number in partition or known:
                if number not in known:
                    raise UsageError(absent_partition(topic, known, number))
                wanted[topic, number] = -1 if before in (None, "end") else int(before)
        await answer_results(_delete_below(admin, wanted), _answer_starts, "not deleted")

    with_admin(bootstrap_server, work)


def _answer_starts(starts: Mapping[TopicPartition, int]) -> None:
    output.answer_rows(
        "partitions",
        ["topic", "partition", "log_start_offset"],
        [
            {"topic": one.topic, "partition": one.partition, "log_start_offset": at}
            for one, at in sorted(starts.items())
        ],
    )


async def _delete_below(admin: Admin, wanted: dict[tuple[str, int], int]) -> dict[TopicPartition, int]:
    """Deletes records, as ``Admin.delete_records``; an offset that is out of range is reported with the range."""
    from moldau import TopicPartition
    from moldau.admin import EARLIEST, LATEST, AdminError
    from moldau.protocol.errors import ErrorCode, KafkaError
    from moldau_cli.operations.partial import ask_offsets

    try:
        return await admin.delete_records(wanted)
    except AdminError as error:
        names = {str(one): one for one in (TopicPartition(*each) for each in sorted(wanted))}
        refused = [
            one
            for name, one in names.items()
            if name in error.failures and error.failures[name].code is ErrorCode.OFFSET_OUT_OF_RANGE
        ]
        if not refused:
            raise
        starts = (await ask_offsets(admin, dict.fromkeys(refused, EARLIEST))).found
        ends = (await ask_offsets(admin, dict.fromkeys(refused, LATEST))).found
        ranges = {
            str(one): KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"expected an offset from {starts[one][0]} to {ends[one][0]}, not {wanted[one]}",
            )
            for one in refused
            if one in starts and one in ends
        }
        raise AdminError({**error.failures, **ranges}, error.results) from error
