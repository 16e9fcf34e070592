"""Sends ISR changes to the controller (AlterPartition) and delivers its answers to the replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.replication.replica import NO_BROKER
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Clock
    from moldau.values import BrokerId
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.replication.replica import IsrProposal
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_quorum.broker_side.controller_client import ControllerClient

REQUEST_TIMEOUT_MS = 30_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrStatistics:
    """Counts since the start of the process."""

    shrinks: int  # accepted changes after which the ISR had fewer members
    expands: int  # and more
    failed: int  # refused changes, and requests without an answer


class IsrAlterations:
    """One task that sends the proposals of the replicas, one request at a time."""

    def __init__(
        self, clock: Clock, broker_id: BrokerId, controller: ControllerClient, broker_epoch: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._broker_id = broker_id
        self._controller = controller
        self._work = Signal()
        self._logger = EventLogger("moldau.broker.isr", node=broker_id)
        self._broker_epoch = broker_epoch
        self._shrinks = self._expands = self._failed = 0

    def statistics(self) -> IsrStatistics:
        """Returns the present counts."""
        return IsrStatistics(shrinks=self._shrinks, expands=self._expands, failed=self._failed)

    def notify(self) -> None:
        """Wakes the task: there may be a proposal to send."""
        self._work.notify()

    async def run(self, replicas: ReplicaManager) -> None:
        """Sends proposals until cancelled."""
        queue = replicas.alterations
        while True:
            now_ms = self._clock.monotonic_ms()
            proposals = queue.next_request(now_ms)
            if proposals:
                await self._send(replicas, proposals)
                continue
            deadline_ms = queue.next_deadline_ms()
            delay_ms = float("inf") if deadline_ms is None else max(1.0, deadline_ms - now_ms)
            with trio.move_on_after(delay_ms / 1000):
                await self._work.wait()

    async def _send(self, replicas: ReplicaManager, proposals: dict[TopicPartition, IsrProposal]) -> None:
        topics: dict[uuid.UUID, list[AlterPartitionRequestPartitionData]] = {}
        sent: dict[tuple[uuid.UUID, int], TopicPartition] = {}
        for key, proposal in proposals.items():
            partition = _waiting(replicas, key, proposal)
            if partition is None:
                continue
            sent[partition.topic_id, key.partition] = key
            topics.setdefault(partition.topic_id, []).append(
                AlterPartitionRequestPartitionData(
                    partition_index=key.partition,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker_id, broker_epoch=epoch)
                        for broker_id, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
                    ],
                    leader_recovery_state=0,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        if not sent:
            replicas.alterations.answered()
            return
        request = AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=[
                AlterPartitionRequestTopicData(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )
        try:
            response = await self._controller.request(request, AlterPartitionResponse, timeout_ms=REQUEST_TIMEOUT_MS)
        except ControllerUnavailableError as error:
            self._failed += 1
            self._logger.warning("isr-change-not-answered", error=error)
            self._unanswered(replicas, proposals)
            return
        if response.error_code != ErrorCode.NONE:
            self._failed += 1
            self._logger.warning("isr-change-refused", error=ErrorCode.of(response.error_code).name)
            self._unanswered(replicas, proposals)
            return
        replicas.alterations.answered()
        self._deliver(replicas, response, sent, proposals)

    def _deliver(
        self,
        replicas: ReplicaManager,
        response: AlterPartitionResponse,
        sent: dict[tuple[uuid.UUID, int], TopicPartition],
        proposals: dict[TopicPartition, IsrProposal],
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        for topic in response.topics:
            for answer in topic.partitions:
                key = sent.pop((topic.topic_id, answer.partition_index), None)
                partition = None if key is None else replicas.partitions.get(key)
                if key is None or partition is None:
                    continue
                error = ErrorCode.of(answer.error_code)
                proposal = proposals[key]
                effects = partition.replica.alter_answered(proposal, error, now_ms, replicas.eligible)
                if error is ErrorCode.NONE:
                    # The metadata may have brought the new ISR already, so the replica's state does not tell.
                    admits = proposal.joining != NO_BROKER
                    self._expands += admits
                    self._shrinks += not (admits or proposal.reports_recovery)
                    self._logger.info("isr-changed", partition=key, isr=proposal.isr)
                else:
                    self._failed += 1
                    self._logger.info("isr-change-refused", partition=key, isr=proposal.isr, error=error.name)
                if effects.proposal is proposal:
                    replicas.alterations.back_off(now_ms)
                replicas.perform(partition, effects)
        for key in sent.values():  # the response lacks it: the outcome is unknown
            replicas.alterations.back_off(now_ms)
            lacking = _waiting(replicas, key, proposals[key])
            if lacking is not None:
                lacking.replica.alter_unanswered(proposals[key])
                replicas.alterations.submit(key, proposals[key])

    def _unanswered(self, replicas: ReplicaManager, proposals: dict[TopicPartition, IsrProposal]) -> None:
        """Sends the proposals of a request again later; its first attempt may have been committed."""
        for key, proposal in proposals.items():
            partition = _waiting(replicas, key, proposal)
            if partition is not None:
                partition.replica.alter_unanswered(proposal)
        replicas.alterations.failed(self._clock.monotonic_ms())


def _waiting(replicas: ReplicaManager, key: TopicPartition, proposal: IsrProposal) -> Partition | None:
    """Returns the partition whose replica waits for the proposal's answer.

    None: newer metadata has resolved it, or the topic was deleted and created again.
    """
    partition = replicas.partitions.get(key)
    return partition if partition is not None and partition.replica.proposal is proposal else None
