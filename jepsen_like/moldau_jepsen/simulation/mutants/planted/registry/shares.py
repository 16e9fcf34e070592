"""Planted bugs in share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign.later_profiles import SHARING
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.planted_bug import Patch


def _share(name: str, text: str, patches: Callable[[], list[Patch]]) -> Mutant:
    return Mutant(name=name, area="shares", text=text, patches=patches, profile=SHARING)


SHARES = (
    _share("share-acquires-acquired", "a record is delivered while a member holds it", shares.share_acquires_acquired),
    _share(
        "share-any-member-acknowledges",
        "a member whose lock has expired acknowledges a record that another one holds",
        shares.share_any_member_acknowledges,
    ),
    _share(
        "share-state-not-written", "acknowledgements are answered without being stored", shares.share_state_not_written
    ),
    _share("share-delivery-count-kept", "each delivery counts as the first", shares.share_delivery_count_kept),
    _share(
        "share-released-is-done", "the start offset passes records that were released", shares.share_released_is_done
    ),
    _share(
        "share-lock-never-expires",
        "records of a member that does not answer stay with it",
        shares.share_lock_never_expires,
    ),
    _share(
        "dead-letters-not-written",
        "records that a share group gives up are archived without a dead letter",
        shares.dead_letters_not_written,
    ),
    _share(
        "dead-letters-of-the-next-record",
        "a dead letter copies the record behind the one that it names",
        shares.dead_letters_of_the_next_record,
    ),
    _share(
        "share-values-exchanged",
        "a share consumer returns the values of two records of a fetch with each other's offsets",
        shares.share_values_exchanged,
    ),
)
