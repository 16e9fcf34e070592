"""``moldau txns``: transactional ids and their transactions; ends hanging transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import refuse_failures
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.errors import AnsweredError, CommandError, UsageError
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau import Admin
    from moldau.admin import ProducerDescription, TopicDescription, TransactionDescription, TransactionListing
    from moldau.protocol.errors import KafkaError

commands = typer.Typer(help="List, describe, terminate and abort transactions.", rich_markup_mode=None)

MAX_TIMEOUT_MINUTES = 15
"""The default of ``transaction.max.timeout.ms``, in minutes."""


@commands.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only this state (Ongoing, Empty, ...); may be repeated.")
    ] = None,
    producer_id: Annotated[list[int] | None, typer.Option("--producer-id", help="Only this producer id.")] = None,
    running_longer_than: Annotated[
        int,
        typer.Option(
            "--running-longer-than", metavar="MS", show_default=False, help="Only transactions open for longer."
        ),
    ] = -1,
    pattern: Annotated[
        str | None,
        typer.Option("--transactional-id-pattern", metavar="REGEX", help="Only ids that match as a whole (RE2)."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """List transactional ids with their state."""
    from moldau_cli.operations.partial import ask_transactions

    async def work(admin: Admin) -> tuple[list[TransactionListing], Mapping[str, KafkaError]]:
        return await ask_transactions(
            admin,
            states=state or (),
            producer_ids=producer_id or (),
            min_duration_ms=running_longer_than,
            id_pattern=pattern,
        )

    listed, failures = with_admin(bootstrap_server, work)
    output.answer_rows(
        "transactions",
        ["transactional_id", "state", "producer_id", "coordinator"],
        [
            {
                "transactional_id": one.transactional_id,
                "state": one.state,
                "producer_id": one.producer_id,
                "coordinator": one.coordinator,
            }
            for one in listed
        ],
    )
    refuse_failures("transactional ids are missing", failures)


@commands.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(help="Transactional id.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show a transactional id and the partitions that its transaction includes."""

    async def work(admin: Admin) -> TransactionDescription:
        return (await admin.describe_transactions([transactional_id]))[transactional_id]

    found = with_admin(bootstrap_server, work)
    partitions = [str(partition) for partition in sorted(found.partitions)]
    document: dict[str, output.Json] = {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms if found.start_ms >= 0 else None,
        "partitions": list(partitions),
    }
    shown = {key: output.cell(value) for key, value in document.items() if key != "start_ms"}
    shown["start"] = output.time_cell(document["start_ms"])
    output.answer(document, "\n".join(f"{key}: {text}" for key, text in shown.items()))


@commands.command()
def producers(
    topic: Annotated[str, typer.Argument(help="Topic.")],
    partition: Annotated[int, typer.Argument(min=0, help="Partition.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Show the producers that a partition knows, each with the start of its open transaction."""

    async def work(admin: Admin) -> list[ProducerDescription]:
        return await admin.describe_producers((topic, partition))

    output.answer_rows(
        "producers",
        ["producer_id", "epoch", "last_sequence", "coordinator_epoch", "transaction_start_offset"],
        [
            {
                "producer_id": one.producer_id,
                "epoch": one.producer_epoch,
                "last_sequence": one.last_sequence,
                "last_timestamp_ms": one.last_timestamp_ms,
                "coordinator_epoch": one.coordinator_epoch,
                "transaction_start_offset": one.transaction_start_offset if one.transaction_start_offset >= 0 else None,
            }
            for one in with_admin(bootstrap_server, work)
        ],
    )


@commands.command("find-hanging")
def find_hanging_transactions(
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition of it.")] = None,
    broker_id: Annotated[
        int | None, typer.Option("--broker-id", min=0, help="Only partitions that this broker leads.")
    ] = None,
    max_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout", metavar="MINUTES", min=0, help="Only with no record for so many minutes."
        ),
    ] = MAX_TIMEOUT_MINUTES,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Find transactions that no coordinator will end; read_committed consumers wait for them. Exit code 1 if any."""
    from moldau import TopicPartition
    from moldau_cli.operations.hanging import Hanging, find_hanging

    if partition is not None and topic is None:
        raise UsageError("--partition needs --topic")
    now_ms = time.time() * 1000

    async def work(admin: Admin) -> Hanging:
        wanted = {
            TopicPartition(described.name, part.partition): part.leader
            for described in (await _topics(admin, topic)).values()
            for part in described.partitions
            if part.leader >= 0 and partition in (None, part.partition) and broker_id in (None, part.leader)
        }
        if not wanted and (partition is not None or broker_id is not None):
            raise UsageError("no partition with a leader fits --partition and --broker-id")
        return await find_hanging(admin, wanted, silent_before_ms=now_ms - max_timeout * 60_000)

    found, failures = with_admin(bootstrap_server, work)
    output.answer_rows(
        "transactions",
        ["topic", "partition", "producer_id", "producer_epoch", "start_offset", "silent_min"],
        [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "producer_id": one.producer.producer_id,
                "producer_epoch": one.producer.producer_epoch,
                "coordinator_epoch": one.producer.coordinator_epoch,
                "start_offset": one.producer.transaction_start_offset,
                "last_timestamp_ms": one.producer.last_timestamp_ms,
                "silent_min": round((now_ms - one.producer.last_timestamp_ms) / 60_000),
            }
            for one in found
        ],
    )
    if found and not output.wants_json():
        first = found[0]
        output.note(
            f"end one with: moldau txns abort {first.partition.topic} {first.partition.partition} "
            f"--start-offset {first.producer.transaction_start_offset}"
        )
    refuse_failures("partitions or coordinators are missing", failures)
    if found:
        raise AnsweredError(f"{counted(len(found), 'transaction')} found that no coordinator will end")


async def _topics(admin: Admin, name: str | None) -> dict[str, TopicDescription]:
    """Describes a topic, or all that exist."""
    from moldau_cli.operations.partial import describe_present

    if name is not None:
        return await admin.describe_topics([name])
    return await describe_present(admin, [each.name for each in await admin.list_topics(include_internal=True)])


@commands.command()
def terminate(
    transactional_id: Annotated[str, typer.Argument(help="Transactional id.")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Fence the producer of a transactional id; its open transaction is aborted."""

    async def work(admin: Admin) -> None:
        await admin.describe_transactions([transactional_id])  # fails for an unknown id, which must not be created
        await admin.terminate_transaction(transactional_id)

    with_admin(bootstrap_server, work)
    output.answer({"terminated": transactional_id}, f"terminated {transactional_id}")


@commands.command()
def abort(
    topic: Annotated[str, typer.Argument(help="Topic.")],
    partition: Annotated[int, typer.Argument(min=0, help="Partition.")],
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="First offset of the hanging transaction.")
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", min=0, help="Its producer id, instead of the offset.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Abort a transaction that hangs in one partition because no coordinator knows it any more."""
    if (start_offset is None) == (producer_id is None):
        raise UsageError("give either --start-offset or --producer-id (see `moldau txns producers`)")

    async def work(admin: Admin) -> ProducerDescription:
        for one in await admin.describe_producers((topic, partition)):
            if one.transaction_start_offset >= 0 and (
                one.transaction_start_offset == start_offset or one.producer_id == producer_id
            ):
                await admin.abort_transaction(
                    (topic, partition),
                    producer_id=one.producer_id,
                    producer_epoch=one.producer_epoch,
                    coordinator_epoch=max(0, one.coordinator_epoch),
                )
                return one
        which = f"starts at offset {start_offset}" if producer_id is None else f"belongs to producer id {producer_id}"
        raise CommandError(f"no open transaction in {topic}-{partition} {which}; see `moldau txns producers`")

    ended = with_admin(bootstrap_server, work)
    document: dict[str, output.Json] = {
        "topic": topic,
        "partition": partition,
        "producer_id": ended.producer_id,
        "producer_epoch": ended.producer_epoch,
        "start_offset": ended.transaction_start_offset,
    }
    output.answer(
        document,
        f"aborted the transaction of producer id {ended.producer_id} in {topic}-{partition} "
        f"from offset {ended.transaction_start_offset}",
    )
