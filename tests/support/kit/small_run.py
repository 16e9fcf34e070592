"""The cheapest whole run of a simulated cluster, for tests of what surrounds runs."""

from __future__ import annotations

from typing import Final

from moldau_jepsen.cluster.simulated import ClusterShape
from moldau_jepsen.simulation import RunOptions
from moldau_jepsen.workloads.queue import QueueOptions

SMALL_RUN: Final = RunOptions(
    fault_seconds=0.5,
    transactions=False,
    pipe=False,
    shape=ClusterShape(brokers=3, controllers=1),
    workload=QueueOptions(
        partitions=1,
        senders=1,
        group_readers=1,
        sends_per_second=10.0,
        crash_every_s=10.0,
        consumer={"session.timeout.ms": 2_000, "heartbeat.interval.ms": 500},
    ),
)
"""Half the work of a run with the default cluster and load."""
