"""Predicts clusters of up to 300 brokers and a million partitions, and checks the model against a simulated cluster.

    PYTHONPATH=tests python -m benchmarks.scale [--out docs/benchmarks]

The unit costs come from simulated clusters of 3 and 6 brokers, and from an image of 100,000 partitions
(``benchmarks.quorum.controller_state``). The check is a simulated cluster of 30 brokers. ``--out`` writes ``scale.md``
and ``scale.svg``. It takes about a minute of one core.
"""

from __future__ import annotations

import argparse
import gc
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.quorum.controller_state import measure
from benchmarks.scale.model import Shape, Units, predict
from benchmarks.scale.simulated import Observed, observe

if TYPE_CHECKING:
    from benchmarks.scale.model import Prediction

SMALL = (3, 6)
CHECKED = (30, 300)
STATE_PARTITIONS = 100_000
BROKERS = (30, 100, 300)
PARTITIONS = (100_000, 1_000_000)
PAGE, PLOT = "scale.md", "scale.svg"
HEAD = """\
# Large clusters: a model

How much the metadata quorum has to do with 30 to 300 brokers and up to a million partitions, three replicas each. No
cluster of that size was run: the figures are a model's. `PYTHONPATH=tests python -m benchmarks.scale --out
docs/benchmarks` measures its unit costs, checks it, and writes this page (DATE, one core).

![Seconds from the death of a broker until all of its partitions have another leader](scale.svg)

| brokers | partitions | quorum traffic at rest, KB/s | sends a second | snapshot MB | reading it, s of one core \
| partitions of a broker | failover, first s | failover, last s | failover, MB to all nodes |
|---|---|---|---|---|---|---|---|---|---|
"""
MEANING = """
Failover is the time from `kill -9`, when the broker's host refuses connections, until the first and the last of its
partitions have another leader that knows of it. Partitions are elected in slices of 250. A broker whose host is gone is
fenced `broker.session.grace.ms` (250 ms) after its connections break; a broker that falls silent on open connections,
after `broker.session.timeout.ms` (9 s). Add these times.
"""
LIMITS = """
## Limits of the model

- The processor time is that of one run on an idle image; a controller that serves clients as well needs longer.
- All changed partitions pass through one core of the active controller. More brokers mean fewer partitions for each, so
  a failover is shorter in a larger cluster.
- The work of the new leaders (fetch sessions, epochs, files) is not part of it: [many partitions](partitions.md) has
  measurements.
- A larger image makes a change dearer than the unit cost says: [controller](controller.md) has both sizes.
"""


def calibrate() -> Units:
    """Measures the unit costs."""
    gc.set_threshold(20_000, 20, 50)  # as a node sets it
    state = {name: float(str(value)) for name, value in measure(STATE_PARTITIONS).items()}
    gc.unfreeze()
    small, larger = (observe(brokers, 10 * brokers) for brokers in SMALL)
    more = larger.brokers - small.brokers
    per_broker = (larger.rest_bytes_per_s - small.rest_bytes_per_s) / more
    changed = state["partitions_changed"]
    return Units(
        rest_bytes=small.rest_bytes_per_s - small.brokers * per_broker,
        rest_broker_bytes=per_broker,
        rest_broker_sends=(larger.rest_sends_per_s - small.rest_sends_per_s) / more,
        change_bytes=state["command_bytes"] / changed,
        snapshot_bytes=state["snapshot_bytes"] / STATE_PARTITIONS,
        decide_s=(state["decide_seconds"] + state["encode_seconds"]) / changed,
        apply_s=state["decode_and_apply_seconds"] / changed,
        read_s=state["snapshot_read_seconds"] / STATE_PARTITIONS,
    )


def checked_rows(units: Units, seen: Observed) -> list[tuple[str, float, float, str]]:
    """Returns each figure that the simulation shows, as the model and as the simulation has it."""
    shape = Shape(brokers=seen.brokers, partitions=seen.partitions, round_trip_s=0.001, sync_s=0.001)
    free = Units(**{**_fields(units), "decide_s": 0.0, "apply_s": 0.0})  # processors cost nothing in the simulation
    wanted = predict(shape, free, changed=seen.changed)
    return [
        ("bytes a second between brokers and controllers", wanted.rest_bytes_per_s, seen.rest_bytes_per_s, ",.0f"),
        ("bytes after the death of a broker", wanted.failover_bytes, seen.failover_bytes, ",.0f"),
        ("ms until the last partition is led again", wanted.last_s * 1000, seen.last_ms, ".1f"),
    ]


def _fields(units: Units) -> dict[str, float]:
    return {name: getattr(units, name) for name in Units.__dataclass_fields__}


def page(units: Units, seen: Observed, predictions: dict[tuple[int, int], Prediction]) -> str:
    """Returns the page."""
    lines = [HEAD.replace("DATE", datetime.now(UTC).date().isoformat()).rstrip("\n")]
    for (brokers, partitions), one in predictions.items():
        lines.append(
            f"| {brokers} | {partitions:,} | {one.rest_bytes_per_s / 1e3:.0f} | {one.rest_sends_per_s:.0f} | "
            f"{one.snapshot_bytes / 1e6:.1f} | {one.restart_s:.1f} | {one.changed:,.0f} | {one.first_s:.3f} | "
            f"{one.last_s:.2f} | {one.failover_bytes / 1e6:.1f} |"
        )
    state = f"an image of {STATE_PARTITIONS:,} partitions"
    small = f"simulated clusters of {SMALL[0]} and {SMALL[1]} brokers"
    at_rest = f"{units.rest_broker_bytes:.0f} bytes/s, {units.rest_broker_sends:.1f} sends/s"
    lines += [
        MEANING,
        "## Unit costs\n",
        "| what | cost | measured |",
        "|---|---|---|",
        f"| traffic of a broker at rest | {at_rest} | {small} |",
        f"| traffic among three controllers at rest | {units.rest_bytes:.0f} bytes/s | {small} |",
        f"| a changed partition in the log | {units.change_bytes:.0f} bytes | {state} |",
        f"| a partition in a snapshot | {units.snapshot_bytes:.0f} bytes | {state} |",
        f"| deciding and encoding a change | {units.decide_s * 1e6:.0f} µs | {state} |",
        f"| decoding and applying a change | {units.apply_s * 1e6:.0f} µs | {state} |",
        f"| reading a partition of a snapshot | {units.read_s * 1e6:.0f} µs | {state} |",
        f"\n## The model against a simulated cluster of {seen.brokers} brokers\n",
        f"Three controllers, {seen.partitions} partitions, whole production code on virtual time. A broker is killed;",
        f"{seen.changed} partitions have a replica on it. Processors cost nothing in the simulation, so the model's",
        "unit times are 0 here: the comparison checks messages and bytes.\n",
        "| figure | model | simulation |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {model:{form}} | {real:{form}} |" for name, model, real, form in checked_rows(units, seen)]
    return "\n".join(lines) + "\n" + LIMITS


def draw(predictions: dict[tuple[int, int], Prediction], path: Path) -> None:
    """Draws the plot."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "moldau"  # equal figures give equal files
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for partitions in PARTITIONS:
        found = [predictions[brokers, partitions].last_s for brokers in BROKERS]
        panel.plot(BROKERS, found, "-o", label=f"{partitions:,} partitions")
    panel.set_xlabel("brokers")
    panel.set_ylabel("seconds")
    panel.set_ylim(bottom=0)
    panel.set_title("last new leader after the death of a broker")
    panel.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measures, checks and predicts."""
    parser = argparse.ArgumentParser(description="A model of large clusters, checked in the simulation.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    units = calibrate()
    seen = observe(*CHECKED)
    predictions = {
        (brokers, partitions): predict(Shape(brokers=brokers, partitions=partitions), units)
        for partitions in PARTITIONS
        for brokers in BROKERS
    }
    text = page(units, seen, predictions)
    sys.stdout.write(text)
    if options.out is not None:
        (options.out / PAGE).write_text(text, encoding="utf-8")
        draw(predictions, options.out / PLOT)


if __name__ == "__main__":
    main()
