"""Readers of tiered partitions: each pass begins at the earliest offset, or where a search by time leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer import Consumer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers.log.compacted import NEVER
from moldau_jepsen.checkers.log.reach import GAP_MAX, has_reached
from moldau_jepsen.checkers.log.tiered import TieredRead, TieredRecord, TieredSearch
from moldau_jepsen.history import TopicPartition

if TYPE_CHECKING:
    import random

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.checkers.log.tiered import Place
    from moldau_jepsen.workloads.tiered.notes import TieredNotes

POLL_MS = 200.0


class TieredReader:
    """Makes passes, one at a time for each caller."""

    def __init__(
        self, environment: Environment, bootstrap: str, notes: TieredNotes, draw: random.Random, rack: str
    ) -> None:
        """``rack`` is that of some passes, which read from a follower if brokers have racks; empty for none."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._notes = notes
        self._draw = draw
        self._rack = rack

    def _consumer(self, *, is_committed: bool) -> Consumer:
        config: dict[str, object] = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": self._draw.choice((600, 3_000, 1 << 20)),
            "bootstrap.servers": self._bootstrap,
        }
        if self._rack and self._draw.random() < 0.4:
            config["client.rack"] = self._rack
        return Consumer(config, environment=self._environment)

    async def read(self, place: Place, *, is_committed: bool, by_time: bool = False) -> bool:
        """Makes a pass to an end behind all that is known when it begins; returns whether it could.

        With ``by_time`` it begins where a search for the time of a known write leads.
        """
        notes, partition = self._notes, TopicPartition(*place)
        begun = notes.tick()
        end = notes.seen_end(place, is_committed=is_committed)
        times = notes.times(place) if by_time else []
        records: list[TieredRecord] = []
        try:
            async with self._consumer(is_committed=is_committed) as consumer:
                start = log_start = (await consumer.beginning_offsets([partition]))[partition]
                reported_end = (await consumer.end_offsets([partition]))[partition]
                end = max(end, reported_end)
                consumer.assign([partition])
                if times:
                    asked_ms = self._draw.choice(times) + self._draw.choice((0, 0, 1))
                    asked = TieredSearch(place, begun, asked_ms, NEVER, log_start, reported_end)
                    found = await self._search(consumer, asked)
                    if found >= 0:
                        start = found
                        consumer.seek(partition, found)
                while not has_reached(consumer.position_nowait(partition) or 0, end):
                    for batch in await consumer.poll(POLL_MS):
                        records += [
                            TieredRecord(record.offset, bytes(record.value or b""), record.timestamp)
                            for record in batch.records
                        ]
                    wrong = tuple(record for record in records if record.offset >= end + GAP_MAX)
                    if wrong:  # they are judged alone: the reader is sent back to the beginning now
                        notes.reads.append(TieredRead(place, is_committed, 0, notes.tick(), 0, 0, wrong, 0))
                        return False
                log_start = max(log_start, (await consumer.beginning_offsets([partition]))[partition])
        except KafkaError:
            return False
        ended = notes.tick()
        notes.reads.append(TieredRead(place, is_committed, begun, ended, start, log_start, tuple(records), end))
        return True

    async def _search(self, consumer: Consumer, asked: TieredSearch) -> int:
        partition = TopicPartition(*asked.place)
        offset, _ = (await consumer.offsets_for_times({partition: asked.asked_ms}))[partition]
        log_start = max(asked.log_start, (await consumer.beginning_offsets([partition]))[partition])
        self._notes.searches.append(asked._replace(offset=offset, log_start=log_start))
        return offset
