"""Planted bugs of streams groups, each of which a campaign of clients must find."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.streams.core import heartbeat, offset_checks, state
from moldau_broker.coordinator.group.streams.core.groups import StreamsGroups
from moldau_broker.coordinator.group.streams.core.heartbeat import StreamsDecisions
from moldau_broker.coordinator.group.streams.core.state import (
    StreamsCurrent,
    StreamsEpoch,
    StreamsGroup,
    StreamsMetadata,
)
from moldau_jepsen.planted_bug import Patch, PlantedBug
from moldau_jepsen.simulation.mutants.planted import streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.errors import ErrorCode
    from moldau_broker.coordinator.group.streams.core.heartbeat import Surroundings
    from moldau_broker.coordinator.group.streams.core.state import StreamsDraft, StreamsMember
    from moldau_broker.coordinator.group.streams.core.topology import Task

SEEDS = range(12)


def threads_of_process_share_task() -> list[Patch]:
    """Two threads of one process may have the same task as active and standby."""

    def is_free(self: StreamsGroup, kind: int, task: Task, member: StreamsMember) -> bool:
        return kind != 0 or self.active_owners.get(task, member.member_id) == member.member_id

    return [(StreamsGroup, "is_free", is_free)]


def target_of_left_streams_member_kept() -> list[Patch]:
    """The target assignment of a member stays when it leaves."""
    good = state.removal_of

    def removal(group_id: str, member_id: str) -> tuple[object, ...]:
        return tuple(each for each in good(group_id, member_id) if isinstance(each, StreamsCurrent | StreamsMetadata))

    return [(heartbeat, "removal_of", removal)]


def any_streams_epoch_accepted() -> list[Patch]:
    """A heartbeat of any epoch is accepted."""
    return [(heartbeat, "check_epoch", lambda member, epoch, reported: None)]


def late_commit_accepted() -> list[Patch]:
    """A commit of an older epoch is accepted for tasks that the member has got only later, or has not."""
    return [(offset_checks, "_had_since", lambda *args: True)]


def assigned_with_wrong_topics() -> list[Patch]:
    """Tasks stay assigned although the topics no longer fit, and no answer reports the change to the group."""

    def unchanged(self: StreamsDecisions, draft: StreamsDraft, hashed: int, configured: object, *, bumps: bool) -> None:
        if bumps:
            good(self, draft, hashed, configured, bumps=bumps)  # type: ignore[arg-type]

    good = StreamsDecisions._raise_epoch_if_needed
    return [(StreamsDecisions, "_raise_epoch_if_needed", unchanged)]


def creation_never_repeated() -> list[Patch]:
    """Internal topics whose creation has failed are never created again."""
    good = StreamsGroups.topics_created

    def created(self: StreamsGroups, group_id: str, errors: dict[str, ErrorCode], moment: object) -> None:
        good(self, group_id, errors, moment)  # type: ignore[arg-type]
        served = self._served.all.get(group_id)
        if served is not None:
            served.is_creating = True

    return [(StreamsGroups, "topics_created", created)]


def group_left_without_epoch() -> list[Patch]:
    """The group epoch does not rise when a member leaves, so its tasks stay without an owner."""
    good = StreamsDecisions.fence

    def fence(self: StreamsDecisions, draft: StreamsDraft, around: Surroundings, member_id: str) -> None:
        good(self, draft, around, member_id)
        change = draft.changes.pop()
        assert isinstance(change, StreamsEpoch)
        draft.add(replace(change, epoch=draft.group.epoch - 1))

    return [(StreamsDecisions, "fence", fence)]


def _bug(patches: Callable[[], list[Patch]]) -> PlantedBug:
    text = (patches.__doc__ or "").strip().removesuffix(".")
    return PlantedBug(
        name=patches.__name__.replace("_", "-"),
        area="streams groups",
        text=text[0].lower() + text[1:],
        patches=patches,
        judges=("campaign of streams clients",),
    )


BUGS = (
    _bug(streams.active_task_given_before_release),
    _bug(threads_of_process_share_task),
    _bug(streams.silence_counts_as_release),
    _bug(streams.revoked_without_order),
    _bug(target_of_left_streams_member_kept),
    _bug(streams.streams_session_never_ends),
    _bug(any_streams_epoch_accepted),
    _bug(late_commit_accepted),
    _bug(streams.commit_of_stranger_accepted),
    _bug(streams.task_forgotten_by_assignor),
    _bug(assigned_with_wrong_topics),
    _bug(creation_never_repeated),
    _bug(group_left_without_epoch),
)
"""All planted bugs of streams groups."""
