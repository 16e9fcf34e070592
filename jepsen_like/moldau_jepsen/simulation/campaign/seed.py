"""One seed is one run (``run``), the same each time; its result is a value and travels between processes."""

from __future__ import annotations

import contextlib
import re
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from moldau_jepsen.cluster.secured import salted_once
from moldau_jepsen.coverage.coverage import (
    Coverage,
    MessageMeter,
    count_partition_changes,
    count_situations,
    watched,
)
from moldau_jepsen.simulation.campaign.figures import measure
from moldau_jepsen.simulation.campaign.options import (
    Result,
    RunOptions,
    draw_network,
    drawn_short_sequences,
)
from moldau_jepsen.simulation.campaign.run import Run
from moldau_jepsen.simulation.campaign.sequences import SHORT_END, sequences_end_at
from moldau_jepsen.simulation.judge.sampling import RunSampler
from moldau_jepsen.simulation.judge.watch import LogLines
from moldau_jepsen.simulation.judge.witness import Witness
from moldau_jepsen.world.world import run_world

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World


def run_seed(seed: int, options: RunOptions | None = None, *, detailed: bool = False, sampled: bool = True) -> Result:
    """Runs one seed. Except for ``wall_seconds``, the result depends only on seed, options and code.

    ``detailed`` adds the actions and the state of each node to the timeline; it costs time and changes nothing else.
    ``sampled`` samples the cluster over time for the diagram of the run, and changes nothing else either.
    """
    chosen = options if options is not None else RunOptions()
    started = time.perf_counter()
    logs = LogLines()
    coverage = Coverage()

    async def main(world: World) -> Result:
        run = Run(world, chosen, logs)
        held = run.injector.held_calls.message_sent if run.holds_calls else None
        world.network.tap = MessageMeter(coverage, run.judge.violated, run.observer.broker_heard, held)
        witness = Witness(run.cluster, world.agenda.clock) if detailed else None
        if witness is not None:
            world.agenda.watchers.append(witness.turn_ended)
        topics = (chosen.workload.topic, chosen.pipe_options.source, chosen.pipe_options.target)
        sampler = RunSampler(run.cluster, run.judge, world.agenda.clock, topics) if sampled else None
        if sampler is not None:
            world.agenda.watchers.append(sampler.turn_ended)
        await run.run()
        count_partition_changes(run.judge, coverage)
        count_situations(run.situations(), coverage)
        trace = world.trace
        return Result(
            seed=seed,
            trace_hash=trace.digest,
            violations=tuple(run.violations),
            timeline=tuple(_timeline(run, witness)),
            virtual_seconds=trio.current_time(),
            wall_seconds=0.0,
            steps=run.observer.steps,
            events=trace.count,
            faults=run.injector.effective.total(),
            acknowledged=run.recorder.acknowledged,
            polled=run.recorder.polled,
            faults_by_kind=dict(sorted(run.injector.effective.items())),
            planned_by_kind=dict(sorted(run.injector.begun.items())),
            outside=None if run.outside is None else len(run.outside.nodes),
            figures=measure(run.history),
            coverage=coverage,
            anomalies=run.anomalies,
            history=tuple(run.history) if run.violations else (),
            plan=tuple(run.plan),
            draws=run.drawn(),
            series=None if sampler is None else sampler.series(run.history, trace.notes(), _strikes(run)),
        )

    wraps = sequences_end_at(SHORT_END) if drawn_short_sequences(seed, chosen) else contextlib.nullcontext()
    with logs.installed(), watched(coverage), wraps, salted_once():
        result = run_world(main, seed, draw_network(seed))
    return replace(result, wall_seconds=time.perf_counter() - started)


def _strikes(run: Run) -> list[bool]:
    """Of each planned fault, in the order of their times: whether it took effect."""
    return [fault.number in run.injector.targets.effective for fault in sorted(run.plan, key=lambda fault: fault.begin)]


def kit_failed(seed: int, error: Exception) -> Result:
    """Returns the result of a run that did not finish because the kit itself failed. It has no trace."""
    return Result(
        seed=seed,
        trace_hash="",
        violations=(_kit_failure(error),),
        timeline=tuple(_where(error)),
        virtual_seconds=0.0,
        wall_seconds=0.0,
        steps=0,
        events=0,
        faults=0,
        acknowledged=0,
        polled=0,
    )


def add_kit_failure(result: Result, error: Exception) -> Result:
    """Adds a failure of the kit in a repeated run to a result, and keeps the result's violations."""
    violations = tuple(dict.fromkeys((*result.violations, _kit_failure(error))))
    return replace(result, violations=violations, timeline=(*result.timeline, "", *_where(error)))


def _kit_failure(error: Exception) -> str:
    return f"at the end: kit-failed: {type(error).__name__}: {' '.join(str(error).split())}"


def _where(error: Exception) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def _timeline(run: Run, witness: Witness | None) -> list[str]:
    """Faults and log lines in the order of time, with what a witness saw; of a failed run also how it ended."""
    lines = [(note.seconds, f"* {note.kind}", note.text) for note in run.world.trace.notes()]
    lines += [(float(line[:12]), *_node_of(line[12:].strip(), run)) for line in run.logs.lines]
    if witness is not None:
        lines += witness.lines
    shown = [f"{seconds:12.6f}  {who:<15}{text}" for seconds, who, text in sorted(lines, key=lambda line: line[0])]
    if run.violations and witness is not None:
        shown += ["", "what each node knew at the end:", *witness.at_the_end()]
    if run.violations:
        shown += ["", "the last events:", *(str(event) for event in run.world.trace.tail())]
    return shown


def _node_of(text: str, run: Run) -> tuple[str, str]:
    """Splits a log line: the node that it names, and the line."""
    found = re.search(r" node=(\d+)\b", text)
    node_id = int(found[1]) if found else None
    return run.cluster.host(node_id) if node_id in run.cluster.machines else "", text
