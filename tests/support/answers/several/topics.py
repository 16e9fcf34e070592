"""Topics whose replicas are placed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.answers.records import list_offsets
from support.answers.session import codes_of
from support.answers.topics import creation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from support.answers.several.session import ClusterSession

SETTLING: Final = frozenset(
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
)


async def placed(
    cluster: ClusterSession, word: str, places: Sequence[Sequence[int]], **configs: str
) -> tuple[str, UUID]:
    """Creates a topic with replicas on named brokers, the first of which lead; returns name and id when all know it."""
    first = cluster.at(1)
    name = first.name(word)
    settings = [(key.replace("_", "."), value) for key, value in configs.items()]
    request = creation(name, -1, -1, assigned=list(enumerate(places)), configs=settings)
    [topic] = (await first.ask("settling", request)).topics
    cluster.answers.pop("settling")
    topic_id: UUID = topic.topic_id
    first.known(topic_id, f"id of {word}")
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    for node in cluster.cluster.addresses:
        await cluster.at(node).ask("settling", asked, transient=SETTLING)
        cluster.answers.pop("settling")
    for index, replicas in enumerate(places):
        leader = cluster.at(replicas[0])
        while codes_of(await leader.ask("settling", list_offsets(name, (index, -1, -1)), transient=SETTLING)) != {0}:
            cluster.answers.pop("settling")
        cluster.answers.pop("settling")
    return name, topic_id
