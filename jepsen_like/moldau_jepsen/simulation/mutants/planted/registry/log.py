"""The planted bugs of logs."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.later_profiles import COMPACTION
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.profiles import CLEANING, DIVERGENCE, RECREATED_TOPICS, REPLICATION, RETENTION
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted.log import housekeeping, logs, truncation
from moldau_jepsen.simulation.mutants.pressed import LATE_SYNCS, LONE_RECREATED_TOPICS, POWER_CUTS, TOMBSTONES

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
        name="rolled-segment-not-synced",
        area="log",
        text="a sync leaves out the segments that were closed since the one before",
        patches=logs.rolled_segment_not_synced,
        profile=POWER_CUTS,
    ),
    Mutant(
        name="void-sync-believed",
        area="log",
        text="a sync counts as a whole although the log was cut while it ran",
        patches=logs.void_sync_believed,
        profile=LATE_SYNCS,
    ),
    Mutant(
        name="recreated-topic-keeps-longer-log",
        area="log",
        text="of two logs with one topic name in two directories, the longer one is kept whatever its topic id",
        patches=logs.recreated_topic_keeps_longer_log,
        profile=LONE_RECREATED_TOPICS,
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
        name="tombstones-dropped-at-once",
        area="log",
        text="the cleaner drops tombstones before delete.retention.ms is over",
        patches=housekeeping.tombstones_dropped_at_once,
        profile=TOMBSTONES,
    ),
    Mutant(
        name="first-segment-not-cleaned",
        area="log",
        text="the cleaner leaves the oldest segment alone, where values of deleted keys stay",
        patches=housekeeping.first_segment_not_cleaned,
        profile=COMPACTION,
    ),
    Mutant(
        name="aborted-values-supersede",
        area="log",
        text="values of aborted transactions supersede committed values in the cleaner's offset map",
        patches=housekeeping.aborted_values_supersede,
        profile=TOMBSTONES,
    ),
    Mutant(
        name="aborted-values-kept",
        area="log",
        text="the cleaner keeps aborted values and drops the entries that hide them from readers",
        patches=housekeeping.aborted_values_kept,
        profile=TOMBSTONES,
    ),
    Mutant(
        name="retention-deletes-active-segment",
        area="log",
        text="retention by size deletes the active segment",
        patches=housekeeping.retention_deletes_active_segment,
        profile=RETENTION,
    ),
)
