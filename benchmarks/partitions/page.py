"""The page of the figures: a table and a plot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "partitions"
STEPS = {
    "create": "create all, until all replicas are in sync",
    "failover": "`kill -9` of a broker, until others lead",
    "recovery": "start it again after the kill, until all replicas are in sync",
    "stop": "controlled stop of the broker",
    "restart": "start it again after the stop, until all replicas are in sync",
}
HEAD = """\
# Many partitions

Three controllers and three brokers on one machine, `python -m benchmarks.partitions --out docs/benchmarks`. Processor
time counts all brokers, or all controllers, that live at the end of a step; it depends less on other work of the
machine than seconds do. The benchmark writes this page and the plot.

A broker keeps one file of each log open, and a second one for a log with aborted transactions. Raise the limit of open
files (`ulimit -n`, `LimitNOFILE=` in the unit) to at least twice the number of its logs: a broker refuses further logs
at about nine sixteenths of the limit. The machine of these runs allowed 20,000 files, so that a broker could have
11,250 logs: 10,000 partitions with three replicas fit, 20,000 do not. They need a limit of 36,000 files, and that
machine lets no process raise the limit (it takes the capability `CAP_SYS_RESOURCE`).

With one replica, no other broker can lead: the failover is the time until clients see the partitions without a leader.

![Cores at rest and processor time of a creation by number of partitions](partitions.svg)
"""


@dataclass(kw_only=True)
class Row:
    """The figures of one cluster."""

    partitions: int
    factor: int
    figures: dict[str, float] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)


def write_page(directory: Path, new: Row) -> None:
    """Adds a row to the JSON file, and writes page and plot from all of its rows."""
    data = directory / f"{NAME}.json"
    rows = [Row(**each) for each in json.loads(data.read_text("utf-8"))] if data.exists() else []
    rows = [one for one in rows if (one.partitions, one.factor) != (new.partitions, new.factor)] + [new]
    rows.sort(key=lambda one: (one.factor, one.partitions))
    data.write_text(json.dumps([asdict(one) for one in rows], indent=1) + "\n", encoding="utf-8")
    (directory / f"{NAME}.md").write_text(markdown(rows), encoding="utf-8")
    draw(rows, directory / f"{NAME}.svg")


def markdown(rows: list[Row]) -> str:
    """Returns the page."""
    lines = [HEAD, "## At rest\n"]
    lines.append(
        "| partitions | replicas | cores of brokers | without partitions | cores of controllers | MB of a broker |"
    )
    lines[-1] += " without | KB for each replica | MB of a controller | measured |"
    lines.append("|" + "---|" * 10)
    for row in rows:
        get = row.figures.get
        held = row.partitions * row.factor / 3
        each = (get("idle_broker_mb", 0.0) - get("empty_broker_mb", 0.0)) * 1e3 / held
        facts = f"{row.facts.get('date')}, load {row.facts.get('load')}"
        lines.append(
            f"| {row.partitions:,} | {row.factor} | {get('idle_broker_cores', 0):.3f} | "
            f"{get('empty_broker_cores', 0):.3f} | {get('idle_controller_cores', 0):.3f} | "
            f"{get('idle_broker_mb', 0):.0f} | {get('empty_broker_mb', 0):.0f} | {each:.1f} | "
            f"{get('idle_controller_mb', 0):.0f} | {facts} |"
        )
    for step, title in STEPS.items():
        lines += [f"\n## {title[0].upper() + title[1:] if title[0] != '`' else title}\n"]
        lines.append("| partitions | replicas | seconds | processor seconds of brokers | of controllers |")
        lines.append("|---|---|---|---|---|")
        for row in rows:
            if f"{step}_s" not in row.figures:
                continue
            found = [row.figures[f"{step}_{name}"] for name in ("s", "broker_cpu_s", "controller_cpu_s")]
            lines.append(f"| {row.partitions:,} | {row.factor} | {' | '.join(f'{one:.1f}' for one in found)} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    """Draws the plot."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "moldau"  # equal figures give equal files
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    counts = sorted({row.partitions for row in rows})
    for panel, keys, title in (
        (panels[0], ("idle_broker_cores", "idle_controller_cores"), "cores at rest"),
        (panels[1], ("create_broker_cpu_s", "create_controller_cpu_s"), "processor seconds of a creation"),
    ):
        for factor in sorted({row.factor for row in rows}):
            copies = "1 replica" if factor == 1 else f"{factor} replicas"
            for key, style in zip(keys, ("-o", "--s"), strict=True):
                found = [(row.partitions, row.figures[key]) for row in rows if row.factor == factor]
                role = "brokers" if "broker" in key else "controllers"
                panel.plot(*zip(*found, strict=True), style, label=f"{role}, {copies}", markersize=4)
        panel.set_xlabel("partitions")
        panel.set_xticks(counts, [f"{count:,}" for count in counts])
        panel.set_title(title)
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})
