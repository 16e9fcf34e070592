"""Bugs that only producers with acks=0 or acks=1 meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.producer.sender import Sender
from moldau.protocol.hot import ProducePartitionResult
from moldau_broker.server.data_path.produce import ProduceService

if TYPE_CHECKING:
    from moldau.cluster.silence import Awaited
    from moldau.cluster.silence_watch import Watched
    from moldau.producer.core.batches import ProducerBatch
    from moldau.runtime.net.rpc import RpcConnection
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.planted_bug import Patch


def one_acknowledgement_before_the_append() -> list[Patch]:
    """A leader acknowledges some batches with acks=1 and drops them."""
    original = ProduceService._append
    calls = [0]

    def append(
        self: ProduceService,
        partition: Partition,
        topic: bytes,
        index: int,
        records: memoryview,
        acks: int,
        *more: object,
    ) -> tuple[ProducePartitionResult, int]:
        calls[0] += acks == 1
        if acks != 1 or calls[0] % 5 or not partition.replica.is_leader:
            return original(self, partition, topic, index, records, acks, *more)  # type: ignore[arg-type]
        end = partition.log.log_end_offset
        return ProducePartitionResult(index, 0, end), end + 1

    return [(ProduceService, "_append", append)]


def batch_without_answer_sent_again() -> list[Patch]:
    """A producer with acks=0 takes some batches that were sent for lost."""
    original = Sender._hand_over
    calls = [0]

    async def hand_over(
        self: Sender, awaited: Awaited[Watched], connection: RpcConnection, batches: list[ProducerBatch]
    ) -> None:
        calls[0] += 1
        if calls[0] % 5:
            await original(self, awaited, connection, batches)
            return
        try:
            await connection.flush()
        except TRANSPORT_ERRORS as error:
            connection.fail(str(error))
        self._unanswered(batches)
        self._client.silence.ended(awaited)
        self._ended(awaited.node_id, None)

    return [(Sender, "_hand_over", hand_over)]
