"""Deletes the folders of topics that the cluster does not have any more.

The leader of a partition deletes its folder with the topic. This sweep finds what that has left: the leader was down or
could not reach the store, or a copy ended after the deletion. One broker sweeps for all, the active one with the lowest
id. For some time there may be two, or none, which does no harm.

A topic is gone if metadata that are newer than its folder's listing do not have it, because a topic exists before
anything of it is copied, and topic ids are never used again. A broker that is cut off from the controllers has old
metadata. So it sweeps only after a heartbeat, sent behind the listing, whose answer says that its metadata are the
newest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.remote_log.core.names import cluster_folder, topic_of
from moldau_broker.server.remote_log.deletion import delete_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.ports.objects import ObjectStore
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.values import BrokerId
    from moldau_quorum.metadata.image import MetadataImage

FRESH_LOOKS: Final = 120
FRESH_LOOK_MS: Final = 500.0
"""How often, and at which distance, a sweep looks for the heartbeat that shows its metadata to be the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The present knowledge of a broker about its cluster."""

    broker_id: BrokerId
    cluster_id: str
    image: Callable[[], MetadataImage]
    """The newest metadata."""
    caught_up_ms: Callable[[], float]
    """Monotonic time of the last heartbeat that carried the newest metadata offset; see ``BrokerSession``."""
    before_deletions: Callable[[], None]
    """Returns when the position of the metadata is durable, on whose word objects are deleted."""


class Sweep:
    """The sweep of one broker."""

    def __init__(
        self, clock: Clock, store: ObjectStore, view: ClusterView, delete_delay_ms: float, logger: EventLogger
    ) -> None:
        """``delete_delay_ms`` is ``remote.log.unfinished.delete.delay.ms``; objects that are younger stay."""
        self._clock = clock
        self._store = store
        self._view = view
        self._delete_delay_ms = delete_delay_ms
        self._logger = logger

    async def run(self) -> None:
        """Sweeps twice in each delay, until cancelled."""
        while True:
            await trio.sleep(self._delete_delay_ms / 2 / 1000)
            if not self._is_chosen():
                continue
            try:
                await self.sweep()
            except ObjectStoreError as error:
                self._logger.warning("sweep-failed", error=error)

    def _is_chosen(self) -> bool:
        active = [broker_id for broker_id, broker in self._view.image().brokers.items() if broker.active]
        return min(active, default=None) == self._view.broker_id

    async def sweep(self) -> None:
        """Deletes old objects of topics that are gone.

        Raises:
            ObjectStoreError: the store did not answer, or refused; the rest is left to the next sweep.
        """
        begun_ms = self._clock.monotonic_ms()
        folders = await self._store.list_folders(cluster_folder(self._view.cluster_id))
        gone = [folder for folder in folders if self._is_gone(folder)]
        if not gone or not await self._has_newest_metadata(begun_ms):
            return
        old_ms = self._clock.wall_ms() - self._delete_delay_ms
        for folder in filter(self._is_gone, gone):
            self._view.before_deletions()
            prefix = f"{cluster_folder(self._view.cluster_id)}{folder}/"
            count = await delete_folder(self._store, prefix, lambda item: item.modified_ms <= old_ms)
            if count:
                self._logger.info("deleted-topic-swept", topic_id=folder, objects=count)

    def _is_gone(self, folder: str) -> bool:
        topic_id = topic_of(folder)
        return topic_id is not None and topic_id not in self._view.image().topics_by_id

    async def _has_newest_metadata(self, since_ms: float) -> bool:
        """Returns whether the metadata have been the newest at some time after ``since_ms``."""
        for _ in range(FRESH_LOOKS):
            if self._view.caught_up_ms() >= since_ms:
                return True
            await trio.sleep(FRESH_LOOK_MS / 1000)
        return False
