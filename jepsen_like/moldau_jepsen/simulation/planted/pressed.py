"""Runs that press on one rule. Campaigns do not draw them: to the real code they show nothing new."""

from __future__ import annotations

from dataclasses import replace

from moldau_jepsen.simulation.faults import FaultKind
from moldau_jepsen.simulation.profiles import ELECTIONS, GROUPS, IMPATIENT, REPLICATION, TRANSACTIONS

SLEEPY_CONTROLLERS = replace(
    ELECTIONS,
    name="sleepy-controllers",
    text="controllers stand still for longer than an election takes, and answer what has come meanwhile",
    kinds=(FaultKind.PAUSE,),
    strikes=(15, 25),
    lengths=(0.4, 1.5),
)

TRANSFERS = replace(
    TRANSACTIONS,
    name="transfers",
    text="nothing but transactions, so that those that overlap read each other's records at once",
    options=replace(
        TRANSACTIONS.options,
        workload=replace(TRANSACTIONS.options.workload, senders=0, assigned_readers=0, group_readers=0),
        fault_seconds=40.0,
    ),
    strikes=(0, 2),
)

SLOW_READERS = replace(
    GROUPS,
    name="slow-readers",
    text="members of a group take two records at a time, and crash with more fetched",
    options=replace(
        GROUPS.options,
        workload=replace(
            GROUPS.options.workload,
            senders=2,
            sends_per_second=60.0,
            consumer={**GROUPS.options.workload.consumer, "max.poll.records": 2},
        ),
        pipe=False,
    ),
    strikes=(4, 8),
)

PIPED = replace(
    REPLICATION,
    name="replication-piped",
    text="as replication, with a pipe",
    options=replace(REPLICATION.options, pipe=True),
)

_SMALL = {"linger.ms": 0, "batch.size": 64, "request.timeout.ms": 1_000, "delivery.timeout.ms": 8_000}

SMALL_BATCHES = replace(
    IMPATIENT,
    name="small-batches",
    text="as impatient, with transactions and a pipe of many small batches",
    options=replace(
        IMPATIENT.options,
        pipe=True,
        pipe_options=replace(PIPED.options.pipe_options, partitions=1, producer=_SMALL),
        transactions=True,
        transactional_producer=_SMALL,
    ),
)
