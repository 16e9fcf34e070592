"""Ownership of partitions in consumer groups, and final reads that did not end."""

from __future__ import annotations

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.history import Kind, Operation, Status, TopicPartition


class OwnershipChecker:
    """Finds partitions that two members own in one generation.

    Generations that are older than the newest one seen by a margin are forgotten, so memory follows the number of
    partitions, not the length of the history.
    """

    def __init__(self, findings: Findings) -> None:
        """Nothing was read yet."""
        self._findings = findings
        self._owners: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
        self._newest = -1

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind is not Kind.SUBSCRIBE or operation.generation < 0 or operation.status is not Status.OK:
            return
        owners = self._owners
        if operation.generation > self._newest:
            self._newest = operation.generation
            for stale in [key for key in owners if key[0] < self._newest - _GENERATIONS_KEPT]:
                del owners[stale]
        for partition in operation.partitions:
            key = (operation.generation, partition)
            other = owners.setdefault(key, (operation.process, operation.index))
            if other[0] != operation.process:
                self._findings.add(
                    AnomalyKind.DUAL_OWNERSHIP,
                    f"processes {other[0]} and {operation.process} own the partition in generation "
                    f"{operation.generation}",
                    partition=partition,
                    operations=(other[1], operation.index),
                )


_GENERATIONS_KEPT = 1000


def check_progress(operation: Operation, findings: Findings) -> None:
    """Finds an operation of the final phase that did not come to a good end."""
    if operation.final and operation.status is not Status.OK:
        findings.add(
            AnomalyKind.STUCK,
            f"process {operation.process} could not end its final {operation.kind.value}: {operation.error}",
            operations=(operation.index,),
        )
