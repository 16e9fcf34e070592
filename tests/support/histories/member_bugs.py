"""Planted bugs of a member's core that short histories of two members and a coordinator find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.core.membership import NO_MEMBERSHIP, Membership

if TYPE_CHECKING:
    from moldau_jepsen.planted_bug import Patch


def lost_partitions_are_committed() -> list[Patch]:
    """A member that was given other partitions commits for those that it lost."""

    def commits_as(self: Membership) -> tuple[int, str] | None:
        if self.has_generation:
            return self.generation, self.member_id
        return NO_MEMBERSHIP if self.assigned_as == NO_MEMBERSHIP else None

    return [(Membership, "commits_as", property(commits_as))]


def loss_not_counted() -> list[Patch]:
    """A member that loses its generation still counts as the owner of its partitions."""

    def lose_generation(self: Membership, reason: str) -> None:
        self.rejoin(reason)
        self.generation = self.owned_generation = -1

    return [(Membership, "lose_generation", lose_generation)]


def sync_takes_over() -> list[Patch]:
    """The application counts as the owner of an assignment when it arrives, before it polls."""
    original = Membership.on_sync

    def on_sync(self, response):  # type: ignore[no-untyped-def]
        step = original(self, response)
        if self.is_stable:
            self.take_over()
        return step

    return [(Membership, "on_sync", on_sync)]
