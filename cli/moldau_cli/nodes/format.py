"""Gives the directories of a node the identity of the node and of its cluster, before its first start.

A server does the same at its first start. Formatting earlier reports a wrong directory to the operator, and lets
a node without ``cluster.id`` in its file refuse another cluster from the beginning. The functions that write and check
``meta.properties`` are those that the server calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.runtime.config import log_dirs, metadata_log_dir, process_configs
from moldau_broker.log.directories.directory import lock_directory, take_identity
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.files.checkpoint import read_file
from moldau_broker.log.files.names import LOCK
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.nodes.group.layout import misplaced_data
from moldau_quorum.node.directory import (
    META_PROPERTIES,
    METADATA_DIRECTORY,
    NodeDirectoryError,
    open_node_directory,
)

if TYPE_CHECKING:
    from random import Random

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Disk

OWN_NAMES: Final = frozenset({LOCK, METADATA_DIRECTORY, "lost+found", f"{META_PROPERTIES}.tmp"})
"""Names that a directory without identity may have: those of a start that was killed, and of a new file system."""

ROOT: Final = 0
CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman make in each container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    """One directory after ``format_node``."""

    path: str
    is_new: bool
    """False: it had an identity before."""
    is_completed: bool
    """True: a start without ``cluster.id`` had made its identity, which has got the id of the cluster now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where root would make files of a node in a directory of another user."""

    path: str
    """The first directory that root would make; the node's directory itself if it exists."""
    owner: int
    """Number of the user."""


def directories(config: Config) -> list[tuple[str, bool]]:
    """Returns the directories of a node that have an identity, each with whether it is that of the controller."""
    roles = config.get_list("process.roles")
    found = [(directory, False) for directory in log_dirs(config)] if "broker" in roles else []
    if "controller" in roles:
        found.append((f"{metadata_log_dir(config)}/{METADATA_DIRECTORY}", True))
    return found


def foreign_files(disk: Disk, config: Config, path: str) -> str:
    """Returns why a directory without identity cannot become that of this node; empty if it can."""
    if not disk.exists(path) or disk.exists(f"{path}/{META_PROPERTIES}"):
        return ""
    if not disk.is_directory(path):
        return f"{path} is not a directory"
    own = OWN_NAMES | {config.get_str("metadata.quorum.engine")}
    others = sorted(name for name in disk.list_directory(path) if name not in own)
    if not others:
        return ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{path} has no {META_PROPERTIES} but holds {others[0]}{more}: give the node an empty directory"


def places_of_others(config: Config) -> dict[str, Place]:
    """Returns where root is about to make files that the user who runs the node could not open, by directory.

    These are directories of another user, and those that are missing in a directory of another user. Empty if this
    process does not run as root, or runs in a container: there root often runs the node, on a mounted directory of a
    user of the host.
    """
    if os.geteuid() != ROOT or any(map(os.path.exists, CONTAINER_MARKS)):
        return {}
    found: dict[str, Place] = {}
    for one in process_configs(config):
        for path, _ in directories(one):
            first, existing = Path(path).absolute(), Path(path).absolute()
            while not existing.exists():
                first, existing = existing, existing.parent
            if (owner := owner_of(existing)) != ROOT:
                found[path] = Place(path=str(first), owner=owner)
    return found


def owner_of(path: Path) -> int:
    """Returns the number of the user to whom a file or directory belongs."""
    return path.stat().st_uid


def format_node(disk: Disk, config: Config, cluster_id: str, random: Random) -> list[Formatted]:
    """Writes ``meta.properties`` into each directory that has none; durable on return.

    A file with ``broker.processes`` stands for the directories of all its processes. Nothing is written if one of the
    directories is refused for what it holds.

    Raises:
        UsageError: a directory belongs to another node or cluster, or holds files that are not Moldau's.
        CommandError: a directory is in use or damaged, or the disk failed.
    """

    def new_id() -> UUID:
        return UUID(int=random.getrandbits(128), version=4)

    if misplaced := misplaced_data(disk, config):
        raise UsageError(misplaced)
    wanted = [(one, path, is_own) for one in process_configs(config) for path, is_own in directories(one)]
    refused = [reason for one, path, _ in wanted if (reason := foreign_files(disk, one, path))]
    if refused:
        raise UsageError("; ".join(refused))
    # Directories with an identity come first: they can be refused, and then nothing has been written yet.
    present = {path: disk.exists(f"{path}/{META_PROPERTIES}") for _, path, _ in wanted}
    completed: set[str] = set()
    for one, path, is_controllers in sorted(wanted, key=lambda each: not present[each[1]]):
        try:
            if is_controllers:
                before = read_file(disk, f"{path}/{META_PROPERTIES}") if present[path] else None
                open_node_directory(
                    disk,
                    path.removesuffix(f"/{METADATA_DIRECTORY}"),
                    node_id=one.get_int("node.id"),
                    engine=one.get_str("metadata.quorum.engine"),
                    cluster_id=cluster_id,
                    new_directory_id=new_id(),
                ).close()
                if before not in (None, read_file(disk, f"{path}/{META_PROPERTIES}")):
                    completed.add(path)
                continue
            lock = lock_directory(disk, path)
            try:
                take_identity(disk, path, node_id=one.get_int("node.id"), cluster_id=cluster_id, new_id=new_id)
            finally:
                lock.release()
        except (NodeDirectoryError, ValueError) as error:
            raise UsageError(str(error)) from error
        except LogStorageError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"cannot prepare {path}: {error.strerror or error}") from error
    return [Formatted(path=path, is_new=not present[path], is_completed=path in completed) for _, path, _ in wanted]
