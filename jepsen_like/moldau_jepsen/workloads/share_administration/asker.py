"""Single requests to the coordinator of a group, and to brokers; each is sent once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.protocol.schema import Response
from moldau_jepsen.workloads.questions import Questions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.protocol.schema import Request
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.questions import Nodes

R = TypeVar("R", bound=Response)


class Asker:
    """Asks over connections of its own, one request at a time."""

    def __init__(self, nodes: Nodes, environment: Environment, client_id: str) -> None:
        """Opens connections when they are needed; call ``close`` at the end."""
        self.nodes = nodes
        self.draw = environment.random
        self._clock = environment.clock
        self._questions = Questions(environment, nodes, client_id, keeps_connections=True)
        self._coordinators: dict[str, int] = {}

    @property
    def now_ms(self) -> float:
        """The time of the run."""
        return self._clock.monotonic_ms()

    def close(self) -> None:
        """Closes the connections."""
        self._questions.close()

    async def ask(self, node_id: int, kind: type[R], request: Request, version: int | None = None) -> R | None:
        """Asks a node; see ``Questions.ask``."""
        return await self._questions.ask(node_id, kind, request, version)

    async def ask_any(self, kind: type[R], request: Request) -> R | None:
        """Asks a broker; see ``Questions.ask``."""
        return await self.ask(self.draw.choice(self.nodes.broker_ids), kind, request)

    async def find(self, group: str) -> int | None:
        """Returns the broker that is said to coordinate a group; None if no broker says so."""
        if group not in self._coordinators:
            request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
            response = await self.ask_any(FindCoordinatorResponse, request)
            if response is None or not response.coordinators or response.coordinators[0].error_code:
                return None
            if response.coordinators[0].node_id not in self.nodes.broker_ids:
                return None
            self._coordinators[group] = response.coordinators[0].node_id
        return self._coordinators[group]

    def forget(self, group: str) -> None:
        """Asks for the coordinator again with the next request."""
        self._coordinators.pop(group, None)

    async def topics(self, names: Sequence[str]) -> list[MetadataResponseTopic]:
        """Returns the topics that a broker knows; none without an answer."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        response = await self.ask_any(MetadataResponse, request)
        return [] if response is None else [topic for topic in response.topics if not topic.error_code]
