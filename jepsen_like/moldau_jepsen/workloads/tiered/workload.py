"""Runs writers, readers and deletions of tiered topics, whose segments are small and soon leave the brokers' disks.

Transactional writers abort a part of their transactions, plain ones are idempotent; each sends unique records to drawn
partitions and is abandoned now and then. Readers make passes from the earliest offset, or from a time, again and again,
of committed or uncommitted data, from the leader or from a follower in a rack. An administrator deletes records of one
topic, moves replicas, and forbids copies for a while; and writes, reads and deletes whole topics, while their segments
may be on the way to the store.
``checkers.log.tiered`` judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin, ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.producer import Producer
from moldau.producer.core.transaction_errors import FatalTransactionError, TransactionError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_jepsen.checkers.log.compacted import Fate
from moldau_jepsen.checkers.log.tiered import check_tiered
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.recording.transaction_recorder import persist, transactional_config
from moldau_jepsen.workloads.tiered.notes import TieredNotes
from moldau_jepsen.workloads.tiered.readers import TieredReader

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.producer import Delivery
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.checkers.log.tiered import Place, TieredWrite
    from moldau_jepsen.workloads.tiered.options import TieredOptions

RETRY_S = 0.2
READ_S = 6.0
"""Time limit of a pass while faults strike; an unfinished pass is not judged."""
DROPPED_S = (0.5, 4.0)
"""How long a topic that is to be dropped rests after its last record."""
FLUSH_SHARE = 0.8
"""Of the aborted transactions: their records are in the logs when the abort comes."""


class TieredWorkload:
    """The clients and their observations."""

    def __init__(
        self,
        environment: Environment,
        bootstrap: str,
        options: TieredOptions,
        draw: random.Random,
        *,
        brokers: Sequence[int],
        rack: str = "",
    ) -> None:
        """``environment`` is that of the clients' machine; ``draw`` is the workload's own, and shifts no other.

        Replicas move among ``brokers``. ``rack`` is that of some passes of readers; empty for none.
        """
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._draw = draw
        self._brokers = brokers
        self._stopping = trio.Event()
        self._places = [(name, number) for name, (count, _) in options.topics.items() for number in range(count)]
        self._dropped = 0
        self.notes = TieredNotes({(options.sized, 0): None})
        self._reader = TieredReader(environment, bootstrap, self.notes, draw, rack)
        self.stuck: str | None = None
        """Why the final read failed, if it did."""

    def stop(self) -> None:
        """Ends all clients after their open operations."""
        self._stopping.set()

    def verdict(self) -> list[str]:
        """Returns what is wrong with the reads so far."""
        return check_tiered(self.notes.story)

    async def run(self) -> None:
        """Runs all clients until ``stop``; returns when the last outcome is known or given up."""
        options = self._options
        async with trio.open_nursery() as nursery:
            for slot in range(options.transactional_writers):
                nursery.start_soon(self._lives, self._transact_as, f"tiered-{slot}")
            for slot in range(options.plain_writers):
                nursery.start_soon(self._lives, self._write_as, f"tiered-plain-{slot}")
            for _ in range(options.readers):
                nursery.start_soon(self._read_again_and_again)
            nursery.start_soon(self._trim_again_and_again)
            nursery.start_soon(self._drop_again_and_again)
            nursery.start_soon(self._move_again_and_again)
            nursery.start_soon(self._toggle_again_and_again)

    async def final_read(self, seconds: float) -> None:
        """Reads each partition at both levels; sets ``stuck`` when that does not end within ``seconds``."""
        for place in self._places:
            for is_committed in (True, False):
                with trio.move_on_after(seconds):
                    await self._read_until_it_ends(place, is_committed=is_committed)
                    continue
                level = "read_committed" if is_committed else "read_uncommitted"
                self.stuck = f"partition {place[0]}-{place[1]} could not be read with {level} within {seconds} s"
                return

    async def _read_until_it_ends(self, place: Place, *, is_committed: bool) -> None:
        while True:
            if await self._reader.read(place, is_committed=is_committed):
                return
            await trio.sleep(RETRY_S)

    # --- writers

    async def _lives(self, live: Callable[[str], Awaitable[None]], name: str) -> None:
        """Runs writers in turn under one name: each runs until it crashes or the run stops."""
        every_s = self._options.crash_every_s
        while not self._stopping.is_set():
            with trio.move_on_after(self._draw.expovariate(1 / every_s) if every_s > 0 else float("inf")):
                await live(name)
            await trio.sleep(RETRY_S)

    async def _transact_as(self, name: str) -> None:
        config, number = transactional_config(name, self._bootstrap, {}), self.notes.new_producer()
        try:
            async with mortal(Producer(config, environment=self._environment), self._draw) as producer:
                await persist(producer.init_transactions, self._stopping.is_set)
                while not self._stopping.is_set():
                    await self._transact(producer, number)
                    await trio.sleep(self._draw.expovariate(self._options.rounds_per_second))
        except KafkaError:
            await trio.sleep(RETRY_S)  # fenced, or hopeless: a successor with the same id goes on

    async def _transact(self, producer: Producer, number: int) -> None:
        """Runs one transaction; its writes count as aborted until the commit is requested."""
        draw, notes = self._draw, self.notes
        sent: list[tuple[TieredWrite, Delivery | None]] = []
        is_committing = False
        try:
            producer.begin_transaction()
            for _ in range(draw.randint(1, self._options.writes_max)):
                await self._send(producer, draw.choice(self._places), number, sent)
            if draw.random() >= self._options.abort_share:
                is_committing = True
                await persist(producer.commit_transaction)
                self._settle(sent)
                notes.committed(write for write, _ in sent)
                return
            if draw.random() < FLUSH_SHARE:
                await producer.flush()
        except FatalTransactionError:
            raise
        except (TransactionError, KafkaError):
            is_committing = False  # an abortable error says that it is not committed
        finally:
            if not is_committing:
                self._settle(sent)
                for write, _ in sent:
                    write.fate = Fate.ABORTED
        await persist(producer.abort_transaction)

    async def _write_as(self, name: str) -> None:
        try:
            async with self._plain_producer(name) as producer:
                number = self.notes.new_producer()
                while not self._stopping.is_set():
                    await self._write(producer, self._draw.choice(self._places), number)
                    await trio.sleep(self._draw.expovariate(self._options.rounds_per_second))
        except KafkaError:
            await trio.sleep(RETRY_S)  # the outcome of some writes is unknown

    def _plain_producer(self, name: str) -> Producer:
        config = {
            "acks": "all",
            "linger.ms": 1,
            "enable.idempotence": True,
            "delivery.timeout.ms": 8_000,
            "request.timeout.ms": 2_000,
            "client.id": name,
            "bootstrap.servers": self._bootstrap,
        }
        return Producer(config, environment=self._environment)

    async def _write(self, producer: Producer, place: Place, number: int) -> None:
        """Writes a few records, which are under way together."""
        sent: list[tuple[TieredWrite, Delivery | None]] = []
        for _ in range(self._draw.randint(1, self._options.writes_max)):
            await self._send(producer, place, number, sent)
        try:
            for _, delivery in sent:
                assert delivery is not None, "each was handed over"
                await delivery
        finally:
            self.notes.committed(self._settle(sent))

    async def _send(
        self, producer: Producer, place: Place, number: int, sent: list[tuple[TieredWrite, Delivery | None]]
    ) -> None:
        """Sends a new write, which joins ``sent`` before it is handed over."""
        now_ms = int(self._environment.clock.wall_ms())
        write = self.notes.new_write(place, number, now_ms, self._draw.randint(0, self._options.padding_bytes))
        sent.append((write, None))
        delivery = await producer.send(place[0], write.value, partition=place[1], timestamp=now_ms)
        sent[-1] = (write, delivery)

    def _settle(self, sent: list[tuple[TieredWrite, Delivery | None]]) -> list[TieredWrite]:
        """Notes the offsets of the deliveries that have succeeded, and returns their writes."""
        settled = []
        for write, delivery in sent:
            if delivery is not None and delivery.acknowledged_by is not None:
                self.notes.acknowledged(write, delivery)
                settled.append(write)
        return settled

    # --- readers

    async def _read_again_and_again(self) -> None:
        draw, options = self._draw, self._options
        while not self._stopping.is_set():
            await trio.sleep(draw.expovariate(options.passes_per_second))
            place, is_committed = draw.choice(self._places), draw.random() < 0.6
            by_time = draw.random() < options.search_share
            with trio.move_on_after(READ_S):
                await self._reader.read(place, is_committed=is_committed, by_time=by_time)

    # --- administration; ``AdminError`` is a ``KafkaError``

    def _admin(self) -> Admin:
        config = {"bootstrap.servers": self._bootstrap, "default.api.timeout.ms": 5_000}
        return Admin(config, environment=self._environment)

    async def _trim_again_and_again(self) -> None:
        """Deletes records up to drawn offsets that are known to be committed."""
        draw, notes = self._draw, self.notes
        place = (self._options.trimmed, 0)
        async with self._admin() as admin:
            while not self._stopping.is_set():
                await trio.sleep(draw.expovariate(self._options.trims_per_second))
                known = notes.known_offsets(place)
                if not known:
                    continue
                offset = draw.choice(known[: max(1, len(known) * 3 // 4)])
                notes.trims[place] = max(offset, notes.trims.get(place) or 0)
                try:
                    await admin.delete_records({place: offset})
                except (KafkaError, OSError, trio.TooSlowError):
                    await trio.sleep(RETRY_S)

    async def _move_again_and_again(self) -> None:
        """Gives drawn partitions other replicas."""
        draw, count = self._draw, len(self._brokers)
        async with self._admin() as admin:
            while not self._stopping.is_set():
                await trio.sleep(draw.expovariate(self._options.moves_per_second))
                replicas = draw.sample(self._brokers, draw.randint(min(2, count), min(3, count)))
                try:
                    await admin.alter_partition_reassignments({draw.choice(self._places): replicas})
                except (KafkaError, OSError, trio.TooSlowError):
                    await trio.sleep(RETRY_S)

    async def _toggle_again_and_again(self) -> None:
        """Forbids copies of a topic, and allows them again."""
        draw, topic = self._draw, ConfigResource(type=ResourceType.TOPIC, name=self._options.kept)
        async with self._admin() as admin:
            while not self._stopping.is_set():
                await trio.sleep(draw.expovariate(self._options.toggles_per_second))
                change = ConfigAlteration(name="remote.log.copy.disable", value=draw.choice(("true", "false", "false")))
                try:
                    await admin.alter_configs({topic: [change]})
                except (KafkaError, OSError, trio.TooSlowError):
                    await trio.sleep(RETRY_S)

    async def _drop_again_and_again(self) -> None:
        """Makes a topic, fills it, reads it and deletes it; the last one stays."""
        draw = self._draw
        async with self._admin() as admin:
            while not self._stopping.is_set():
                self._dropped += 1
                name = f"{self._options.dropped}-{self._dropped}"
                if not await self._create(admin, name):
                    return
                with trio.move_on_after(READ_S * 2):
                    await self._fill((name, 0))
                await trio.sleep(draw.uniform(*DROPPED_S))
                with trio.move_on_after(READ_S):
                    await self._reader.read((name, 0), is_committed=draw.random() < 0.5)
                if self._stopping.is_set() or not await self._delete(admin, name):
                    return

    async def _create(self, admin: Admin, name: str) -> bool:
        """Returns whether the topic is there; the client may have been stopped before."""
        while not self._stopping.is_set():
            try:
                await admin.create_topics([NewTopic(name=name, partitions=1, configs=self._options.topic_settings)])
            except (KafkaError, OSError, trio.TooSlowError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return True
                await trio.sleep(RETRY_S)
                continue
            return True
        return False

    async def _delete(self, admin: Admin, name: str) -> bool:
        """Repeats the deletion until a response confirms it; returns False if the client was stopped before."""
        while not self._stopping.is_set():
            try:
                await admin.delete_topics([name])
            except (KafkaError, OSError, trio.TooSlowError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return True
                await trio.sleep(RETRY_S)
                continue
            return True
        return False

    async def _fill(self, place: Place) -> None:
        try:
            async with self._plain_producer(place[0]) as producer:
                number, begun = self.notes.new_producer(), len(self.notes.writes)
                while len(self.notes.writes) - begun < self._options.dropped_writes and not self._stopping.is_set():
                    await self._write(producer, place, number)
        except KafkaError:
            return  # a topic with fewer records is dropped, too
