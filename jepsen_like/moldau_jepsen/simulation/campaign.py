"""Many seeds over the cores: one seed is one run (``run``), the same each time.

Results are values, so they travel between processes; a failed seed leaves a folder.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from moldau_jepsen.simulation.options import Result, RunOptions, draw_network, planned_faults
from moldau_jepsen.simulation.run import Run, count_operations
from moldau_jepsen.simulation.watch import LogLines
from moldau_jepsen.simulation.world import run_world

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from moldau_jepsen.simulation.world import World

__all__ = ["Result", "RunOptions", "planned_faults", "run_seed", "run_seeds", "write_failure"]


def run_seed(seed: int, options: RunOptions | None = None) -> Result:
    """Runs one seed. The result is the same for the same seed, options and code, but for ``wall_seconds``."""
    chosen = options if options is not None else RunOptions()
    started = time.perf_counter()
    logs = LogLines()

    async def main(world: World) -> Result:
        run = Run(world, chosen, logs)
        await run.run()
        trace = world.trace
        lines = sorted([*(str(note) for note in trace.notes()), *run.logs.lines], key=lambda line: float(line[:12]))
        if run.violations:
            lines += ["", "the last events:", *(str(event) for event in trace.tail())]
        return Result(
            seed=seed,
            trace_hash=trace.digest,
            violations=tuple(run.violations),
            timeline=tuple(lines),
            virtual_seconds=trio.current_time(),
            wall_seconds=0.0,
            steps=run.observer.steps,
            events=trace.count,
            faults=run.injector.struck,
            acknowledged=run.recorder.acknowledged,
            polled=run.recorder.polled,
            fault_kinds=tuple(sorted({fault.kind.value for fault in run.plan})),
            operations=count_operations(run.history),
        )

    with logs.installed():
        result = run_world(main, seed, draw_network(seed))
    return replace(result, wall_seconds=time.perf_counter() - started)


def run_seeds(
    seeds: Iterable[int], *, processes: int | None = None, options: RunOptions | None = None
) -> Iterator[Result]:
    """Runs seeds over the cores, each in a process of its own pool; yields results as they come.

    Memory is bounded: no more than four seeds per process are handed out ahead.
    """
    count = processes if processes is not None else (os.cpu_count() or 1)
    remaining = iter(seeds)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(count, mp_context=context, max_tasks_per_child=50) as pool:
        running: dict[concurrent.futures.Future[Result], int] = {}
        exhausted = False
        while running or not exhausted:
            while not exhausted and len(running) < 4 * count:
                try:
                    seed = next(remaining)
                except StopIteration:
                    exhausted = True
                    break
                running[pool.submit(run_seed, seed, options)] = seed
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                del running[future]
                yield future.result()


def write_failure(result: Result, directory: Path) -> Path:
    """Writes the folder of a failed seed (result and timeline) and returns it."""
    folder = directory / f"seed-{result.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result.to_json(), indent=2) + "\n")
    (folder / "timeline.txt").write_text(
        "\n".join([result.replay_command, "", *result.violations, "", *result.timeline]) + "\n"
    )
    return folder
