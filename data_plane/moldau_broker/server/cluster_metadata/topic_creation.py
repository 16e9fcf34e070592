"""Creates topics on first use.

These are the topics of ``auto.create.topics.enable`` and the internal topics of the coordinators.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    from moldau_quorum.broker_side.controller_client import ControllerClient, ForwardedClient
    from moldau_quorum.broker_side.metadata_follower import MetadataFollower

CREATE_TIMEOUT_MS = 5_000
CREATIONS_MAX = 100
"""Bound of topics in creation; more of one request are created after these, others are refused until one is done."""
REFUSED_AGAIN_MS = 60_000.0
REFUSED_AGAIN_MS_MAX = 3_600_000.0
"""A topic that is refused for the same reason again and again is logged after the first time, then twice as long."""


@dataclass(slots=True, eq=False)
class _Creation:
    """One request to the controller. ``errors`` is empty until the answer, and stays so if the client has left."""

    client: ForwardedClient | None
    done: trio.Event = field(default_factory=trio.Event)
    errors: dict[str, ErrorCode] = field(default_factory=dict)


class RefusalLog:
    """Says which refusals of topics are logged: new ones, changed ones, and the others at growing intervals.

    A group's member asks for its coordinator again and again, and each time its broker asks for the missing topic.
    Invariant: at most ``CREATIONS_MAX`` topics, those refused last.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, float, float]] = {}  # reason, time of the next line, and the pause then

    def is_due(self, topic: str, reason: object, now_ms: float) -> bool:
        """Returns whether a refusal is to be logged now."""
        before, due_ms, pause_ms = self._known.pop(topic, (None, 0.0, 0.0))
        is_due = before != reason or now_ms >= due_ms
        if is_due:
            pause_ms = REFUSED_AGAIN_MS if before != reason else min(2 * pause_ms, REFUSED_AGAIN_MS_MAX)
            due_ms = now_ms + pause_ms
        self._known[topic] = (reason, due_ms, pause_ms)
        if len(self._known) > CREATIONS_MAX:
            del self._known[next(iter(self._known))]
        return is_due

    def created(self, topic: str) -> None:
        """Notes that a topic exists now: its next refusal is a new one."""
        self._known.pop(topic, None)


class TopicCreation:
    """Asks the controller to create topics, each only once at a time."""

    def __init__(self, controller: ControllerClient, follower: MetadataFollower, broker_id: BrokerId) -> None:
        self._controller = controller
        self._follower = follower
        self._under_way: dict[str, _Creation] = {}
        self._refusals = RefusalLog()
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
        errors: dict[str, ErrorCode] = {}
        left = missing
        while left:
            left = await self._create_or_wait([wanted[name] for name in left], client, errors)
        coming = [name for name in missing if errors.get(name, ErrorCode.NONE) is ErrorCode.NONE]
        with trio.move_on_after(CREATE_TIMEOUT_MS / 1000):
            await self._follower.wait_until(lambda image: all(name in image.topics_by_name for name in coming))
        for name in coming:
            if name not in self._follower.image.topics_by_name:
                errors[name] = ErrorCode.REQUEST_TIMED_OUT
        return {name: error for name, error in errors.items() if error is not ErrorCode.NONE}

    async def _create_or_wait(
        self, topics: Sequence[CreatableTopic], client: ForwardedClient | None, errors: dict[str, ErrorCode]
    ) -> list[str]:
        """Creates those of the topics that no other task creates now, and waits until the others are done.

        Adds to ``errors``. Returns the topics to try again: those that another client may not create, and those that
        exceed ``CREATIONS_MAX``.
        """
        others = {topic.name: self._under_way[topic.name] for topic in topics if topic.name in self._under_way}
        mine = [topic for topic in topics if topic.name not in others]
        room = CREATIONS_MAX - len(self._under_way)
        mine, later = mine[:room], mine[room:]
        refusal = None if mine else ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if mine:
            creation = _Creation(client)
            for topic in mine:
                self._under_way[topic.name] = creation
            try:
                creation.errors = await self._create(mine, client)
            finally:
                for topic in mine:
                    del self._under_way[topic.name]
                creation.done.set()
            errors.update(creation.errors)
            if ErrorCode.REQUEST_TIMED_OUT in creation.errors.values():
                refusal = ErrorCode.REQUEST_TIMED_OUT  # the next requests would take as long, one after the other
        if refusal is not None:
            errors.update((topic.name, refusal) for topic in later)
            later = []
        with trio.move_on_after(CREATE_TIMEOUT_MS / 1000):
            for each in others.values():
                await each.done.wait()
        again = [topic.name for topic in later]
        for name, each in others.items():
            code = each.errors.get(name)
            if code is ErrorCode.NONE or not each.done.is_set() or name in self._follower.image.topics_by_name:
                continue
            if code is not None and (each.client == client or code is ErrorCode.REQUEST_TIMED_OUT):
                errors[name] = code
            else:
                again.append(name)
        return again

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
            error = ErrorCode.of(topic.error_code)
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._logger.info("topic-created", topic=topic.name, partitions=partitions.get(topic.name))
                self._refusals.created(topic.name)
                error = ErrorCode.NONE
            elif self._refusals.is_due(topic.name, (error, topic.error_message), trio.current_time() * 1000):
                self._logger.warning("topic-not-created", topic=topic.name, error=error.name, why=topic.error_message)
            errors[topic.name] = error
        return errors
