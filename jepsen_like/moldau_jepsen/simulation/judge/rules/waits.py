"""Judges whether an operation ends once it has nothing left to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_broker.replication.purgatory import Delayed
    from moldau_broker.server.replicas.delayed import ProduceOperation
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_waits import ReplicaWaits

PATIENCE_SECONDS = 0.5
LOOKS = 20
"""Steps of the broker, so that time that passed while it was paused does not count."""


class WaitRules:
    """Judges the produces with acks=all that wait for the high watermark.

    A produce must be answered at once when its records are committed or its leader epoch is over. After a lost wake-up
    it waits until its timeout. The state of each broker: such operations, since when, and how often they were seen.
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._overdue: dict[int, dict[Delayed[Partition, ProduceOperation], tuple[float, int]]] = {}

    def look(self, broker_id: int, waits: ReplicaWaits, now_seconds: float) -> None:
        """Looks at the operations of a broker whose tasks have run."""
        before = self._overdue.get(broker_id, {})
        found: dict[Delayed[Partition, ProduceOperation], tuple[float, int]] = {}
        for partition, watchers in waits.produces.purgatory.watched.items():
            for delayed in watchers:
                wait = delayed.operation.waiting[partition]
                answer = partition.acknowledgement(wait.leader_epoch, wait.required_offset)
                if answer is None:
                    continue
                since, looks = before.get(delayed, (now_seconds, 0))
                found[delayed] = since, looks + 1
                if looks == LOOKS and now_seconds - since >= PATIENCE_SECONDS:
                    self._violated(
                        "wait-ends",
                        f"broker {broker_id} has not answered a produce for {now_seconds - since:.1f} s that waits in "
                        f"{partition.key} up to offset {wait.required_offset}, where the answer is {answer.name}",
                    )
                elif looks >= LOOKS and now_seconds - since < PATIENCE_SECONDS:
                    found[delayed] = since, LOOKS
        if found or before:
            self._overdue[broker_id] = found
