"""The figures of the source as a Markdown page and a plot."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {"moldau": "Moldau's source", "kafka": "JVM connector", "prepared": "prepared batches (limit)"}
COLOURS = {"moldau": "tab:blue", "kafka": "tab:orange", "prepared": "tab:grey"}
LATENCY = (
    "In each micro-batch Spark hands each task to a Python process, which unpacks the reader, fetches, and sends Arrow",
    "batches back over a socket; the JVM connector fetches in the task's own thread. The cost is per task and not per",
    "row. So partitions with fewer than 2,000 waiting records share a task, unless an option divides them. With larger",
    "micro-batches the cost of a task does not count: see the table of whole topics.",
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


def command_of(document: dict[str, Any]) -> str:
    """Returns the command that measured."""
    if "command" in document:
        return str(document["command"])
    return (
        f"python -m benchmarks.spark.source --cases {document['cases']} --rounds {document['rounds']} "
        f"--rows {document['scale']:g} --jars ... --out docs/benchmarks"
    )


def page(document: dict[str, Any]) -> str:
    """Returns the page."""
    cases = cases_of(document)
    readers = [name for name in NAMES if any(name in figures for _, figures in cases)]
    jars = ", ".join(document["jars"]) or "no jars of the JVM connector were given"
    loads = [row["load"] for row in document["throughput"]]
    lines = [
        "# What the Spark source does",
        "",
        f"Written by `{command_of(document)}` on {document['date']}: {platform.machine()}, "
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
        + " | Moldau / JVM | Moldau / limit | processor time of Moldau / JVM |",
        "|" + "---|" * (7 + len(readers)),
    ]
    for (size, partitions, codec, sink), figures in cases:
        rates = {name: figures[name]["rows_per_s"] for name in readers if name in figures}
        cells = [f"{size} B", str(partitions), codec, sink, *(f"{rates[name]:,}" for name in readers)]
        cells += [f"{rates['moldau'] / rates[name]:.2f}" if name in rates else "" for name in ("kafka", "prepared")]
        spent = [
            figures[name]["cpu_us_per_row"] for name in ("moldau", "kafka") if "cpu_us_per_row" in figures.get(name, {})
        ]
        cells.append(f"{spent[0] / spent[1]:.2f}" if len(spent) == 2 else "")
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
    if "rebuild" in document:
        lines += ["", *_rebuild(document["rebuild"])]
    return "\n".join(lines) + "\n"


def _rebuild(found: dict[str, Any]) -> list[str]:
    return [
        "## Rebuilding a view",
        f"The flights of 2013, {found['copies']} times in one topic of 6 partitions ({found['rows']:,} rows): a stream "
        f"builds a view of flights by carrier from offset zero and switches to it in {found['seconds']:,} s "
        f"({found['rows_per_s']:,} rows/s, {found['cpu_us_per_row']} µs of processor time a row; load average "
        f"{found['load']}).",
    ]


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
