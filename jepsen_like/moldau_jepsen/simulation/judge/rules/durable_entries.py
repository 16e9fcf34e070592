"""Finds out which entries of the quorum's log are durable on a voter's disk, independent of its process.

An entry is looked for by its bytes, as the write-ahead log has them (``moldau_quorum.log.raft.storage.wal``): index,
epoch, kind and content. A disk outlives the processes on it, so a voter that is down counts with what it has.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from moldau_jepsen.world.disk.virtual_disk import Inode

if TYPE_CHECKING:
    from moldau_jepsen.world.disk.virtual_disk import VirtualDisk
    from moldau_quorum.log.raft.core.types import Entry

ENTRY = struct.Struct("<QQB")
PREFIX, SUFFIX = "log-", ".wal"


def has_durable_entry(disk: VirtualDisk, directory: str, entry: Entry) -> bool:
    """Returns whether the entry in the log below ``directory`` survives a loss of power; reads newest files first."""
    wanted = ENTRY.pack(entry.index, entry.epoch, entry.kind) + entry.data
    try:
        names = disk.directory(directory).durable
    except FileNotFoundError:
        return False
    for name in sorted(names, reverse=True):
        inode = names[name]
        is_log = name.startswith(PREFIX) and name.endswith(SUFFIX)
        if is_log and isinstance(inode, Inode) and inode.durable.rfind(wanted) >= 0:
            return True
    return False
