"""Ids of log directories, and those that stand for none (KIP-858).

Each log directory has a random id (``directory.id`` of its ``meta.properties``). A partition names, beside each
replica, the directory that holds it, or one of three reserved ids. The first hundred ids are reserved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Collection

UNASSIGNED: Final = UUID(int=0)
"""A new replica that its broker has not put anywhere yet, as far as is known."""

LOST: Final = UUID(int=1)
"""Some directory that does not work, and whose id is not known."""

MIGRATING: Final = UUID(int=2)
"""Some directory, chosen when directories were not recorded yet (``metadata.version`` 1)."""

RESERVED_COUNT: Final = 100


def is_reserved(directory: UUID) -> bool:
    """Whether no directory can have this id."""
    return directory.int < RESERVED_COUNT


def is_online(directory: UUID, online: Collection[UUID]) -> bool:
    """Whether a replica's directory may be taken to work, ``online`` being what its broker has registered.

    A broker that registered no directory says nothing about them; one without a working directory would not run.
    """
    if directory in (UNASSIGNED, MIGRATING):
        return True
    return directory != LOST and (not online or directory in online)
