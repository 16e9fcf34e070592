"""Where a broker's time goes in the rows in which Apache Kafka is ahead:

    python -m benchmarks.broker.profile [--seconds S] [--output docs/benchmarks/broker-profile.md]

py-spy (``pip install moldau[bench]``) looks at the broker's stack 400 times a second from outside, C frames included,
while the load of ``benchmarks.broker.load`` runs. Only samples in which the broker works count: threads that wait for
something to do, and the event loop in its wait for sockets, are left out. A sample belongs to the innermost frame that
can be named: a system call, or else the Python function that was running or had called C. What a request costs in
calls, and what was removed since, is on [a page of its own](request-path.md).
"""

from __future__ import annotations

import argparse
import collections
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker.measure import KIB, MIB, Bench
from benchmarks.broker.peers import MoldauPeer

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLES_PER_SECOND = 400
SETTLE_S = 1.0
FUNCTIONS_SHOWN = 12
WAITING = ("epoll_wait", "lock_PyThread_acquire_lock")
IDLE_THREAD = "_work (trio/_core/_thread_cache.py"
"""The innermost Python function of a thread without work, where the interpreter has no symbols."""
SYSTEM_CALLS = {
    "send": "kernel: sockets out",
    "sendmsg": "kernel: sockets out",
    "sendfile64": "kernel: sockets out, from files",
    "recv": "kernel: sockets in",
    "pwritev64v2": "kernel: files",
    "preadv64v2": "kernel: files",
    "pread64": "kernel: files",
    "epoll_ctl": "kernel: registering for readiness",
}
PLACES = (
    ("trio/", "trio: tasks and readiness"),
    ("outcome/", "trio: tasks and readiness"),
    ("moldau/runtime/", "connection loop and environment"),
    ("moldau/protocol/", "requests decoded, responses encoded"),
    ("moldau/records/", "batches checked"),
    ("moldau_broker/server/", "broker: handlers and replicas"),
    ("moldau_broker/replication/", "broker: replica state, fetch sessions"),
    ("moldau_broker/log/", "log"),
)
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the comparison: how the load generator is called, and whether it reads what was produced before."""

    title: str
    load: dict[str, float]
    fetches: bool = False


CASES = (
    Case(title="produce, 100 B records in 16 KiB, 100 connections", load={"connections": 100, "window": 1}),
    Case(title="produce, 100 B records in 16 KiB, 1,000 connections", load={"connections": 1000, "window": 1}),
    Case(
        title="fetch, 1 KiB records in 128 KiB, 1 connection",
        load={"record_bytes": 1024, "batch_bytes": 128 * KIB},
        fetches=True,
    ),
)


def named(frame: str) -> str:
    """A frame without the line in it."""
    return re.sub(r":\d+\)$", ")", frame)


def place(stack: list[str]) -> tuple[str, str] | None:
    """The group and the function that a sample belongs to; None when nothing was being done.

    >>> place(["run (trio/_core/_run.py:1)", "send_nowait (moldau/runtime/ports/real.py:7)", "send (libc.so.6)"])
    ('kernel: sockets out', 'send, for send_nowait (moldau/runtime/ports/real.py)')
    >>> place(["WorkerThread._work (trio/_core/_thread_cache.py:9)", "0x7f12 (libc.so.6)"])
    >>> place(["run (trio/_core/_run.py:1)", "get_events (trio/_core/_io_epoll.py:2)", "epoll_wait (libc.so.6)"])
    """
    names = [frame.partition(" ")[0] for frame in stack]
    if any(name in WAITING for name in names):
        return None
    python = next((frame for frame in reversed(stack) if ".py:" in frame), "")
    if IDLE_THREAD in python:
        return None
    if names[-1] in SYSTEM_CALLS:
        return SYSTEM_CALLS[names[-1]], f"{names[-1]}, for {named(python)}"
    group = next((group for path, group in PLACES if path in python), OTHER)
    return group, named(python) or OTHER


def tally(lines: Iterable[str]) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Samples by group and by function, from py-spy's raw lines (``frame;frame;... count``)."""
    groups: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        found = place(stack.split(";"))
        if found is not None:
            groups[found[0]] += int(count)
            functions[found[1]] += int(count)
    return groups, functions


def take(bench: Bench, peer: MoldauPeer, case: Case, py_spy: str, directory: Path) -> tuple[str, list[str]]:
    """Runs one case under the profiler; returns its rate in words and py-spy's lines."""
    topic, load = bench.topic(peer), dict(case.load)
    if case.fetches:
        bench.load(peer, topic, **load)
        load["offset"] = max(0, bench.end_offset(peer, topic) - 16 * MIB // int(load["record_bytes"]))
    (pid,) = peer.broker_pids().values()
    samples = directory / "samples.txt"
    watch = [py_spy, "record", "--native", "--format", "raw", "--rate", str(SAMPLES_PER_SECOND), "--pid", str(pid)]
    watch += ["--duration", str(max(1, round(bench.seconds - SETTLE_S))), "--output", str(samples)]
    with subprocess.Popen(watch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as profiler:
        sample = bench.load(peer, topic, "fetch" if case.fetches else "produce", **load)
        _, errors = profiler.communicate()
    if profiler.returncode:
        raise RuntimeError(f"py-spy failed: {errors.strip()[-300:]}")
    bench.drop(peer, topic)
    rate = f"{sample.requests_per_second:,.0f} requests/s, {sample.megabytes_per_second:,.0f} MB/s"
    return rate, samples.read_text(encoding="utf-8").splitlines()


def section(title: str, rate: str, lines: list[str]) -> str:
    """One case as Markdown."""
    groups, functions = tally(lines)
    total = sum(groups.values())
    text = f"## {title}\n\n{rate} under the profiler; {total:,} samples of work.\n\n| where | share |\n|---|---|\n"
    text += "".join(f"| {group} | {count / total:.0%} |\n" for group, count in groups.most_common())
    text += f"\nThe {FUNCTIONS_SHOWN} functions that cost most:\n\n| function | share |\n|---|---|\n"
    shown = functions.most_common(FUNCTIONS_SHOWN)
    return text + "".join(f"| `{name}` | {count / total:.1%} |\n" for name, count in shown)


def main() -> None:
    """Profiles each case, shows progress, writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one load")
    parser.add_argument("--output", type=Path, default=None, help="where to write the page (Markdown)")
    parser.add_argument("--directory", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    options = parser.parse_args()
    beside = Path(sys.executable).with_name("py-spy")
    py_spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if py_spy is None:
        sys.exit("no py-spy beside this Python or on the PATH: pip install moldau[bench]")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    written = f"Written by `python -m benchmarks.broker.profile` on {machine}."
    method = (__doc__ or "").partition("    python")[2].partition("\n\n")[2]
    page = [f"# Where a broker's time goes\n\n{written}\n\n{method}"]
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        peer = MoldauPeer(directory / "cluster", 1, {"log.retention.check.interval.ms": "1000"})
        try:
            bench = Bench("profile", [peer], replicas=1, acks=1, seconds=options.seconds, directory=directory)
            for case in CASES:
                sys.stderr.write(f"{case.title} ...\n")
                page.append(section(case.title, *take(bench, peer, case, py_spy, directory)))
        finally:
            peer.shut_down()
    text = "\n".join(page)
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
