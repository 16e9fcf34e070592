"""Finds two brokers that lead one partition, or two controllers that lead the quorum, in one epoch.

A leader epoch belongs to one broker and a quorum's epoch to one controller, for ever. So all evidence for a pair of
partition and epoch must name one node, even if it was observed at different times.

There are three kinds of evidence that node N led partition P in epoch E (``history.Evidence``):

- *claimed*: N answered a direct request with itself as the leader of P in E (a broker in its Metadata, a controller in
  DescribeQuorum).
- *served*: N answered a request about P that named E as the current leader epoch, and that only the leader in that
  epoch may answer (ListOffsets, KIP-320); the replica itself answered, not a cache of metadata.
- *acknowledged*: N acknowledged a write to P, and the client had sent it there because some metadata named N as the
  leader of P in E. A broker that leads P again in a later epoch may acknowledge a record that was sent to it for E: it
  did lead in E nevertheless, since metadata is committed before it is published.

The metadata of a third node is not evidence: a broker that lags behind names former leaders, and wrong metadata does
not prove that a node acted on it. Nor is an error that names a leader (KIP-951).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings

if TYPE_CHECKING:
    from moldau_jepsen.history import Lead, Operation, TopicPartition


class SplitBrainChecker:
    """Finds two leaders of one epoch. Memory grows with the number of epochs, not with the length of the history."""

    def __init__(self, findings: Findings) -> None:
        """Starts before the first operation."""
        self._findings = findings
        self._leaders: dict[tuple[TopicPartition, int], dict[int, tuple[Lead, int]]] = {}

    @property
    def leaderships(self) -> int:
        """Returns the number of pairs of partition and epoch with a known leader."""
        return len(self._leaders)

    def add(self, operation: Operation) -> None:
        """Reads the next operation. Each further leader of an epoch is one finding."""
        for lead in operation.leads:
            leaders = self._leaders.setdefault((lead.partition, lead.epoch), {})
            if lead.leader in leaders:
                continue
            if leaders:
                other, index = next(iter(leaders.values()))
                self._findings.add(
                    AnomalyKind.SPLIT_BRAIN,
                    f"in epoch {lead.epoch} node {other.leader} {other.evidence.value} and node {lead.leader} "
                    f"{lead.evidence.value}",
                    partition=lead.partition,
                    operations=(index, operation.index) if index != operation.index else (index,),
                )
            leaders[lead.leader] = (lead, operation.index)
