"""Applies committed metadata: small changes at once, large ones step by step, files last.

The image that handlers read (``MetadataCache``) is always the newest; replicas may be some steps behind it. Creating
the logs of a thousand partitions takes seconds of disk time, in which heartbeats, fetches, produces and above all
changes of leadership must continue. Memory and files are therefore changed separately:

- Changes in memory (leaders, followers, in-sync replicas, configuration) are applied first. Small ones are applied in
  the turn of their commit; large ones by a task that lets other tasks run every few partitions. A change of
  configuration concerns all partitions of a topic, so it may begin in the turn and end in the task. Later commits are
  merged into the next round: a partition that changed twice is applied once, in its newest state.
- Logs to create or delete wait in ``LogChanges``. The task performs one of them in a turn, and only while all committed
  changes in memory are applied; then the other tasks get several turns before the next.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import trio

from moldau.runtime.tasks.sync import Signal
from moldau_broker.log.values import TopicPartition
from moldau_quorum.metadata.image import MetadataImage, delta_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.replicas.log_changes import LogChanges
    from moldau_quorum.metadata.image import MetadataDelta

AT_ONCE_MAX = 8
"""Changed partitions that are applied at once; creating the log of one takes some milliseconds of disk time."""
STEPS_AT_ONCE = 64
"""Steps of a delta that are taken at once: some microseconds for each partition of a topic with new configuration."""
STEPS = 8
"""Partitions that are applied in memory between two checkpoints."""
TURNS_OF_OTHERS = 8
"""Turns of the event loop between two created or deleted logs.

An answer that passes through several tasks then waits for one log in total, and not for one in each task."""


class MetadataApplier:
    """Keeps the parts of a broker in step with the metadata.

    Invariant: all parts have applied the image ``_applied``, except for the changes that wait in ``LogChanges``; one
    task at a time runs ``apply``.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        apply: Callable[[MetadataDelta], Iterator[None]],
        log_changes: Callable[[], LogChanges],
    ) -> None:
        """``apply`` brings the parts from one image to the next, and yields when they are consistent.

        ``log_changes`` returns the queue that ``apply`` fills; it is called only after ``begin``.
        """
        self._metadata = metadata
        self._apply = apply
        self._log_changes = log_changes
        self._applied = MetadataImage()
        self._applying = False  # ``run`` is within ``apply``, or has to finish ``_begun``: nothing else may call it
        self._begun: tuple[MetadataDelta, Iterator[None]] | None = None  # a delta whose first steps are taken
        self._behind = Signal()  # notified when ``run`` has work
        self._in_step = Signal()  # notified when all commits are applied, with their files
        self.following = False
        """Whether metadata is applied: not before the broker knows its own registration."""
        self.has_begun = False
        """Whether the metadata that ``begin`` found are applied, so that this broker has its replicas and may lead."""

    def on_delta(self, delta: MetadataDelta) -> None:
        """Takes a committed delta, and applies it at once if it is small."""
        self._metadata.image = delta.image
        if not self.following:
            return
        behind = self._applying or self._applied is not delta.previous
        if behind or len(delta.changed_partitions) > AT_ONCE_MAX:
            self._behind.notify()
            return
        steps = self._apply(delta)
        if sum(1 for _ in islice(steps, STEPS_AT_ONCE)) == STEPS_AT_ONCE:
            self._begun = delta, steps
            self._applying = True
            self._behind.notify()
            return
        self._applied = delta.image
        for change in delta.changed_partitions:
            self._log_changes().perform(TopicPartition(change.topic_name, change.partition_id))

    def wake(self) -> None:
        """Wakes ``run`` for work in ``LogChanges`` that does not come from metadata."""
        self._behind.notify()

    async def begin(self) -> None:
        """Starts to apply metadata, and waits until the newest image is applied; ``run`` must be running."""
        self.following = True
        self._behind.notify()
        await self._in_step.wait_until(lambda: self._is_applied and not len(self._log_changes()))
        self.has_begun = True

    @property
    def _is_applied(self) -> bool:
        return self._applied is self._metadata.image

    async def run(self) -> None:
        """Applies large changes and performs log changes, until cancelled."""
        while True:
            while self.following:
                if not self._is_applied:
                    await self._apply_newest()
                elif len(self._log_changes()):
                    self._log_changes().step()
                    for _ in range(TURNS_OF_OTHERS):
                        await trio.lowlevel.checkpoint()
                else:
                    break
            self._in_step.notify()
            await self._behind.wait()

    async def _apply_newest(self) -> None:
        if self._begun is None:
            self._applying = True
            delta = delta_between(self._applied, self._metadata.image)
            self._begun = delta, self._apply(delta)
        delta, steps = self._begun
        for count, _ in enumerate(steps, 1):
            if count % STEPS == 0:
                await trio.lowlevel.checkpoint()
        self._applied, self._begun = delta.image, None
        self._applying = False
