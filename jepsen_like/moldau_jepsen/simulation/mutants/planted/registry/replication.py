"""The planted bugs of replication."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.profiles import DECISIONS, DIVERGENCE, IMPATIENT, LONE_LEADERS, REPLICATION
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import brokers
from moldau_jepsen.simulation.mutants.planted.log import truncation, watermarks
from moldau_jepsen.simulation.mutants.pressed import DIVERGED, NEAR_READERS, ROLLED, UNCLEAN

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
        profile=DIVERGED,
    ),
    Mutant(
        name="truncated-log-keeps-watermark",
        area="replication",
        text="a truncation below the high watermark lowers the replica's and leaves that of its log",
        patches=watermarks.truncated_log_keeps_watermark,
        profile=UNCLEAN,
    ),
    Mutant(
        name="moved-log-loses-watermark",
        area="replication",
        text="a log that moved to another directory begins without a high watermark",
        patches=watermarks.moved_log_loses_watermark,
        profile=NEAR_READERS,
    ),
    Mutant(
        name="checkpoint-takes-log-end",
        area="replication",
        text="an orderly stop writes log ends to the checkpoint of high watermarks",
        patches=watermarks.checkpoint_takes_log_end,
        profile=ROLLED,
    ),
)
