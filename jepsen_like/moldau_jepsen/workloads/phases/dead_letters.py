"""The dead letter queue of a share group: its topic, its settings, and what it holds at the end of a run (KIP-1191)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.admin import NewTopic
from moldau.consumer import Consumer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.server.share.core.values import Cause
from moldau_broker.server.share.dead_letters.letters import HEADER_PREFIX
from moldau_broker.server.share.dead_letters.queue import ALLOWED
from moldau_jepsen.checkers.group.dead_letters import DeadLetter
from moldau_jepsen.history import TopicPartition
from moldau_quorum.controller.cluster.features import SHARE_LEVEL_QUEUES, SHARE_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.admin import Admin
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment

POLL_MS = 500.0


async def has_queues(admin: Admin) -> bool:
    """Returns whether the cluster's features allow dead letter queues.

    Raises:
        KafkaError: The cluster did not answer.
    """
    features = {each.name: each.level for each in await admin.describe_features()}
    return features.get(SHARE_VERSION, 0) >= SHARE_LEVEL_QUEUES


async def create_queue(admin: Admin, topic: str) -> None:
    """Creates the topic of a queue, unless it is there: one partition takes the dead letters of all.

    Raises:
        KafkaError: The cluster refused, or did not answer.
    """
    try:
        await admin.create_topics([NewTopic(name=topic, partitions=1, configs={ALLOWED: "true"})])
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def queue_settings(topic: str) -> dict[str, str]:
    """Returns the settings of a group that uses the queue, and copies its records."""
    return {"errors.deadletterqueue.topic.name": topic, "errors.deadletterqueue.copy.record.enable": "true"}


async def dead_letters(reach: Mapping[str, str], environment: Environment, topic: str) -> list[DeadLetter]:
    """Returns all dead letters of a queue; bounded by the caller's deadline. ``reach`` configures a client.

    Raises:
        KafkaError: The topic could not be read.
    """
    config = {**reach, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    found: list[DeadLetter] = []
    where = [(topic, 0)]
    async with Consumer(config, environment=environment) as consumer:
        consumer.assign(where)
        (end,) = (await consumer.end_offsets(where)).values()
        while (consumer.position_nowait(where[0]) or 0) < end:
            for batch in await consumer.poll(POLL_MS):
                found += map(_letter, batch.records)
    return found


def _letter(record: Record[bytes, bytes]) -> DeadLetter:
    facts = {name.removeprefix(HEADER_PREFIX): (value or b"").decode() for name, value in record.headers}
    return DeadLetter(
        place=(TopicPartition(facts["topic"], int(facts["partition"])), int(facts["offset"])),
        value=None if record.value is None else int(record.value),
        deliveries=int(facts["delivery.count"]),
        is_rejection=facts["message"] == Cause.REJECTED.value,
    )
