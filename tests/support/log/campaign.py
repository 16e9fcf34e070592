"""Runs the log against its naive model over many seeds: random histories with crashes and power losses.

Each seed runs four times: with retention, with compaction, with compaction of transactions, and that short of file
descriptors. All checks run after every step (``support.log.model``). The output names a failed seed with the command
that runs it again, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from support.log.model import KINDS, VirtualMachine, run_seed

PROGRESS_SECONDS = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the campaign; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--steps", type=int, default=80, help="steps of each history (default: 80)")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    options = parser.parse_args(arguments)
    begin = reported = time.perf_counter()
    failed: list[int] = []
    done = 0
    for seed in range(options.first, options.first + options.seeds):
        if time.perf_counter() - reported >= PROGRESS_SECONDS:
            reported = time.perf_counter()
            print(f"{done} of {options.seeds} seeds, {len(failed)} failed, {reported - begin:.0f} s", flush=True)
        done += 1
        for kind in KINDS:
            try:
                run_seed(VirtualMachine(seed), seed=seed, steps=options.steps, kind=kind)
            except Exception:  # noqa: BLE001 - any error is a finding
                failed.append(seed)
                traceback.print_exc()
                again = f"PYTHONPATH=tests python -m support.log.campaign --first {seed} --seeds 1"
                print(f"seed {seed} ({kind}) failed: {again}", flush=True)
                break
        if failed and not options.keep_going:
            break
    steps = len(KINDS) * options.steps * done
    print(f"{done} seeds, {steps} steps, {len(failed)} failed, {time.perf_counter() - begin:.0f} s")
    return 1 if failed or done == 0 else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # for this process alone: the tests call ``main``, and others look at the log
    sys.exit(main())
