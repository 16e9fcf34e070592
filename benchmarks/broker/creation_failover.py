"""How long a partition cannot be written when its leader dies right after many partitions were created.

``python -m benchmarks.broker.creation_failover [--partitions 1000] [--json]`` starts three controllers and three
brokers, creates a topic with that many partitions and three replicas while a producer writes to another topic, and
kills the leader of that other topic as soon as the creation is acknowledged. The figure is the time from the kill to
the acknowledgement of the first record that was sent after it; then the survivors are asked to stop in order.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker.unavailability import unavailable_ms
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from moldau_jepsen.launcher import ClusterSpec, start_cluster

if TYPE_CHECKING:
    from moldau_jepsen.launcher import LocalCluster

CREATION_TIMEOUT_S = 300.0
TOPIC_PARTITIONS_MAX = 1000


def create_and_kill(cluster: LocalCluster, partitions: int, leader: int) -> float:
    """Creates the partitions, kills ``leader``, and returns the milliseconds that the creation took."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    began = time.monotonic()
    left, number = partitions, 0
    while left > 0:
        count = min(left, TOPIC_PARTITIONS_MAX)
        topic = NewTopic(f"many-{number}", count, 3)
        futures = admin.create_topics([topic], request_timeout=CREATION_TIMEOUT_S, operation_timeout=CREATION_TIMEOUT_S)
        futures[topic.topic].result(CREATION_TIMEOUT_S)
        left, number = left - count, number + 1
    took_ms = (time.monotonic() - began) * 1000
    cluster.kill(leader)
    return took_ms


def main() -> None:
    """Measures once and prints the figures."""
    parser = argparse.ArgumentParser(description="Failover right after the creation of many partitions.")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moldau-bench-", ignore_cleanup_errors=True) as directory:
        cluster = start_cluster(Path(directory) / "cluster", ClusterSpec())
        try:
            creation_ms = 0.0
            killed = 0

            def strike(leader: int) -> None:
                nonlocal creation_ms, killed
                creation_ms, killed = create_and_kill(cluster, options.partitions, leader), leader

            unavailable = unavailable_ms(cluster.bootstrap, "written", strike)
            began = time.monotonic()
            survivor = next(node.node_id for node in cluster.brokers if node.node_id != killed)
            in_order = cluster.stop_node(survivor)
            stop_ms = (time.monotonic() - began) * 1000
        finally:
            cluster.shut_down()
    figures = {
        "partitions": options.partitions,
        "creation_ms": round(creation_ms),
        "unavailable_ms": round(unavailable - creation_ms),
        "stop_ms": round(stop_ms),
        "stopped_in_order": in_order,
    }
    if options.json:
        print(json.dumps(figures))
        return
    sys.stdout.write("".join(f"{name}: {value}\n" for name, value in figures.items()))


if __name__ == "__main__":
    main()
