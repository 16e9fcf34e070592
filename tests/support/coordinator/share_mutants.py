"""Planted bugs of the share coordinator and of share groups, each with the campaign that must find it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.share.core.groups import ShareGroups
from moldau_broker.coordinator.group.share.core.heartbeat import ShareDecisions
from moldau_broker.coordinator.group.share.core.neighbours import GroupTypes
from moldau_broker.coordinator.group.share.core.state import ShareCurrent, ShareStates, ShareSubscription
from moldau_broker.coordinator.group.share.core.state_partitions import with_begun
from moldau_broker.coordinator.share.core import decisions
from moldau_broker.coordinator.share.core.pruning import Snapshots
from moldau_broker.coordinator.share.core.requests import Initialize, Write
from moldau_broker.coordinator.share.core.share_core import ShareCore
from moldau_jepsen.planted_bug import Patch, PlantedBug
from support.coordinator.share_campaign import run_groups, run_states

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_broker.coordinator.group.share.core.state import ShareDraft, StatePartitions
    from moldau_broker.coordinator.runtime.effects import Moment
    from moldau_broker.coordinator.share.core.state import SharePartitionKey, ShareState

SEEDS = range(10)


def snapshot_without_pending_updates() -> list[Patch]:
    """A write is decided on the committed state, so a snapshot loses the updates before it."""

    def state(self: ShareCore, key: SharePartitionKey) -> ShareState | None:
        return self.states.get(key)

    return [(ShareCore, "_state", state)]


def leader_epoch_forgotten() -> list[Patch]:
    """A read does not record the leader epoch, so former leaders may still write."""
    good = decisions._read
    return [(decisions, "_read", lambda *args: (good(*args)[0], None))]


def state_epoch_ignored() -> list[Patch]:
    """A write of an older state epoch is taken."""
    good = decisions._write

    def write(ask: Write, *args: object) -> object:
        newest = Write(
            state_epoch=-1,
            leader_epoch=ask.leader_epoch,
            start_offset=ask.start_offset,
            delivery_complete_count=ask.delivery_complete_count,
            batches=ask.batches,
        )
        return good(newest, *args)  # type: ignore[arg-type]

    return [(decisions, "_write", write)]


def repeated_beginning_resets() -> list[Patch]:
    """A repeated request to begin a state forgets what was delivered since."""
    good = decisions._initialize

    def initialize(ask: Initialize, key: SharePartitionKey, state: ShareState | None, wall_ms: int) -> object:
        return good(ask, key, None, wall_ms)

    return [(decisions, "_initialize", initialize)]


def pruned_to_newest_snapshot() -> list[Patch]:
    """The log is deleted up to the newest snapshot, not up to the oldest one that counts."""

    def redundant_end_offset(self: Snapshots) -> int:
        return max(self._offsets.values(), default=self._end_offset)

    return [(Snapshots, "redundant_end_offset", redundant_end_offset)]


def answered_before_commit() -> list[Patch]:
    """A write is acknowledged when it is appended."""
    good = ShareCore._write

    def write(self: ShareCore, changes: list[object], moment: object) -> list[object]:
        good(self, changes, moment)  # type: ignore[arg-type]
        return []

    return [(ShareCore, "_write", write)]


def assigned_before_begun() -> list[Patch]:
    """Partitions are assigned while their state is about to begin."""
    good = ShareDecisions.assign

    def assign(self: ShareDecisions, draft: ShareDraft, moment: Moment) -> None:
        states = draft.group.states
        draft.group.states = replace(
            states,
            initialized={
                **states.initialized,
                **{topic: each for topic, each in states.initializing.items() if topic not in states.initialized},
            },
        )
        good(self, draft, moment)
        draft.group.states = states

    return [(ShareDecisions, "assign", assign)]


def target_of_left_member_kept() -> list[Patch]:
    """The target assignment of a member stays when it leaves."""

    def fence(self: ShareDecisions, draft: ShareDraft, member_id: str) -> None:
        group_id = draft.group.group_id
        draft.add(ShareCurrent(group_id=group_id, member_id=member_id, member=None))
        draft.add(ShareSubscription(group_id=group_id, member_id=member_id, member=None))
        draft.raise_epoch()

    return [(ShareDecisions, "fence", fence)]


def share_session_never_ends() -> list[Patch]:
    """The sessions of members of share groups never end."""
    return [(ShareGroups, "_expire", lambda self, served, draft, expiry: None)]


def begun_partitions_not_assigned() -> list[Patch]:
    """Partitions whose state has begun wait for the next change of the group."""

    def begun(self: ShareGroups, served: object, draft: ShareDraft, answer: object, moment: object) -> None:
        states: StatePartitions = with_begun(
            draft.group.states,
            answer.question.partitions,  # type: ignore[attr-defined]
            self._catalogue,
        )
        draft.add(ShareStates(group_id=draft.group.group_id, partitions=states))

    return [(ShareGroups, "_begun", begun)]


def share_group_id_shared() -> list[Patch]:
    """A consumer group may take the id of a share group."""
    return [(GroupTypes, "misplaced", lambda self, request, version, moment: None)]


CHECKS: dict[str, Callable[[], None]] = {
    "states of share-partitions": lambda: run_states(SEEDS),
    "share groups": lambda: run_groups(SEEDS),
}
"""The campaigns by name."""


def _bug(patches: Callable[[], list[Patch]], judge: str) -> PlantedBug:
    text = (patches.__doc__ or "").strip().removesuffix(".")
    return PlantedBug(
        name=patches.__name__.replace("_", "-"),
        area="share groups",
        text=text[0].lower() + text[1:],
        patches=patches,
        judges=(judge,),
    )


BUGS = (
    _bug(snapshot_without_pending_updates, "states of share-partitions"),
    _bug(leader_epoch_forgotten, "states of share-partitions"),
    _bug(state_epoch_ignored, "states of share-partitions"),
    _bug(repeated_beginning_resets, "states of share-partitions"),
    _bug(pruned_to_newest_snapshot, "states of share-partitions"),
    _bug(answered_before_commit, "states of share-partitions"),
    _bug(assigned_before_begun, "share groups"),
    _bug(target_of_left_member_kept, "share groups"),
    _bug(share_session_never_ends, "share groups"),
    _bug(begun_partitions_not_assigned, "share groups"),
    _bug(share_group_id_shared, "share groups"),
)
"""All planted bugs of share groups."""
