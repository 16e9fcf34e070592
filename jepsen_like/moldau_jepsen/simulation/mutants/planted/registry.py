"""All planted bugs by name: what is wrong, in which area, and the profile in which each is hunted.

Four further bugs were tried and left out. Two are harmless because other rules compensate:

- Serving fetches with another leader epoch. A fetch also carries the epoch of its last batch, so a follower whose
  history differs must truncate before its offset counts (KIP-595).
- Acknowledging an append of an old epoch when the high watermark passes it. Pending appends are answered when
  leadership ends, so none of an old epoch remains. ``deposed-leader-acknowledges`` plants an error in that answer.

No run has met the other two:

- A gap in sequence numbers that passes. Moldau's own producer sends nothing after a refused batch except requests
  already in flight. The check protects against other clients; the tests of the log and of the wire cover it.
- A quorum leader that answers reads without confirming its leadership. A leader without a majority steps down at
  about the time at which another can be elected. The quorum's own campaign finds it (``read-without-quorum``).
"""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.profiles import (
    BANK,
    CLEANING,
    CRASHES,
    DECISIONS,
    DIVERGENCE,
    ELECTIONS,
    GROUPS,
    HANDOVERS,
    IMPATIENT,
    LONE_LEADERS,
    LOST_VOTERS,
    MEMBERS,
    OUTAGES,
    RECREATED_TOPICS,
    REJOINS,
    REPLICATION,
    RETENTION,
    TRANSACTIONS,
)
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import (
    brokers,
    coordinators,
    elections,
    epochs,
    housekeeping,
    logs,
    members,
    quorum,
    readers,
    registrations,
    transactions,
    truncation,
    watermarks,
)
from moldau_jepsen.simulation.mutants.pressed import SLOW_READERS, SMALL_BATCHES

QUORUM = (
    Mutant(
        name="raft-quorum-too-small",
        area="quorum",
        text="one of three voters counts as a majority",
        patches=quorum.quorum_of_one,
    ),
    Mutant(
        name="raft-vote-not-persisted",
        area="quorum",
        text="a vote is not persisted",
        patches=quorum.vote_forgotten,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-votes-twice",
        area="quorum",
        text="a voter votes twice in one epoch",
        patches=quorum.votes_twice,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-votes-for-stale-log",
        area="quorum",
        text="a candidate with an older log gets votes",
        patches=quorum.votes_for_stale_log,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-answers-before-durable",
        area="quorum",
        text="entries are counted before they are durable",
        patches=quorum.answers_before_durable,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-commits-on-one",
        area="quorum",
        text="an entry is committed once a single voter holds it",
        patches=quorum.counts_one_follower_twice,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-wal-not-synced",
        area="quorum",
        text="the sync of the metadata log does nothing",
        patches=quorum.wal_not_synced,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-emptied-voter-accepted",
        area="quorum",
        text="a voter is identified by its id alone, so an emptied voter is accepted",
        patches=quorum.emptied_voter_accepted,
        profile=LOST_VOTERS,
    ),
    Mutant(
        name="metadata-out-of-order",
        area="quorum",
        text="committed metadata is applied out of order",
        patches=quorum.metadata_applied_out_of_order,
    ),
    Mutant(
        name="metadata-configuration-late",
        area="quorum",
        text="some configuration changes are applied after later ones",
        patches=quorum.configuration_applied_late,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-conflicts-kept",
        area="quorum",
        text="a follower keeps its own entry where it conflicts with the leader's",
        patches=quorum.conflicts_kept,
        profile=ELECTIONS,
    ),
)

CONTROLLER = (
    Mutant(
        name="controller-unclean-election",
        area="controller",
        text="a replica outside the ISR is elected although unclean election is disabled",
        patches=elections.unclean_election,
        profile=CRASHES,
    ),
    Mutant(
        name="controller-elects-any-replica",
        area="controller",
        text="elections ignore the ISR",
        patches=elections.elects_any_replica,
        profile=CRASHES,
    ),
    Mutant(
        name="controller-accepts-stale-isr",
        area="controller",
        text="the controller accepts an ISR change with an old leader epoch",
        patches=elections.stale_isr_change,
        profile=HANDOVERS,
    ),
    Mutant(
        name="elr-ignored",
        area="controller",
        text="a replica that leaves a small ISR is not added to the ELR",
        patches=registrations.elr_ignored,
        profile=CRASHES,
    ),
    Mutant(
        name="elr-member-without-its-data",
        area="controller",
        text="a broker stays in the ELR after an unclean stop that may have lost records",
        patches=registrations.eligible_without_data,
        profile=CRASHES,
    ),
    Mutant(
        name="last-known-leader-too-early",
        area="controller",
        text="any live replica is elected while the eligible replicas are offline",
        patches=registrations.last_known_leader_too_early,
        profile=CRASHES,
    ),
    Mutant(
        name="fenced-broker-may-lead",
        area="controller",
        text="a broker whose session has expired may lead partitions and join the ISR",
        patches=registrations.fenced_broker_may_lead,
        profile=CRASHES,
    ),
    Mutant(
        name="session-timeout-ignored",
        area="controller",
        text="sessions never end",
        patches=registrations.session_timeout_ignored,
        profile=OUTAGES,
    ),
    Mutant(
        name="stale-broker-epoch-joins",
        area="controller",
        text="a replica joins the ISR on progress that it made under an older broker epoch",
        patches=registrations.stale_broker_epoch_joins,
        profile=REJOINS,
    ),
    Mutant(
        name="empty-elr-unchanged",
        area="controller",
        text="a change that empties the ELR is applied as no change",
        patches=elections.empty_elr_taken_for_unchanged,
        profile=CRASHES,
    ),
    Mutant(
        name="leader-epoch-kept",
        area="controller",
        text="a new leader keeps the leader epoch of its predecessor",
        patches=elections.epoch_kept_in_handover,
        profile=HANDOVERS,
    ),
    Mutant(
        name="unfencing-rejoins-every-isr",
        area="controller",
        text="an unfenced broker is added to the ISR of all its partitions",
        patches=elections.unfenced_is_in_sync,
        profile=CRASHES,
    ),
    Mutant(
        name="silent-session-kept",
        area="controller",
        text="a session expires only if its connection was closed",
        patches=registrations.silence_on_an_open_connection,
        profile=OUTAGES,
    ),
)

REPLICATED = (
    Mutant(
        name="watermark-without-isr",
        area="replication",
        text="the high watermark is the leader's log end",
        patches=watermarks.watermark_without_isr,
    ),
    Mutant(
        name="watermark-by-majority",
        area="replication",
        text="a majority of replicas, instead of the ISR, advances the high watermark",
        patches=watermarks.watermark_by_majority,
    ),
    Mutant(
        name="watermark-before-shrink-committed",
        area="replication",
        text="the high watermark advances before the ISR shrink is committed",
        patches=watermarks.watermark_before_shrink,
        profile=REPLICATION,
    ),
    Mutant(
        name="isr-shrinks-without-controller",
        area="replication",
        text="a proposed ISR shrink takes effect at once, so an isolated leader goes on acknowledging",
        patches=watermarks.isr_join_unasked,
        profile=REPLICATION,
    ),
    Mutant(
        name="isr-refusal-treated-as-success",
        area="replication",
        text="a refused ISR change takes effect",
        patches=watermarks.isr_shrink_lost,
        profile=LONE_LEADERS,
    ),
    Mutant(
        name="isr-join-too-early",
        area="replication",
        text="a lagging replica joins the ISR",
        patches=watermarks.joins_too_early,
        profile=REPLICATION,
    ),
    Mutant(
        name="min-isr-ignored",
        area="replication",
        text="the high watermark advances with fewer in-sync replicas than min.insync.replicas",
        patches=brokers.min_isr_ignored,
        profile=REPLICATION,
    ),
    Mutant(
        name="lagging-follower-counts-as-caught-up",
        area="replication",
        text="any fetch marks the follower as caught up",
        patches=watermarks.laggards_stay_counted_out,
    ),
    Mutant(
        name="follower-acks-before-append",
        area="replication",
        text="a follower reports a fetch offset before it has appended the records",
        patches=brokers.follower_acks_before_append,
    ),
    Mutant(
        name="acknowledged-at-once",
        area="replication",
        text="the leader answers acks=all without waiting for followers",
        patches=watermarks.acknowledged_at_once,
    ),
    Mutant(
        name="deposed-leader-acknowledges",
        area="replication",
        text="pending produce requests are acknowledged when leadership ends",
        patches=brokers.deposed_leader_acknowledges,
        profile=REPLICATION,
    ),
    Mutant(
        name="produce-completed-twice",
        area="replication",
        text="a delayed produce is completed by its condition and again by its timeout",
        patches=brokers.produce_completed_twice,
        profile=IMPATIENT,
    ),
    Mutant(
        name="produce-answered-twice",
        area="replication",
        text="a delayed produce is completed and answered twice",
        patches=brokers.produce_answered_twice,
        profile=IMPATIENT,
    ),
    Mutant(
        name="answers-sent-ahead",
        area="broker",
        text="an answer that may be sent early is queued a second time behind the answer that waits",
        patches=brokers.answers_sent_ahead_and_queued,
        profile=DECISIONS,
    ),
    Mutant(
        name="watermark-falls",
        area="replication",
        text="the high watermark falls when a follower reports a lower offset",
        patches=watermarks.watermark_falls,
        profile=REPLICATION,
    ),
    Mutant(
        name="divergence-not-detected",
        area="replication",
        text="the leader does not detect diverging logs",
        patches=truncation.divergence_not_detected,
        profile=DIVERGENCE,
    ),
    Mutant(
        name="divergence-ignored",
        area="replication",
        text="a follower does not truncate a diverging log",
        patches=truncation.divergence_ignored,
        profile=DIVERGENCE,
    ),
    Mutant(
        name="truncates-to-watermark",
        area="replication",
        text="a follower truncates to its high watermark instead of the end of the diverging epoch",
        patches=truncation.truncates_to_watermark,
        profile=DIVERGENCE,
    ),
)

LOG = (
    Mutant(
        name="truncates-one-too-little",
        area="log",
        text="the end offset of a leader epoch is reported one too high",
        patches=truncation.truncates_too_little,
        profile=DIVERGENCE,
    ),
    Mutant(
        name="sequence-numbers-ignored",
        area="log",
        text="sequence numbers are not checked",
        patches=logs.sequence_numbers_ignored,
        profile=REPLICATION,
    ),
    Mutant(
        name="dedup-lost-on-failover",
        area="log",
        text="followers do not keep producer state",
        patches=logs.dedup_lost_on_failover,
        profile=REPLICATION,
    ),
    Mutant(
        name="log-not-synced",
        area="log",
        text="the sync before an acknowledgement does nothing",
        patches=logs.log_not_synced,
        swarm=RunOptions(synced=True),
    ),
    Mutant(
        name="recreated-topic-keeps-longer-log",
        area="log",
        text="of two logs with one topic name in two directories, the longer one is kept whatever its topic id",
        patches=logs.recreated_topic_keeps_longer_log,
        profile=RECREATED_TOPICS,
    ),
    Mutant(
        name="recreated-topic-reuses-old-log",
        area="log",
        text="a recreated topic starts with the log of the deleted one",
        patches=logs.recreated_topic_reuses_old_log,
        profile=RECREATED_TOPICS,
    ),
    Mutant(name="index-off-by-one", area="log", text="a lookup finds the next batch", patches=logs.index_off_by_one),
    Mutant(
        name="cleaner-drops-last-value",
        area="log",
        text="the cleaner drops a key's last value",
        patches=housekeeping.cleaner_drops_last_value,
        profile=CLEANING,
    ),
    Mutant(
        name="retention-deletes-active-segment",
        area="log",
        text="retention by size deletes the active segment",
        patches=housekeeping.retention_deletes_active_segment,
        profile=RETENTION,
    ),
)

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
        profile=TRANSACTIONS,
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
        profile=GROUPS,
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
        profile=MEMBERS,
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

OTHERS = (
    Mutant(
        name="reads-beyond-watermark",
        area="broker",
        text="consumers read records above the high watermark",
        patches=readers.reads_beyond_watermark,
    ),
    Mutant(
        name="consumer-skips",
        area="client",
        text="the consumer sometimes skips an offset",
        patches=readers.consumer_skips,
    ),
    Mutant(
        name="consumer-repeats",
        area="client",
        text="the consumer sometimes returns a record twice",
        patches=members.consumer_repeats,
    ),
    Mutant(
        name="partial-chunk-repeats",
        area="client",
        text="reading of a fetched chunk sometimes resumes one record too early",
        patches=members.partial_chunk_repeats,
        profile=GROUPS,
    ),
    Mutant(
        name="empty-keys-lost",
        area="client",
        text="an empty key is returned as a missing key",
        patches=members.empty_keys_lost,
        profile=BANK,
    ),
    Mutant(
        name="seek-skips-target",
        area="client",
        text="a seek positions the consumer after the requested record",
        patches=members.seek_skips_target,
        profile=BANK,
    ),
    Mutant(
        name="newest-batch-first",
        area="client",
        text="the newest batch of a partition is sent before older ones",
        patches=members.newest_batch_first,
        profile=SMALL_BATCHES,
    ),
    Mutant(
        name="commits-fetch-position",
        area="client",
        text="a commit takes the fetch position, which is ahead of what the application polled",
        patches=members.commits_fetch_position,
        profile=SLOW_READERS,
    ),
)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in (*QUORUM, *CONTROLLER, *REPLICATED, *LOG, *COORDINATORS, *OTHERS)
}
