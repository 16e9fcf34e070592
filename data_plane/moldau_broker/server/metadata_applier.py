"""Takes over committed metadata: small changes at once, large ones step by step.

The image that handlers read (``MetadataCache``) is always the newest; replicas may be some steps behind it. A change of
a thousand partitions costs seconds of disk where logs are created, in which heartbeats, fetches and produces must go
on, so it is applied by a task that lets others run after each log that was created or deleted, and every few of those
partitions that only change in memory (beginning to lead writes nothing). What is committed meanwhile is folded into the
next round: a partition that changed twice is taken over once, as it is then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.runtime.sync import Signal
from moldau_quorum.image import MetadataImage, delta_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_broker.server.metadata_cache import MetadataCache
    from moldau_quorum.image import MetadataDelta

AT_ONCE_MAX = 8
"""Changed partitions that are taken over at once; creating the log of one takes some milliseconds of disk."""
STEPS = 8
"""Partitions between two checkpoints while more are taken over, if none of them touches the disk."""


class MetadataApplier:
    """Keeps the parts of a broker in step with the metadata.

    Invariant: ``_applied`` is the image that all parts have taken over; ``apply`` is run by one task at a time.
    """

    def __init__(self, metadata: MetadataCache, apply: Callable[[MetadataDelta], Iterator[bool]]) -> None:
        """``apply`` brings the parts from one image to the next.

        It yields where everything is consistent, and whether the step before that had to wait for the disk.
        """
        self._metadata = metadata
        self._apply = apply
        self._applied = MetadataImage()
        self._catching_up = False  # ``run`` is applying: nobody else may
        self._behind = Signal()  # notified when there is something for ``run``
        self._in_step = Signal()  # notified when everything committed has been applied
        self.following = False
        """Whether metadata is taken over at all: not before the broker knows its own registration."""

    def on_delta(self, delta: MetadataDelta) -> None:
        """Something was committed."""
        self._metadata.image = delta.image
        if not self.following:
            return
        behind = self._catching_up or self._applied is not delta.previous
        if behind or len(delta.changed_partitions) > AT_ONCE_MAX:
            self._behind.notify()
            return
        for _ in self._apply(delta):
            pass
        self._applied = delta.image

    async def begin(self) -> None:
        """Begins to follow, and returns when all that is known has been taken over. ``run`` must be going on."""
        self.following = True
        self._behind.notify()
        await self._in_step.wait_until(lambda: self._applied is self._metadata.image)

    async def run(self) -> None:
        """Applies what is too much for one moment, until cancelled."""
        while True:
            while self.following and self._applied is not self._metadata.image:
                self._catching_up = True
                delta = delta_between(self._applied, self._metadata.image)
                for count, waited in enumerate(self._apply(delta), 1):
                    if waited or count % STEPS == 0:
                        await trio.lowlevel.checkpoint()
                self._applied = delta.image
            self._catching_up = False
            self._in_step.notify()
            await self._behind.wait()
