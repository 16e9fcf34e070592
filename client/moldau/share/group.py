"""The heartbeats of a member of a share group: one task sends them to the group coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from moldau.runtime.tasks.sync import Signal
from moldau.share.core.membership import Next, ShareMembership

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.cluster.client import ClusterClient

PURPOSE = "share-group"
"""The connection for heartbeats, which must not wait behind fetches."""
_GROUP = 0
HEARTBEAT_MS = 5_000
"""Time between heartbeats until the coordinator has named another."""


class ShareGroupClient:
    """Talks to the coordinator of one share group."""

    def __init__(self, client: ClusterClient, membership: ShareMembership, *, poll_interval_ms: int) -> None:
        """``poll_interval_ms``: a member that does not poll for so long leaves the group."""
        self._client = client
        self._membership = membership
        self._poll_interval_ms = poll_interval_ms
        self._interval_ms = HEARTBEAT_MS
        self._wakes = Signal()
        self._is_due = True
        self._coordinator: int | None = None

    def wake(self) -> None:
        """Sends a heartbeat soon."""
        self._is_due = True
        self._wakes.notify()

    async def heartbeat_forever(self, last_poll_ms: Callable[[], float], changed: Callable[[], None]) -> None:
        """Sends heartbeats until cancelled; calls ``changed`` when the assignment has changed or is lost."""
        membership, client = self._membership, self._client
        failures = 0
        while True:
            with trio.move_on_after(self._interval_ms / 1000):
                await self._wakes.wait_until(lambda: self._is_due)
            self._is_due = False
            if membership.topics is None:
                continue
            is_late = client.now_ms - last_poll_ms() > self._poll_interval_ms
            if is_late:
                if membership.is_member:
                    client.logger.warning(
                        "poll-too-late", group=membership.group_id, max_poll_interval_ms=self._poll_interval_ms
                    )
                    await self.leave(rejoins=True)
                    changed()
                continue  # the next poll joins again
            before = (membership.assignment, membership.fatal)
            step = await self._beat()
            if before != (membership.assignment, membership.fatal):
                changed()
            if step is Next.GO_ON:
                failures = 0
                continue
            if step is Next.FIND_COORDINATOR:
                self._coordinator = None
            failures += 1
            self._is_due = True
            await client.backoff(failures)

    async def _beat(self) -> Next:
        membership, client = self._membership, self._client
        try:
            with client.silence.coordinator(await self._find(), membership.group_id, _GROUP) as call:
                await call.connect(PURPOSE)
            if membership.topics is None:
                return Next.GO_ON  # a member that has left meanwhile must not join: nothing would remove it
            request = membership.heartbeat()
            response = await self._request(request, client.request_timeout_ms)
        except TRANSPORT_ERRORS as error:
            client.logger.info("heartbeat-failed", group=membership.group_id, error=error)
            membership.unanswered()
            return Next.FIND_COORDINATOR
        except KafkaError as error:
            return membership.on_error(error)
        if response.error_code == ErrorCode.NONE and response.heartbeat_interval_ms > 0:
            self._interval_ms = response.heartbeat_interval_ms
        return membership.on_heartbeat(request, response)

    async def _request(self, request: ShareGroupHeartbeatRequest, timeout_ms: float) -> ShareGroupHeartbeatResponse:
        """Sends a request to the coordinator, which is looked up if it is unknown, and returns the response.

        Raises:
            KafkaError: there is no coordinator.
            TRANSPORT_ERRORS: the coordinator does not answer.
        """
        node_id = await self._find()
        with self._client.silence.coordinator(node_id, self._membership.group_id, _GROUP) as call:
            connection = await call.connect(PURPOSE)
            return await connection.request_as(ShareGroupHeartbeatResponse, request, timeout_ms=timeout_ms)

    async def _find(self) -> int:
        if self._coordinator is None:
            self._coordinator = await self._client.find_coordinator(self._membership.group_id, _GROUP)
        return self._coordinator

    async def leave(self, *, rejoins: bool = False) -> None:
        """Leaves the group, within ``request.timeout.ms``; ``rejoins`` keeps the subscription."""
        request = self._membership.leave(rejoins=rejoins)
        if request is None:
            return
        try:
            with trio.move_on_after(self._client.request_timeout_ms / 1000):
                await self._request(request, self._client.request_timeout_ms)
        except (*TRANSPORT_ERRORS, KafkaError) as error:
            self._client.logger.info("leave-failed", group=self._membership.group_id, error=error)
