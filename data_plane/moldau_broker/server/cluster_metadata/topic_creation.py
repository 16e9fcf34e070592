"""Creates topics on first use.

These are the topics of ``auto.create.topics.enable`` and the internal topics of the coordinators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.broker_side.controller_client import ControllerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.values import BrokerId
    from moldau_quorum.broker_side.controller_client import ForwardedClient
    from moldau_quorum.broker_side.session import ControllerClient, MetadataFollower

CREATE_TIMEOUT_MS = 5_000
CREATIONS_MAX = 100
"""Bound of topics in creation; further ones are refused until one is done."""
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC))


class TopicCreation:
    """Asks the controller to create topics, each only once at a time."""

    def __init__(self, controller: ControllerClient, follower: MetadataFollower, broker_id: BrokerId) -> None:
        self._controller = controller
        self._follower = follower
        self._under_way: dict[str, trio.Event] = {}
        self._logger = EventLogger("moldau.broker.topics", node=broker_id)

    @property
    def under_way(self) -> int:
        """The number of topics in creation."""
        return len(self._under_way)

    async def ensure(
        self,
        names: Sequence[str],
        *,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        client: ForwardedClient | None = None,
    ) -> dict[str, ErrorCode]:
        """Creates the topics of ``names`` that do not exist, all alike; see `ensure_topics`."""
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name in dict.fromkeys(names)
        ]
        return await self.ensure_topics(topics, client=client)

    async def ensure_topics(
        self, topics: Sequence[CreatableTopic], *, client: ForwardedClient | None = None
    ) -> dict[str, ErrorCode]:
        """Creates those of the topics that do not exist, and waits until this broker knows them.

        The names differ. ``client`` is the one that named them, whose rights and quota decide; None for topics that
        the broker itself needs.

        Returns:
            The errors by name; REQUEST_TIMED_OUT for a topic that this broker does not know in time.
        """
        wanted = {topic.name: topic for topic in topics}
        missing = [name for name in wanted if name not in self._follower.image.topics_by_name]
        mine = [name for name in missing if name not in self._under_way]
        refused: dict[str, ErrorCode] = {}
        if len(self._under_way) + len(mine) > CREATIONS_MAX:
            refused = dict.fromkeys(mine, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            mine = []
        others = [self._under_way[name] for name in missing if name in self._under_way]
        errors: dict[str, ErrorCode] = dict(refused)
        if mine:
            done = trio.Event()
            for name in mine:
                self._under_way[name] = done
            try:
                errors.update(await self._create([wanted[name] for name in mine], client))
            finally:
                for name in mine:
                    del self._under_way[name]
                done.set()
        with trio.move_on_after(CREATE_TIMEOUT_MS / 1000):
            for event in others:
                await event.wait()
            coming = [name for name in missing if errors.get(name, ErrorCode.NONE) is ErrorCode.NONE]
            await self._follower.wait_until(lambda image: all(name in image.topics_by_name for name in coming))
        for name in missing:
            if name not in self._follower.image.topics_by_name:
                errors.setdefault(name, ErrorCode.REQUEST_TIMED_OUT)
        return {name: error for name, error in errors.items() if error is not ErrorCode.NONE}

    async def _create(self, topics: Sequence[CreatableTopic], client: ForwardedClient | None) -> dict[str, ErrorCode]:
        partitions = {topic.name: topic.num_partitions for topic in topics}
        request = CreateTopicsRequest(topics=topics, timeout_ms=CREATE_TIMEOUT_MS)
        try:
            # Repeatable: the second request finds that the topic exists, which counts as success.
            response = await self._controller.request(
                request, CreateTopicsResponse, timeout_ms=CREATE_TIMEOUT_MS, client=client, repeatable=True
            )
        except ControllerUnavailableError:
            return dict.fromkeys(partitions, ErrorCode.REQUEST_TIMED_OUT)
        errors: dict[str, ErrorCode] = {}
        for topic in response.topics:
            error = ErrorCode(topic.error_code)
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._logger.info("topic-created", topic=topic.name, partitions=partitions.get(topic.name))
                error = ErrorCode.NONE
            else:
                self._logger.warning("topic-not-created", topic=topic.name, error=error.name, why=topic.error_message)
            errors[topic.name] = error
        return errors
