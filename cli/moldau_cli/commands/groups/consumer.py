"""``moldau groups``: consumer groups, their members and their offsets."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from moldau_cli import output
from moldau_cli.client.answers import answering_done, deleting, refuse_failures, refuse_repeated
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
    living,
    log_ends,
    named_partitions,
    offsets_since,
    refuse_members,
)
from moldau_cli.completion import names
from moldau_cli.errors import UsageError
from moldau_cli.group_types import refuse_other_type
from moldau_cli.words import a_number, counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import Admin, TopicPartition
    from moldau.admin import GroupDescription, GroupListing
    from moldau.consumer import CommittedOffset
    from moldau.protocol.errors import KafkaError
    from moldau_cli.plans.offsets import Held

commands = typer.Typer(help="List, describe, reset and delete consumer groups.", rich_markup_mode=None)


class Described(NamedTuple):
    """A group, its partitions, and the errors of those whose log end offset is not known."""

    description: GroupDescription
    rows: list[dict[str, output.Json]]
    failures: Mapping[str, KafkaError]


DEAD = "Dead"
STATES = (
    *("Stable", "Empty", DEAD, "PreparingRebalance", "CompletingRebalance"),
    *("Assigning", "Reconciling", "NotReady"),
)
"""The states of groups of all types."""
CONSUMER = "consumer"
"""The type of groups whose assignments the coordinator computes (KIP-848)."""


class ResetTo(enum.StrEnum):
    """The positions to which ``reset`` moves a group."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"


class GroupType(enum.StrEnum):
    """The types of groups that ``list`` filters by."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


def _state(text: str) -> str:
    """Returns the state of groups that a word names.

    Raises:
        UsageError: there is no such state; brokers answer that no group is in it.
    """
    found = next((state for state in STATES if state.lower() == text.lower()), None)
    if found is None:
        raise UsageError(f"--state: {text!r} is not one of {', '.join(STATES)}")
    return found


@commands.command("list")
def list_groups(
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only groups in this state, such as Stable.")
    ] = None,
    types: Annotated[list[GroupType] | None, typer.Option("--type", help="Only groups of this type.")] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """List groups with their state."""

    from moldau_cli.operations.partial import ask_groups

    wanted = [_state(state) for state in states or ()]

    async def work(admin: Admin) -> tuple[list[GroupListing], Mapping[str, KafkaError]]:
        return await ask_groups(admin, states=wanted, types=[one.value for one in types or ()])

    listed, failures = with_admin(bootstrap_server, work)
    output.answer_rows(
        "groups",
        ["group", "type", "state"],
        [
            {"group": one.group_id, "type": one.type, "state": one.state, "protocol": one.protocol_type}
            for one in listed
        ],
    )
    refuse_failures("groups are missing", failures)


@commands.command()
def describe(
    group: Annotated[str | None, typer.Argument(help="Group id.", autocompletion=names.groups)] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="All groups, one after the other.")] = False,
    every_s: Annotated[
        float | None,
        typer.Option(
            "--watch", "-w", min=0.1, callback=a_number, metavar="SECONDS", help="Show lag and rates again and again."
        ),
    ] = None,
    times: Annotated[
        int | None, typer.Option("--times", min=1, help="End after this many looks (with --watch). Default: never.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show committed offset, log end offset, lag and owner of each partition of a group."""
    if (group is None) != all_groups:
        raise UsageError("give GROUP, or --all-groups")
    if times is not None and every_s is None:
        raise UsageError("--times needs --watch")
    if every_s is not None:
        if group is None:
            raise UsageError("--watch shows one group; moldau top shows all of them")
        _watch(group, every_s, times, bootstrap_server)
        return

    async def work(admin: Admin) -> tuple[list[Described], Mapping[str, KafkaError]]:
        if group is None:
            return await _describe_all(admin)
        found = await _describe(admin, group)
        return [found], found.failures

    found, failures = with_admin(bootstrap_server, work)
    if output.wants_json():
        documents = [_document(each.description, each.rows) for each in found]
        output.answer(documents[0] if group is not None else {"groups": list(documents)}, "")
    else:
        for each in found:
            _write(each.description, each.rows)
    refuse_failures("groups or offsets are missing" if group is None else "offsets are missing", failures)


async def _describe_all(admin: Admin) -> tuple[list[Described], dict[str, KafkaError]]:
    """Returns all groups that can be described, and the errors of other groups, brokers and partitions.

    The leaders are asked once for the partitions of all groups, so that a silent one is waited for once.
    """
    from moldau.protocol.errors import KafkaError
    from moldau_cli.operations.partial import ask_groups

    listed, missing = await ask_groups(admin, types=[GroupType.CLASSIC.value, GroupType.CONSUMER.value])
    known: list[_Known] = []
    failures = dict(missing)
    for each in listed:
        try:
            known.append(await _known(admin, each.group_id))
        except UsageError:
            continue  # it was deleted since it was listed
        except KafkaError as error:
            failures[f"group {each.group_id}"] = getattr(error, "failures", {}).get(each.group_id, error)
    ends, _, unknown = await log_ends(admin, sorted({one for each in known for one in each.partitions}))
    return [Described(each.description, each.rows(ends), {}) for each in known], failures | unknown


def _document(description: GroupDescription, rows: list[dict[str, output.Json]]) -> dict[str, output.Json]:
    document: dict[str, output.Json] = {
        "group": description.group_id,
        "state": description.state,
        "coordinator": description.coordinator,
        "type": description.type,
        "protocol": description.protocol,
        "members": len(description.members),
        "lag": _lag(rows),
        "partitions": list(rows),
    }
    if description.type == CONSUMER:
        document["epoch"] = description.epoch
        document["assignment_epoch"] = description.assignment_epoch
        document["member_epochs"] = {member.member_id: member.epoch for member in description.members}
    return document


def _write(description: GroupDescription, rows: list[dict[str, output.Json]]) -> None:
    output.write_line(_headline(description, rows))
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


async def _describe(admin: Admin, group: str) -> Described:
    known = await _known(admin, group)
    ends = await log_ends(admin, known.partitions)
    return Described(known.description, known.rows(ends.offsets), ends.failures)


class _Known(NamedTuple):
    """The state of a group at its coordinator."""

    description: GroupDescription
    committed: Mapping[TopicPartition, CommittedOffset]
    answered_s: float
    """When the coordinator answered with the committed offsets, in seconds of trio's clock."""
    owners: Mapping[TopicPartition, str]

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self.committed.keys() | self.owners.keys())

    def rows(self, ends: Mapping[TopicPartition, int]) -> list[dict[str, output.Json]]:
        found: list[dict[str, output.Json]] = []
        for partition in self.partitions:
            offset = self.committed[partition].offset if partition in self.committed else None
            end = ends.get(partition)
            found.append(
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "offset": offset,
                    "log_end_offset": end,
                    "lag": None if offset is None or end is None else max(0, end - offset),
                    "member": self.owners.get(partition),
                }
            )
        return found


async def _known(admin: Admin, group: str) -> _Known:
    import trio

    description = await _existing(admin, group)
    committed = await admin.list_group_offsets(group)
    answered_s = trio.current_time()
    owners = {partition: member.member_id for member in description.members for partition in member.assignment}
    return _Known(description, committed, answered_s, owners)


def _headline(description: GroupDescription, rows: list[dict[str, output.Json]]) -> str:
    lag = _lag(rows)
    return (
        f"group {description.group_id}: {description.state}, {counted(len(description.members), 'member')}, "
        f"coordinator {description.coordinator}, lag {'-' if lag is None else lag}"
    )


def _lag(rows: list[dict[str, output.Json]]) -> int | None:
    """Returns the sum of the lags; None if that of a partition with a committed offset is unknown, or none has one."""
    lags = [row["lag"] for row in rows if row["offset"] is not None]
    known = [lag for lag in lags if isinstance(lag, int)]
    return sum(known) if known and len(known) == len(lags) else None


def _watch(group: str, every_s: float, times: int | None, bootstrap_server: str | None) -> None:
    import trio

    from moldau_cli.live.group import Look, Taken, watch
    from moldau_cli.operations.partial import summarize_failures

    looks = trio.CancelScope()

    async def work(admin: Admin) -> None:
        async def look() -> Look:
            known = await _known(admin, group)
            ends = await log_ends(admin, known.partitions)
            looks.cancel()  # later looks name the brokers that do not answer, and wait for no controller
            if ends.failures:
                output.note(f"offsets are missing: {summarize_failures(ends.failures)}")
            description, rows = known.description, known.rows(ends.offsets)
            taken = Taken(known.answered_s, {(one.topic, one.partition): at_s for one, at_s in ends.answered_s.items()})
            return Look(_headline(description, rows), _document(description, rows), rows, taken)

        await watch(look, every_s, times)

    with_admin(bootstrap_server, work, looks=looks)


@commands.command()
def reset(
    group: Annotated[str, typer.Argument(help="Group id; it must have no members.", autocompletion=names.groups)],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME[:0,1]", help="Topic, or some of its partitions.", autocompletion=names.topics
        ),
    ] = None,
    all_topics: AllTopics = False,
    to: Annotated[ResetTo | None, typer.Option("--to", help="Where the group continues.")] = None,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="Skip so many records, or go back (below 0).")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Lines topic,partition,offset, as --export writes them.")
    ] = None,
    export: Annotated[Path | None, typer.Option("--export", help="Write the new offsets to this file.")] = None,
    dry_run: DryRun = False,
    create: Create = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Move the committed offsets of a group: to an offset, a time, by a number of records, or as a file says."""
    from moldau_cli.plans import offsets as plans

    given = (to, to_offset, to_datetime, by_duration, shift_by, from_file)
    if sum(one is not None for one in given) != 1:
        options = "--to, --to-offset, --to-datetime, --by-duration, --shift-by and --from-file"
        raise UsageError(f"give exactly one of {options}")
    if from_file is None and bool(topics) == all_topics:
        raise UsageError("give --topic, or --all-topics")
    if from_file is not None and (topics or all_topics):
        raise UsageError("--from-file names the partitions; leave --topic and --all-topics out")
    wanted = [plans.parse_topic(topic) for topic in topics or []]
    listed = {} if from_file is None else plans.parse_offsets(_read(from_file), str(from_file))
    wanted += [(one.topic, [one.partition]) for one in listed]
    since_ms = earliest_ms(to_datetime, by_duration)
    if export is not None:
        output.require_writable(export)

    async def work(admin: Admin) -> dict[TopicPartition, int]:
        found = await _existing(admin, group, None if create else CREATES)
        refuse_members(f"group {group}", found.members)
        committed = {one: at.offset for one, at in (await admin.list_group_offsets(group)).items()}
        partitions = await living(admin, committed) if all_topics else await named_partitions(admin, wanted)
        held = await held_offsets(admin, partitions, committed)
        if shift_by is not None:
            targets = plans.shifted(held, shift_by)
        elif since_ms is not None and partitions:
            targets = await offsets_since(admin, partitions, since_ms, held)
        elif to is not None:
            targets = {one: _named(to, at) for one, at in held.items()}
        else:
            targets = plans.within_logs(listed or dict.fromkeys(partitions, to_offset or 0), held)

        def answer(done: Sequence[TopicPartition]) -> None:
            rows: list[dict[str, output.Json]] = [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "was": held[one].committed,
                    "offset": targets[one],
                    "log_end_offset": held[one].end,
                }
                for one in done
            ]
            output.answer_rows(
                "partitions", ["topic", "partition", "was", "offset", "log_end_offset"], rows, dry_run=dry_run
            )

        with answering_done(sorted(targets), answer, "not reset"):
            if targets and not dry_run:
                await admin.alter_group_offsets(group, {(one.topic, one.partition): at for one, at in targets.items()})
        return targets

    targets = with_admin(bootstrap_server, work)
    if export is not None:
        output.write_file(export, plans.write_offsets(targets))
    if dry_run:
        output.note_unchanged()


@commands.command("delete-offsets")
def delete_offsets(
    group: Annotated[
        str,
        typer.Argument(help="Group id; its members must not be subscribed to the topics.", autocompletion=names.groups),
    ],
    topics: Annotated[
        list[str],
        typer.Option("--topic", metavar="NAME[:0,1]", help="Topic, or some partitions.", autocompletion=names.topics),
    ],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete the committed offsets that a group has of topics."""
    from moldau_cli.plans import offsets as plans

    wanted = [plans.parse_topic(topic) for topic in topics]

    def answer(deleted: Sequence[TopicPartition]) -> None:
        output.answer_rows(
            "deleted", ["topic", "partition"], [{"topic": one.topic, "partition": one.partition} for one in deleted]
        )

    async def work(admin: Admin) -> None:
        await _existing(admin, group)
        committed = await admin.list_group_offsets(group)
        missing = plans.missing_in(committed, wanted)
        if missing:
            raise UsageError(f"group {group} has no committed offsets of {', '.join(missing)}; nothing was deleted")
        found = [
            one
            for one in sorted(committed)
            if any(one.topic == name and (numbers is None or one.partition in numbers) for name, numbers in wanted)
        ]
        with answering_done(found, answer, "not deleted"):
            await admin.delete_group_offsets(group, found)

    with_admin(bootstrap_server, work)


@commands.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Groups without members.", autocompletion=names.groups)],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Delete groups with their committed offsets."""

    refuse_repeated("group", groups)

    async def work(admin: Admin) -> None:
        with deleting(groups):
            await admin.delete_groups(groups)

    with_admin(bootstrap_server, work)


async def _existing(admin: Admin, group: str, hint: str | None = "") -> GroupDescription:
    """Returns the description of a group; with ``hint`` None also that of a group that does not exist.

    Raises:
        UsageError: there is no such group, or it is of a type with a command of its own.
    """
    description = (await admin.describe_groups([group]))[group]
    if description.state == DEAD:
        await refuse_other_type(admin, group, "groups")
    if description.state == DEAD and hint is not None:
        raise UsageError(f"there is no group {group!r}{hint}")
    return description


def _named(to: ResetTo, held: Held) -> int:
    """Returns the offset that a named position has in a partition."""
    if to is ResetTo.EARLIEST:
        return held.begin
    return held.end if to is ResetTo.LATEST or held.committed is None else held.committed


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
