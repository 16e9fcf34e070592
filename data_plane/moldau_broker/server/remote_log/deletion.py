"""Deletes whole folders of the object store: of deleted topics, and of topics that are not tiered any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.remote_log.core.names import AUXILIARY, DELETED, LOG, is_written_by_brokers
from moldau_broker.server.remote_log.listing import listed_objects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.runtime.ports.objects import ObjectStore, StoredObject

TOGETHER: Final = 1_000
"""Objects of one request."""


def _all(item: StoredObject) -> bool:
    """Chooses every object."""
    return True


async def _always() -> bool:
    """Allows a deletion."""
    return True


async def delete_folder(
    store: ObjectStore,
    prefix: str,
    chosen: Callable[[StoredObject], bool] = _all,
    is_allowed: Callable[[], Awaitable[bool]] = _always,
) -> int:
    """Deletes the objects of brokers below ``prefix`` that ``chosen`` returns true for; returns how many.

    Objects whose names no broker writes stay. Of each segment ``.log`` goes before ``.aux``.

    ``is_allowed`` is asked after the listing, so that what it allows is true of all objects that are deleted.

    Raises:
        ObjectStoreError: the store did not answer, or refused; a part may be deleted. Or the deletion is not allowed.
    """
    found = [
        item.name for item in await listed_objects(store, prefix) if is_written_by_brokers(item.name) and chosen(item)
    ]
    if found and not await is_allowed():
        raise ObjectStoreError(f"{prefix} is left: the controllers do not confirm the metadata that let it go")
    for suffix in (LOG, AUXILIARY, DELETED):
        names = [name for name in found if name.endswith(suffix)]
        for first in range(0, len(names), TOGETHER):
            await store.delete(names[first : first + TOGETHER])
    return len(found)
