"""Many connections to one broker, each with one Produce in flight, on all peers in turn.

Part of ``python -m benchmarks.broker --connections 100,1000``. A row says the rate, how much of a core the broker used,
and what a request cost it; peers alternate, and figures are medians of the rounds.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from typing import TYPE_CHECKING

from benchmarks.broker.measure import Bench, Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.broker.peers import Peer

BATCH_BYTES = (1024, 16 * 1024)
FILES_BESIDE_CONNECTIONS = 512
"""Open files of a broker, or of the load generator, besides its connections."""


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
    peers: list[Peer], counts: Sequence[int], *, rounds: int, seconds: float, directory: Path
) -> list[Row]:
    """Measures each number of connections with each size of batches; shows progress on standard error."""
    bench = Bench("1 broker, acks=1", peers, replicas=1, acks=1, seconds=seconds, directory=directory)
    bench.warm_up(min(seconds, 3.0))
    for number in range(rounds):
        sys.stderr.write(f"connections: round {number + 1} of {rounds}\n")
        bench.peers = [*bench.peers[1:], *bench.peers[:1]]  # who comes second finds memory that is warm
        for count in counts:
            for batch_bytes in BATCH_BYTES:
                bench.connections(count, batch_bytes)
    return list(bench.rows.values())


def table(rows: Sequence[Row], peers: Sequence[str], *, rounds: int, seconds: float, load: float) -> str:
    """Returns the page; ``load`` is the load average when the run began."""
    lines = [
        "# A broker with many connections",
        "",
        f"Written by `python -m benchmarks.broker --connections` on {platform.machine()}, {os.cpu_count()} cores,",
        f"Python {platform.python_version()}, load average at the beginning {load:.1f}.",
        f"Medians of {rounds} rounds of {seconds:g} s.",
        "Each connection has one Produce with acks=1 in flight, to one partition.",
        "Load generator and brokers share the cores.",
        "",
        "| load | batch | peer | requests/s | broker, cores | broker CPU of a request, µs |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for peer in peers:
            rate, cores = row.median(peer, "requests_per_second"), row.median(peer, "broker_cores")
            if rate and cores is not None:
                cost = cores / rate * 1e6
                lines.append(
                    f"| {row.what} | {row.batch_bytes:,} B | {peer} | {rate:,.0f} | {cores:.2f} | {cost:.0f} |"
                )
    if len(peers) == 2:
        lines += ["", f"{peers[0]} divided by {peers[1]}:", "", "| load | batch | rate | CPU of a request |"]
        lines.append("|---|---|---|---|")
        for row in rows:
            rates = [row.median(peer, "requests_per_second") or 0.0 for peer in peers]
            costs = [
                (row.median(peer, "broker_cores") or 0.0) / (rate or 1) for peer, rate in zip(peers, rates, strict=True)
            ]
            if all(rates) and all(costs):
                ratios = f"{rates[0] / rates[1]:.2f} | {costs[0] / costs[1]:.2f}"
                lines.append(f"| {row.what} | {row.batch_bytes:,} B | {ratios} |")
    return "\n".join([*lines, ""])
