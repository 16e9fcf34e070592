"""The figures of the source as a Markdown page and a plot."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {"moldau": "Moldau's source", "kafka": "JVM connector", "prepared": "prepared batches (limit)"}
COLOURS = {"moldau": "tab:blue", "kafka": "tab:orange", "prepared": "tab:grey"}
LATENCY = (
    "The JVM connector is ahead here. The column of tasks (Spark's `addBatch`) says where: planning and offsets cost",
    "Moldau's source tens of milliseconds. In each micro-batch Spark hands each of the six tasks to a Python process,",
    "which unpacks the reader, fetches, and sends Arrow batches back over a socket; the JVM connector fetches in the",
    "task's own thread. The cost is per task and not per row, so it is less with fewer partitions, and with larger",
    "micro-batches it does not count: see the table of whole topics.",
)
PAGE, PLOT = "spark-source.md", "spark-source.svg"


def write_page(document: dict[str, Any], folder: Path) -> None:
    """Writes page and plot of a run into ``folder``."""
    (folder / PAGE).write_text(page(document), encoding="utf-8")
    draw(document, folder / PLOT)


def cases_of(document: dict[str, Any]) -> list[tuple[tuple[int, int, str, str], dict[str, dict[str, Any]]]]:
    """Returns the cases in the order in which they were run, with the figures of each reader."""
    found: dict[tuple[int, int, str, str], dict[str, dict[str, Any]]] = {}
    for row in document["throughput"]:
        case = (row["bytes"], row["partitions"], row["codec"], row["sink"])
        found.setdefault(case, {})[row["reader"]] = row
    return list(found.items())


def page(document: dict[str, Any]) -> str:
    """Returns the page."""
    cases = cases_of(document)
    readers = [name for name in NAMES if any(name in figures for _, figures in cases)]
    jars = ", ".join(document["jars"]) or "no jars of the JVM connector were given"
    loads = [row["load"] for row in document["throughput"]]
    lines = [
        "# What the Spark source does",
        "",
        f"Written by `python -m benchmarks.spark.source --cases {document['cases']} --rounds {document['rounds']} "
        f"--rows {document['scale']:g} --jars ... --out docs/benchmarks` on {document['date']}: {platform.machine()}, "
        f"{document['cores']} cores, PySpark {document['spark']}; {jars}.",
        "",
        f"The load average of the machine was {document['load_before']} before the run and {min(loads)} to "
        f"{max(loads)} during it. Other programs had a part of the cores, so only ratios within a row say something. "
        "Spark (`local[2]`), its Python processes and the broker share the cores.",
        "",
        "Each row reads one whole topic in a batch query, and the readers take turns. The figure is the median of the "
        "rounds. *Prepared batches* is a Python source that hands out ready Arrow batches of equal rows: it reads "
        "nothing and decodes nothing, so no Python source can be faster.",
        "",
        f"![rows per second]({PLOT})",
        "",
        "| row | partitions | codec | sink | "
        + " | ".join(f"{NAMES[name]}, rows/s" for name in readers)
        + " | Moldau / JVM | Moldau / limit |",
        "|" + "---|" * (6 + len(readers)),
    ]
    for (size, partitions, codec, sink), figures in cases:
        rates = {name: figures[name]["rows_per_s"] for name in readers if name in figures}
        cells = [f"{size} B", str(partitions), codec, sink, *(f"{rates[name]:,}" for name in readers)]
        cells += [f"{rates['moldau'] / rates[name]:.2f}" if name in rates else "" for name in ("kafka", "prepared")]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "## Micro-batches",
        "A producer writes steadily to 6 partitions; the stream goes into `noop` with trigger 0. The time is Spark's "
        "`triggerExecution`.",
        "",
        "| reader | rows/s written | micro-batches | p50, ms | p99, ms | of which tasks (median), ms | load average |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in document["latency"]:
        names = ("rows_per_s", "batches", "p50_ms", "p99_ms", "tasks_ms", "load")
        cells = [NAMES[row["reader"]], *(f"{row[name]:,}" for name in names)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *LATENCY]
    return "\n".join(lines) + "\n"


def draw(document: dict[str, Any], path: Path) -> None:
    """Draws a group of bars for each case."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "moldau"  # equal figures give equal files
    cases = cases_of(document)
    readers = [name for name in NAMES if any(name in figures for _, figures in cases)]
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(cases)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    height = 0.8 / len(readers)
    for number, name in enumerate(readers):
        places = [row + number * height for row, (_, figures) in enumerate(cases) if name in figures]
        rates = [figures[name]["rows_per_s"] / 1e6 for _, figures in cases if name in figures]
        axes.barh(places, rates, height, label=NAMES[name], color=COLOURS[name])
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(cases))])
    axes.set_yticklabels([f"{size} B, {parts} p., {codec}, {sink}" for (size, parts, codec, sink), _ in cases])
    axes.invert_yaxis()
    axes.set_xlabel("million rows per second")
    axes.legend()
    figure.savefig(str(path), metadata={"Date": None})
