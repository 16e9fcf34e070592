"""All planted bugs by name: what is wrong, where, and the runs in which each is hunted.

Four that were tried are not here. Two do no harm, because other rules make up for them. Requests with
another leader epoch are served: a fetch carries the epoch of the last batch too, so a follower whose history differs is
told to truncate before its offset counts (KIP-595). An append of an old epoch is acknowledged when the high watermark
passes it: what waits is answered when leadership ends, so nothing of an old epoch is left to be acknowledged; that
answer being wrong is ``deposed-leader-acknowledges``. The third, a gap in sequence numbers that passes, no run has met:
Moldau's own producer sends nothing past a refused batch but what was under way already, so the check stands against
other clients, and the tests of the log and of the wire convict its absence. Nor has any met the fourth, a leader of the
quorum that answers reads without asking whether it still leads: one that hears no majority steps down about when
another can be elected. The quorum's own campaign convicts it (``read without quorum``).
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
    OUTAGES,
    RECREATED_TOPICS,
    REJOINS,
    REPLICATION,
    RETENTION,
    TRANSACTIONS,
)
from moldau_jepsen.simulation.mutants.planted import (
    brokers,
    coordinators,
    elections,
    housekeeping,
    logs,
    members,
    quorum,
    readers,
    registrations,
    truncation,
    watermarks,
)
from moldau_jepsen.simulation.mutants.planted.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted.pressed import SLOW_READERS, SMALL_BATCHES

QUORUM = (
    Mutant(
        name="raft-quorum-too-small", area="quorum", text="one of three is a majority", patches=quorum.quorum_of_one
    ),
    Mutant(
        name="raft-vote-not-persisted",
        area="quorum",
        text="a vote is gone after a crash",
        patches=quorum.vote_forgotten,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-votes-twice",
        area="quorum",
        text="a second vote in one epoch",
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
        text="an entry that one voter holds is committed",
        patches=quorum.counts_one_follower_twice,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-wal-not-synced",
        area="quorum",
        text="fsync of the log does nothing",
        patches=quorum.wal_not_synced,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-emptied-voter-accepted",
        area="quorum",
        text="voters are known by their id, whatever has become of their log",
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
        text="some changes of configuration are applied after those that follow",
        patches=quorum.configuration_applied_late,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-conflicts-kept",
        area="quorum",
        text="a follower takes what stands at an index for what the leader sent",
        patches=quorum.conflicts_kept,
        profile=ELECTIONS,
    ),
)

CONTROLLER = (
    Mutant(
        name="controller-unclean-election",
        area="controller",
        text="a replica out of sync leads rather than none",
        patches=elections.unclean_election,
        profile=CRASHES,
    ),
    Mutant(
        name="controller-elects-any-replica",
        area="controller",
        text="the ISR is not asked in elections",
        patches=elections.elects_any_replica,
        profile=CRASHES,
    ),
    Mutant(
        name="controller-accepts-stale-isr",
        area="controller",
        text="the epoch fence of ISR changes is skipped",
        patches=elections.stale_isr_change,
        profile=HANDOVERS,
    ),
    Mutant(
        name="elr-ignored",
        area="controller",
        text="who leaves a small ISR is not kept as eligible",
        patches=registrations.elr_ignored,
        profile=CRASHES,
    ),
    Mutant(
        name="elr-member-without-its-data",
        area="controller",
        text="a crashed broker stays eligible though it may have lost records",
        patches=registrations.eligible_without_data,
        profile=CRASHES,
    ),
    Mutant(
        name="last-known-leader-too-early",
        area="controller",
        text="any live replica leads while the eligible replicas are away",
        patches=registrations.last_known_leader_too_early,
        profile=CRASHES,
    ),
    Mutant(
        name="fenced-broker-may-lead",
        area="controller",
        text="a broker whose session is over may lead and join",
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
        text="a replica joins the ISR for what it had in a former life",
        patches=registrations.stale_broker_epoch_joins,
        profile=REJOINS,
    ),
    Mutant(
        name="empty-elr-unchanged",
        area="controller",
        text="an ELR that becomes empty is taken for an unchanged one",
        patches=elections.empty_elr_taken_for_unchanged,
        profile=CRASHES,
    ),
    Mutant(
        name="leader-epoch-kept",
        area="controller",
        text="a leader that hands over passes its epoch on",
        patches=elections.epoch_kept_in_handover,
        profile=HANDOVERS,
    ),
    Mutant(
        name="unfencing-rejoins-every-isr",
        area="controller",
        text="who is unfenced is back in every ISR",
        patches=elections.unfenced_is_in_sync,
        profile=CRASHES,
    ),
    Mutant(
        name="silent-session-kept",
        area="controller",
        text="a session ends only where its connection was closed",
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
        text="a majority of replicas moves the high watermark",
        patches=watermarks.watermark_by_majority,
    ),
    Mutant(
        name="watermark-before-shrink-committed",
        area="replication",
        text="the high watermark moves before the ISR shrink is committed",
        patches=watermarks.watermark_before_shrink,
        profile=REPLICATION,
    ),
    Mutant(
        name="isr-shrinks-without-controller",
        area="replication",
        text="a proposed ISR counts at once, so a leader without controllers goes on acknowledging",
        patches=watermarks.isr_join_unasked,
        profile=REPLICATION,
    ),
    Mutant(
        name="isr-refusal-treated-as-success",
        area="replication",
        text="a refused ISR change counts",
        patches=watermarks.isr_shrink_lost,
        profile=LONE_LEADERS,
    ),
    Mutant(
        name="isr-join-too-early",
        area="replication",
        text="a lagging replica joins",
        patches=watermarks.joins_too_early,
        profile=REPLICATION,
    ),
    Mutant(
        name="min-isr-ignored",
        area="replication",
        text="the high watermark moves with fewer in sync than min.insync.replicas",
        patches=brokers.min_isr_ignored,
        profile=REPLICATION,
    ),
    Mutant(
        name="lagging-follower-counts-as-caught-up",
        area="replication",
        text="any fetch counts as a fetch of the end",
        patches=watermarks.laggards_stay_counted_out,
    ),
    Mutant(
        name="follower-acks-before-append",
        area="replication",
        text="a follower reports records that are not in its log yet",
        patches=brokers.follower_acks_before_append,
    ),
    Mutant(
        name="acknowledged-at-once",
        area="replication",
        text="acks=all is answered by the leader alone",
        patches=watermarks.acknowledged_at_once,
    ),
    Mutant(
        name="deposed-leader-acknowledges",
        area="replication",
        text="what waits when leadership ends is acknowledged",
        patches=brokers.deposed_leader_acknowledges,
        profile=REPLICATION,
    ),
    Mutant(
        name="produce-completed-twice",
        area="replication",
        text="a delayed produce is completed by its condition and again by its deadline",
        patches=brokers.produce_completed_twice,
        profile=IMPATIENT,
    ),
    Mutant(
        name="produce-answered-twice",
        area="replication",
        text="a delayed produce is completed twice, and each time an answer is sent",
        patches=brokers.produce_answered_twice,
        profile=IMPATIENT,
    ),
    Mutant(
        name="answers-sent-ahead",
        area="broker",
        text="answers sent ahead of one that waits are queued behind it as well",
        patches=brokers.answers_sent_ahead_and_queued,
        profile=DECISIONS,
    ),
    Mutant(
        name="watermark-falls",
        area="replication",
        text="the high watermark follows what followers say now, also downwards",
        patches=watermarks.watermark_falls,
        profile=REPLICATION,
    ),
    Mutant(
        name="divergence-not-detected",
        area="replication",
        text="the leader does not look for divergence",
        patches=truncation.divergence_not_detected,
        profile=DIVERGENCE,
    ),
    Mutant(
        name="divergence-ignored",
        area="replication",
        text="the follower does not truncate",
        patches=truncation.divergence_ignored,
        profile=DIVERGENCE,
    ),
    Mutant(
        name="truncates-to-watermark",
        area="replication",
        text="truncation to the high watermark instead of the epoch's end",
        patches=truncation.truncates_to_watermark,
        profile=DIVERGENCE,
    ),
)

LOG = (
    Mutant(
        name="truncates-one-too-little",
        area="log",
        text="an epoch ends one offset late",
        patches=truncation.truncates_too_little,
        profile=DIVERGENCE,
    ),
    Mutant(
        name="sequence-numbers-ignored",
        area="log",
        text="sequence numbers are not looked at",
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
        text="fsync before the acknowledgement does nothing",
        patches=logs.log_not_synced,
        swarm=RunOptions(synced=True),
    ),
    Mutant(
        name="recreated-topic-keeps-longer-log",
        area="log",
        text="of the logs of two topics of one name, found in two directories, the longer one stays",
        patches=logs.recreated_topic_keeps_longer_log,
        profile=RECREATED_TOPICS,
    ),
    Mutant(
        name="recreated-topic-reuses-old-log",
        area="log",
        text="a recreated topic begins with the log of its predecessor",
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
        text="deletion by size takes the active segment along",
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
        text="of the open transactions of a partition only the newest is hidden from read_committed",
        patches=coordinators.newest_transaction_holds_back,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="aborted-transactions-omitted-from-fetch",
        area="transactions",
        text="readers are not told what was aborted",
        patches=coordinators.aborted_transactions_unreported,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="marker-written-twice",
        area="transactions",
        text="a marker comes again when the next transaction has begun",
        patches=coordinators.marker_written_twice,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="markers-not-repeated",
        area="transactions",
        text="a marker that could not be written is taken for written",
        patches=coordinators.markers_not_repeated,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="remote-commit-markers-become-aborts",
        area="transactions",
        text="other brokers are not told that a transaction was committed",
        patches=coordinators.others_hear_of_no_commit,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="new-producer-epoch-zero",
        area="transactions",
        text="a new producer of a transactional id begins with epoch 0",
        patches=coordinators.new_producer_epoch_zero,
        profile=TRANSACTIONS,
    ),
    Mutant(
        name="decision-forgotten",
        area="transactions",
        text="a coordinator that loads a decided transaction takes it for open",
        patches=coordinators.decision_forgotten,
        profile=DECISIONS,
    ),
    Mutant(
        name="offset-commit-unfenced",
        area="groups",
        text="offsets are committed before the sender is fenced",
        patches=coordinators.offset_commit_unfenced,
        profile=GROUPS,
    ),
    Mutant(
        name="generation-kept",
        area="groups",
        text="a rebalance without a new member begins no new generation",
        patches=coordinators.generation_kept,
        profile=GROUPS,
    ),
    Mutant(
        name="generation-not-loaded",
        area="groups",
        text="a coordinator that loads a group counts its generations again",
        patches=coordinators.generation_not_loaded,
        profile=GROUPS,
    ),
    Mutant(
        name="transactional-offsets-not-loaded",
        area="groups",
        text="a coordinator that loads its log drops offsets that came with transactions",
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
        text="consumers see what is not committed",
        patches=readers.reads_beyond_watermark,
    ),
    Mutant(
        name="consumer-skips",
        area="client",
        text="the consumer skips an offset now and then",
        patches=readers.consumer_skips,
    ),
    Mutant(
        name="consumer-repeats",
        area="client",
        text="the consumer hands a record out twice now and then",
        patches=members.consumer_repeats,
    ),
    Mutant(
        name="partial-chunk-repeats",
        area="client",
        text="what was fetched is read on from one record too early now and then",
        patches=members.partial_chunk_repeats,
        profile=GROUPS,
    ),
    Mutant(
        name="empty-keys-lost",
        area="client",
        text="an empty key is handed out as none",
        patches=members.empty_keys_lost,
        profile=BANK,
    ),
    Mutant(
        name="seek-skips-target",
        area="client",
        text="a seek goes behind the record that is sought",
        patches=members.seek_skips_target,
        profile=BANK,
    ),
    Mutant(
        name="newest-batch-first",
        area="client",
        text="of the batches of a partition the newest is sent first",
        patches=members.newest_batch_first,
        profile=SMALL_BATCHES,
    ),
    Mutant(
        name="commits-fetch-position",
        area="client",
        text="the position that is committed is that of the fetches, ahead of the application",
        patches=members.commits_fetch_position,
        profile=SLOW_READERS,
    ),
)

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in (*QUORUM, *CONTROLLER, *REPLICATED, *LOG, *COORDINATORS, *OTHERS)
}
