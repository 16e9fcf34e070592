"""Measures what a local cluster costs and how fast it heals: ``python -m benchmarks.cluster [--rounds N] [--json]``.

- ready: from ``start_cluster`` to every broker unfenced (three controllers, three brokers), median and worst of the
rounds
- idle: resident memory and processor time of each node, over ``--idle`` seconds without clients
- failover: kill -9 of the leader of a one-partition topic to the next acknowledged write, seen by an idempotent
  librdkafka producer with acks=all that writes all the while

Bounds that hold on two cores: ready under 3 s, under 60 MB and near 0% of a core for an idle node, failover under 1 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.broker.unavailability import unavailable_ms

from moldau_jepsen.launcher import ClusterSpec, LocalCluster, start_cluster
from moldau_jepsen.launcher.process import cpu_ms, resident_bytes

SETTLE_S = 1.0


def measure_idle(cluster: LocalCluster, seconds: float) -> list[dict[str, object]]:
    """Memory and share of a core of every node while nothing happens."""
    time.sleep(SETTLE_S)
    before = {node.node_id: cpu_ms(node.pid) for node in cluster.nodes}
    time.sleep(seconds)
    return [
        {
            "node": node.node_id,
            "role": node.role,
            "rss_mb": round(resident_bytes(node.pid) / 1e6, 1),
            "cpu_percent": round((cpu_ms(node.pid) - before[node.node_id]) / (seconds * 10), 2),
        }
        for node in cluster.nodes
    ]


def measure_failover(cluster: LocalCluster) -> float:
    """Milliseconds from kill -9 of the leader to the acknowledgement of a record that was sent after it."""
    return unavailable_ms(cluster.bootstrap, "failover", cluster.kill)


def main() -> None:
    """Runs the rounds and prints the figures."""
    parser = argparse.ArgumentParser(description="Start time, idle cost and failover time of a local cluster.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ready_ms: list[float] = []
    failover_ms: list[float] = []
    idle: list[dict[str, object]] = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="moldau-bench-", ignore_cleanup_errors=True) as directory:
            began = time.monotonic()
            cluster = start_cluster(Path(directory) / "cluster", ClusterSpec())
            try:
                ready_ms.append((time.monotonic() - began) * 1000)
                if number == 0:
                    idle = measure_idle(cluster, options.idle)
                failover_ms.append(measure_failover(cluster))
            finally:
                cluster.shut_down()
        sys.stderr.write(f"round {number + 1}: ready {ready_ms[-1]:.0f} ms, failover {failover_ms[-1]:.0f} ms\n")
    figures: dict[str, Any] = {
        "ready_ms": {"median": round(statistics.median(ready_ms)), "worst": round(max(ready_ms))},
        "failover_ms": {"median": round(statistics.median(failover_ms)), "worst": round(max(failover_ms))},
        "idle": idle,
    }
    if options.json:
        print(json.dumps(figures))
        return
    for name in ("ready_ms", "failover_ms"):
        print(f"{name}: median {figures[name]['median']}, worst {figures[name]['worst']} of {options.rounds}")
    for node in idle:
        print(f"idle {node['role']} {node['node']}: {node['rss_mb']} MB, {node['cpu_percent']} % of a core")


if __name__ == "__main__":
    main()
