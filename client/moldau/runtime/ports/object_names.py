"""Checks the names of objects against the alphabet of the port (``moldau.runtime.ports.objects``)."""

from __future__ import annotations

import re

NAME_BYTES_MAX = 900
"""Bytes of a name. S3 allows 1,024, of which the prefix of the store's URL takes some."""

_PART = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.-]+"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}(?:/{_PART})*/?)?")


def is_name(name: str) -> bool:
    """Returns whether an object can have this name."""
    return len(name) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Returns the name of an object.

    Raises:
        ValueError: no object can have it. That is a mistake of the caller.
    """
    if not is_name(name):
        raise ValueError(f"{name!r} is no name of an object")
    return name


def check_prefix(prefix: str) -> str:
    """Returns what names may begin with.

    Raises:
        ValueError: no object's name can begin with it.
    """
    if len(prefix) > NAME_BYTES_MAX or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is no prefix of names of objects")
    return prefix


def check_folder(prefix: str) -> str:
    """Returns the prefix of a folder: empty, or with ``/`` at its end.

    Raises:
        ValueError: it is the prefix of no folder.
    """
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"{prefix!r} is the prefix of no folder")
    return check_prefix(prefix)


def check_range(position: int, count: int) -> None:
    """Checks a range of bytes that is to be read.

    Raises:
        ValueError: it begins before the object, or has fewer than no bytes.
    """
    if position < 0 or count < 0:
        raise ValueError(f"no object has {count} bytes from {position} on")
