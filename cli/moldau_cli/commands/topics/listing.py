"""``moldau topics list`` and ``describe``, with the filters of partitions and topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.commands.topics.selection import Chosen, IfExists, Include, names_of, pattern_of
from moldau_cli.completion import names as completed
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau import Admin
    from moldau.admin import ConfigEntry, ConfigResource, TopicDescription, TopicListing

Internal = Annotated[bool, typer.Option("--internal/--exclude-internal", help="Show internal topics too.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Topics, and what filters need: min.insync.replicas, replicas that are being added, and live brokers."""

    topics: Mapping[str, TopicDescription]
    min_isr: Mapping[str, int] = field(default_factory=dict)
    adding: Mapping[tuple[str, int], int] = field(default_factory=dict)
    brokers: frozenset[int] = frozenset()


def list_topics(
    include: Include = None,
    internal: Internal = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """List topics."""

    wanted = pattern_of(include)

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
    chosen = Chosen(names or [], pattern_of(include), if_exists, internal)

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


async def _described(admin: Admin, chosen: Chosen, *, configured: bool) -> Described:
    """Describes topics, and with ``configured`` what the filters need to know of them."""
    from moldau_cli.operations.partial import describe_present

    names = await names_of(admin, chosen)
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
