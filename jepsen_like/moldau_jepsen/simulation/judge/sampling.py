"""Samples leaders, in-sync replicas and high watermarks over virtual time, for the diagram of a run.

The event loop calls a sampler, like all watchers, after every turn. The sampler reads the cluster ten times a virtual
second; it changes, draws and books nothing, so a run with a sampler is the same run. Faults and the times of stopped
processes are read from the trace when the run has ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_jepsen.reports.gather import PartitionsOverTime
from moldau_jepsen.reports.load import series_of
from moldau_jepsen.reports.over_time import Active, FaultSpan, PartitionState, RunSeries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.history import Operation
    from moldau_jepsen.simulation.judge.invariants import ClusterInvariants, PartitionKey
    from moldau_jepsen.world.time.timeline import VirtualClock
    from moldau_jepsen.world.trace import TraceEvent

SAMPLE_SECONDS = 0.1
BUCKETS_MAX = 120
BUCKET_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
EFFECT_NOTES = ("kill", "power-off", "stop", "paused", "directory")
FAULTS, FINAL_READ = "faults", "final read"
NO_LEADER = -1


class RunSampler:
    """Looks at a cluster: ``turn_ended`` is for the watchers of the world's agenda, after the observer."""

    def __init__(
        self, cluster: SimulatedCluster, judge: ClusterInvariants, clock: VirtualClock, topics: Iterable[str]
    ) -> None:
        """Of partitions those of ``topics`` are looked at."""
        self._cluster = cluster
        self._judge = judge
        self._clock = clock
        self._topics = frozenset(topics)
        self._next_s = 0.0
        self._partitions = PartitionsOverTime()
        self._epochs: dict[PartitionKey, int] = {}  # how many partition epochs were known
        self._leaders: dict[PartitionKey, int] = {}
        self._active: list[Active] = []

    def turn_ended(self) -> None:
        """Looks at what a turn of the event loop has changed."""
        now = self._clock.now
        if now < self._next_s:
            return
        self._next_s = now + SAMPLE_SECONDS
        self._look_at_controllers(now)
        for key, record in self._judge.partitions.items():
            if key.topic not in self._topics:
                continue
            states = record.states
            if len(states) != self._epochs.get(key, 0):
                self._epochs[key] = len(states)
                newest = states[max(states)]
                self._leaders[key] = newest.leader
                state = PartitionState(now, newest.leader, newest.leader_epoch, newest.isr, len(newest.replicas))
                self._partitions.saw_state(str(key), state)
            self._look_at_high_watermark(key, now)

    def _look_at_controllers(self, now: float) -> None:
        found = (-1, NO_LEADER)
        for node_id, controller in self._cluster.controllers.items():
            leadership = controller.log.leadership
            if leadership.active:
                found = max(found, (leadership.epoch, node_id))
        epoch, node_id = found
        if not self._active or (self._active[-1].controller, self._active[-1].epoch) != (node_id, epoch):
            self._active.append(Active(now, node_id, epoch))

    def _look_at_high_watermark(self, key: PartitionKey, now: float) -> None:
        broker = self._cluster.brokers.get(self._leaders.get(key, NO_LEADER))
        offset = None
        if broker is not None and broker.is_built:
            partition = broker.context.replicas.partitions.get((key.topic, key.partition))
            if partition is not None and partition.replica.is_leader:
                offset = partition.replica.high_watermark
        self._partitions.saw_high_watermark(str(key), now, offset)

    def series(self, history: Sequence[Operation], notes: Sequence[TraceEvent], effective: Sequence[bool]) -> RunSeries:
        """Returns the whole run, which has ended; ``effective`` says of each fault, by time, if it had a target."""
        until_s = self._clock.now
        phases = tuple((note.seconds, _phase(note.text)) for note in notes if note.kind == "phase")
        load_ends_s = next((at_s for at_s, name in phases if name == FINAL_READ), until_s)
        bucket_s = next((each for each in BUCKET_SECONDS if until_s / each <= BUCKETS_MAX), BUCKET_SECONDS[-1])
        return RunSeries(
            until_s=until_s,
            load=series_of(history, load_ends_s, bucket_s),
            faults=_faults(notes, effective, until_s),
            down=_down(notes, until_s),
            phases=phases,
            active=tuple(self._active),
            partitions=self._partitions.series(),
        )


def _phase(text: str) -> str:
    """Returns the name of a phase; that of the faults says how records are synced, too."""
    return FAULTS if text.startswith(FAULTS) else text


def _faults(notes: Sequence[TraceEvent], effective: Sequence[bool], until_s: float) -> tuple[FaultSpan, ...]:
    """A fault, its planned end, and the machines that the trace names at that moment.

    The trace also names faults that found no target: they are left out.
    """
    found: list[FaultSpan] = []
    for note in notes:
        if note.kind == "fault":
            kind, _, end = note.text.partition(" until ")
            found.append(FaultSpan(kind=kind, begin_s=note.seconds, end_s=min(float(end), until_s)))
        elif note.kind in EFFECT_NOTES and found and found[-1].begin_s == note.seconds:
            whom = note.text.partition(" ")[0]
            found[-1] = replace(found[-1], detail=f"{found[-1].detail} {whom}".strip())
    assert len(found) <= len(effective), "what had its time was planned"
    return tuple(span for span, did in zip(found, effective, strict=False) if did)


def _down(notes: Sequence[TraceEvent], until_s: float) -> tuple[tuple[str, float, float], ...]:
    """Stretches in which a process did not run that had run before."""
    ended: dict[str, float] = {}
    found: list[tuple[str, float, float]] = []
    for note in notes:
        node = note.text.partition(" ")[0]
        if note.kind in ("kill", "power-off", "exit"):
            ended.setdefault(node, note.seconds)
        elif note.kind == "start" and node in ended:
            found.append((node, ended.pop(node), note.seconds))
    found += [(node, since, until_s) for node, since in ended.items() if since < until_s]
    return tuple(sorted(found))
