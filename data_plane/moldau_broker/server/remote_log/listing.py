"""Lists the folder of one partition in the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.remote_log.core.names import segments_of

if TYPE_CHECKING:
    from moldau.runtime.ports.objects import ObjectStore, StoredObject
    from moldau_broker.remote_log.core.names import Listing


async def listed_objects(store: ObjectStore, prefix: str) -> list[StoredObject]:
    """Returns all objects whose names begin with ``prefix``, by name.

    Raises:
        ObjectStoreError: the store did not answer, or refused.
    """
    found: list[StoredObject] = []
    while True:
        page = await store.list(prefix, after=found[-1].name if found else "")
        if not page:
            return found
        found += page


async def list_partition(store: ObjectStore, folder: str) -> Listing:
    """Returns the segments and the unfinished objects in the folder of a partition.

    Raises:
        ObjectStoreError: the store did not answer, or refused.
    """
    return segments_of(await listed_objects(store, folder))
