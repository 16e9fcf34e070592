"""``moldau reassign`` and ``moldau elect``: placement and leadership of replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.answers import answer_results, answering_done
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.completion import names
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.words import BROKER_IDS, absent_partition, counted, parse_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau import Admin, TopicPartition
    from moldau_cli.plans.balance.execution import RunningMove
    from moldau_cli.plans.balance.state import Partition

reassign = typer.Typer(help="Move replicas between brokers.", rich_markup_mode=None)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=names.topics)]
Plan = Annotated[Path, typer.Argument(metavar="PLAN", help="File written by plan.")]
Number = Annotated[int, typer.Argument(metavar="PARTITION", min=0)]


@reassign.command()
def start(
    topic: Topic,
    partition: Number,
    brokers: Annotated[str, typer.Argument(metavar="BROKERS", help="New replicas, the preferred leader first: 1,2,3")],
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Start to move a partition to other brokers; the old replicas serve until the new ones have caught up."""
    replicas = parse_ids(brokers, BROKER_IDS)

    async def work(admin: Admin) -> None:
        await admin.alter_partition_reassignments({(topic, partition): replicas})

    with_admin(bootstrap_server, work)
    output.answer(
        {"topic": topic, "partition": partition, "replicas": list(replicas)},
        f"{topic}-{partition} moves to {','.join(map(str, replicas))}",
    )


@reassign.command()
def cancel(topic: Topic, partition: Number, bootstrap_server: BootstrapServer = None) -> None:
    """Cancel a move in progress."""

    async def work(admin: Admin) -> None:
        await admin.alter_partition_reassignments({(topic, partition): None})

    with_admin(bootstrap_server, work)
    output.answer({"topic": topic, "partition": partition}, f"the move of {topic}-{partition} is cancelled")


@reassign.command()
def status(bootstrap_server: BootstrapServer = None) -> None:
    """List the moves in progress, and how many bytes the new replicas have of those that they need."""
    from moldau_cli.operations.survey import copied_bytes, running_moves

    async def work(admin: Admin) -> tuple[dict[Partition, RunningMove], dict[Partition, tuple[int, int]]]:
        moves = await running_moves(admin)
        return moves, await copied_bytes(admin, moves)

    found, copied = with_admin(bootstrap_server, work)
    output.answer_rows(
        "reassignments",
        ["topic", "partition", "replicas", "adding", "removing", "copied_bytes", "of_bytes"],
        [
            {
                "topic": where[0],
                "partition": where[1],
                "replicas": list(move.replicas),
                "adding": list(move.adding),
                "removing": list(move.removing),
                "copied_bytes": copied[where][0] if where in copied else None,
                "of_bytes": copied[where][1] if where in copied else None,
            }
            for where, move in sorted(found.items())
        ],
    )


@reassign.command()
def plan(
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="IDS", help="Brokers that will hold the replicas: 1,2,3")
    ],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only these topics; default: all.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File for the plan; default: stdout.")] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Compute moves that spread replicas and leaders evenly over brokers; nothing moves yet."""
    from moldau_cli.operations.survey import settled_replicas
    from moldau_cli.plans.crowding import Place, Places
    from moldau_cli.plans.reassignment import plan_document, plan_moves

    wanted = parse_ids(brokers, BROKER_IDS)

    async def work(admin: Admin) -> tuple[dict[tuple[str, int], list[int]], Places]:
        nodes = (await admin.describe_cluster()).brokers
        known = [one.node_id for one in nodes]
        missing = [broker for broker in wanted if broker not in known]
        if missing:
            raise UsageError(f"no live broker {missing[0]}; live brokers are {','.join(map(str, known))}")
        current = await settled_replicas(admin, topic or ())
        return current, Places({one.node_id: Place(machine=one.host or None, rack=one.rack) for one in nodes})

    current, places = with_admin(bootstrap_server, work)
    document = plan_document(plan_moves(current, wanted, places))
    text = json.dumps(document, indent=2)
    if out is None:
        output.answer(document, text)
        return
    output.write_file(out, text + "\n")
    output.answer({"plan": str(out)}, f"plan written to {out}; moldau reassign execute {out}")


@reassign.command()
def execute(
    plan_file: Plan,
    throttle: Annotated[
        int | None,
        typer.Option(
            min=1, help="Bytes per second that each broker may send and receive for the moves. Default: no limit."
        ),
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Start all moves of a plan; ``status`` lists those in progress. Repeat it to change the throttle."""
    from moldau import TopicPartition
    from moldau_cli.operations.throttling import throttle_moves
    from moldau_cli.plans.reassignment import read_plan

    moves = read_plan(plan_file)
    ending = f"; moldau reassign verify {plan_file} lifts the throttle" if throttle is not None else ""

    def answer(started: Sequence[TopicPartition]) -> None:
        output.answer(
            {"moves": len(started), "throttle": throttle},
            f"started {counted(len(started), 'move')}; moldau reassign status{ending}",
        )

    async def work(admin: Admin) -> None:
        if throttle is not None:
            await throttle_moves(admin, moves, throttle)
        with answering_done([TopicPartition(*one) for one in moves], answer, "not moved"):
            if moves:
                await admin.alter_partition_reassignments(moves)

    with_admin(bootstrap_server, work)


@reassign.command()
def verify(plan_file: Plan, bootstrap_server: BootstrapServer = None) -> None:
    """Show how far a plan is, and lift throttles that it no longer needs; exit code 1 until all moves are done.

    Moves of partitions that do not exist any more do not count: their topic was deleted, or recreated with fewer.
    """
    from moldau_cli.operations.moves import verify_moves
    from moldau_cli.plans.reassignment import read_plan
    from moldau_cli.plans.throttle import DONE, GONE

    moves = read_plan(plan_file)

    async def work(admin: Admin) -> dict[tuple[str, int], str]:
        return await verify_moves(admin, moves)

    found = with_admin(bootstrap_server, work)
    output.answer_rows(
        "moves",
        ["topic", "partition", "replicas", "state"],
        [
            {"topic": topic, "partition": number, "replicas": list(moves[topic, number]), "state": state}
            for (topic, number), state in found.items()
        ],
    )
    left = sum(state not in (DONE, GONE) for state in found.values())
    if left:
        raise CommandError(f"{left} of {len(found)} moves are not done")


def elect(
    topic: Annotated[str | None, typer.Option(help="Only this topic; default: all.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition (needs --topic).")] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Allow a leader that may lack acknowledged records (needs --topic).")
    ] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Move leadership back to the preferred replicas."""
    if topic is None and (partition is not None or unclean):
        raise UsageError("--partition and --unclean need --topic")

    async def work(admin: Admin) -> list[TopicPartition]:
        if topic is None:
            return await admin.elect_leaders()
        described = (await admin.describe_topics([topic]))[topic]
        numbers = [one.partition for one in described.partitions]
        if partition is not None and partition not in numbers:
            raise UsageError(absent_partition(topic, numbers, partition))
        wanted = [(topic, number) for number in numbers if partition in (None, number)]
        return await admin.elect_leaders(wanted, unclean=unclean)

    async def elect_and_answer(admin: Admin) -> None:
        await answer_results(work(admin), _answer_elected, "not elected")

    with_admin(bootstrap_server, elect_and_answer)


def _answer_elected(elected: list[TopicPartition]) -> None:
    if not elected and not output.wants_json():
        output.note("no partition has another leader now")
        return
    output.answer_rows(
        "elected",
        ["topic", "partition"],
        [{"topic": one.topic, "partition": one.partition} for one in sorted(elected)],
    )
