"""Many connections to one broker, each with one Produce in flight, on all peers in turn.

Part of ``python -m benchmarks.broker --connections 100,1000``. A row says the rate, how much of a core the broker used,
and what a request cost it; peers alternate, and figures are medians of the rounds. Each ``Setup`` has clusters of its
own: ``--broker-cores`` gives the brokers of both peers the same cores, and ``--broker-processes`` compares several
brokers of Moldau, as ``broker.processes`` starts them, with one of Kafka.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.broker.many.cores import Cores, divide_cores
from benchmarks.broker.measure import Bench, Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.broker.peers import Peer

BATCH_BYTES = (1024, 16 * 1024)
FILES_BESIDE_CONNECTIONS = 512
"""Open files of a broker, or of the load generator, besides its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One section of the page: where brokers may run, and how many of them Moldau has."""

    cores: Cores | None = None
    """None: brokers and load generator share all cores."""
    processes: int = 1
    """Brokers of Moldau, and partitions of the topic on every peer."""

    @property
    def title(self) -> str:
        """Names the section."""
        if self.cores is None:
            brokers = "All cores"
        else:
            count = len(self.cores.brokers)
            brokers = "One core for the broker" if count == 1 else f"{count} cores for the brokers"
        several = f", {self.processes} brokers of Moldau beside one of Apache Kafka" if self.processes > 1 else ""
        return f"{brokers}{several}"

    @property
    def explanation(self) -> str:
        """Says who shares which cores."""
        topic = "one partition" if self.processes == 1 else f"one of {self.processes} partitions"
        if self.cores is None:
            return f"Load generator and brokers share {os.cpu_count()} cores. Each connection produces to {topic}."
        brokers, load = len(self.cores.brokers), len(self.cores.load)
        return (
            f"The brokers of each peer are pinned to the same {number_of(brokers)}, and take turns; the load generator "
            f"has {'a core' if load == 1 else number_of(load)} of its own.\nEach connection produces to {topic}."
        )


def setups_of(cores: Sequence[int | None], processes: int) -> list[Setup]:
    """Returns what to measure: each number of cores with one broker, then several brokers of Moldau on all cores.

    Raises:
        CoresError: brokers cannot be pinned to so many cores.
    """
    setups = [Setup(cores=None if count is None else divide_cores(count)) for count in cores]
    return setups + ([Setup(processes=processes)] if processes > 1 else [])


def number_of(cores: int) -> str:
    """Returns a number of cores in words."""
    return "core" if cores == 1 else f"{cores} cores"


def raise_file_limit(connections: int) -> None:
    """Lets this process and those that it starts open a file for each connection.

    Raises:
        ValueError: the hard limit is too low; the text says what to do.
    """
    wanted = connections + FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(
            f"{connections} connections need {wanted} open files, and the hard limit is {hard}: ulimit -Hn"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def measure_connections(
    peers: list[Peer], counts: Sequence[int], setup: Setup, *, rounds: int, seconds: float, directory: Path
) -> list[Row]:
    """Measures each number of connections with each size of batches; shows progress on standard error."""
    bench = Bench(
        f"{setup.title}, acks=1",
        peers,
        replicas=1,
        acks=1,
        seconds=seconds,
        directory=directory,
        load_cores=setup.cores.load if setup.cores else None,
    )
    bench.warm_up(min(seconds, 3.0))
    for number in range(rounds + 1):
        sys.stderr.write(f"connections: round {number} of {rounds}\n" if number else "connections: warm up\n")
        bench.peers = [*bench.peers[1:], *bench.peers[:1]]  # who comes second finds memory that is warm
        for count in counts:
            for batch_bytes in BATCH_BYTES:
                bench.connections(count, batch_bytes, setup.processes)
        if not number:
            bench.rows.clear()  # a JVM on one core still compiles in the first round
    return list(bench.rows.values())


def page_of(
    sections: Sequence[tuple[Setup, Sequence[Row]]],
    peers: Sequence[str],
    *,
    rounds: int,
    seconds: float,
    load: float,
) -> str:
    """Returns the page; ``load`` is the load average when the run began."""
    lines = [
        "# A broker with many connections",
        "",
        *(summary(setup, rows, peers) for setup, rows in sections if len(peers) == 2 and ratios(rows, peers)),
        "",
        f"Written by `python -m benchmarks.broker --connections` on {platform.machine()}, {os.cpu_count()} cores,",
        f"Python {platform.python_version()}, load average at the beginning {load:.1f}.",
        f"Medians of {rounds} rounds of {seconds:g} s after one that is not counted.",
        "Each connection has one Produce with acks=1 in flight.",
    ]
    for setup, rows in sections:
        lines += ["", f"## {setup.title}", "", *setup.explanation.split("\n"), "", *table(rows, peers)]
    return "\n".join([*lines, ""])


def table(rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    """Returns the lines of one section: the figures of each peer, and the ratios of two."""
    lines = [
        "| load | batch | peer | requests/s | broker, cores | load generator, cores | broker CPU of a request, µs |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for peer in peers:
            rate, cores = row.median(peer, "requests_per_second"), row.median(peer, "broker_cores")
            if rate and cores is not None:
                cost, own = cores / rate * 1e6, row.median(peer, "load_cores")
                figures = f"{rate:,.0f} | {cores:.2f} | {own:.2f} | {cost:.0f}"
                lines.append(f"| {row.what} | {row.batch_bytes:,} B | {peer} | {figures} |")
    if len(peers) == 2:
        lines += ["", f"{peers[0]} divided by {peers[1]}:", "", "| load | batch | rate | CPU of a request |"]
        lines.append("|---|---|---|---|")
        for row, rate_ratio, cost_ratio in ratios(rows, peers):
            lines.append(f"| {row.what} | {row.batch_bytes:,} B | {rate_ratio:.2f} | {cost_ratio:.2f} |")
    return lines


def ratios(rows: Sequence[Row], peers: Sequence[str]) -> list[tuple[Row, float, float]]:
    """Returns the first peer's rate, and its CPU of a request, divided by the second's, for each row that has both."""
    found = []
    for row in rows:
        rates = [row.median(peer, "requests_per_second") or 0.0 for peer in peers]
        costs = [
            (row.median(peer, "broker_cores") or 0.0) / (rate or 1) for peer, rate in zip(peers, rates, strict=True)
        ]
        if all(rates) and all(costs):
            found.append((row, rates[0] / rates[1], costs[0] / costs[1]))
    return found


def summary(setup: Setup, rows: Sequence[Row], peers: Sequence[str]) -> str:
    """Returns the result of a section in a sentence."""
    found = ratios(rows, peers)
    rates, costs = sorted(rate for _, rate, _ in found), sorted(cost for _, _, cost in found)
    return (
        f"- {setup.title}: {peers[0]} reaches {rates[0]:.2f} to {rates[-1]:.2f} of {peers[1]}'s rate,\n"
        f"  at {costs[0]:.2f} to {costs[-1]:.2f} of its processor time for a request."
    )
