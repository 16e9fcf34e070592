"""Brokers with several log directories, registered at a controller without a shell."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from moldau.protocol.messages import assign_replicas_to_dirs as m
from moldau.values import ZERO_UUID, BrokerId
from support.controller.model import ModelController


def one(broker_id: int) -> UUID:
    return UUID(int=broker_id * 1000 + 1)


def two(broker_id: int) -> UUID:
    return UUID(int=broker_id * 1000 + 2)


def join(controller: ModelController, broker_id: int, *log_dirs: UUID, clean: bool = True) -> None:
    known = controller.image.brokers.get(broker_id)
    controller.sessions.remove(BrokerId(broker_id))
    response = controller.register(
        broker_id,
        incarnation=1 if known is None else known.incarnation_id.int % 1000 + 1,
        previous_epoch=known.broker_epoch if known is not None and clean else -1,
        log_dirs=list(log_dirs),
    )
    assert response.error_code == 0, response
    assert not controller.beat(broker_id).is_fenced


def cluster(*, directories: int = 2, **settings: Any) -> ModelController:
    controller = ModelController(**settings)
    for broker_id in (1, 2, 3):
        join(controller, broker_id, *[one(broker_id), two(broker_id)][:directories])
    return controller


def assign(
    controller: ModelController, broker_id: int, name: str, partition_id: int, directory: UUID, **wrong: Any
) -> int:
    topic = controller.image.topics_by_name.get(name)
    topic_id = wrong.get("topic_id", ZERO_UUID if topic is None else topic.topic_id)
    request = m.AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=wrong.get("broker_epoch", controller.image.brokers[broker_id].broker_epoch),
        directories=[
            m.DirectoryData(
                id=directory,
                topics=[
                    m.TopicData(topic_id=topic_id, partitions=[m.PartitionData(partition_index=partition_id)]),
                ],
            )
        ],
    )
    response = controller.handle(request)
    if response.error_code:
        return int(response.error_code)
    return int(response.directories[0].topics[0].partitions[0].error_code)
