"""AlterPartition: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class BrokerState(Struct):
    """An element of ``new_isr_with_epochs`` in ``AlterPartitionRequestPartitionData``."""

    broker_id: int = field.int32("3+")
    broker_epoch: int = field.int64("3+", default=-1)


class AlterPartitionRequestPartitionData(Struct):
    """An element of ``partitions`` in ``AlterPartitionRequestTopicData``."""

    partition_index: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")
    new_isr: Sequence[int] = field.int32_array("0-2")
    new_isr_with_epochs: Sequence[BrokerState] = field.array(BrokerState, "3+")
    leader_recovery_state: int = field.int8("1+")
    partition_epoch: int = field.int32("0+")


class AlterPartitionRequestTopicData(Struct):
    """An element of ``topics`` in ``AlterPartitionRequest``."""

    topic_id: UUID = field.uuid("2+")
    partitions: Sequence[AlterPartitionRequestPartitionData] = field.array(AlterPartitionRequestPartitionData, "0+")


class AlterPartitionRequest(Request, api_key=56, versions="2-3", flexible="0+"):
    """A partition leader asks the controller to change the in-sync replicas (KIP-497).

    Recovery of the leader is KIP-704's, broker epochs KIP-903's.
    """

    broker_id: int = field.int32("0+")
    broker_epoch: int = field.int64("0+", default=-1)
    topics: Sequence[AlterPartitionRequestTopicData] = field.array(AlterPartitionRequestTopicData, "0+")


class AlterPartitionResponsePartitionData(Struct):
    """An element of ``partitions`` in ``AlterPartitionResponseTopicData``."""

    partition_index: int = field.int32("0+")
    error_code: int = field.int16("0+")
    leader_id: int = field.int32("0+")
    leader_epoch: int = field.int32("0+")
    isr: Sequence[int] = field.int32_array("0+")
    leader_recovery_state: int = field.int8("1+")
    partition_epoch: int = field.int32("0+")


class AlterPartitionResponseTopicData(Struct):
    """An element of ``topics`` in ``AlterPartitionResponse``."""

    topic_id: UUID = field.uuid("2+")
    partitions: Sequence[AlterPartitionResponsePartitionData] = field.array(AlterPartitionResponsePartitionData, "0+")


class AlterPartitionResponse(Response, api_key=56, versions="2-3", flexible="0+"):
    """The partition state that is in force now, or why the change was refused."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    topics: Sequence[AlterPartitionResponseTopicData] = field.array(AlterPartitionResponseTopicData, "0+")
