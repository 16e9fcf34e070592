"""Planted bugs of pure cores that the exhaustive checks of short histories must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.planted_bug import PlantedBug, planted
from support.histories import (
    classic_group,
    consumer_group,
    consumer_group_bugs,
    group_bugs,
    member_bugs,
    members,
    quorum,
    quorum_bugs,
    replica_bugs,
    replicas,
    session_bugs,
    sessions,
    share_bugs,
    shares,
    transaction_bugs,
    transactions,
)
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
    copies: bool
    settle_depth: int | None

    def find(self, bug: PlantedBug) -> str:
        """Returns the shortest history that shows the bug; empty if there is none."""
        with planted(bug):
            try:
                explore(self.scene, self.depth, copies=self.copies, settle_depth=self.settle_depth)
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
        settle_depth = 0 if scene in (*quorum.SCENES, *consumer_group.SCENES) else None  # whose end takes long
        HUNTS[name] = Hunt(scene=scene, depth=depth, copies=copies, settle_depth=settle_depth)
    return found


def _quorum(scene: Callable[[], World], *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("quorum", "short histories of a quorum", scene, 3, *patches, copies=True)


def _transactions(scene: Callable[[], World], depth: int, *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("transactions", "short histories of transactions", scene, depth, *patches)


def _group(scene: Callable[[], World], depth: int, *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("groups", "short histories of a classic group", scene, depth, *patches)


def _replica(scene: Callable[[], World], depth: int, *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("replication", "short histories of a partition", scene, depth, *patches, copies=True)


def _shares(scene: Callable[[], World], depth: int, *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("share groups", "short histories of a share-partition", scene, depth, *patches, copies=True)


def _session(scene: Callable[[], World], *patches: Callable[[], list[Patch]]) -> list[PlantedBug]:
    return _bugs("fetch sessions", "short histories of fetch sessions", scene, 3, *patches, copies=True)


BUGS: tuple[PlantedBug, ...] = (
    *_quorum(
        quorum.led_quorum,
        quorum_bugs.durable_index_kept,
        quorum_bugs.early_answer_counts_all,
        quorum_bugs.votes_of_the_last_election,
    ),
    *_quorum(quorum.contested_quorum, quorum_bugs.heartbeat_counts_all, quorum_bugs.truncated_write_counts),
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
        transactions.second_transaction, 5, transaction_bugs.repeated_end_believed, transaction_bugs.fenced_epoch_ends
    ),
    *_group(
        classic_group.stable_pair,
        3,
        group_bugs.last_generation_commits,
        group_bugs.replaced_member_commits,
        group_bugs.session_not_renewed_by_sync,
        group_bugs.departure_ends_no_join_phase,
    ),
    *_group(classic_group.twice_synced_pair, 2, group_bugs.late_write_completes_next_generation),
    *_bugs(
        "groups",
        "short histories of a consumer group",
        consumer_group.stable_pair,
        2,
        consumer_group_bugs.former_epoch_commits,
    ),
    *_bugs(
        "groups",
        "short histories of a consumer group",
        consumer_group.releasing_pair,
        4,
        consumer_group_bugs.lost_partitions_are_free,
    ),
    *_bugs(
        "client",
        "short histories of members",
        members.lost_member,
        2,
        member_bugs.lost_partitions_are_committed,
        member_bugs.loss_not_counted,
        member_bugs.sync_takes_over,
    ),
    *_replica(
        replicas.shrunk_isr,
        4,
        replica_bugs.admission_counts_for_min_isr,
        replica_bugs.resolved_proposal_kept,
        replica_bugs.answer_counts_as_appended,
        replica_bugs.returned_follower_stays_outside,
    ),
    *_replica(
        replicas.admission_committed,
        5,
        replica_bugs.admission_not_waited_for,
        replica_bugs.accepted_admission_dropped,
    ),
    *_replica(replicas.admission_unanswered, 5, replica_bugs.unknown_outcome_drops_proposal),
    *_replica(replicas.new_leader, 2, replica_bugs.new_follower_counts_as_fetched),
    *_session(
        sessions.open_session,
        session_bugs.refusal_counts_as_answer,
        session_bugs.recreated_topic_keeps_entry,
        session_bugs.evicted_session_still_counts,
        session_bugs.change_leaves_partition_at_rest,
        session_bugs.named_partition_stays_at_rest,
        session_bugs.ended_session_stays_in_index,
    ),
    *_session(
        sessions.open_follower_session,
        session_bugs.news_of_former_epoch_not_repeated,
        session_bugs.dropped_partition_fetched_on,
    ),
    *_session(sessions.advanced_session, session_bugs.lower_offset_ignored),
    *_shares(shares.accepted_first, 2, share_bugs.start_offset_goes_back),
    *_shares(shares.released_last, 3, share_bugs.later_batch_wins),
    *_shares(
        shares.held_records,
        3,
        share_bugs.refused_write_counts,
        share_bugs.lock_ends_during_write,
        share_bugs.acquired_records_taken_for_done,
        share_bugs.answer_before_commit,
    ),
    *_shares(shares.former_leader, 4, share_bugs.former_leader_writes),
)
