"""The figures of the sink as a Markdown page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {
    "moldau exactly-once": "Moldau, exactly once",
    "moldau at-least-once": "Moldau, at least once",
    "kafka": "Spark's JVM connector, at least once",
}
PAGE = "spark-sink.md"
AIM_ROWS_PER_S = 500_000
PROFILE = (
    "## Where the time goes",
    "Choosing partitions, grouping and encoding rows of 100 B takes 0.1 µs of processor time a row (10.5 million",
    "rows/s on one core, batches of 256 KiB, CRC included), and the fingerprint of exactly once 0.04 µs. The rest is",
    "Spark's transfer of the rows to Python, the requests, and three brokers that each write every row, on the same",
    "cores.",
    "",
    "Both guarantees send the same batches: counted on 25 November 2026 without Spark, one task with 200,000 rows of",
    "100 B sent 44 requests with batches of 252,871 bytes on average under either guarantee. *At least once* took 0.29",
    "to 0.36 s of processor time in client and brokers (0.10 s in the client), *exactly once* 0.64 to 0.66 s (0.25 s):",
    "the fingerprint, the transaction with its marker, and the decision. For so few rows the fixed part, some tens of",
    "milliseconds a micro-batch, weighs most. In the run of 23 November *at least once* seemed slower only because it",
    "always came after the JVM connector, when the brokers were busy with that sink's many small batches; now each",
    "round begins with another sink.",
)


def write_sink_page(document: dict[str, Any], folder: Path) -> None:
    """Writes the page of a run into ``folder``."""
    (folder / PAGE).write_text(page(document), encoding="utf-8")


def page(document: dict[str, Any]) -> str:
    """Returns the page."""
    figures = document["figures"]
    jars = ", ".join(document["jars"]) or "no jars of the JVM connector"
    loads = [row["load"] for row in figures]
    aim = next(row["rows_per_s"] for row in figures if row["bytes"] == 100 and row["sink"] == "moldau exactly-once")
    lines = [
        "# What the Spark sink does",
        "",
        f"Written by `{document['command']}` on {document['date']}: {document['machine']}, {document['cores']} cores, "
        f"PySpark {document['spark']}; {jars}.",
        "",
        f"The load average was {document['load_before']} before the run and up to {max(loads)} during it. Spark "
        "(`local[2]`), its Python processes and three brokers under three controllers share the cores. Two tasks write "
        "rows of a cached table; the topic has 6 partitions and 3 replicas; acks=all. The sinks take turns; rows/s is "
        "the median of the rounds. Processor time counts Spark, its Python processes and the brokers.",
        "",
        "| row | sink | rows/s | processor time, µs a row | rounds, s |",
        "|---|---|---|---|---|",
    ]
    for row in figures:
        seconds = ", ".join(f"{each:.2f}" for each in row["seconds"])
        lines.append(
            f"| {row['bytes']} B | {NAMES[row['sink']]} | {row['rows_per_s']:,} | {row['cpu_us_per_row']:.2f} "
            f"| {seconds} |"
        )
    reached = "reached" if aim >= AIM_ROWS_PER_S else "missed"
    lines += [
        "",
        f"The aim of {AIM_ROWS_PER_S:,} rows/s of 100 B, exactly once, was {reached}. A round includes the start of "
        "the job and, for exactly once, the decision and the commits. The JVM connector ran with its own defaults "
        "(batches of 16 KiB), Moldau's sink with its own (256 KiB, 20 ms).",
        "",
        *PROFILE,
    ]
    return "\n".join(lines) + "\n"
