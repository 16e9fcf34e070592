"""The planted bugs of coordinators of groups and transactions."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.profiles import DECISIONS, GROUPS, MEMBERS, TRANSACTIONS
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import coordinators, transactions
from moldau_jepsen.simulation.mutants.planted.log import epochs
from moldau_jepsen.simulation.mutants.pressed import ADMINISTRATION, MOVED_MARKERS

COORDINATORS = (
    Mutant(
        name="last-stable-offset-ignored",
        area="transactions",
        text="read_committed reads up to the high watermark",
        patches=coordinators.last_stable_offset_ignored,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="newest-transaction-holds-back",
        area="transactions",
        text="the last stable offset is that of the newest open transaction instead of the oldest",
        patches=coordinators.newest_transaction_holds_back,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="aborted-transactions-omitted-from-fetch",
        area="transactions",
        text="fetch responses omit the aborted transactions",
        patches=coordinators.aborted_transactions_unreported,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="marker-written-twice",
        area="transactions",
        text="a marker is written again after the next transaction has begun",
        patches=coordinators.marker_written_twice,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="markers-not-repeated",
        area="transactions",
        text="a marker whose write failed is treated as written",
        patches=coordinators.markers_not_repeated,
        profile=MOVED_MARKERS,
    ),
    Mutant(
        name="remote-commit-markers-become-aborts",
        area="transactions",
        text="commit markers for other brokers are sent as abort markers",
        patches=coordinators.others_hear_of_no_commit,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="new-producer-epoch-zero",
        area="transactions",
        text="a new producer of a transactional id starts with epoch 0",
        patches=coordinators.new_producer_epoch_zero,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="decision-forgotten",
        area="transactions",
        text="a coordinator that loads a prepared transaction treats it as open",
        patches=coordinators.decision_forgotten,
        profile=DECISIONS,
    ),
    Mutant(
        name="transaction-epoch-kept",
        area="transactions",
        text="a transaction ends with the epoch with which it began",
        patches=transactions.epoch_kept,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="repeated-end-raises-again",
        area="transactions",
        text="an EndTxn that is sent again raises the epoch a second time",
        patches=transactions.repeated_end_raises_again,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="partition-not-added",
        area="transactions",
        text="a leader does not ask the coordinator before the first batch of a transaction",
        patches=transactions.partition_not_added,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="late-marker-accepted",
        area="transactions",
        text="a late copy of a marker ends the producer's next transaction",
        patches=transactions.late_marker_accepted,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="offset-commit-unfenced",
        area="groups",
        text="offset commits do not check the member's generation",
        patches=coordinators.offset_commit_unfenced,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="given-before-released",
        area="groups",
        text="a member of the consumer protocol gets partitions that another one still owns",
        patches=epochs.given_before_released,
        profile=MEMBERS,
    ),
    Mutant(
        name="member-epoch-unchecked",
        area="groups",
        text="offsets of a consumer group are committed in any epoch",
        patches=epochs.member_epoch_unchecked,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="fenced-member-keeps-assignment",
        area="groups",
        text="a member whose session has ended keeps its assignment",
        patches=epochs.fenced_member_keeps,
        profile=MEMBERS,
    ),
    Mutant(
        name="regex-resolved-once",
        area="groups",
        text="new topics that match a regular expression are not noticed",
        patches=epochs.regex_resolved_once,
        profile=MEMBERS,
    ),
    Mutant(
        name="generation-kept",
        area="groups",
        text="a rebalance without a new member keeps the generation",
        patches=coordinators.generation_kept,
        profile=GROUPS,
    ),
    Mutant(
        name="generation-not-loaded",
        area="groups",
        text="a coordinator that loads a group restarts its generation number",
        patches=coordinators.generation_not_loaded,
        profile=GROUPS,
    ),
    Mutant(
        name="transactional-offsets-not-loaded",
        area="groups",
        text="a coordinator that loads its log drops transactional offsets",
        patches=coordinators.transactional_offsets_not_loaded,
        profile=GROUPS,
    ),
    Mutant(
        name="aborted-offsets-count",
        area="groups",
        text="the offsets of an aborted transaction take effect",
        patches=coordinators.aborted_offsets_count,
        profile=GROUPS,
    ),
)
