"""Finds out whether the records below the recovery point of a log are durable on its disk, independent of its broker.

A broker counts these records as safe from a loss of power. With ``flush.messages`` they may be acknowledged, and a
follower reports them to its leader. So their bytes must be in the durable content of the segments' files, and the names
of these files and of the log's directory must be durable too. A broker may count too much for a moment only, between
two syncs; a loss of power is too rare to strike exactly then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.records import iterate_batches
from moldau_broker.log.files.names import LOG_SUFFIX, segment_file
from moldau_jepsen.world.disk.virtual_disk import Inode

if TYPE_CHECKING:
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_jepsen.world.disk.virtual_disk import Directory, VirtualDisk


class DurableRecords:
    """The records of one replica that were found to be durable."""

    __slots__ = ("_inode", "_log", "_offset", "_position")

    def __init__(self) -> None:
        self._log: PartitionLog | None = None
        self._offset = 0  # records below it were found
        self._inode: Inode | None = None  # the file with the last of them
        self._position = 0  # where they end in that file

    def look(self, log: PartitionLog, disk: VirtualDisk) -> str | None:
        """Looks at what is new below the recovery point of ``log``; returns what is not durable, None if all is."""
        point = log.recovery_point
        if log is not self._log:
            self._log, self._offset, self._inode = log, 0, None
        elif point < self._offset:  # the log was cut
            self._offset, self._inode = point, None
        if log.failed or point == self._offset:
            return None
        try:
            directory, parent = disk.directory(log.directory), disk.directory(log.parent_directory)
        except FileNotFoundError:
            return None  # the log is being moved or deleted
        since, self._offset = self._offset, point
        if all(entry is not directory for entry in parent.durable.values()):
            return "the name of the log's directory"
        segments = log.storage.segments.all
        ends = [*(segment.base_offset for segment in segments[1:]), log.log_end_offset]
        for segment, end in zip(segments, ends, strict=True):
            if end > since and segment.base_offset < point and (lost := self._lost(directory, segment, since, point)):
                return lost
        return None

    def _lost(self, directory: Directory, segment: LogSegment, since: int, point: int) -> str | None:
        name = segment_file(segment.base_offset, LOG_SUFFIX)
        inode = directory.names.get(name)
        if not isinstance(inode, Inode) or inode.rotten:
            return None
        if directory.durable.get(name) is not inode:
            return f"the name {name}"
        first = end = self._position if inode is self._inode else 0
        for position, header in iterate_batches(inode.content, end):
            if header.next_offset > point:
                break
            end = position + header.size_bytes
            if header.next_offset <= since:
                first = end
        self._inode, self._position = inode, end
        if inode.durable[first:end] != inode.content[first:end]:
            return f"bytes from {first} to {end} of {name}"
        if inode.size_min is not None and inode.size_min < end:
            return f"the end of {name}, which was cut to {inode.size_min} of {end} bytes"
        return None
