"""Ids of log directories, and the reserved ids (KIP-858).

Each log directory has a random id (``directory.id`` of its ``meta.properties``). A partition names, beside each
replica, the directory that holds it, or one of three reserved ids. The first hundred ids are reserved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Collection

UNASSIGNED: Final = ZERO_UUID
"""The directory of a new replica until its broker reports one."""

LOST: Final = UUID(int=1)
"""A directory that does not work and whose id is unknown."""

MIGRATING: Final = UUID(int=2)
"""An unknown directory that was chosen before directories were recorded (``metadata.version`` 1)."""

RESERVED_COUNT: Final = 100


def is_reserved(directory: UUID) -> bool:
    """Returns whether the id is reserved, so that no directory can have it."""
    return directory.int < RESERVED_COUNT


def is_online(directory: UUID, online: Collection[UUID]) -> bool:
    """Returns whether a replica's directory is assumed to work.

    ``online`` holds the directories that the broker registered. If it is empty, the broker did not report them; a
    broker without a working directory would not run.
    """
    if directory in (UNASSIGNED, MIGRATING):
        return True
    return directory != LOST and (not online or directory in online)
