"""Judges changes of brokers and replicas from one committed metadata image to the next.

Each image comes from the first node that has applied it. A change is judged only if two consecutive partition epochs
were seen; a gap proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_quorum.controller.context import ELR_FEATURE, MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION
from moldau_quorum.controller.partition_change import RECOVERING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from moldau_quorum.metadata.image import BrokerImage, MetadataImage, PartitionImage

NO_BROKER = -1
NO_EPOCH = -1

Name = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSeen:
    """A leader's proposal to admit a replica: broker, and broker epoch of its fetches (``NO_EPOCH``: not known)."""

    isr: tuple[int, ...]
    joining: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    partition: PartitionImage
    brokers: Mapping[int, BrokerImage]
    topic_id: UUID


class RegistrationRules:
    """Judges images in the order of their offsets."""

    def __init__(
        self, violated: Callable[[str, str], None], *, min_insync_replicas: int, unclean_election: bool = False
    ) -> None:
        """The cluster's defaults; topics may have values of their own."""
        self._violated = violated
        self._min_insync_replicas = min_insync_replicas
        self._unclean_election = unclean_election
        self._offset = -1
        self._partitions: dict[Name, _Seen] = {}
        self._in_order: dict[UUID, None] = {}
        self._joins: dict[tuple[Name, int], list[JoinSeen]] = {}

    def ended_in_order(self, incarnation_id: UUID) -> None:
        """The process of that registration has stopped as it should; all others are taken for crashed."""
        self._in_order[incarnation_id] = None

    def join_proposed(self, name: Name, partition_epoch: int, join: JoinSeen) -> None:
        """A leader asks for a replica to be admitted, on top of ``partition_epoch``."""
        self._joins.setdefault((name, partition_epoch), []).append(join)

    def image_seen(self, image: MetadataImage) -> None:
        """A node has applied this; older ones than the newest are passed over."""
        if image.offset <= self._offset:
            return
        self._offset = image.offset
        for topic in image.topics_by_name.values():
            for number, partition in topic.partitions.items():
                name = (topic.name, number)
                before = self._partitions.get(name)
                if before is not None and before.topic_id != topic.topic_id:
                    before = None
                if before is not None and before.partition is partition and before.brokers is image.brokers:
                    continue
                self._fenced_is_out(name, partition, image)
                if before is not None:
                    self._unclean_restart(name, before, partition, image)
                    if partition.partition_epoch == before.partition.partition_epoch + 1:
                        self._clean_election(name, before, partition, image)
                        self._eligible(name, before, partition, image)
                        self._joined(name, before.partition, partition, image)
                self._partitions[name] = _Seen(partition=partition, brokers=image.brokers, topic_id=topic.topic_id)

    # --- rules

    def _fenced_is_out(self, name: Name, partition: PartitionImage, image: MetadataImage) -> None:
        def fenced(broker_id: int) -> bool:
            broker = image.brokers.get(broker_id)
            return broker is None or broker.fenced

        if partition.leader != NO_BROKER and fenced(partition.leader):
            self._violated("fenced-not-in-isr", f"{_text(name)}: leader {partition.leader} is fenced")
        # Without an ELR the last member of an ISR stays, or no leader could ever be elected.
        last = not _elr_enabled(image) and partition.leader == NO_BROKER and len(partition.isr) == 1
        if not last and any(fenced(member) for member in partition.isr):
            self._violated("fenced-not-in-isr", f"{_text(name)}: ISR {partition.isr} has a fenced member")

    def _unclean_restart(self, name: Name, before: _Seen, after: PartitionImage, image: MetadataImage) -> None:
        former = before.partition
        if after.partition_epoch - former.partition_epoch > 1:
            return
        for broker_id in (*former.isr, *former.elr):
            old, new = before.brokers.get(broker_id), image.brokers.get(broker_id)
            if old is None or new is None or old.incarnation_id == new.incarnation_id:
                continue
            kept = (broker_id in former.isr and broker_id in after.isr) or broker_id in after.elr
            if kept and old.incarnation_id not in self._in_order:
                self._violated(
                    "unclean-restart",
                    f"{_text(name)}: broker {broker_id} crashed, and is in ISR {after.isr} or ELR {after.elr} still",
                )

    def _clean_election(self, name: Name, seen: _Seen, after: PartitionImage, image: MetadataImage) -> None:
        before, leader = seen.partition, after.leader
        if leader in (NO_BROKER, before.leader) or leader in before.isr or leader in before.elr:
            return
        # The last known leader comes back where no other replica can: all eligible ones have lost their state since.
        none_left = all(_other_life(seen, image, replica) for replica in (*before.isr, *before.elr))
        last_known = none_left and before.last_known_elr == (leader,)
        if (last_known and after.leader_recovery_state == RECOVERING) or self._unclean_allowed(name, image):
            return
        if any(join.joining == leader for join in self._joins.get((name, before.partition_epoch), ())):
            return  # it was admitted, and the reassignment that was waiting for it gave it the lead
        self._violated(
            "clean-election",
            f"{_text(name)}: broker {leader} leads in epoch {after.leader_epoch}, in sync were {before.isr}, "
            f"eligible {before.elr}",
        )

    def _eligible(self, name: Name, seen: _Seen, after: PartitionImage, image: MetadataImage) -> None:
        before = seen.partition
        if not _elr_enabled(image) or after.leader_recovery_state == RECOVERING:
            return
        too_small = len(after.isr) < min(self._min_isr(name, image), len(after.replicas))
        former = (*before.isr, *before.elr)
        stranger = [replica for replica in after.elr if replica not in former]
        if stranger or (after.elr and not too_small):
            self._violated(
                "elr-entry-valid",
                f"{_text(name)}: ELR {after.elr} beside ISR {after.isr}, after {before.isr}, {before.elr}",
            )
        if not too_small:
            return
        for replica in former:
            if replica in after.isr or replica in after.elr or replica not in after.replicas:
                continue
            if not _other_life(seen, image, replica):
                self._violated(
                    "elr-kept",
                    f"{_text(name)}: broker {replica} left ISR {before.isr}, and is neither in ISR {after.isr} "
                    f"nor in ELR {after.elr}",
                )

    def _joined(self, name: Name, before: PartitionImage, after: PartitionImage, image: MetadataImage) -> None:
        asked = self._joins.pop((name, before.partition_epoch), [])
        joined = [replica for replica in after.isr if replica not in before.isr]
        if joined and before.leader == after.leader and not any(join.joining in joined for join in asked):
            self._violated(
                "isr-change-asked",
                f"{_text(name)}: {joined} join ISR {before.isr}, which no leader asked for on top of partition epoch "
                f"{before.partition_epoch}",
            )
        matching = [
            join
            for join in asked
            if join.joining in after.isr and join.joining not in before.isr and set(join.isr) == set(after.isr)
        ]
        if not matching or before.leader != after.leader:
            return
        broker = image.brokers.get(matching[0].joining)
        if broker is None or all(join.broker_epoch not in (NO_EPOCH, broker.broker_epoch) for join in matching):
            self._violated(
                "isr-incarnation",
                f"{_text(name)}: broker {matching[0].joining} joins ISR {after.isr} for what it held with epoch "
                f"{matching[0].broker_epoch}, and is registered with {broker.broker_epoch if broker else 'none'}",
            )

    # --- configuration

    def _min_isr(self, name: Name, image: MetadataImage) -> int:
        value = image.topic_config(name[0]).get(MIN_INSYNC_REPLICAS)
        return self._min_insync_replicas if value is None else int(value)

    def _unclean_allowed(self, name: Name, image: MetadataImage) -> bool:
        value = image.topic_config(name[0]).get(UNCLEAN_LEADER_ELECTION)
        return self._unclean_election if value is None else value == "true"


def _other_life(seen: _Seen, image: MetadataImage, broker_id: int) -> bool:
    """Returns whether the broker has registered again since, or is not registered any more."""
    old, new = seen.brokers.get(broker_id), image.brokers.get(broker_id)
    return old is None or new is None or old.incarnation_id != new.incarnation_id


def _elr_enabled(image: MetadataImage) -> bool:
    return image.features.get(ELR_FEATURE, 0) >= 1


def _text(name: Name) -> str:
    return f"{name[0]}-{name[1]}"
