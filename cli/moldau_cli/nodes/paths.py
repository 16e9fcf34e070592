"""Checks the directories that the configuration file of a node names, before anything looks at them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from moldau.runtime.config import log_dirs, metadata_log_dir

if TYPE_CHECKING:
    from moldau.runtime.config import Config


def unusable_directory(config: Config) -> str:
    """Returns why a directory of a node cannot be used, because of its path alone; empty if all can be.

    A relative path would mean another directory after a start from another place, and an empty log with it; Kafka takes
    such paths. One directory under two names would be in use for the second one. A broker takes a directory with the
    name of a partition in one of its log directories for a stray log and renames it. ``config`` is that of the file,
    before it is divided.
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
    inner = {place: "metadata.log.dir", **keys}
    with suppress(ValueError):  # the store itself refuses a malformed URL
        store = urlsplit(config.get_str_or_none("remote.log.storage.url") or "")
        if store.scheme == "file" and "\0" not in unquote(store.path):
            inner[unquote(store.path)] = "remote.log.storage.url"
    for outer in log_dirs(config):
        for path, key in inner.items():
            if name := _partition_above(path, outer):
                return (
                    f"{key}: {path} is below {name!r} in the log directory {outer}; a broker would take that for the "
                    "log of a partition. Give it a place outside, or a name without a number at its end"
                )
    return ""


def _partition_above(path: str, outer: str) -> str:
    """Returns the directory of ``outer`` with the name of a partition that holds ``path``, or is it; empty without."""
    from moldau_broker.log.files.names import parse_directory

    for resolved in (os.path.abspath, os.path.realpath):
        below = os.path.relpath(resolved(path), resolved(outer)).split(os.sep)
        if below[0] not in (os.curdir, os.pardir) and parse_directory(below[0]) is not None:
            return below[0]
    return ""
