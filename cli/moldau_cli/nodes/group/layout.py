"""Finds data that a node would not see after ``broker.processes`` or its directories were changed in its file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import log_dirs, metadata_log_dir, process_configs, process_count, process_directory
from moldau_quorum.node.directory import META_PROPERTIES, METADATA_DIRECTORY

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Disk

_OF_A_PROCESS: Final = re.compile(r"broker\.\d+")


def misplaced_data(disk: Disk, config: Config) -> str:
    """Returns why the processes of a file must not start on the data that are there; empty if they may.

    A node that started with empty directories would ask other brokers for everything, and lose what they do not have.
    ``config`` is that of the file, before it is divided.
    """
    if metadata := _misplaced_metadata(disk, process_configs(config)[0]):
        return metadata
    if "broker" not in config.get_list("process.roles"):
        return ""
    count, node_id = process_count(config), config.get_int("node.id")
    for directory in log_dirs(config):
        if count > 1 and disk.exists(f"{directory}/{META_PROPERTIES}"):
            return (
                f"{directory} holds the data of a single process, and broker.processes is {count}: "
                f"move its content to {process_directory(directory, node_id)}"
            )
        if count == 1 and (found := _processes_below(disk, directory)):
            return (
                f"{directory} holds {', '.join(found)} of several processes, and broker.processes is 1: "
                f"empty the other brokers, then move the content of {process_directory(directory, node_id)} up"
            )
    if count == 1 or "controller" not in config.get_list("process.roles") or config.is_set("metadata.log.dir"):
        return ""
    place = metadata_log_dir(config)
    if disk.exists(f"{place}/{METADATA_DIRECTORY}/{META_PROPERTIES}"):
        return (
            f"{place}/{METADATA_DIRECTORY} is the metadata log of a single process, and broker.processes is {count}: "
            f"move it to {process_directory(place, node_id)}"
        )
    return ""


def _misplaced_metadata(disk: Disk, config: Config) -> str:
    """Returns why a controller must not begin a metadata log: it has one in another of its directories."""
    place = metadata_log_dir(config)
    if "controller" not in config.get_list("process.roles") or _has_metadata(disk, place):
        return ""
    for directory in log_dirs(config):
        if _has_metadata(disk, directory):
            return (
                f"{directory}/{METADATA_DIRECTORY} is a metadata log, and this node would begin another in {place}: "
                f"set metadata.log.dir={directory}, or name it first in log.dirs"
            )
    return ""


def _has_metadata(disk: Disk, directory: str) -> bool:
    return disk.exists(f"{directory}/{METADATA_DIRECTORY}/{META_PROPERTIES}")


def _processes_below(disk: Disk, directory: str) -> list[str]:
    """Returns the directories of processes below one that is no node's own."""
    if not disk.is_directory(directory) or disk.exists(f"{directory}/{META_PROPERTIES}"):
        return []
    names = sorted(name for name in disk.list_directory(directory) if _OF_A_PROCESS.fullmatch(name))
    return [name for name in names if disk.exists(f"{directory}/{name}/{META_PROPERTIES}")]
