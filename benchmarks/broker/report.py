"""The figures as a Markdown page and a plot."""

from __future__ import annotations

import os
import platform
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.broker.measure import Row

MOLDAU = "Moldau"
READING = (
    "Where Apache Kafka is ahead, [the profile](broker-profile.md) says why: a Moldau broker is one process on one",
    "core (the column of cores ends near 1). That core limits fetches, which Kafka sends from several threads, and",
    "hundreds of connections with small batches. Where the brokers share two cores with everything else (three",
    "brokers, acks=all), the cost of a request decides. A JVM gets faster over hours of load, so a short run is not",
    "its best. Python bounds the rows of librdkafka. Beside its tool, brokers take a small part of the cores, and the",
    "clients all the rest: the ratio of the rates cannot exceed cores / (cores - cores of Kafka's brokers), which is",
    "2 / (2 - 0.26) = 1.15 where these take 0.26 of two cores, even if Moldau's brokers cost nothing.",
)


def size_name(size: int) -> str:
    """``16 KiB``, ``1 MB``, or nothing for 0."""
    if not size:
        return ""
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size / 1e6:g} MB"


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None or value < 0 else f"{value:,.{digits}f}"


def _table(rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    head = ["what", "record", "batch"]
    for peer in peers:
        head += [f"{peer}: records/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "broker cores"]
    compared = len(peers) > 1
    if compared:
        head += ["records/s, ratio", "p99, ratio", "cores per record, ratio"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.what, f"{row.record_bytes} B", size_name(row.batch_bytes)]
        for peer in peers:
            cells += [
                _figure(row.median(peer, "records_per_second"), 0),
                _figure(row.median(peer, "megabytes_per_second"), 0),
                *(_figure(row.median(peer, name), 2) for name in ("p50_ms", "p99_ms", "p999_ms", "broker_cores")),
            ]
        if compared:
            cells += [_figure(value, 2) for value in ratios(row, peers[1])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def ratios(row: Row, other: str) -> tuple[float | None, float | None, float | None]:
    """Moldau's figure divided by the other's: records/s (more is better), p99 and cores per record (less is better)."""

    def ratio(mine: float | None, theirs: float | None) -> float | None:
        return None if mine is None or theirs is None or mine < 0 or theirs <= 0 else mine / theirs

    def cost(peer: str) -> float | None:
        cores, rate = row.median(peer, "broker_cores"), row.median(peer, "records_per_second")
        return None if cores is None or not rate else cores / rate

    return (
        ratio(row.median(MOLDAU, "records_per_second"), row.median(other, "records_per_second")),
        ratio(row.median(MOLDAU, "p99_ms"), row.median(other, "p99_ms")),
        ratio(cost(MOLDAU), cost(other)),
    )


def markdown(rows: Sequence[Row], facts: dict[str, Any], plot: str | None) -> str:
    """The page; ``facts`` holds peers, rounds, why a peer is absent, start times, memory and unavailability."""
    peers: list[str] = facts["peers"]
    rounds = "One round" if facts["rounds"] == 1 else f"Medians of {facts['rounds']} rounds"
    lines = [
        "# What a broker does",
        "",
        f"Written by `python -m benchmarks.broker` on {platform.machine()}, {os.cpu_count()} cores, Python",
        f"{platform.python_version()}. Load generator, clients, controllers and brokers share these cores.",
        f"The data lies in memory (`/dev/shm`). {rounds} of {facts['seconds']:g} s.",
        "Peers take turns row by row in one run, with the same topic settings. Latency is from the moment a request",
        "was due to its answer over loopback. A ratio is Moldau's figure divided by the other's. Load average of the",
        f"machine when the run began: {facts['load']:.1f}.",
        "",
    ]
    lines += [*READING, ""]
    if facts.get("absent"):
        lines += [f"Apache Kafka was not measured: {facts['absent']}.", ""]
    if plot is not None:
        lines += [f"![throughput and latency]({plot})", ""]
    for section in dict.fromkeys(row.section for row in rows):
        lines += [f"## {section}", "", *_table([row for row in rows if row.section == section], peers), ""]
    lines += [
        "## Start and memory",
        "",
        "| cluster | peer | ready after s | resident MB of a broker, idle | after the load |",
    ]
    lines += ["|---|---|---|---|---|"]
    for section, peer, started, idle, loaded in facts["starts"]:
        lines.append(f"| {section} | {peer} | {started:.1f} | {idle:.0f} | {loaded:.0f} |")
    lines += ["", "## Unavailability of a partition after a fault of its leader", ""]
    lines += ["An idempotent librdkafka producer with acks=all, replication factor 3, default session timeouts.", ""]
    lines += ["| fault | peer | median ms | rounds, ms |", "|---|---|---|---|"]
    for fault, peer, rounds in facts["unavailable"]:
        each = ", ".join(f"{value:,.0f}" for value in rounds)
        lines.append(f"| {fault} | {peer} | {statistics.median(rounds):,.0f} | {each} |")
    return "\n".join([*lines, ""])


def draw(rows: Sequence[Row], peers: Sequence[str], path: Path) -> None:
    """Throughput as bars and produce-to-ack latency as bars on a log scale, for every cluster; an SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "moldau"
    from matplotlib import pyplot as plt

    sections = list(dict.fromkeys(row.section for row in rows))
    figure, axes = plt.subplots(len(sections), 3, figsize=(16, 4.2 * len(sections)), squeeze=False)
    colours = ("#1f6feb", "#d29922")
    for index, section in enumerate(sections):
        mine = [row for row in rows if row.section == section]
        panels = (
            (axes[index][0], [r for r in mine if r.what == "produce"], "megabytes_per_second", "produce, MB/s"),
            (axes[index][1], [r for r in mine if r.what == "fetch"], "megabytes_per_second", "fetch, MB/s"),
            (axes[index][2], [r for r in mine if " at " in r.what], "p99_ms", "p99, ms (log scale)"),
        )
        for axis, shown, name, title in panels:
            for number, peer in enumerate(peers):
                width = 0.8 / len(peers)
                places = [place + number * width for place in range(len(shown))]
                axis.bar(
                    places, [row.median(peer, name) or 0 for row in shown], width, label=peer, color=colours[number]
                )
            labels = [
                row.what if name == "p99_ms" else f"{row.record_bytes} B\n{size_name(row.batch_bytes)}" for row in shown
            ]
            axis.set_xticks([place + 0.4 - 0.4 / len(peers) for place in range(len(shown))], labels, fontsize=8)
            if name == "p99_ms":
                axis.set_yscale("log")
                axis.tick_params(axis="x", labelrotation=25)
            axis.set_title(f"{section}: {title}", fontsize=10)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
