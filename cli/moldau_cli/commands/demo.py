"""``moldau demo``: runs the demo and prints its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError
from moldau_cli.words import counted

if TYPE_CHECKING:
    from moldau_jepsen.reports.demo import DemoResult

DEFAULT_DIRECTORY = Path("moldau-demo")


def demo(
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A file with one record per line, instead of the flights."),
    ] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave the Spark part out.")] = False,
    directory: Annotated[Path, typer.Option("--dir", help="Folder of cluster, Parquet, report.")] = DEFAULT_DIRECTORY,
) -> None:
    """Send real records through a cluster whose leader is killed, to Spark and Parquet, and prove exactly once."""
    from moldau_cli.demo.run import run_demo, write_report

    result = run_demo(directory.absolute(), source, with_spark=not no_spark)
    report = write_report(result, directory)
    _answer(result, report)
    if not result.exactly_once:
        raise CommandError("the exactly-once proof failed; see the report")


def _answer(result: DemoResult, report: Path) -> None:
    failover = result.failover
    if output.wants_json():
        document: dict[str, output.Json] = {
            "source": result.source,
            "records": result.records,
            "acknowledged": result.acknowledged,
            "produce_seconds": round(result.produce_s, 3),
            "records_per_second": round(result.rate),
            "cluster_ready_seconds": round(result.cluster_ready_s, 3),
            "failover_ms": round(failover.unavailable_ms) if failover else None,
            "exactly_once": result.exactly_once,
            "readers": [
                {
                    "reader": one.reader,
                    "seen": one.seen,
                    "lost": one.lost,
                    "duplicated": one.duplicated,
                    "unknown": one.unknown,
                    "disordered": one.disordered,
                }
                for one in result.tallies
            ],
            "report": str(report),
        }
        output.answer(document, "")
        return
    lines = []
    if result.aggregate_rows:
        rows = [list(row) for row in result.aggregate_rows]
        lines += ["", result.aggregate_title, output.table(list(result.aggregate_columns), rows)]
    lines += [
        "",
        f"produced   {result.acknowledged:,} of {result.records:,} records acknowledged by all in-sync replicas, "
        f"{result.rate:,.0f} records/s",
    ]
    if failover:
        lines.append(
            f"failover   {failover.unavailable_ms:.0f} ms from kill -9 of broker {failover.node_id} "
            f"(leader of {counted(failover.partitions, 'partition')}) to the next acknowledged write"
        )
    lines += [
        f"proof      {one.reader}: {one.seen:,} seen, {one.lost} lost, {one.duplicated} duplicated, "
        f"{one.unknown} unknown, {one.disordered} out of order"
        for one in result.tallies
    ]
    lines += [f"note       {note}" for note in result.notes]
    verdict = "each acknowledged record arrived exactly once" if result.exactly_once else "FAILED"
    lines += [f"verdict    {verdict}", f"report     {report}"]
    output.answer({}, "\n".join(lines))
