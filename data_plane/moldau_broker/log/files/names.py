"""Names of the files and directories of a log, as Kafka names them; only ``local-log-start-checkpoint`` is Moldau's.

A segment's files share the first offset it holds, written with 20 digits. A partition lives in ``<topic>-<n>``; a
deleted one in ``<topic>-<n>.<uniquifier>-delete``, a future replica (being copied to another directory) in
``<topic>-<n>.<uniquifier>-future``, an unclaimed one in ``<topic>-<n>.<uniquifier>-stray``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from moldau_broker.log.values import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
LOCAL_START_CHECKPOINT = "local-log-start-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
APPLIED_METADATA = "applied-metadata-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"

DELETE_DIRECTORY_SUFFIX = "-delete"
FUTURE_DIRECTORY_SUFFIX = "-future"
STRAY_DIRECTORY_SUFFIX = "-stray"

_NAME_BYTES_MAX = 255
_MARKED_DIRECTORY = re.compile(r"^(?P<name>.+)\.(?P<id>[0-9a-f]{32})-(?P<kind>delete|future|stray)$")
_SEGMENT_FILE = re.compile(
    r"^(?P<base>\d{20})(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(?P<state>\.deleted|\.cleaned|\.swap)?$"
)


class DirectoryName(NamedTuple):
    """The parts of a partition directory's name; ``kind`` is "", "delete", "future" or "stray"."""

    topic_partition: TopicPartition
    kind: str


class SegmentFileName(NamedTuple):
    """The parts of a segment file's name; ``state`` is "" or the suffix of a file in transition."""

    base_offset: int
    kind: str
    state: str


def segment_file(base_offset: int, suffix: str) -> str:
    """Returns the name of a segment's file, e.g. ``00000000000000000042.index``."""
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> SegmentFileName | None:
    """Parses a file name; None for files that belong to no segment."""
    match = _SEGMENT_FILE.match(name)
    if match is None:
        return None
    return SegmentFileName(int(match["base"]), match["kind"], match["state"] or "")


def partition_directory(topic_partition: TopicPartition) -> str:
    """Returns the name of a partition's directory."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def marked_directory(topic_partition: TopicPartition, uniquifier: str, suffix: str) -> str:
    """Returns the directory name of a deleted, future or stray partition.

    The topic is cut where the name would be too long for a file system.
    """
    ending = f"-{topic_partition.partition}.{uniquifier}{suffix}"
    return topic_partition.topic[: _NAME_BYTES_MAX - len(ending)] + ending


def is_cut(topic_partition: TopicPartition, suffix: str) -> bool:
    """Returns whether the topic is cut in the ``marked_directory``, so that its name does not tell the topic."""
    return not marked_directory(topic_partition, "0" * 32, suffix).startswith(f"{topic_partition.topic}-")


def parse_directory(name: str) -> DirectoryName | None:
    """Parses a directory name; None for names that are no partition's."""
    kind = ""
    match = _MARKED_DIRECTORY.match(name)
    if match is not None:
        name, kind = match["name"], match["kind"]
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit() or number != str(int(number)):
        return None  # t-00 is a copy of t-0 that an operator has made, and no log
    return DirectoryName(TopicPartition(topic, int(number)), kind)
