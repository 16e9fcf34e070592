"""Writes dead letters to the leaders of the queue's partitions, as a producer with acks=all does (KIP-1191).

The dead letters of partition *p* go to partition *p* modulo the number of the queue's partitions. A write
that may succeed later is tried again, for ``GIVE_UP_MS`` at the most: meanwhile the records count as in flight, so a
queue that cannot be written holds up its group. Then, or if the write is refused for good, the dead letters are given
up, and a line of the log names the records. The time runs for all dead letters of a share-partition together: many
ranges of records may wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from moldau.runtime.tasks.supervision import BackoffPolicy
from moldau_broker.server.share.dead_letters.letters import Found, Source, build_letters
from moldau_broker.server.share.dead_letters.queue import TOPIC_CONFIGS, obstacle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.values import BrokerId
    from moldau_broker.log.config import LogConfig
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.share.core.values import DeadLetters
    from moldau_broker.server.share.dead_letters.queue import DeadLetterQueue
    from moldau_quorum.metadata.image import TopicImage

BACKOFF: Final = BackoffPolicy(initial_ms=200.0, max_ms=5_000.0)
GIVE_UP_MS: Final = 300_000.0
"""How long dead letters are tried again, after the last one of the share-partition that was written or after their
records were given up, whichever is later; Kafka tries five times."""
PRODUCE_TIMEOUT_MS: Final = 7_500
"""How long a leader waits for its in-sync replicas; less than ``Peers`` waits for the answer."""
PRODUCE_VERSION: Final = 13
"""Of Produce; the first with topic ids: a topic that is deleted and created again gets nothing by mistake."""


_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Asks(Protocol):
    """Sends requests to brokers; see ``coordination.transactions.Peers``."""

    async def request(self, broker_id: BrokerId, message: Request, version: int) -> Response:
        """Sends a request to a broker."""
        ...


class CreatesTopic(Protocol):
    """Creates a topic with these keys and the broker's defaults, if there is none; returns an error or NONE."""

    def __call__(self, topic: str, configs: dict[str, str]) -> Awaitable[ErrorCode]:
        """Creates the topic."""
        ...


@dataclass(slots=True)
class Attempts:
    """The attempts to write the dead letters of one share-partition."""

    written_ms: float = -inf
    """When the last of them was written, on the monotonic clock."""
    failure: Exception | None = None
    """Why the last attempt failed, if it was one that may succeed later; None after a success."""


class DeadLetterSource(Protocol):
    """The share-partition that gives records up."""

    @property
    def attempts(self) -> Attempts:
        """The attempts so far."""
        ...

    @property
    def source(self) -> Source:
        """Names it."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether another leader, or another state, has replaced it, and writes what is left."""
        ...

    def dead_letter_queue(self) -> DeadLetterQueue | None:
        """Returns the group's queue by the newest metadata."""
        ...

    async def read(self, first: int, end: int) -> Found:
        """Returns the records from ``first`` to ``end``, or the first of them.

        Raises:
            KafkaError: they cannot be read at present.
        """
        ...


@dataclass(slots=True)
class DeadLetterCounts:
    """Dead letters of this broker since its start."""

    written: int = 0
    given_up: int = 0


class _RefusedError(Exception):
    """A write that no repetition helps."""


class DeadLetterWriter:
    """The dead letters of all share-partitions of a broker."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        metadata: MetadataCache,
        peers: Asks,
        create_topic: CreatesTopic,
        log_config: Callable[[str], LogConfig],
        logger: EventLogger,
    ) -> None:
        """``log_config`` returns the settings of a topic's logs; ``random`` spreads attempts."""
        self._clock = clock
        self._random = random
        self._metadata = metadata
        self._peers = peers
        self._create_topic = create_topic
        self._log_config = log_config
        self._logger = logger
        self.counts = DeadLetterCounts()

    async def write(self, origin: DeadLetterSource, letters: DeadLetters, since_ms: float) -> bool:
        """Writes the dead letters of a range of records at least once; returns whether they are done.

        They are done as well if they had to be given up. Otherwise the share-partition ended before. ``since_ms`` is
        when the records were given up: the dead letters may have waited for others.
        """
        offset, failures, attempts = letters.first, 0, origin.attempts
        while offset <= letters.last:
            if origin.is_over:
                return False
            until_ms = max(since_ms, attempts.written_ms) + GIVE_UP_MS
            if attempts.failure is not None and self._clock.monotonic_ms() >= until_ms:
                return self._give_up(origin, letters, offset, attempts.failure)
            try:
                offset = await self._write_some(origin, letters, offset)
            except _RefusedError as refused:
                return self._give_up(origin, letters, offset, refused)
            except (KafkaError, OSError, trio.TooSlowError, DecodeError) as error:
                failures += 1
                delay_ms = BACKOFF.delay_ms(failures, self._random)
                is_final = isinstance(error, KafkaError) and not error.code.retriable
                if is_final:
                    return self._give_up(origin, letters, offset, error)
                attempts.failure = error
                await trio.sleep(min(delay_ms, max(0.0, until_ms - self._clock.monotonic_ms())) / 1000)
            else:
                failures, attempts.failure, attempts.written_ms = 0, None, self._clock.monotonic_ms()
        return True

    def _give_up(self, origin: DeadLetterSource, letters: DeadLetters, offset: int, why: Exception) -> bool:
        self.counts.given_up += letters.last - offset + 1
        source, queue = origin.source, origin.dead_letter_queue()
        self._logger.error(
            "dead-letters-given-up",
            group=source.group_id,
            partition=f"{source.topic}-{source.partition}",
            first=offset,
            last=letters.last,
            queue=None if queue is None else queue.topic,
            error=why,
        )
        return True

    async def _write_some(self, origin: DeadLetterSource, letters: DeadLetters, first: int) -> int:
        """Writes one record batch; returns the first offset that is left.

        Raises:
            _RefusedError: the group has no queue, or one that must not be written.
            KafkaError: the write was refused.
            OSError: no connection, or it broke.
            trio.TooSlowError: no answer in time.
            DecodeError: the answer is malformed.
        """
        queue = origin.dead_letter_queue()
        if queue is None:
            raise _RefusedError("the group has no dead letter queue any more")
        why = obstacle(queue, origin.source.topic, self._metadata.image)
        if why is not None:
            raise _RefusedError(f"{queue.topic}: {why}")
        topic, partition, leader = await self._destination(queue, origin.source)
        end = letters.last + 1
        found = await origin.read(first, end) if queue.copies_records else Found({}, end)
        config = self._log_config(queue.topic)
        bytes_max = config.batch_bytes_max
        while True:
            data, following = build_letters(
                origin.source,
                letters,
                first,
                found,
                now_ms=int(self._clock.wall_ms()),
                bytes_max=bytes_max,
                is_compacted=config.compact,
            )
            try:
                await self._produce(leader, topic, partition, data)
            except KafkaError as error:
                # A copy that cannot shrink grows in the codec of the queue. That must not cost the other dead letters.
                if error.code not in _TOO_LARGE or not bytes_max:
                    raise
                bytes_max //= 2
            else:
                self.counts.written += following - first
                return following

    async def _destination(self, queue: DeadLetterQueue, source: Source) -> tuple[TopicImage, int, BrokerId]:
        """Returns the topic, the partition to write to, and its leader; creates the topic if the brokers may.

        Raises:
            KafkaError: the topic could not be created, or the partition has no leader.
        """
        if queue.topic not in self._metadata.image.topics_by_name:
            error = await self._create_topic(queue.topic, TOPIC_CONFIGS)
            if error is ErrorCode.INVALID_REPLICATION_FACTOR:  # too few brokers are there now
                error = ErrorCode.LEADER_NOT_AVAILABLE
            if error is not ErrorCode.NONE:
                raise KafkaError(error, f"the topic {queue.topic} was not created")
        topic = self._metadata.image.topics_by_name.get(queue.topic)
        if topic is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{queue.topic} was deleted a moment ago")
        number = source.partition % len(topic.partitions)
        leader = topic.partitions[number].leader
        if leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{queue.topic}-{number} has no leader")
        return topic, number, leader

    async def _produce(self, leader: BrokerId, topic: TopicImage, partition: int, data: bytes) -> None:
        request = ProduceRequest(
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    topic_id=topic.topic_id,
                    partition_data=[PartitionProduceData(index=partition, records=data)],
                )
            ],
        )
        response = await self._peers.request(leader, request, PRODUCE_VERSION)
        assert isinstance(response, ProduceResponse)
        for answer in response.responses:
            for each in answer.partition_responses:
                if (answer.topic_id, each.index) == (topic.topic_id, partition):
                    if each.error_code != ErrorCode.NONE:
                        raise KafkaError(ErrorCode.of(each.error_code), each.error_message)
                    return
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the leader left the partition out")
