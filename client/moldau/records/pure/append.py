"""Records one by one into open batches, in plain Python: the twin of ``_codec_append.pxi``.

Signatures and documentation are in ``_codec.pyi``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

from moldau.records.errors import InvalidRecordError
from moldau.records.pure.rows import murmur2
from moldau.records.pure.wire import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.records.pure.codec import RecordWriter

    Handed = tuple[object, object, object, object, object, object, "PendingRecord"]

__all__ = ["PartitionSlot", "PendingRecord", "RecordAppender", "RecordPlace", "TopicRoute"]

_RECORD_OVERHEAD = 128
_NEARLY_FULL = 8  # EMPTY_RECORD_BYTES
_STICKY_OVERHEAD = 16


class _Versioned(Protocol):
    version: int


class _Threaded(Protocol):
    thread_id: int


class RecordPlace:
    """The batch of a record and its number in it; see ``_codec.pyi``."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: object, index: int, timestamp: int) -> None:
        self._batch: Any = batch
        self._index = index
        self._timestamp = timestamp


class PendingRecord:
    """A record on its way to another thread; see ``_codec.pyi``."""

    __slots__ = ("_error", "_owner", "intercepted", "taken")

    def __init__(self, owner: object) -> None:
        self._owner: Any = owner
        self.taken: Any = None
        self.intercepted: Any = None
        self._error: Any = None


class PartitionSlot:
    """The open batch of one partition; see ``_codec.pyi``."""

    __slots__ = ("_size_limit", "_writer", "open_batch")

    def __init__(self, *_: object) -> None:
        self.open_batch: Any = None
        self._writer: RecordWriter | None = None
        self._size_limit = 0

    def open(self, batch: object, writer: RecordWriter, size_limit: int) -> None:
        """Sets the batch that takes the next records."""
        self.open_batch = batch
        self._writer = writer
        self._size_limit = size_limit

    def shut(self) -> None:
        """Removes the batch."""
        self.open_batch = None
        self._writer = None


class TopicRoute:
    """The partitions of one topic; see ``_codec.pyi``."""

    __slots__ = ("kept", "kept_bytes", "kept_bytes_max", "queues", "sent")

    def __init__(self, queues: list[PartitionSlot]) -> None:
        self.queues = queues
        self.kept: PartitionSlot | None = None
        self.kept_bytes = 0
        self.kept_bytes_max = 0.0
        self.sent = 0


@final
class RecordAppender:
    """Appends plain records to open batches; see ``_codec.pyi``."""

    def __init__(
        self,
        place: type[RecordPlace],
        routes: dict[str, TopicRoute],
        *,
        record_bytes_max: int,
        interval: int,
        ignores_keys: bool = False,
        is_custom: bool = False,
    ) -> None:
        if not issubclass(place, RecordPlace):
            raise TypeError("place must be a RecordPlace")
        self._place = place
        self._routes = routes
        self._record_bytes_max = record_bytes_max
        self._interval = interval
        self.left = interval
        self._ignores_keys = ignores_keys
        self._is_custom = is_custom
        self.check: Callable[[], object] | None = None
        self.is_open = False
        self.version = -1
        self._is_due = False

    def open(
        self, metadata: _Versioned, now_ns: Callable[[], int], thread: Callable[[], int], caller: _Threaded
    ) -> None:
        """Begins to take records."""
        self._metadata = metadata
        self._now_ns = now_ns
        self._thread = thread
        self._caller = caller
        self.is_open = True

    def _is_ready(self) -> bool:
        return self.is_open and self._thread() == self._caller.thread_id

    def append(
        self, topic: object, value: object, key: object, headers: object, partition: object, timestamp: object
    ) -> RecordPlace | None:
        """Appends one record; None if the caller must do it."""
        if not self._is_ready():
            return None
        return self._write(topic, value, key, headers, partition, timestamp)

    def _write(
        self, topic: object, value: object, key: object, headers: object, partition: object, timestamp: object
    ) -> RecordPlace | None:
        if type(headers) is not tuple or headers or type(topic) is not str or self.left <= 0:
            return None
        if not (key is None or type(key) is bytes) or not (value is None or type(value) is bytes):
            return None
        size = (0 if key is None else len(key)) + (0 if value is None else len(value))
        if size + _RECORD_OVERHEAD > self._record_bytes_max:
            return None
        route = self._routes.get(topic)
        if route is None or not route.queues or self._metadata.version != self.version:
            return None
        slot = self._slot(route, key, partition, size)
        if slot is None:
            return None
        writer = slot._writer
        if writer is None:
            return None
        if self.check is not None:
            self.check()
        if timestamp is None:
            timestamp = self._now_ns() // 1_000_000
        elif type(timestamp) is not int or not 0 <= timestamp <= INT64_MAX:
            return None
        try:
            index = writer.append(timestamp, key, value, (), slot._size_limit - _NEARLY_FULL)
        except InvalidRecordError:
            raise
        except ValueError:  # the writer's bytes have been taken
            return None
        if index < 0:
            return None
        route.sent += 1
        if slot is route.kept and partition is None and (key is None or self._ignores_keys):
            route.kept_bytes += size + _STICKY_OVERHEAD
        self.left -= 1
        return self._place(slot.open_batch, index, timestamp)

    def _slot(self, route: TopicRoute, key: bytes | None, partition: object, size: int) -> PartitionSlot | None:
        """Returns the slot of a record's partition; None if the caller must choose."""
        if partition is not None:
            if type(partition) is not int or not 0 <= partition < len(route.queues):
                return None
            return route.queues[partition]
        if self._is_custom:
            return None
        if key is not None and not self._ignores_keys:
            return route.queues[(murmur2(key) & 0x7FFFFFFF) % len(route.queues)]
        if route.kept_bytes + size + _STICKY_OVERHEAD >= route.kept_bytes_max:
            return None
        return route.kept

    def append_many(
        self,
        topic: object,
        values: list[Any],
        keys: list[Any] | None,
        partition: object,
        places: list[RecordPlace],
    ) -> None:
        """Appends records until the caller must append one."""
        if not self._is_ready():
            return
        while len(places) < len(values):
            at = len(places)
            placed = self._write(topic, values[at], None if keys is None else keys[at], (), partition, None)
            if placed is None:
                return
            places.append(placed)

    def append_handed(self, popleft: Callable[[], Handed], count: int, now_ms: int) -> tuple[int, Handed | None]:
        """Appends records of a handover's queue until the caller must append one."""
        is_open = self._is_ready()
        for taken in range(1, count + 1):
            record = popleft()
            topic, value, key, headers, partition, timestamp, delivery = record
            if not is_open or delivery.intercepted is not None:
                return taken, record
            if timestamp is None:
                timestamp = now_ms
            try:
                placed = self._write(topic, value, key, headers, partition, timestamp)
            except Exception:  # noqa: BLE001 - the caller meets it again, and knows whose it is
                return taken, record
            if placed is None:
                return taken, record
            delivery.taken = placed
        return count, None

    def counted(self) -> None:
        """Counts a record that the caller appended."""
        if self.left > 1:
            self.left -= 1
        else:
            self.left = self._interval
            self._is_due = True

    def take_turn(self) -> bool:
        """Returns whether the interval is over."""
        was, self._is_due = self._is_due, False
        return was
