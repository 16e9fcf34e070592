"""Judges the committed records of coordinators and transactions, in the order of their offsets.

Offsets of a group are judged against the generation that was written before them: the owner of a partition begins at
the offset that was committed when its generation began, or later, so whatever it commits lies there or beyond. Within
a generation a commit that was sent twice may come late and set an offset back; the next generation begins there. What
is committed for another topic, by its id, than before says nothing about the former one, which was deleted. Members of
the consumer protocol have no common generation: there each owner begins at the offset that was committed when it got
the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from moldau.cluster.metadata import TopicPartition

NO_OFFSET = -1
EPOCH_MAX = 0x7FFF

FOLLOWS: dict[str, tuple[str, ...]] = {
    "Empty": ("Empty", "Ongoing", "PrepareAbort"),
    "Ongoing": ("Ongoing", "PrepareCommit", "PrepareAbort"),
    "PrepareCommit": ("CompleteCommit",),
    "PrepareAbort": ("CompleteAbort",),
    "CompleteCommit": ("Empty", "Ongoing", "PrepareAbort"),
    "CompleteAbort": ("Empty", "Ongoing", "PrepareAbort"),
}
"""States of a transactional id, by name, and what may be written next (KIP-98, KIP-890)."""


class _Group:
    """One group.

    ``began`` holds the offsets that were committed when the generation was written; ``owners`` maps partitions to the
    members that the records of the generation assign them to.
    """

    __slots__ = ("began", "begun", "by_id", "committed", "generation", "held", "owners", "topic_ids")

    def __init__(self) -> None:
        self.generation = -1
        self.committed: dict[TopicPartition, int] = {}
        self.began: dict[TopicPartition, int] = {}
        self.owners: dict[TopicPartition, str] = {}
        self.topic_ids: dict[TopicPartition, UUID] = {}
        self.held: dict[str, frozenset[tuple[UUID, int]]] = {}
        self.by_id: dict[tuple[UUID, int], int] = {}
        """Committed offsets by the ids of their topics."""
        self.begun: dict[tuple[UUID, int], int] = {}
        """Of partitions that a member of the consumer protocol owns: what was committed when it got them."""


class GroupRules:
    """Judges the groups of a run."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._groups: dict[str, _Group] = {}

    def generation(
        self,
        group_id: str,
        generation: int,
        owned: Mapping[str, Sequence[TopicPartition]],
        instances: Mapping[str, str] | None = None,
    ) -> None:
        """A group was written, with what each member owns; ``instances`` are the ids of static members.

        A generation that was given up before its assignment was committed leaves no record, and its number may be
        used again. One that has a record may be written again for one reason only: a static member came back under
        another member id, and goes on with what it owned (KIP-345).
        """
        group = self._groups.setdefault(group_id, _Group())
        if generation < group.generation:
            self._violated(
                "generation-monotone", f"group {group_id} is in generation {generation} after {group.generation}"
            )
        if generation != group.generation:
            group.generation = generation
            group.began = dict(group.committed)
            group.owners = {}
        given: dict[TopicPartition, str] = {}
        for member, partitions in owned.items():
            instance = None if instances is None else instances.get(member)
            owner = f"member {member}" if instance is None else f"instance {instance}"
            for partition in partitions:
                other, before = given.setdefault(partition, member), group.owners.setdefault(partition, owner)
                if other != member:
                    between = f"{other} and {member}"
                elif before != owner:
                    between = f"{before}, of a former record, and {owner}"
                else:
                    continue
                self._violated("one-owner", f"group {group_id}: {between} own {partition} in generation {generation}")

    def holds(self, group_id: str, member_id: str, partitions: frozenset[tuple[UUID, int]]) -> None:
        """Notes what a member of the consumer protocol (KIP-848) owns from now on, with what it has yet to release."""
        group = self._groups.setdefault(group_id, _Group())
        held = group.held
        before = held.get(member_id, frozenset())
        for gone in sorted(before - partitions):
            group.begun.pop(gone, None)
        for got in sorted(partitions - before):
            group.begun[got] = group.by_id.get(got, NO_OFFSET)
        held[member_id] = partitions
        for other, theirs in held.items():
            if other != member_id and theirs & partitions:
                topic_id, number = min(theirs & partitions)
                self._violated(
                    "one-owner", f"group {group_id}: {other} and {member_id} own partition {number} of topic {topic_id}"
                )
        if not partitions:
            del held[member_id]

    def ended(self, group_id: str) -> None:
        """A group was deleted; its offsets are reported one by one."""
        group = self._groups.get(group_id)
        if group is not None:
            group.generation = -1

    def offset(
        self, group_id: str, partition: TopicPartition, offset: int | None, topic_id: UUID | None = None
    ) -> None:
        """An offset took effect, or was deleted (None). ``topic_id`` is None where the commit does not name it."""
        group = self._groups.setdefault(group_id, _Group())
        is_other = topic_id is not None and group.topic_ids.get(partition, topic_id) != topic_id
        former = group.topic_ids.get(partition)
        if former is not None and (offset is None or is_other):
            group.by_id.pop((former, partition.partition), None)
            group.begun.pop((former, partition.partition), None)
        if offset is None or is_other:
            group.committed.pop(partition, None)
            group.began.pop(partition, None)
            group.topic_ids.pop(partition, None)
        if offset is None:
            return
        if topic_id is not None:
            group.topic_ids[partition] = topic_id
        least = group.began.get(partition, NO_OFFSET)
        if group.generation >= 0 and offset < least:
            self._violated(
                "offset-kept",
                f"group {group_id} commits offset {offset} of {partition} in generation {group.generation}, which "
                f"began at {least}",
            )
        if topic_id is not None:
            place = (topic_id, partition.partition)
            if offset < group.begun.get(place, NO_OFFSET):
                self._violated(
                    "offset-kept",
                    f"group {group_id} commits offset {offset} of {partition}, whose owner began at "
                    f"{group.begun[place]}",
                )
            group.by_id[place] = offset
        group.committed[partition] = offset


class TransactionRules:
    """Judges the transactions of a run."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._states: dict[str, tuple[str, int, int]] = {}
        self._by_producer: dict[int, str] = {}

    def state(
        self, transactional_id: str, state: str, producer_id: int, epoch: int, *, has_own_epoch: bool = False
    ) -> None:
        """The state of a transactional id was written.

        ``has_own_epoch``: its client uses level 2 of ``transaction.version``, so the decision raises the epoch.
        """
        before = self._states.get(transactional_id)
        if before is not None:
            if state not in FOLLOWS.get(before[0], ()):
                self._violated("transaction-state", f"{transactional_id} is {state} after {before[0]}")
            if producer_id == before[1] and epoch < before[2]:
                self._violated(
                    "transaction-state",
                    f"{transactional_id}: epoch {epoch} of producer {producer_id} after epoch {before[2]}",
                )
            if has_own_epoch:
                self._judge_epoch(transactional_id, before, (state, producer_id, epoch))
        self._states[transactional_id] = (state, producer_id, epoch)
        self._by_producer[producer_id] = state

    def _judge_epoch(self, transactional_id: str, before: tuple[str, int, int], after: tuple[str, int, int]) -> None:
        """Judges that the decision takes the next epoch, and that its completion keeps it or begins another id.

        An abort that a new producer requests skips one epoch.
        """
        state, producer_id, epoch = after
        if state.startswith("Prepare"):
            raised = (1, 2) if state == "PrepareAbort" and before[0] == "Ongoing" else (1,)
            allowed = [(before[1], min(before[2] + by, EPOCH_MAX)) for by in raised]
        elif state.startswith("Complete"):
            allowed = [before[1:]] if producer_id == before[1] else [(producer_id, 0)]
        else:
            return
        if (producer_id, epoch) not in allowed:
            self._violated(
                "transaction-epoch",
                f"{transactional_id} is {state} with epoch {epoch} of producer {producer_id}, after {before[0]} with "
                f"epoch {before[2]} of producer {before[1]}",
            )

    def forgotten(self, transactional_id: str) -> None:
        """A transactional id was deleted."""
        self._states.pop(transactional_id, None)

    def marker(self, where: str, producer_id: int, *, is_commit: bool) -> None:
        """A marker ends a transaction in a partition.

        Its outcome was decided before, so it stands in the coordinator's log; and until all partitions have their
        markers no other transaction begins. A marker that was sent twice may come again until then.
        """
        state = self._by_producer.get(producer_id)
        allowed = ("PrepareCommit", "CompleteCommit") if is_commit else ("PrepareAbort", "CompleteAbort")
        if state is not None and state not in allowed:
            self._violated(
                "transaction-outcome",
                f"{where}: the transaction of producer {producer_id} is {'committed' if is_commit else 'aborted'}, "
                f"its coordinator has it in state {state}",
            )
