"""Planted bugs of pure cores that the exhaustive checks of short histories must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.planted_bug import PlantedBug, planted
from support.histories import classic_group, group_bugs, quorum, quorum_bugs, transaction_bugs, transactions
from support.histories.explorer import ViolationError, explore

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.planted_bug import Patch
    from support.histories.explorer import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """The histories in which a bug must be found."""

    scene: Callable[[], World]
    depth: int
    copies: bool = False

    def find(self, bug: PlantedBug) -> str:
        """Returns the shortest history that shows the bug; empty if there is none."""
        with planted(bug):
            try:
                explore(self.scene, self.depth, copies=self.copies, settle_depth=1 if self.copies else None)
            except ViolationError as error:
                return str(error)
            except AssertionError as error:
                return f"{error}\nin the scene that begins all histories"
        return ""


HUNTS: dict[str, Hunt] = {}
"""By the name of the bug."""


def _bugs(
    area: str,
    judge: str,
    scene: Callable[[], World],
    depth: int,
    *patches: Callable[[], list[Patch]],
    copies: bool = False,
) -> list[PlantedBug]:
    """Registers bugs by their functions: the name and the text of each are those of its function."""
    found = []
    for each in patches:
        name = each.__name__.replace("_", "-")
        text = (each.__doc__ or "").strip().rstrip(".")
        found.append(PlantedBug(name=name, area=area, text=text[0].lower() + text[1:], patches=each, judges=(judge,)))
        HUNTS[name] = Hunt(scene=scene, depth=depth, copies=copies)
    return found


def _quorum(scene: Callable[[], World], *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("quorum", "short histories of a quorum", scene, 3, *patches, copies=True)


def _transactions(scene: Callable[[], World], depth: int, *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("transactions", "short histories of transactions", scene, depth, *patches)


def _group(scene: Callable[[], World], depth: int, *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("groups", "short histories of a classic group", scene, depth, *patches)


BUGS: tuple[PlantedBug, ...] = (
    *_quorum(
        quorum.led_quorum,
        quorum_bugs.durable_index_kept,
        quorum_bugs.early_answer_counts_all,
        quorum_bugs.votes_of_the_last_election,
    ),
    *_quorum(quorum.contested_quorum, quorum_bugs.truncated_write_counts),
    *_quorum(quorum.slow_quorum, quorum_bugs.sync_covers_what_is_not_written),
    *_transactions(
        transactions.Transactions,
        5,
        transaction_bugs.timeout_lost_while_busy,
        transaction_bugs.refused_completion_forgotten,
        transaction_bugs.abort_keeps_epoch,
        transaction_bugs.decision_answered_when_appended,
    ),
    *_transactions(
        transactions.second_transaction, 4, transaction_bugs.repeated_end_believed, transaction_bugs.fenced_epoch_ends
    ),
    *_group(
        classic_group.stable_pair,
        3,
        group_bugs.last_generation_commits,
        group_bugs.replaced_member_commits,
        group_bugs.session_not_renewed_by_sync,
        group_bugs.leaver_wakes_nobody,
    ),
    *_group(classic_group.twice_synced_pair, 2, group_bugs.late_write_completes_next_generation),
)
