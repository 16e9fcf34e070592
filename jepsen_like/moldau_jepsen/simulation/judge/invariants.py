"""Judges the invariants of a cluster after every step. Pure.

An observer (``observer``) reads the state of every node after every step and reports facts; the judge remembers them
and finds contradictions. It does not depend on the nodes' code: its facts are the leaders of epochs, the committed
batches, and the high watermarks. The rules:

======================= ==============================================================================================
one-controller          one active controller per epoch of the metadata log (Raft 5.2, Election Safety)
metadata-prefix         an index of the metadata log holds one entry on all controllers (Raft 5.3, State Machine Safety)
partition-state         one committed state per partition epoch, wherever it is seen; well formed (KIP-966)
one-leader              one leader per leader epoch of a partition
watermark-monotone      the high watermark of a leader never falls within its epoch
log-agreement           below their high watermarks all replicas hold the same batches
leader-completeness     a new leader holds every batch that was ever committed
acked-is-committed      a record acknowledged with acks=all lies below the high watermark
isr-holds               what is below a leader's high watermark is in the log of each in-sync replica
======================= ==============================================================================================

Rules on votes, registrations, producers and housekeeping are judged by the modules of ``rules``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.simulation.judge.rules.producers import NO_PRODUCER, ProducerBatch, ProducerRules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

VIOLATIONS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that did not hold."""

    seconds: float
    invariant: str
    text: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.seconds:.6f} s: {self.invariant}: {self.text}"


class PartitionKey(NamedTuple):
    """One partition of one incarnation of a topic."""

    topic: str
    partition: int
    topic_id: str

    def __str__(self) -> str:
        """As Kafka writes it."""
        return f"{self.topic}-{self.partition}"


class BatchSeen(NamedTuple):
    """A batch in a log. The CRC covers all that producers wrote; offset and epoch are what the leader added."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    producer: ProducerBatch = NO_PRODUCER


class PartitionState(NamedTuple):
    """Committed metadata of one partition at one partition epoch."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    elr: tuple[int, ...]


class PartitionRecord:
    """The facts about one partition."""

    __slots__ = ("committed", "end", "ends", "leaders", "states", "watermark")

    def __init__(self) -> None:
        """Starts without facts."""
        self.committed: dict[int, BatchSeen] = {}  # by base offset, ascending
        self.end = 0  # offset after the last committed batch
        self.ends: dict[int, int] = {}  # the same by leader epoch, of those that were committed in it
        self.watermark = 0  # the highest of all leaders; beyond ``end`` where a disk died before the batches were read
        self.leaders: dict[int, int] = {}  # leader epoch to broker
        self.states: dict[int, PartitionState] = {}  # by partition epoch

    def committed_to(self, leader_epoch: int, offset: int) -> None:
        """Records that all below ``offset`` is committed in that leader epoch or an earlier one."""
        self.end = max(self.end, offset)
        self.ends[leader_epoch] = max(self.ends.get(leader_epoch, 0), offset)

    def end_in(self, leader_epoch: int) -> int:
        """Returns the offset after the last batch that was committed in that leader epoch or in one before.

        A batch of an old epoch may be committed in a later one only, as an entry of a Raft log may (section 5.4.2).
        """
        return max((end for epoch, end in self.ends.items() if epoch <= leader_epoch), default=0)


class ClusterInvariants:
    """The judge of one run."""

    def __init__(self, now: Callable[[], float], only: Collection[str] = ()) -> None:
        """``now`` returns the virtual time in seconds, for messages.

        ``only`` names the rules to check; an empty set means all.
        """
        self._now = now
        self._only = only
        self.violations: list[Violation] = []
        self._controllers: dict[int, int] = {}
        self._metadata: dict[int, tuple[int, int]] = {}
        self._partitions: dict[PartitionKey, PartitionRecord] = {}
        self._watermarks: dict[tuple[PartitionKey, int, int, int], int] = {}
        self.producers = ProducerRules(self.violated)

    def violated(self, invariant: str, text: str) -> None:
        """Records a contradiction."""
        if len(self.violations) < VIOLATIONS_MAX and (not self._only or invariant in self._only):
            self.violations.append(Violation(seconds=self._now(), invariant=invariant, text=text))

    def partition(self, key: PartitionKey) -> PartitionRecord:
        """Returns what is known of a partition."""
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = PartitionRecord()
        return found

    @property
    def partitions(self) -> Mapping[PartitionKey, PartitionRecord]:
        """All partitions that were ever seen."""
        return self._partitions

    # --- the quorum

    def controller_active(self, node: int, epoch: int) -> None:
        """``node`` claims to be the active controller of ``epoch``."""
        other = self._controllers.setdefault(epoch, node)
        if other != node:
            self.violated("one-controller", f"controllers {other} and {node} are both active in epoch {epoch}")

    def metadata_committed(self, node: int, index: int, epoch: int, digest: int) -> None:
        """``node`` holds an entry of the metadata log for committed."""
        known = self._metadata.setdefault(index, (epoch, digest))
        if known != (epoch, digest):
            self.violated(
                "metadata-prefix",
                f"index {index} is epoch {known[0]} digest {known[1]:08x} elsewhere, "
                f"and epoch {epoch} digest {digest:08x} on node {node}",
            )

    def partition_state(self, key: PartitionKey, partition_epoch: int, state: PartitionState, seen_by: str) -> None:
        """``seen_by`` holds this for the committed state of a partition."""
        record = self.partition(key)
        known = record.states.setdefault(partition_epoch, state)
        if known is not state:
            if known != state:
                self.violated(
                    "partition-state", f"{key} at partition epoch {partition_epoch}: {known} and, on {seen_by}, {state}"
                )
            return
        text = f"{key} at partition epoch {partition_epoch}, seen by {seen_by}: {state}"
        if state.leader >= 0 and state.leader not in state.isr:
            self.violated("partition-state", f"the leader is not in sync: {text}")
        if not set(state.isr) <= set(state.replicas) or not set(state.elr) <= set(state.replicas):
            self.violated("partition-state", f"in-sync or eligible replicas that are no replicas: {text}")
        if set(state.isr) & set(state.elr):
            self.violated("partition-state", f"a replica is in sync and merely eligible at once: {text}")
        if state.leader >= 0:
            self.leader(key, state.leader_epoch, state.leader)

    # --- partitions

    def leader(self, key: PartitionKey, leader_epoch: int, broker: int) -> None:
        """``broker`` leads, or is said to lead, a partition in an epoch."""
        other = self.partition(key).leaders.setdefault(leader_epoch, broker)
        if other != broker:
            self.violated("one-leader", f"{key}: brokers {other} and {broker} lead in epoch {leader_epoch}")

    def leader_watermark(
        self, key: PartitionKey, broker: int, incarnation: int, leader_epoch: int, offset: int
    ) -> None:
        """The high watermark of a leader is ``offset`` now."""
        slot = (key, broker, incarnation, leader_epoch)
        before = self._watermarks.get(slot, -1)
        if offset < before:
            self.violated(
                "watermark-monotone",
                f"{key}: high watermark of leader {broker} fell from {before} to {offset} in epoch {leader_epoch}",
            )
        self._watermarks[slot] = offset
        record = self.partition(key)
        record.watermark = max(record.watermark, offset)

    def committed(
        self, key: PartitionKey, broker: int, leader_epoch: int, batches: Iterable[BatchSeen], start: int | None = None
    ) -> None:
        """Records that a broker regards batches of its log as committed in that leader epoch.

        The batches lie below its high watermark, and are all that it has from the offset ``start`` on; None where that
        is the first of them.
        """
        record = self.partition(key)
        for batch in batches:
            if start is not None and batch.base_offset > start:
                self.violated("log-agreement", f"{key}: broker {broker} lacks {start}..{batch.base_offset - 1}")
                return
            start = batch.last_offset + 1
            known = record.committed.get(batch.base_offset)
            if known is None and batch.base_offset >= record.end:
                record.committed[batch.base_offset] = batch
                record.committed_to(leader_epoch, batch.last_offset + 1)
                self.producers.committed(key, batch.base_offset, batch.producer)
            elif known != batch:
                self.violated(
                    "log-agreement",
                    f"{key}: broker {broker} holds {_describe(batch)} for committed, others hold "
                    f"{_describe(known) if known else 'a batch with other bounds'}",
                )
                return

    def elected(
        self, key: PartitionKey, broker: int, leader_epoch: int, log_start: int, batches: Mapping[int, BatchSeen]
    ) -> None:
        """``broker`` begins to lead with this log (batches by base offset).

        It may have to hear of later leaders yet, as a broker does that has just begun: it cannot have what they
        committed.
        """
        record = self.partition(key)
        end = record.end_in(leader_epoch)
        for base, known in record.committed.items():
            if known.last_offset < log_start or known.last_offset >= end:
                continue
            found = batches.get(base)
            if found != known:
                self.violated(
                    "leader-completeness",
                    f"{key}: broker {broker}, leader of epoch {leader_epoch}, lacks committed {_describe(known)}"
                    + (f" and has {_describe(found)}" if found else ""),
                )
                return

    def committed_to(self, key: PartitionKey, leader_epoch: int, offset: int) -> None:
        """Records a high watermark of a compacted log in that leader epoch.

        The batches of such a log differ between replicas, so they are not compared.
        """
        self.partition(key).committed_to(leader_epoch, offset)

    def leader_ends(self, key: PartitionKey, broker: int, leader_epoch: int, log_end: int) -> None:
        """``broker`` begins to lead with a log that is cleaned and ends at ``log_end``."""
        end = self.partition(key).end_in(leader_epoch)
        if log_end < end:
            self.violated(
                "leader-completeness",
                f"{key}: broker {broker}, leader of epoch {leader_epoch}, ends at {log_end}, committed is up to {end}",
            )

    def isr_holds(self, key: PartitionKey, leader: int, offset: int, member: int, member_end: int) -> None:
        """The leader's high watermark is ``offset``; the log of an in-sync replica ends at ``member_end``."""
        if member_end < offset:
            self.violated(
                "isr-holds",
                f"{key}: high watermark of leader {leader} is {offset}, in-sync replica {member} ends at {member_end}",
            )

    def acknowledged_at(self, topic: str, partition: int, offset: int) -> None:
        """``acknowledged``, for a caller that does not know the topic's id."""
        for key in self._partitions:
            if key.topic == topic and key.partition == partition:
                self.acknowledged(key, offset)

    def acknowledged(self, key: PartitionKey, offset: int) -> None:
        """A producer got the answer, with acks=all, that its record lies at ``offset``."""
        record = self.partition(key)
        end = max(record.end, record.watermark)
        if offset >= end:
            self.violated(
                "acked-is-committed", f"{key}: offset {offset} was acknowledged, but no high watermark is beyond {end}"
            )


def _describe(batch: BatchSeen) -> str:
    span = f"{batch.base_offset}..{batch.last_offset}"
    return f"offsets {span} of epoch {batch.leader_epoch} with CRC {batch.crc & 0xFFFFFFFF:08x}"
