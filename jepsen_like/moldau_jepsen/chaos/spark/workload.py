"""Runs the workload ``spark``: senders, a streaming query of another process, and kills of its processes.

Senders write unique values to the source topic, as those of the queue. The query copies each row to the target topic,
exactly once. Now and then SIGKILL ends the driver with everything below it, while some rows of a batch are written, or
the Python processes of its tasks. At the end the query comes to the end of the source, and both topics are read from
their beginnings; ``checkers.log.copies`` judges.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import trio

from moldau.consumer import Consumer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent
from moldau_jepsen.chaos.spark.processes import Checkpoint, QueryProcesses
from moldau_jepsen.checkers.log.copies import CopiedRow, Copies, SourceRow
from moldau_jepsen.checkers.log.reach import has_reached
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.phases.final_read import POLL_TIMEOUT_MS, RETRY_S, end_offsets, settled_ends
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.recording.recorder import Recorder

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
DRIVER: Final = "moldau_jepsen.chaos.spark.driver"
DRIVER_KILL: Final = "spark-driver"
WORKERS_KILL: Final = "spark-workers"
LOOK_S: Final = 0.02
UNDER_WAY_S: Final = 60.0
"""How long a kill waits for rows of an unfinished batch in the target, before it strikes all the same."""
WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """The options of the workload."""

    source: str = "spark-source"
    target: str = "spark-target"
    partitions: int = 3
    """Of each of the two topics."""
    senders: int = 2
    sends_per_second: float = 40.0
    """Of each sender, on average."""
    delivery_guarantee: str = EXACTLY_ONCE
    kill_every_s: float = 8.0
    """Mean time from the first batch of the query to a kill."""
    workers_share: float = 0.3
    """Of the kills: they strike the Python processes only."""
    kills_min: int = 2
    """The senders go on until so many kills of the driver took effect, also after ``stop``."""
    start_s: float = 240.0
    """How long a query may take from its start to its next batch."""
    drain_seconds: float = 240.0
    """How long the query may stand still after the senders have ended."""
    producer: Mapping[str, object] = field(default_factory=dict)
    consumer: Mapping[str, object] = field(default_factory=dict)

    @property
    def source_partitions(self) -> list[TopicPartition]:
        """Returns all partitions of the source."""
        return [TopicPartition(self.source, number) for number in range(self.partitions)]

    @property
    def target_partitions(self) -> list[TopicPartition]:
        """Returns all partitions of the target."""
        return [TopicPartition(self.target, number) for number in range(self.partitions)]


def refusal() -> str | None:
    """Returns why Spark cannot run here, None if it can."""
    import importlib.util

    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed: pip install 'moldau[spark]'"
    from pyspark_moldau.session.java import find_java

    return None if find_java() is not None else "there is no Java 17, 21 or 25: pip install 'moldau[spark-java]'"


class SparkWorkload:
    """Senders, query and kills of one run."""

    def __init__(
        self, environment: Environment, bootstrap: str, options: SparkOptions, recorder: Recorder, folder: Path
    ) -> None:
        """``folder`` gets the query's checkpoint and logs."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._recorder = recorder
        self._checkpoint = Checkpoint(folder / "checkpoint")
        arguments = [bootstrap, options.source, options.target, str(folder / "checkpoint"), options.delivery_guarantee]
        self._query = QueryProcesses(folder, [sys.executable, "-m", DRIVER, *arguments])
        self._feeder = QueueWorkload(
            environment,
            bootstrap,
            QueueOptions(
                topic=options.source,
                partitions=options.partitions,
                senders=options.senders,
                assigned_readers=0,
                group_readers=0,
                sends_per_second=options.sends_per_second,
                producer=options.producer,
                consumer=options.consumer,
            ),
            recorder,
        )
        self._stopping = trio.Event()
        self._driver_kills = 0
        self._is_drained = False
        self.kills: list[FaultEvent] = []
        """The kills; times are the recorder's."""
        self.copies = Copies(source=options.source, target=options.target)
        """The content of the topics at the end; complete after ``final_read``."""
        self.stuck: str | None = None
        """Why the query did not come to the end of its source, or the topics could not be read."""

    def stop(self) -> None:
        """Ends the senders once enough kills took effect; ``run`` returns when the query has copied all rows."""
        self._stopping.set()

    async def run(self) -> None:
        """Runs senders, query and kills until ``stop``, and the query until all rows are copied."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feeder.run)
                await self._strike()
                self._feeder.stop()
            await self._drain()
        finally:
            self._query.kill()

    # -- kills -------------------------------------------------------------------------------------------------------

    async def _strike(self) -> None:
        """Kills parts of the query until ``stop``, and then until enough kills took effect."""
        options, draw = self._options, self._environment.random
        while not self._stopping.is_set() or self._driver_kills < options.kills_min:
            if not await self._at_work():
                return
            with trio.move_on_after(draw.expovariate(1 / options.kill_every_s)):
                await self._stopping.wait()
            if self._stopping.is_set() and self._driver_kills >= options.kills_min:
                return
            begun_ms = self._recorder.now_ms()
            if self._driver_kills < options.kills_min or draw.random() >= options.workers_share:
                is_under_way = await self._written_in_part()
                count = await trio.to_thread.run_sync(self._query.kill)
                self._driver_kills += 1
                self._note(DRIVER_KILL, begun_ms, count, "in a batch" if is_under_way else "between batches")
            else:
                count = await trio.to_thread.run_sync(self._query.kill_workers)
                self._note(WORKERS_KILL, begun_ms, count, "")

    def _note(self, kind: str, begun_ms: float, count: int, when: str) -> None:
        detail = f"{count} processes {when}".rstrip()
        event = FaultEvent(
            kind=kind,
            target="spark",
            nodes=(),
            begin_ms=begun_ms,
            end_ms=self._recorder.now_ms(),
            detail=detail,
            took_effect=count > 0,
        )
        self.kills.append(event)

    async def _ensure_running(self) -> None:
        if not self._query.is_running:
            await trio.to_thread.run_sync(self._query.start)

    async def _at_work(self) -> bool:
        """Waits until the query begins a batch; returns False, and says why, if it does not within ``start_s``."""
        await self._ensure_running()
        before = self._checkpoint.batches("offsets")[-1:], self._checkpoint.batches("commits")[-1:]
        with trio.move_on_after(self._options.start_s):
            while (self._checkpoint.batches("offsets")[-1:], self._checkpoint.batches("commits")[-1:]) == before:
                await trio.sleep(WAIT_S)
                await self._ensure_running()
            return True
        self.stuck = f"the query of Spark began no batch within {self._options.start_s:g} s of its start"
        return False

    async def _written_in_part(self) -> bool:
        """Waits until rows of an unfinished batch are in the target; returns whether that came in time."""
        with trio.move_on_after(UNDER_WAY_S):
            async with self._consumer("read_uncommitted") as consumer:
                seen, batch = -1, -1
                while True:
                    planned = self._checkpoint.batches("offsets")[-1:]
                    if not self._checkpoint.is_under_way():
                        batch = -1
                    elif planned != [batch]:
                        batch, seen = planned[0], await self._target_end(consumer)
                    elif await self._target_end(consumer) > seen:
                        return self._checkpoint.is_under_way()
                    await trio.sleep(LOOK_S)
        return False

    async def _target_end(self, consumer: Consumer) -> int:
        return sum((await end_offsets(consumer, self._options.target_partitions)).values())

    # -- the end -----------------------------------------------------------------------------------------------------

    def _consumer(self, isolation: str) -> Consumer:
        config = {
            "auto.offset.reset": "earliest",
            **self._options.consumer,
            "isolation.level": isolation,
            "bootstrap.servers": self._bootstrap,
        }
        return Consumer(config, environment=self._environment)

    async def _drain(self) -> None:
        """Waits until the query has finished a batch with the end of the source, as long as it makes progress."""
        if self.stuck:
            return
        options, passed = self._options, -1
        with trio.move_on_after(options.drain_seconds) as scope:
            async with self._consumer("read_committed") as consumer:
                ends = await end_offsets(consumer, options.source_partitions)
            while True:
                await self._ensure_running()
                offsets = self._checkpoint.finished_offsets(options.source)
                if all(has_reached(offsets.get(part.partition, 0), end) for part, end in ends.items()):
                    self._is_drained = True
                    return
                now_passed = sum(min(offsets.get(part.partition, 0), end) for part, end in ends.items())
                if now_passed > passed:
                    passed = now_passed
                    scope.deadline = trio.current_time() + options.drain_seconds
                await trio.sleep(WAIT_S)
        self.stuck = f"the query of Spark made no progress for {options.drain_seconds:g} s, at {passed} rows"

    async def final_read(self, timeout_s: float) -> None:
        """Reads source and target from their beginnings; sets ``stuck`` if that does not end in time."""
        await self._feeder.final_read(timeout_s)
        source: dict[tuple[int, int], Record] = {}
        target: dict[tuple[int, int], Record] = {}
        options = self._options
        with trio.move_on_after(timeout_s) as scope:
            await self._read(options.source_partitions, source)
            await self._read(options.target_partitions, target)
        if scope.cancelled_caught:
            self.stuck = self.stuck or f"the topics of Spark could not be read to their ends within {timeout_s:g} s"
        rows = tuple(source_row(number, record) for (number, _), record in source.items())
        copies = tuple(copied_row(number, record) for (number, _), record in target.items())
        is_whole = self._is_drained and not scope.cancelled_caught
        self.copies = self.copies._replace(rows=rows, copies=copies, is_whole=is_whole)

    async def _read(self, partitions: list[TopicPartition], read: dict[tuple[int, int], Record]) -> None:
        """Reads a topic to its present ends; ``read`` gets the records by partition and offset.

        A reader that is given an impossible offset is sent back to the beginning, and is given the others again.
        """
        ends = await settled_ends(self._consumer, partitions)
        async with self._consumer("read_committed") as consumer:
            consumer.assign(partitions)
            while not all(has_reached(consumer.position_nowait(part) or 0, end) for part, end in ends.items()):
                try:
                    batches = await consumer.poll(POLL_TIMEOUT_MS)
                except KafkaError:
                    await trio.sleep(RETRY_S)  # bounded by the caller's deadline
                    continue
                for batch in batches:
                    for record in batch.records:
                        read[batch.partition, record.offset] = record


def source_row(partition: int, record: Record) -> SourceRow:
    """Returns a row of the source."""
    return SourceRow(partition, record.offset, _key(record), (record.value or b"").hex())


def copied_row(partition: int, record: Record) -> CopiedRow:
    """Returns a row of the target; one that is no copy names partition -1."""
    try:
        document = json.loads(record.value or b"")
        place = int(document["partition"]), int(document["offset"])
        return CopiedRow(partition, record.offset, *place, _key(record), str(document["value"]).lower())
    except (ValueError, KeyError, TypeError):
        return CopiedRow(partition, record.offset, -1, -1, _key(record), (record.value or b"").hex())


def _key(record: Record) -> str:
    return "null" if record.key is None else f"x{record.key.hex()}"


def with_configs(options: SparkOptions, producer: Mapping[str, object], consumer: Mapping[str, object]) -> SparkOptions:
    """Returns the options with configurations of clients below their own."""
    return replace(options, producer={**producer, **options.producer}, consumer={**consumer, **options.consumer})
