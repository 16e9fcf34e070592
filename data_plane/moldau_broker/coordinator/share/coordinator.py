"""The share coordinator of a broker.

It finds the partition of each share-partition's key, and runs a `ShareShard` for every partition of
``__share_group_state`` that this broker leads. The broker calls `become_leader` and `resign` as leadership changes, and
`submit` for each request. `submit` never waits; the completion may become ready later.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import Offset
from moldau_broker.coordinator.runtime.completion import Combined, Completion
from moldau_broker.coordinator.runtime.effects import DeleteRecords
from moldau_broker.coordinator.runtime.replicated import ReplicatedShard
from moldau_broker.coordinator.runtime.sharded import ShardedCoordinator
from moldau_broker.coordinator.share.core.requests import KeyAnswer, asks_of, joined, response_of
from moldau_broker.coordinator.share.core.share_core import ShareCore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.schema import Response
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment
    from moldau.values import LeaderEpoch
    from moldau_broker.coordinator.runtime.effects import Append, Effect
    from moldau_broker.coordinator.runtime.ports import InternalLog, TopicNames
    from moldau_broker.coordinator.share.core.config import ShareConfig
    from moldau_broker.coordinator.share.core.requests import Ask, ShareStateRequest
    from moldau_broker.coordinator.share.core.state import SharePartitionKey


class ShareShard(ReplicatedShard[ShareCore]):
    """The share-partitions of one partition. Its methods may be called only while `refusal` is NONE."""

    def submit(self, kind: type[ShareStateRequest], asks: Mapping[SharePartitionKey, Ask]) -> Completion:
        """Accepts what a request asks of share-partitions of this shard, and returns the completion of its answer."""
        return self.ask(
            lambda code: response_of(kind, dict.fromkeys(asks, KeyAnswer(code=code))),
            lambda core, request_id, moment: core.handle(request_id, kind, asks, moment),
        )

    def topics_deleted(self) -> None:
        """Deletes the states of deleted topics."""
        self.happened(lambda core, moment: core.topics_deleted(moment))

    def appended(self, effect: Append, end_offset: Offset) -> None:
        """Reports to the core where its write is: what comes before a snapshot may be deleted."""
        assert self.core is not None
        self.core.appended(effect.append_id, end_offset - len(effect.records))

    def replay(self, core: ShareCore, record: Record, producer_id: int | None) -> None:
        """Gives a core that is being loaded one committed record, with its offset."""
        core.replay_at(record.key, record.value, record.offset)

    def perform_other(self, effect: Effect) -> None:
        """Deletes redundant records."""
        assert isinstance(effect, DeleteRecords)
        try:
            self._log.delete_records(self.partition, self.leader_epoch, Offset(effect.end_offset))
        except KafkaError as error:
            # The next leader, or the next round, deletes them.
            self._logger.warning("share-state-not-pruned", end_offset=effect.end_offset, error=error)
        else:
            assert self.core is not None
            self.core.pruned(effect.end_offset)


class ShareCoordinator(ShardedCoordinator[ShareShard]):
    """Serves the requests for durable share-group state of one broker.

    ``partition_count`` returns the number of partitions of ``__share_group_state``, 0 while the topic does not exist.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        log: InternalLog,
        topics: TopicNames,
        config: ShareConfig,
        partition_count: Callable[[], int],
        logger: EventLogger | None = None,
    ) -> None:
        """Starts no task before `run`."""
        super().__init__(partition_count, self._led)
        self._environment = environment
        self._log = log
        self._topics = topics
        self._config = config
        self._logger = logger if logger is not None else EventLogger("moldau.broker.shares")

    def _led(self, partition: int, leader_epoch: LeaderEpoch) -> ShareShard:
        return ShareShard(
            partition=partition,
            leader_epoch=leader_epoch,
            clock=self._environment.clock,
            log=self._log,
            new_core=lambda: ShareCore(self._config, self._topics),
            load_bytes_max=self._config.load_bytes_max,
            logger=self._logger,
        )

    def submit(self, request: ShareStateRequest) -> Completion:
        """Accepts a request for the state of share-partitions and returns the completion of its answer.

        The caller has authorized the request. Each share-partition has an answer of its own: NOT_COORDINATOR for those
        whose coordinator is another broker. The answer is ready after ``share.coordinator.write.timeout.ms`` at the
        latest, or when leadership ends.
        """
        kind = type(request)
        refused: dict[SharePartitionKey, KeyAnswer] = {}
        by_partition: dict[int | None, dict[SharePartitionKey, Ask]] = {}
        for key, ask in asks_of(request).items():
            if key.group_id:
                by_partition.setdefault(self.partition_of(key.coordinator_key), {})[key] = ask
            else:
                refused[key] = KeyAnswer(code=ErrorCode.INVALID_REQUEST, message="the group id is empty")
        parts: list[Completion] = []
        for asks in by_partition.values():
            # Looked up in its turn: the write of another shard may have ended this one with the log directory.
            code, shard = self._shard_of(next(iter(asks)).coordinator_key)
            if shard is None:
                refused |= dict.fromkeys(asks, KeyAnswer(code=code))
            else:
                parts.append(shard.submit(kind, asks))
        if refused or not parts:
            parts.insert(0, Completion(response_of(kind, refused)))
        return parts[0] if len(parts) == 1 else Combined(parts, partial(joined, kind))

    async def handle(self, request: ShareStateRequest) -> Response:
        """Submits a request and waits for its answer."""
        return await self.submit(request).wait()

    def topics_deleted(self) -> None:
        """Deletes the states of deleted topics; a partition that is loading looks for them once it is loaded."""
        for shard in list(self._shards.values()):
            if shard.refusal is ErrorCode.NONE:
                shard.topics_deleted()
