"""Planted bugs in streams groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign.later_profiles import STREAMING
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.planted_bug import Patch


def _streams(name: str, patches: Callable[[], list[Patch]]) -> Mutant:
    text = (patches.__doc__ or "").strip().removesuffix(".")
    return Mutant(name=name, area="streams", text=text[0].lower() + text[1:], patches=patches, profile=STREAMING)


STREAMS = (
    _streams("active-task-given-before-release", streams.active_task_given_before_release),
    _streams("silence-counts-as-release", streams.silence_counts_as_release),
    _streams("revoked-without-order", streams.revoked_without_order),
    _streams("streams-session-never-ends", streams.streams_session_never_ends),
    _streams("commit-of-stranger-accepted", streams.commit_of_stranger_accepted),
    _streams("task-forgotten-by-assignor", streams.task_forgotten_by_assignor),
    _streams("task-assigned-twice", streams.task_assigned_twice),
    _streams("some-offsets-not-applied", streams.some_offsets_not_applied),
)
