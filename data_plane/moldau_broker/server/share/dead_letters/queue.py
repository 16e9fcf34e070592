"""The dead letter queue of a share group: its settings, and whether a topic may be one (KIP-1191). Pure.

The owner of a topic decides whether dead letters may be written to it: otherwise anyone who may write to one topic, and
may set the queue of a group, could have brokers write to any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.schemas import TOPIC_CONFIG

if TYPE_CHECKING:
    from moldau.runtime.config import Config
    from moldau_quorum.metadata.image import MetadataImage

PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
CREATES: Final = "errors.deadletterqueue.auto.create.topics.enable"
ALLOWED: Final = "errors.deadletterqueue.group.enable"
TOPIC_CONFIGS: Final = {ALLOWED: "true", "message.timestamp.type": "CreateTime"}
"""The configuration of a queue that a broker creates, as in Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQueue:
    """Where a group's dead letters go, and how they are written."""

    topic: str
    copies_records: bool
    """Whether a dead letter has key, value and headers of its record, not only where the record is."""
    prefix: str
    """The names of all queues begin with it (``errors.deadletterqueue.topic.name.prefix``)."""
    creates_topic: bool


def dead_letter_queue(group: Config, broker: Config) -> DeadLetterQueue | None:
    """Returns the queue that a group's configuration names; None if it names none."""
    topic = group.get_str("errors.deadletterqueue.topic.name")
    if not topic:
        return None
    return DeadLetterQueue(
        topic=topic,
        copies_records=group.get_bool("errors.deadletterqueue.copy.record.enable"),
        prefix=broker.get_str(PREFIX),
        creates_topic=broker.get_bool(CREATES),
    )


def obstacle(queue: DeadLetterQueue, source_topic: str, image: MetadataImage) -> str | None:
    """Returns why no dead letter of a record in ``source_topic`` may be written; None if it may.

    A topic is not its own queue: a group that rejects each record of it would never come to its end.
    """
    if queue.topic.startswith("__"):
        return "a name that begins with __ is that of an internal topic"
    if not queue.topic.startswith(queue.prefix):
        return f"its name does not begin with {PREFIX} = {queue.prefix!r}"
    if queue.topic == source_topic:
        return "the records come from this topic"
    if queue.topic not in image.topics_by_name:
        return None if queue.creates_topic else f"the topic does not exist, and {CREATES} is false"
    given = image.topic_config(queue.topic).get(ALLOWED, "false")
    if not TOPIC_CONFIG.parse({ALLOWED: given}).get_bool(ALLOWED):
        return f"its {ALLOWED} is not true"
    return None
