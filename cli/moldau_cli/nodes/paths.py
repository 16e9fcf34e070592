"""Checks the directories that the configuration file of a node names, before anything looks at them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from moldau.runtime.config import log_dirs, metadata_log_dir

if TYPE_CHECKING:
    from moldau.runtime.config import Config


def unusable_directory(config: Config) -> str:
    """Returns why a directory of a node cannot be used, because of its path alone; empty if all can be.

    A relative path would mean another directory after a start from another place, and an empty log with it; Kafka takes
    such paths. One directory under two names would be in use for the second one. ``config`` is that of the file, before
    it is divided.
    """
    place = metadata_log_dir(config)
    keys = {path: "log.dirs" if config.get("log.dirs") is not None else "log.dir" for path in log_dirs(config)}
    for path, key in {place: "metadata.log.dir", **keys}.items():
        if not os.path.isabs(path):
            return f"{key}: {path!r} is relative; give the absolute path, from here {os.path.abspath(path)}"
    places: dict[str, str] = {}
    for path in log_dirs(config):
        if (first := places.setdefault(os.path.realpath(path), path)) != path:
            return f"log.dirs: {first} and {path} are the same directory"
    return ""
