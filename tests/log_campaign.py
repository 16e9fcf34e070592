"""Runs the log against its naive model over many seeds: random histories with crashes and power losses.

Each seed runs twice, with retention and with compaction; after every step everything is checked (``log_model``). What
fails is named with the command that runs it again, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from log_model import VirtualMachine, run_seed

PROGRESS_SECONDS = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Returns the number that the process ends with."""
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
        for compact in (False, True):
            try:
                run_seed(VirtualMachine(seed), seed=seed, steps=options.steps, compact=compact)
            except Exception:  # noqa: BLE001 - whatever goes wrong is a find
                failed.append(seed)
                traceback.print_exc()
                kind = "compacted" if compact else "plain"
                print(f"seed {seed} ({kind}) failed: python tests/log_campaign.py --first {seed} --seeds 1", flush=True)
                break
        if failed and not options.keep_going:
            break
    steps = 2 * options.steps * done
    print(f"{done} seeds, {steps} steps, {len(failed)} failed, {time.perf_counter() - begin:.0f} s")
    return 1 if failed or done == 0 else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # for this process alone: the tests call ``main``, and others look at the log
    sys.exit(main())
