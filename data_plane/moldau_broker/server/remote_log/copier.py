"""Copies closed segments of all partitions to the object store, some at a time and within the configured rate.

A segment is copied in two steps, ``.aux`` and then ``.log``, and exists from the end of the second. If a step fails, it
is not known whether its object exists. The next attempt repeats both under the same name, which is allowed because the
bytes are the same; ``Attempt`` holds what that needs.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from moldau.runtime.config.declaration import LONG_MAX
from moldau_broker.remote_log.core.auxiliary import encode_auxiliary
from moldau_broker.remote_log.core.names import AUXILIARY, LOG
from moldau_broker.replication.throttle import ReplicationThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import Content, ObjectStore
    from moldau_broker.log.remote.segment_check import SegmentCheck
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy
    from moldau_broker.log.values import SegmentParts
    from moldau_broker.remote_log.core.names import RemoteSegment

RATE_LOOK_MS: Final = 1_000.0
"""Longest sleep of a copy that waits for the rate: after it a raised rate holds."""
RATE_KEY: Final = "remote.log.manager.copy.max.bytes.per.second"
COPIES_KEY: Final = "remote.log.manager.copier.thread.pool.size"


class BytesContent:
    """An object whose bytes are in memory."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole content."""
        return len(self._data)

    def read(self, position: int, count: int) -> bytes:
        """Returns ``count`` bytes from ``position`` on; fewer only at the end."""
        return self._data[position : position + count]


class Attempt(NamedTuple):
    """A copy that has been tried."""

    segment: RemoteSegment
    auxiliary_digest: bytes
    """SHA-256 of ``.aux``. An object never changes, so another content needs another id."""
    begun_ms: float
    """Monotonic time at which its first object was sent."""


class Copier:
    """Copies segments, and counts nothing."""

    def __init__(self, environment: Environment, store: ObjectStore, config: Callable[[], Config]) -> None:
        """``config`` returns the present configuration of the broker."""
        self._environment = environment
        self._store = store
        self._config = config
        self._limiter = trio.CapacityLimiter(1)
        self._turn = trio.Lock()  # for the rate; first come, first served
        self._throttle = ReplicationThrottle(LONG_MAX, environment.clock.monotonic_ms())

    async def encode(self, parts: Callable[[], SegmentParts]) -> tuple[bytes, bytes]:
        """Reads and encodes the files beside a segment in a thread; returns the bytes of ``.aux`` and their digest.

        Raises:
            OSError: a file could not be read.
            LogError: a file is damaged.
        """

        def work() -> tuple[bytes, bytes]:
            data = encode_auxiliary(parts())
            return data, hashlib.sha256(data).digest()

        return await self._environment.disk.offload(work)

    async def check(self, found: SegmentToCopy, check: SegmentCheck) -> None:
        """Checks the rest of a segment, step by step in a thread; a cancellation waits for one step.

        Raises:
            CorruptLogFileError: a batch is damaged.
            OSError: the file could not be read.
        """
        while not check.is_complete:
            await self._environment.disk.offload(partial(check.step, found))

    def slot(self) -> trio.CapacityLimiter:
        """Returns the limiter within which one segment is prepared and copied."""
        self._limiter.total_tokens = self._config().get_int(COPIES_KEY)
        return self._limiter

    async def wait_for_rate(self, size_bytes: int) -> None:
        """Waits until the rate allows another copy, and counts its bytes.

        That can take hours after a failed copy of a large segment, whose bytes count too. So call it before the id of
        the copy is chosen: an id may be used again for a limited time only.
        """
        clock = self._environment.clock
        async with self._turn:
            while True:
                now_ms = clock.monotonic_ms()
                self._throttle.set_rate(float(self._config().get_int(RATE_KEY)), now_ms)
                wait_ms = self._throttle.wait_ms(now_ms)
                if wait_ms <= 0:
                    break
                await trio.sleep(min(wait_ms, RATE_LOOK_MS) / 1000)
            self._throttle.spend(size_bytes, clock.monotonic_ms())

    async def put(self, folder: str, segment: RemoteSegment, auxiliary: bytes, content: Content) -> None:
        """Writes both objects of a segment, after ``wait_for_rate``; the segment exists on return.

        Raises:
            ObjectStoreError: it is unknown whether it exists.
            OSError: ``content`` could not be read.
        """
        name = folder + segment.name
        await self._store.put(name + AUXILIARY, BytesContent(auxiliary))
        await self._store.put(name + LOG, content)
