"""Deletes the folders of topics that the cluster does not have any more.

The leader of a partition deletes its folder with the topic. This sweep finds what that has left: the leader was down or
could not reach the store, or a copy ended after the deletion. The active brokers take turns: in each half of the delay
one of them sweeps for all. So a broker without tiered storage, of which the others do not know that it sweeps nothing,
costs only its own turns. Clocks may differ, so two may sweep at once, or none, which does no harm: both delete only
what is absent from the newest metadata and older than the delay.

A topic is gone if metadata that are newer than its folder's listing do not have it, because a topic exists before
anything of it is copied, and topic ids are never used again. A broker that is cut off from the controllers has old
metadata. So it sweeps only after a heartbeat, sent behind the listing, whose answer says that its metadata are the
newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.remote_log.core.names import cluster_folder, topic_of
from moldau_broker.server.remote_log.deletion import delete_folder

if TYPE_CHECKING:
    from moldau.runtime.ports.objects import ObjectStore
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_broker.server.remote_log.cluster_view import ClusterView


class Sweep:
    """The sweep of one broker."""

    def __init__(self, store: ObjectStore, view: ClusterView, delete_delay_ms: float, logger: EventLogger) -> None:
        """``delete_delay_ms`` is ``remote.log.unfinished.delete.delay.ms``; objects that are younger stay."""
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
        active = sorted(broker_id for broker_id, broker in self._view.image().brokers.items() if broker.active)
        turn = int(self._view.clock.wall_ms() // (self._delete_delay_ms / 2))
        return bool(active) and active[turn % len(active)] == self._view.broker_id

    async def sweep(self) -> None:
        """Deletes old objects of topics that are gone.

        Raises:
            ObjectStoreError: the store did not answer, or refused; the rest is left to the next sweep.
        """
        begun_ms = self._view.clock.monotonic_ms()
        folders = await self._store.list_folders(cluster_folder(self._view.cluster_id))
        gone = [folder for folder in folders if self._is_gone(folder)]
        if not gone or not await self._view.is_newest_since(begun_ms):
            return
        old_ms = self._view.clock.wall_ms() - self._delete_delay_ms
        for folder in filter(self._is_gone, gone):
            self._view.before_deletions()
            prefix = f"{cluster_folder(self._view.cluster_id)}{folder}/"
            count = await delete_folder(self._store, prefix, lambda item: item.modified_ms <= old_ms)
            if count:
                self._logger.info("deleted-topic-swept", topic_id=folder, objects=count)

    def _is_gone(self, folder: str) -> bool:
        topic_id = topic_of(folder)
        return topic_id is not None and topic_id not in self._view.image().topics_by_id
