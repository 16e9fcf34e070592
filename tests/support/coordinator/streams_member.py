"""A thread of a Kafka Streams application against a cluster of brokers, by the bare requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.ports.real import real_environment
from moldau_broker.coordinator.group.streams.core.state import EMPTY_TASKS, TaskSets
from moldau_broker.coordinator.group.streams.core.topology import tasks_of
from support.coordinator.group_world import commit_request
from support.coordinator.streams_world import GROUP, entries, word_count

if TYPE_CHECKING:
    from moldau.protocol.messages.offset_commit import OffsetCommitRequest
    from moldau.protocol.schema import Request
    from support.cluster.broker_cluster import Cluster

SETTINGS = {
    "offsets_topic_num_partitions": "1",
    "group_streams_min_heartbeat_interval_ms": "1",
    "group_streams_heartbeat_interval_ms": "500",
    "group_streams_min_session_timeout_ms": "1",
    "group_streams_session_timeout_ms": "6000",
    "group_streams_initial_rebalance_delay_ms": "1000",
}
TEMPORARY = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def ask(cluster: Cluster, message: Request, version: int) -> Any:
    """Sends a request to the group's coordinator until one has served it."""
    with trio.fail_after(60):
        while True:
            for broker_id in sorted(cluster.running):
                try:
                    found = await cluster.client(broker_id).request(
                        FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 6, timeout_ms=2_000
                    )
                    node_id = found.coordinators[0].node_id
                    if node_id not in cluster.running:
                        continue
                    answer = await cluster.client(node_id).request(message, version, timeout_ms=5_000)
                except (*TRANSPORT_ERRORS, KafkaError):
                    continue
                if code_of(answer) not in TEMPORARY:
                    return answer
            await trio.sleep(0.1)


def code_of(answer: Any) -> ErrorCode:
    code = getattr(answer, "error_code", None)
    if code is None:
        code = answer.topics[0].partitions[0].error_code if hasattr(answer, "topics") else answer.groups[0].error_code
    return ErrorCode(code)


class Member:
    """One thread of an application."""

    def __init__(self, cluster: Cluster, member_id: str) -> None:
        self.cluster = cluster
        self.member_id = member_id
        self.epoch = 0
        self.tasks = EMPTY_TASKS

    async def leave(self) -> None:
        """Tells the coordinator that the member ends."""
        self.epoch = -1
        await ask(
            self.cluster, StreamsGroupHeartbeatRequest(group_id=GROUP, member_id=self.member_id, member_epoch=-1), 1
        )

    async def beat(self) -> ErrorCode:
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            process_id=self.member_id,
            rebalance_timeout_ms=5_000,
            topology=word_count() if self.epoch == 0 else None,
        )
        request.active_tasks, request.standby_tasks, request.warmup_tasks = map(entries, self.tasks.kinds)
        answer = await ask(self.cluster, request, 1)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self.epoch, self.tasks = 0, EMPTY_TASKS
            return code
        self.epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.tasks = TaskSets(active=tasks_of(answer.active_tasks))
        return code

    async def commit(self, partition: int, offset: int) -> ErrorCode:
        request: OffsetCommitRequest = commit_request(
            offset, self.member_id, self.epoch, group=GROUP, topic="t", partition=partition
        )
        return code_of(await ask(self.cluster, request, 9))


def heartbeat(bootstrap: str, epoch: int, *, group: str = "app", source: str = "texts") -> int:
    """Sends heartbeats of the only member of a streams group of real brokers; returns the member's epoch.

    With epoch 0 it joins with a word count of the topic ``source`` and waits for tasks, with -1 it leaves.
    """
    request = StreamsGroupHeartbeatRequest(group_id=group, member_id="m", process_id="p", rebalance_timeout_ms=5_000)
    request.member_epoch, request.topology = epoch, word_count(source=source) if epoch == 0 else None
    request.active_tasks = request.standby_tasks = request.warmup_tasks = []

    async def main() -> int:
        environment = real_environment(1)
        with trio.fail_after(60):
            while True:
                for address in bootstrap.split(","):
                    host, _, port = address.partition(":")
                    connection = await RpcConnection.open(environment, host, int(port), "app-client")
                    try:
                        answer: Any = await connection.request(request, 1, timeout_ms=30_000)
                    finally:
                        connection.close()
                    found: int = answer.member_epoch
                    if answer.error_code == 0 and (epoch < 0 or answer.active_tasks):
                        return found
                    if answer.error_code == 0 and found > 0:
                        request.member_epoch, request.topology = found, None
                await trio.sleep(0.1)

    return trio.run(main)
