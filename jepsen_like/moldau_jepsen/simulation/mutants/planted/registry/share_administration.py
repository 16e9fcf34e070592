"""Planted bugs in the administration of share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign.later_profiles import SHARE_ADMINISTRATION as PROFILE
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import share_administration as bugs

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.planted_bug import Patch


def _mutant(name: str, patches: Callable[[], list[Patch]]) -> Mutant:
    text = (patches.__doc__ or "").strip().removesuffix(".")
    return Mutant(name=name, area="shares", text=text[0].lower() + text[1:], patches=patches, profile=PROFILE)


SHARE_ADMINISTRATION = (
    _mutant("altered-state-keeps-deliveries", bugs.altered_state_keeps_deliveries),
    _mutant("share-group-deleted-with-states", bugs.share_group_deleted_with_states),
    _mutant("first-partition-deleted-only", bugs.first_partition_deleted_only),
    _mutant("share-offsets-altered-with-members", bugs.share_offsets_altered_with_members),
    _mutant("share-partition-kept-without-members", bugs.share_partition_kept_without_members),
)
