"""``moldau topics delete-records``: deletes the oldest records of partitions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import answer_results
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.completion import names as completed
from moldau_cli.errors import UsageError
from moldau_cli.words import absent_partition, is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau import Admin, TopicPartition


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
