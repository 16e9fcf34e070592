"""``moldau balance``: plans and carries out moves that even out a cluster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.options import BootstrapServer
from moldau_cli.client.running import with_admin
from moldau_cli.errors import UsageError
from moldau_cli.words import BROKER_IDS, a_number, counted, parse_ids

if TYPE_CHECKING:
    from moldau import Admin
    from moldau_cli.operations.moves import Moved
    from moldau_cli.operations.survey import Survey
    from moldau_cli.plans.balance.state import BrokerState, Partition

commands = typer.Typer(help="Even out replicas, bytes, racks and leaders over the brokers.", rich_markup_mode=None)

Throttle = Annotated[
    int | None,
    typer.Option(
        min=1, help="Bytes per second that each broker may send and receive for the moves. Default: no limit."
    ),
]
Batch = Annotated[
    int, typer.Option("--batch", min=1, max=1000, help="Replicas copied to one broker, and away from one, at a time.")
]
Stall = Annotated[
    float,
    typer.Option(
        "--timeout", min=1, callback=a_number, help="Seconds without any copied byte after which the command gives up."
    ),
]
BATCH, STALL_S = 5, 600.0


@commands.command()
def plan(
    out: Annotated[Path | None, typer.Option("--out", help="File for the plan, for execute. Default: none.")] = None,
    exclude: Annotated[
        str, typer.Option(metavar="IDS", help="Brokers that keep their replicas and get no others: 4,5")
    ] = "",
    drain: Annotated[str, typer.Option(metavar="IDS", help="Brokers that lose all replicas: 4,5")] = "",
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Move only these topics; default: all.")] = None,
    max_moves: Annotated[
        int | None,
        typer.Option(min=0, help="Replicas to copy at most; those of drained brokers do not count. Default: all."),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0, max=100, callback=a_number, help="Percent of the mean by which a broker may differ from it."
        ),
    ] = 10.0,
    slack_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes by which a broker may differ from the mean; small clusters need no moves.")
    ] = 64 << 20,
    leaders: Annotated[bool, typer.Option("--leaders/--no-leaders", help="Even out preferred leaders too.")] = True,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Compute moves that even out the cluster; nothing moves yet.

    The table has each broker before and after the plan. The file has the format of reassign, and of Kafka's own tool.
    """
    from moldau_cli.operations.survey import known_broker, survey
    from moldau_cli.plans.balance.planner import plan_balance
    from moldau_cli.plans.balance.state import ImpossiblePlanError, Options
    from moldau_cli.plans.reassignment import plan_document

    emptied, excluded = (
        parse_ids(text, f"{option}: {BROKER_IDS}", may_be_empty=True)
        for option, text in (("--drain", drain), ("--exclude", exclude))
    )
    seen = with_admin(bootstrap_server, survey)
    for node in (*emptied, *excluded):
        known_broker(seen, node)
    unknown = sorted(set(topic or ()) - set(seen.topics))
    if unknown:
        raise UsageError(f"topic {unknown[0]} does not exist")
    options = Options(
        emptied=frozenset(emptied),
        moves_max=max_moves,
        tolerance=tolerance / 100,
        slack_bytes=slack_bytes,
        moves_leaders=leaders,
    )
    placed = seen.placed
    frozen = [where for where in placed if where in seen.moving or (topic and where[0] not in topic)]
    try:
        found = plan_balance(placed, _with_excluded(seen, excluded), options, frozen=frozen)
    except ImpossiblePlanError as error:
        raise UsageError(str(error)) from error
    document = plan_document(found)
    if out is not None:
        output.write_file(out, json.dumps(document, indent=2) + "\n")
    _answer_plan(seen, found, document, out)


@commands.command()
def execute(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="File written by plan.")],
    throttle: Throttle = None,
    batch: Batch = BATCH,
    timeout: Stall = STALL_S,
    elect: Annotated[
        bool, typer.Option("--elect/--no-elect", help="Give leadership to the preferred replicas at the end.")
    ] = True,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Carry out a plan in batches, and return when all moves are done; throttles are lifted then.

    It may be interrupted: moves in progress go on, and the same command continues with the others. Another --throttle
    holds for the moves in progress too.
    """
    from moldau_cli.operations.moves import MoveOptions, carry_out_moves, run_moves
    from moldau_cli.plans.reassignment import read_plan

    moves = read_plan(plan_file)

    async def work(admin: Admin) -> Moved:
        options = MoveOptions(throttle=throttle, at_once_max=batch, stall_s=timeout, elects=elect)
        return await carry_out_moves(admin, moves, options)

    moved = run_moves(bootstrap_server, work)
    output.answer(
        {"moved": moved.moved, "already": moved.already, "gone": moved.gone},
        f"{counted(moved.moved, 'partition')} changed, {moved.already} as planned before"
        + (f", {moved.gone} {'does' if moved.gone == 1 else 'do'} not exist any more" if moved.gone else ""),
    )


@commands.command()
def leaders(bootstrap_server: BootstrapServer = None) -> None:
    """Give leadership to the preferred replicas, and show how many partitions each broker leads."""

    async def work(admin: Admin) -> tuple[int, Mapping[int, tuple[int, int]]]:
        from moldau_cli.operations.moves import count_leaders, elect_preferred
        from moldau_cli.operations.survey import survey

        seen = await survey(admin)
        strayed = [
            (name, part.partition)
            for name, topic in seen.topics.items()
            for part in topic.partitions
            if part.leader >= 0 and part.leader != part.replicas[0]
        ]
        changed = await elect_preferred(admin, strayed)
        now = await count_leaders(admin, seen.topics, strayed, changed)
        preferred = Counter(one.replicas[0] for one in seen.placed.values())
        return changed, {node: (now.get(node, 0), preferred[node]) for node in sorted(seen.brokers)}

    changed, brokers = with_admin(bootstrap_server, work)
    rows: list[dict[str, output.Json]] = [
        {"broker": node, "leaders": led, "preferred": preferred} for node, (led, preferred) in brokers.items()
    ]
    if output.wants_json():
        output.answer({"elected": changed, "brokers": list(rows)}, "")
        return
    output.write_line(f"changed {counted(changed, 'leader')}")
    output.answer_rows("brokers", ["broker", "leaders", "preferred"], rows)


def _with_excluded(seen: Survey, excluded: Sequence[int]) -> dict[int, BrokerState]:
    from dataclasses import replace

    return {node: replace(one, is_excluded=one.is_excluded or node in excluded) for node, one in seen.brokers.items()}


def _answer_plan(
    seen: Survey, found: Mapping[Partition, Sequence[int]], document: output.Json, out: Path | None
) -> None:
    """Writes brokers before and after a plan, and what it copies."""
    placed = seen.placed
    before = {where: one.replicas for where, one in placed.items()}
    after = {**before, **{where: tuple(replicas) for where, replicas in found.items()}}
    rows: list[dict[str, output.Json]] = []
    for node, broker in sorted(seen.brokers.items()):
        row: dict[str, output.Json] = {"broker": node, "rack": broker.rack}
        for title, state in (("", before), ("_after", after)):
            held = [where for where, replicas in state.items() if node in replicas]
            row[f"replicas{title}"] = len(held)
            row[f"leaders{title}"] = sum(state[where][0] == node for where in held)
            row[f"bytes{title}"] = sum(placed[where].size_bytes for where in held)
        rows.append(row)
    copied = [(where, node) for where, replicas in found.items() for node in replicas if node not in before[where]]
    size = sum(placed[where].size_bytes for where, _ in copied)
    if output.wants_json():
        figures: dict[str, output.Json] = {"partitions": len(found), "copies": len(copied), "bytes": size}
        output.answer({**figures, "brokers": list(rows), "plan": document}, "")
        return
    output.write_line(
        f"{counted(len(found), 'partition')} to change, {counted(len(copied), 'replica')} to copy, "
        f"{counted(size, 'byte')}"
    )
    columns = ["broker", "rack", "replicas", "replicas_after", "leaders", "leaders_after", "bytes", "bytes_after"]
    output.answer_rows("brokers", columns, rows)
    if out is not None:
        output.note(f"plan written to {out}; moldau balance execute {out}")
