"""Planted bugs in the controller's decisions: random histories of a partition must find every one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau_jepsen.planted_bug import PlantedBug
from moldau_quorum.controller import partition_change, partitions, reassignment, walks
from moldau_quorum.controller.cluster import brokers
from moldau_quorum.controller.context import RefusedError
from moldau_quorum.controller.partition_change import Election, PartitionChange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.values import BrokerId
    from moldau_jepsen.planted_bug import Patch
    from moldau_quorum.metadata.image import PartitionImage

    Replicas = tuple[BrokerId, ...]
    Moved = tuple[Replicas, Replicas, Replicas, Replicas]
    Bugs = Mapping[tuple[str, str], list[Patch]]

real_build = PartitionChange.build
real_elect = PartitionChange._elect
real_gone = walks.brokers_gone
real_start = reassignment._start
real_after_reassignment = PartitionChange._after_reassignment


def build_with(**changes: Callable[[PartitionChange], object]) -> Callable[[PartitionChange], Any]:
    def build(self: PartitionChange) -> Any:
        return real_build(dataclasses.replace(self, **{k: v(self) for k, v in changes.items()}))  # type: ignore[arg-type]

    return build


def elect_last_known_too_early(self: PartitionChange, replicas: Replicas, isr: Replicas) -> Any:
    elected = real_elect(self, replicas, isr)
    last_known = self.partition.last_known_elr
    if elected.leader == -1 and not isr and last_known and self.acceptable(last_known[0]):
        return dataclasses.replace(elected, leader=last_known[0])
    return elected


def elect_by_order_alone(self: PartitionChange, replicas: Replicas, isr: Replicas) -> Any:
    elected = real_elect(self, replicas, isr)
    if elected.leader == self.partition.leader:
        return elected
    for replica in replicas:
        if self.acceptable(replica):
            return dataclasses.replace(elected, leader=replica)
    return elected


def eligible_forever(self: PartitionChange, replicas: Replicas, isr: Replicas) -> Replicas:
    """Keeps the ELR when the ISR is large enough again."""
    former = (*self.partition.elr, *self.partition.isr)
    return tuple(r for r in replicas if r in former and r not in isr and r not in self.lost_state)


def eligible_in_spite_of_loss(self: PartitionChange, replicas: Replicas, isr: Replicas) -> Replicas:
    if len(isr) >= min(self.min_isr, len(replicas)):
        return ()
    former = (*self.partition.elr, *self.partition.isr)
    return tuple(r for r in replicas if r in former and r not in isr)


def every_replica_eligible(self: PartitionChange, replicas: Replicas, isr: Replicas) -> Replicas:
    return () if len(isr) >= min(self.min_isr, len(replicas)) else tuple(r for r in replicas if r not in isr)


_PARTITIONS: Bugs = {
    ("every-election-unclean", "every election is unclean"): [
        (PartitionChange, "build", build_with(election=lambda self: Election.UNCLEAN)),
        (partition_change, "RECOVERING", 0),
    ],
    ("last-known-leader-first", "the last known leader is preferred to the eligible ones"): [
        (PartitionChange, "_elect", elect_last_known_too_early)
    ],
    ("isr-ignored-in-election", "the ISR does not matter in an election"): [
        (PartitionChange, "_elect", elect_by_order_alone)
    ],
    ("eligible-forever", "eligible replicas stay eligible"): [(PartitionChange, "_eligible", eligible_forever)],
    ("unclean-restart-overlooked", "an unclean restart is overlooked"): [
        (PartitionChange, "_eligible", eligible_in_spite_of_loss)
    ],
    ("unclean-restart-counts-as-clean", "an unclean restart counts as a clean one"): [
        (brokers, "brokers_gone", lambda *a, lost_state=False, **k: real_gone(*a, **k))
    ],
    ("every-replica-eligible", "every replica is eligible"): [(PartitionChange, "_eligible", every_replica_eligible)],
    ("min-isr-too-high", "min.insync.replicas is taken for more than leaders obey"): [
        (PartitionChange, "build", build_with(min_isr=lambda self: 3))
    ],
    ("fenced-brokers-lead", "fenced brokers may lead"): [
        (partitions, "acceptable_leader", lambda image, context: lambda broker: True)
    ],
    ("fenced-replicas-join", "fenced and stopping replicas may join the ISR"): [
        (partitions, "_check_eligible", lambda *a: None)
    ],
    ("fenced-broker-stays", "a fenced broker stays in the ISR"): [
        (brokers, "brokers_gone", lambda view, *a, **k: walks.walk(view, lambda *b: None))
    ],
    ("last-known-leader-clean", "the last known leader counts as clean"): [(partition_change, "RECOVERING", 0)],
}


def forget_the_abandoned_target(change: PartitionChange, partition: PartitionImage, target: Replicas) -> None:
    """Makes a redirected move remove at once the replicas that the first move was adding."""
    real_start(change, partition, target)
    former = reassignment.original_replicas(partition)
    assert change.replicas is not None
    assert change.removing is not None
    change.replicas = tuple(r for r in change.replicas if r in target or r in former)
    change.removing = tuple(r for r in change.removing if r in former)


def cancel_unless_the_isr_objects(change: PartitionChange, partition: PartitionImage) -> None:
    """Checks a cancellation against the ISR alone, even if the ISR is empty."""
    back = reassignment.original_replicas(partition)
    if not partition.reassigning or (partition.isr and not set(back) & set(partition.isr)):
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "refused")
    change.replicas, change.adding, change.removing = back, (), ()


def complete_with_what_was_added(self: PartitionChange) -> Moved:
    """Assumes that members of the target that were replicas before are in sync."""
    replicas, adding, removing, isr = real_after_reassignment(self)
    target = tuple(r for r in replicas if r not in removing)
    target_isr = tuple(r for r in isr if r in target)
    if removing and target_isr and set(adding) <= set(isr):
        return target, (), (), target_isr
    return replicas, adding, removing, isr


def complete_at_once(self: PartitionChange) -> Moved:
    replicas, _, removing, isr = real_after_reassignment(self)
    target = tuple(r for r in replicas if r not in removing)
    return target, (), (), tuple(r for r in isr if r in target)


_MOVES: Bugs = {
    ("redirect-drops-replicas", "a redirect drops the replicas of the abandoned target"): [
        (reassignment, "_start", forget_the_abandoned_target)
    ],
    ("cancel-without-eligible", "a cancelled move does not ask for eligible replicas"): [
        (reassignment, "_cancel", cancel_unless_the_isr_objects)
    ],
    ("move-ends-with-additions", "a move ends when what it adds is in sync"): [
        (PartitionChange, "_after_reassignment", complete_with_what_was_added)
    ],
    ("move-ends-at-once", "a move ends when it begins"): [(PartitionChange, "_after_reassignment", complete_at_once)],
}


def _bugs(replacements: Bugs, judge: str) -> tuple[PlantedBug, ...]:
    def patches_of(patches: list[Patch]) -> Callable[[], list[Patch]]:
        return lambda: patches

    return tuple(
        PlantedBug(name=name, area="controller", text=text, patches=patches_of(patches), judges=(judge,))
        for (name, text), patches in replacements.items()
    )


PARTITION_BUGS = _bugs(_PARTITIONS, "PartitionMachine")
MOVE_BUGS = _bugs(_MOVES, "MovingPartitionMachine")
BUGS = (*PARTITION_BUGS, *MOVE_BUGS)
"""All planted bugs of the controller."""
