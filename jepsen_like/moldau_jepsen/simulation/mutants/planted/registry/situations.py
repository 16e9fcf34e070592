"""The planted bugs that only rare situations show, and those of the administration of groups."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.profiles import IMPATIENT, REPLICATION
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import administration, overtaken, situations
from moldau_jepsen.simulation.mutants.pressed import (
    ADMINISTRATION,
    CORDONED,
    HANGING_DISKS,
    HELD_QUESTIONS,
    LATE_PACKETS,
    NEAR_READERS,
    POWER_CUTS,
    SHORT_SEQUENCES,
    SLOW_DISKS,
    STARTED_OVER,
)

SITUATIONS = (
    Mutant(
        name="error-hidden-by-next-partition",
        area="client",
        text="a commit reports the code of its last partition only",
        patches=administration.error_hidden_by_next_partition,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="group-deleted-with-members",
        area="groups",
        text="a group with members is deleted",
        patches=administration.group_deleted_with_members,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="offsets-deleted-while-read",
        area="groups",
        text="offsets of topics that members read are deleted",
        patches=administration.offsets_deleted_while_read,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="second-offset-not-deleted",
        area="groups",
        text="an OffsetDelete for several partitions deletes one offset only",
        patches=administration.deleted_offsets_kept,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="former-generation-commits",
        area="groups",
        text="a member may commit for a generation before its present one",
        patches=administration.any_generation_commits,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="reset-with-members",
        area="groups",
        text="a commit that names no member is accepted while the group has members",
        patches=administration.reset_with_members,
        profile=ADMINISTRATION,
    ),
    Mutant(
        name="late-end-believed",
        area="transactions",
        text="a late EndTxn of a former transaction ends the open one",
        patches=situations.late_end_believed,
        profile=LATE_PACKETS,
    ),
    Mutant(
        name="epochs-kept-when-log-starts-over",
        area="log",
        text="a log that begins at another offset keeps the leader epochs of the one before",
        patches=situations.epochs_kept_when_log_starts_over,
        profile=STARTED_OVER,
    ),
    Mutant(
        name="transaction-index-called-durable",
        area="log",
        text="the index of aborted transactions counts as durable without a sync",
        patches=situations.transaction_index_called_durable,
        profile=POWER_CUTS,
    ),
    Mutant(
        name="wake-up-lost",
        area="replication",
        text="every fourth advance of a high watermark wakes no produce",
        patches=situations.wake_up_lost,
        profile=REPLICATION,
    ),
    Mutant(
        name="uncertain-batch-renumbered",
        area="client",
        text="a batch whose fate is unknown gets new sequence numbers under the next epoch",
        patches=situations.uncertain_batch_renumbered,
        profile=IMPATIENT,
    ),
    Mutant(
        name="sequence-numbers-go-on",
        area="client",
        text="a producer goes on behind the last sequence number instead of at 0",
        patches=situations.sequence_numbers_go_on,
        profile=SHORT_SEQUENCES,
    ),
    Mutant(
        name="follower-watermark-is-log-end",
        area="replication",
        text="a follower serves consumers up to its log end",
        patches=situations.follower_watermark_is_log_end,
        profile=NEAR_READERS,
    ),
    Mutant(
        name="hanging-disk-kept",
        area="log",
        text="a broker keeps a log directory whose disk answers no sync",
        patches=situations.hanging_disk_kept,
        profile=HANGING_DISKS,
    ),
    Mutant(
        name="cordon-ignored",
        area="log",
        text="a new replica starts in a cordoned log directory",
        patches=situations.cordon_ignored,
        profile=CORDONED,
    ),
    Mutant(
        name="slow-disk-given-up",
        area="log",
        text="a broker gives up a log directory whose disk is slow and answers",
        patches=situations.slow_disk_given_up,
        profile=SLOW_DISKS,
    ),
    Mutant(
        name="markers-counted-late",
        area="transactions",
        text="a leader counts the markers of a partition after its question to the coordinator",
        patches=overtaken.markers_counted_late,
        profile=HELD_QUESTIONS,
    ),
)
