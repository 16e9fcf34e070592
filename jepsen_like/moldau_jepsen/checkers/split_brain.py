"""Do two brokers lead one partition, or two controllers the quorum, in one epoch?

A leader epoch is given to one broker, a quorum's epoch to one controller, for good: so all evidence for a pair of
partition and epoch must name one node, whenever it was seen. Nothing has to be seen at the same time.

What is evidence that node N led partition P in epoch E (``history.Evidence``):

- *claimed*: N, asked directly, said of itself that it leads P in E (a broker in its Metadata, a controller in
  DescribeQuorum).
- *served*: N answered a question about P that named E as the current leader epoch, and that only the leader in that
  epoch may answer (ListOffsets, KIP-320); it was the replica itself that answered, not a cache of metadata.
- *acknowledged*: N acknowledged a write to P, and the client had sent it there because some metadata named N as the
  leader of P in E. A broker that leads P again in a later epoch may acknowledge what was sent to it for E: it did lead
  in E nevertheless, since metadata is committed before it is told.

What is not: a third party's metadata. A broker that lags behind names those who led once, and one that is wrong proves
that it is wrong, not that anybody acted on it. Nor is an error that passes a leader on (KIP-951).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings

if TYPE_CHECKING:
    from moldau_jepsen.history import Lead, Operation, TopicPartition


class SplitBrainChecker:
    """Finds two leaders of one epoch. Memory follows the number of epochs, not the length of the history."""

    def __init__(self, findings: Findings) -> None:
        """Nothing was read yet."""
        self._findings = findings
        self._leaders: dict[tuple[TopicPartition, int], dict[int, tuple[Lead, int]]] = {}

    @property
    def leaderships(self) -> int:
        """Pairs of partition and epoch of which a leader is known."""
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
