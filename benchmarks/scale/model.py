"""A model of large clusters: quorum traffic, and the time of a failover. Pure.

Unit costs are measured: traffic at rest in two small simulated clusters, bytes and processor time of single changes on
a large image. The model multiplies them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Costs of single events. Bytes are without TCP; seconds are of one core."""

    rest_bytes: float
    """A second, between the controllers."""
    rest_broker_bytes: float
    """A second, between a broker and the controllers: heartbeats and fetches of the metadata log."""
    rest_broker_sends: float
    """Sends a second for each broker."""
    change_bytes: float
    """A changed partition in a command of the metadata log."""
    snapshot_bytes: float
    """A partition in a snapshot."""
    decide_s: float
    """Decides and encodes one changed partition, on the active controller."""
    apply_s: float
    """Decodes and applies one changed partition, on each controller and broker."""
    read_s: float
    """Reads one partition of a snapshot, at the start of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A cluster, and the settings that matter; times in seconds."""

    brokers: int
    partitions: int
    factor: int = 3
    voters: int = 3
    round_trip_s: float = 0.0005
    sync_s: float = 0.002
    slice_partitions: int = 250
    """Partitions of one command: leaders are elected slice by slice."""
    session_s: float = 9.0
    """``broker.session.timeout.ms``: after it, a broker that is silent on open connections is fenced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The figures of one cluster."""

    rest_bytes_per_s: float
    """Of the whole quorum traffic at rest."""
    rest_sends_per_s: float
    snapshot_bytes: float
    restart_s: float
    """Processor time to read the snapshot at the start of a node."""
    changed: float
    """Partitions with a replica on a broker that dies."""
    failover_bytes: float
    """Bytes that the other nodes receive then."""
    first_s: float
    """From ``kill -9`` until the first of its partitions have another leader, if its host refuses connections."""
    last_s: float
    """The same for the last of them."""


def predict(shape: Shape, units: Units, changed: float | None = None) -> Prediction:
    """Returns the figures of a cluster; ``changed`` replaces the mean number of partitions of a broker."""
    if changed is None:
        changed = shape.partitions * shape.factor / shape.brokers
    receivers = shape.brokers - 1 + shape.voters - 1
    # The broken connection, the refused one, the commit by a majority, and the fetch that brings it to the brokers.
    messages_s = 3 * shape.round_trip_s + shape.sync_s
    of_slice = min(changed, shape.slice_partitions)
    step_s = units.decide_s + units.apply_s
    at_broker_s = of_slice * units.apply_s
    return Prediction(
        rest_bytes_per_s=units.rest_bytes + shape.brokers * units.rest_broker_bytes,
        rest_sends_per_s=shape.brokers * units.rest_broker_sends,
        snapshot_bytes=shape.partitions * units.snapshot_bytes,
        restart_s=shape.partitions * units.read_s,
        changed=changed,
        failover_bytes=receivers * changed * units.change_bytes,
        first_s=messages_s + of_slice * step_s + at_broker_s,
        last_s=messages_s + changed * step_s + at_broker_s,
    )
