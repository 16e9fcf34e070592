"""The processor for ordinary threads: see ``process``."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from moldau.consumer import CommitFailedError
from moldau.processing.steps import POLL_MS, Plan, check_handler, no_room, plan_of, shorter, wall_ms
from moldau.protocol.errors import KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau.serialization.core.values import KeyOut, RecordDeserializationError, ValueOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.blocking.consumer import Consumer
    from moldau.blocking.producer import Producer
    from moldau.consumer import ConsumedRecord
    from moldau.processing.core.retry_topics import RetryTopics
    from moldau.processing.core.work import Order
    from moldau.producer import OutputRecord

_logger = EventLogger("moldau.processing")


def process(
    consumer: Consumer[KeyOut, ValueOut],
    handler: Callable[[ConsumedRecord[KeyOut, ValueOut]], object],
    *,
    concurrency: int = 10,
    order: Order = "partition",
    pending_max: int = 500,
    commit_interval_ms: float = 5000,
    retries: RetryTopics | None = None,
    producer: Producer[Any, Any] | None = None,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Calls a function for each record in ``concurrency`` threads, and commits in order.

    Records of one partition (``order="partition"``) or of one key of a partition (``"key"``) run one after the other;
    with ``"none"`` all may run at once. A partition with ``pending_max`` unfinished records is paused. Only offsets
    before which all records are processed are committed, so each record is processed at least once.

    With ``retries`` a record whose handler raises goes to a retry topic or the dead letters, by ``producer``, and
    counts as processed. Without, the exception ends ``process``; the record is not committed.

    Returns the number of records processed after ``until`` has returned True and the running handlers have ended.
    Ctrl-C ends it in the same way, and goes on.

    Raises:
        ConfigError: the consumer commits by itself (``enable.auto.commit``), or has no ``group.id``.
        TypeError: the handler is a coroutine function or a generator function, whose call would process nothing.
    """
    check_handler(handler)
    plan = plan_of(
        consumer=consumer,
        producer=producer,
        retries=retries,
        concurrency=concurrency,
        order=order,
        pending_max=pending_max,
        commit_interval_ms=commit_interval_ms,
    )
    return _Processor(consumer, handler, plan, producer, until).run()


class _Processor:
    """Invariants: only ``run``'s thread calls the consumer, and the lock is held around each use of the work."""

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        handler: Callable[[ConsumedRecord[Any, Any]], object],
        plan: Plan,
        producer: Producer[Any, Any] | None,
        until: Callable[[], bool],
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._plan = plan
        self._work = plan.work
        self._producer = producer
        self._until = until
        self._lock = threading.Lock()
        self._is_over = False
        self._failure: BaseException | None = None

    def run(self) -> int:
        interval_s = self._plan.commit_interval_ms / 1000
        try:
            with ThreadPoolExecutor(self._work.concurrency, "moldau-process") as pool:
                try:
                    with self._keeps_first_failure():
                        due_s = time.monotonic() + interval_s
                        while not self._until() and self._failure is None:
                            self._poll()
                            self._start(pool)
                            if time.monotonic() >= due_s:
                                self._commit()
                                due_s = time.monotonic() + interval_s
                finally:
                    self._is_over = True
        finally:
            with self._keeps_first_failure():
                self._commit()
            with self._keeps_first_failure():
                self._end()
        if self._failure is not None:
            raise self._failure
        return self._work.finished

    @contextlib.contextmanager
    def _keeps_first_failure(self) -> Iterator[None]:
        """Keeps the first exception for the end of ``run``: after it, another thread may have closed the consumer."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - ``run`` raises the first one
            with self._lock:
                if self._failure is None:
                    self._failure = error
                    return
            _logger.warning("processing-not-ended", error=error)

    def _poll(self) -> None:
        work, consumer = self._work, self._consumer
        assignment = consumer.assignment
        with self._lock:
            paused, resumed = work.to_pause(), work.to_resume()
        consumer.pause(*(each for each in paused if each in assignment))
        consumer.resume(*(each for each in resumed if each in assignment))
        try:
            batches = consumer.poll(POLL_MS)
        except RecordDeserializationError as error:
            if self._plan.retries is None:
                raise
            self._send(self._plan.retries.failed(error, error, wall_ms()), is_raw=True)
            with contextlib.suppress(LookupError):  # in another cluster the offset is of another record
                consumer.seek(error.topic_partition, error.offset + 1, cluster=error.cluster)
                with self._lock:
                    work.follow(error.cluster)
                    work.skip(error.topic_partition, error.offset)
            batches = []
        assignment, cluster = consumer.assignment, consumer.clusters_left
        with self._lock:
            work.follow(cluster)
            work.take(batches)
            work.retain(assignment)

    def _start(self, pool: ThreadPoolExecutor) -> None:
        while (record := self._next()) is not None:
            pool.submit(self._handle_all, record)

    def _next(self) -> ConsumedRecord[Any, Any] | None:
        if self._is_over or self._failure is not None:
            return None
        with self._lock:
            return self._work.start(wall_ms())

    def _handle_all(self, first: ConsumedRecord[Any, Any]) -> None:
        record: ConsumedRecord[Any, Any] | None = first
        while record is not None:
            is_done = False
            try:
                self._handle(record)
                is_done = True
            except BaseException as error:  # noqa: BLE001 - ``run`` raises the first one
                self._fail(record, error)
            finally:
                with self._lock:
                    (self._work.finish if is_done else self._work.fail)(record)
            record = self._next()

    def _fail(self, record: ConsumedRecord[Any, Any], error: BaseException) -> None:
        """Keeps the first failure, after which no record begins; others may be its consequences, and are logged."""
        with self._lock:
            if self._failure is None:
                self._failure = error
                return
        _logger.warning("record-failed", topic=record.topic, offset=record.offset, error=error)

    def _handle(self, record: ConsumedRecord[Any, Any]) -> None:
        try:
            self._handler(record)
        except Exception as error:
            if self._plan.retries is None:
                raise
            _logger.warning("record-failed", topic=record.topic, offset=record.offset, error=error)
            self._send(self._plan.retries.failed(record, error, wall_ms()))

    def _send(self, output: OutputRecord[Any, Any], *, is_raw: bool = False) -> None:
        assert self._producer is not None
        send = self._producer.send_bytes if is_raw else self._producer.send

        def attempt(output: OutputRecord[Any, Any]) -> None:
            topic, value, key, headers, *_ = output
            # Not for a time of its own: the delivery ends with the producer's error, which names the cause.
            send(topic, value, key, headers=headers).result(math.inf)

        try:
            attempt(output)
        except KafkaError as error:
            output = shorter(output, error)
            try:
                attempt(output)
            except KafkaError as again:
                raise no_room(output, again) from error

    def _end(self) -> None:
        """Returns the records that were not processed to the consumer, and ends the pauses; see ``SharedSteps.end``."""
        assignment, cluster = self._consumer.assignment, self._consumer.clusters_left
        with self._lock:
            self._work.follow(cluster)
            self._work.retain(assignment)
            returned, paused = self._work.to_return(), self._work.paused()
        for partition, offset in returned.items():
            with contextlib.suppress(LookupError):  # the consumer has gone to another cluster since
                self._consumer.seek(partition, offset, cluster=cluster)
        self._consumer.resume(*(each for each in paused if each in assignment))

    def _commit(self) -> None:
        """Commits what is processed; a member that has lost its partitions reads them again elsewhere."""
        assignment, cluster = self._consumer.assignment, self._consumer.clusters_left
        with self._lock:
            self._work.follow(cluster)
            self._work.retain(assignment)
            offsets = self._work.to_commit()
        if not offsets:
            return
        try:
            self._consumer.commit(offsets, cluster=cluster)
        except (CommitFailedError, KafkaError, TimeoutError) as error:
            _logger.warning("commit-failed", error=error)
        else:
            with self._lock:
                self._work.committed(offsets)
