"""The planted bugs of tiered storage."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.later_profiles import TIERED as PROFILE
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted.log import tiered

TIERED = tuple(
    Mutant(name=name, area="tiered storage", text=text, patches=patches, profile=PROFILE)
    for name, text, patches in (
        (
            "local-deletion-without-copy",
            "segments leave a disk before the object store has them",
            tiered.local_deletion_without_copy,
        ),
        ("failed-copy-counts", "a copy counts although the store has not confirmed it", tiered.failed_copy_counts),
        (
            "copies-uncommitted-records",
            "a leader copies closed segments whose records are not committed yet",
            tiered.copies_to_the_end,
        ),
        (
            "unfinished-segment-counts",
            "a listing takes a segment for finished whose `.log` is not there yet",
            tiered.unfinished_segment_counts,
        ),
        (
            "local-start-not-written",
            "local segments go before a file says that the log begins below them",
            tiered.local_start_not_written,
        ),
        (
            "retention-before-log-start",
            "retention deletes remote segments and does not move the log start offset",
            tiered.retention_before_log_start,
        ),
        (
            "leftover-deleted-at-once",
            "a leader deletes unfinished objects that another one is writing",
            tiered.leftover_deleted_at_once,
        ),
        ("deleted-topic-stays-in-store", "nothing deletes the folders of deleted topics", tiered.deleted_topics_stay),
        (
            "remote-aborts-omitted",
            "answers with remote records omit the aborted transactions",
            tiered.remote_aborts_omitted,
        ),
        (
            "chunk-of-another-segment",
            "the cache does not tell segments of the same size apart",
            tiered.chunk_of_another_segment,
        ),
        ("remote-times-ignored", "searches by time look at the leader's disk only", tiered.remote_times_ignored),
        (
            "starts-without-epochs",
            "a follower starts behind remote segments without their leader epochs",
            tiered.starts_without_epochs,
        ),
        (
            "starts-without-producers",
            "a follower starts behind remote segments without their producers",
            tiered.starts_without_producers,
        ),
        (
            "starts-at-log-start",
            "a follower that starts behind remote segments takes its start for the log start offset",
            tiered.starts_at_log_start,
        ),
    )
)
