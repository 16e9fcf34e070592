"""The client of a coordinator that computes the assignment (KIP-848): one task sends all heartbeats.

As in Kafka's client, only the coordinator ends a session. A member that gave itself up would be fenced under its id
until its session ends there; epochs fence the commits of a member that has not heard of its removal.

The task reports the partitions of the positions and takes targets in. Polls take a target over as they take over the
end of a join (`rebalance`), and wake the task, so that the coordinator learns at once what was released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import GROUP_COORDINATOR, TRANSPORT_ERRORS
from moldau.cluster.metadata import TopicPartition
from moldau.consumer.core.membership import Next
from moldau.consumer.group import GROUP_PURPOSE, GroupClient
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from moldau.cluster.client import ClusterClient
    from moldau.consumer.core.epoch_membership import EpochMembership
    from moldau.consumer.group import AskedCommit
    from moldau.runtime.config import Config


class EpochGroupClient(GroupClient):
    """Talks to the coordinator of one group in the consumer protocol."""

    def __init__(
        self,
        client: ClusterClient,
        group_id: str,
        config: Config,
        membership: EpochMembership,
        held: Callable[[], Iterable[TopicPartition]],
    ) -> None:
        """``held`` returns the partitions of the positions."""
        super().__init__(client, group_id, config, membership)
        self._epochs = membership
        self._held = held
        self._interval_ms = self._heartbeat_ms
        self._wakes = Signal()
        self._answered = Signal()
        self._is_due = True
        # The ids of topics in the last target, and of those that are held: the metadata may lose a topic meanwhile,
        # if it was deleted, or a broker that is behind was asked.
        self._given_ids: Mapping[str, UUID] = {}
        self._held_topic_ids: Mapping[str, UUID] = {}
        # How many commits had been asked for when each held partition began: those concern an earlier possession.
        self._begun_after: Mapping[TopicPartition, int] = {}

    async def join(self, topics: Sequence[str], owned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Waits until the coordinator has given a target for this subscription, and returns it.

        Raises:
            KafkaError: the coordinator refused the member for good.
        """
        self.partition_counts = None
        self._epochs.want(topics)
        self._wake()
        while True:
            await self._answered.wait_until(lambda: self._epochs.has_answer)
            self.check()
            assigned = self._named()
            if assigned is not None:
                self._epochs.take_target()
                return assigned
            # The coordinator knows a topic that the metadata do not have yet.
            self._client.request_update()
            await self._client.backoff(1)

    def _named(self) -> list[TopicPartition] | None:
        """Returns the target by topic name; None while the metadata lack one of its topics."""
        names = self._client.cluster_metadata.topic_names()
        target = sorted(self._epochs.target or ())
        if any(topic_id not in names for topic_id, _ in target):
            return None
        self._given_ids = {names[topic_id]: topic_id for topic_id, _ in target}
        return [TopicPartition(names[topic_id], number) for topic_id, number in target]

    def still_given(self, assigned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions of an assignment that the coordinator has not taken back meanwhile."""
        ids, target = self._given_ids, self._epochs.target or ()
        return [partition for partition in assigned if (ids.get(partition.topic), partition.partition) in target]

    def check(self) -> None:
        """Reports what the coordinator has refused for good in the background since the last call.

        Raises:
            KafkaError: FENCED_INSTANCE_ID, among others.
        """
        fatal, self._epochs.fatal = self._epochs.fatal, None
        if fatal is not None:
            raise fatal
        super().check()

    def adopted(self) -> None:
        """Sends a heartbeat soon that names the partitions the member holds now."""
        self._held_topic_ids = self._given_ids
        self._begun_after = {each: self._begun_after.get(each, self._commits_asked) for each in self._held()}
        self._wake()

    def _wake(self) -> None:
        self._is_due = True
        self._wakes.notify()

    def _held_ids(self) -> list[tuple[UUID, int]]:
        ids = self._held_topic_ids
        return [(ids[partition.topic], partition.partition) for partition in self._held() if partition.topic in ids]

    async def heartbeat_forever(self, last_poll_ms: Callable[[], float], changed: Callable[[], None]) -> None:
        """Sends heartbeats until cancelled; calls ``changed`` when a poll has something to do."""
        membership, client = self._epochs, self._client
        failures = 0
        while True:
            with trio.move_on_after(self._interval_ms / 1000):
                await self._wakes.wait_until(lambda: self._is_due)
            self._is_due = False
            if membership.topics is None:
                continue
            if client.now_ms - last_poll_ms() > self._poll_interval_ms:
                if membership.has_generation:
                    client.logger.warning(
                        "poll-too-late", group=self._group_id, max_poll_interval_ms=self._poll_interval_ms
                    )
                    # The subscription stays: a join may be under way, for which the next poll waits.
                    await self._leave(f"no poll within max.poll.interval.ms = {self._poll_interval_ms}", rejoins=True)
                    changed()
                continue
            before = (membership.losses, membership.target)
            try:
                step = await self._beat()
            except TRANSPORT_ERRORS as error:
                client.logger.info("heartbeat-failed", group=self._group_id, error=error)
                membership.unanswered()
                step = Next.FIND_COORDINATOR
            if step is Next.GO_ON:
                failures = 0
            elif step is Next.FIND_COORDINATOR:
                self._forget_coordinator()
            self._answered.notify()
            if before != (membership.losses, membership.target):
                changed()
            if step is not Next.GO_ON:
                failures += 1
                self._is_due = True
                await client.backoff(failures)

    async def _beat(self) -> Next:
        losses = self._epochs.losses
        deadline_ms = self._client.now_ms + self._client.request_timeout_ms
        try:
            await self._connect(deadline_ms)
            if losses != self._epochs.losses:
                return Next.GO_ON  # a member that has left meanwhile must not join: nothing would remove it
            request = self._epochs.epoch_heartbeat(self._held_ids())
            response = await self._request(ConsumerGroupHeartbeatResponse, request, deadline_ms, purpose=GROUP_PURPOSE)
        except KafkaError as error:  # the broker serves no heartbeats of this kind, or refuses the group
            return self._epochs.on_epoch_error(error, losses)
        if response.error_code == ErrorCode.NONE and response.heartbeat_interval_ms > 0:
            self._interval_ms = response.heartbeat_interval_ms
        return self._epochs.on_epoch_heartbeat(request, response, losses)

    async def _connect(self, deadline_ms: float) -> None:
        """Opens the connection for heartbeats; gives the coordinator up like a request if another one takes over."""
        node_id = await self.coordinator(deadline_ms)
        with self._client.silence.coordinator(node_id, self._group_id, GROUP_COORDINATOR) as call:
            await call.connect(GROUP_PURPOSE)

    async def leave(self, reason: str) -> None:
        """Leaves the group; a static member keeps its partitions for the length of its session."""
        await self._leave(reason, rejoins=False)

    async def _leave(self, reason: str, *, rejoins: bool) -> None:
        self._refused = self._epochs.fatal = None
        request = self._epochs.epoch_leave_request(reason, rejoins=rejoins)
        if request is None:
            return
        try:
            with trio.move_on_after(self._client.request_timeout_ms / 1000):
                await self._request(ConsumerGroupHeartbeatResponse, request, self._client.now_ms, purpose=GROUP_PURPOSE)
        except (*TRANSPORT_ERRORS, KafkaError) as error:
            self._client.logger.info("leave-failed", group=self._group_id, error=error)

    async def _commit_once(
        self, asked: AskedCommit, deadline_ms: float
    ) -> tuple[ErrorCode, dict[TopicPartition, KafkaError]]:
        """Sends a commit under the present epoch, unless the member has released one of the partitions since."""
        membership = self._epochs
        if asked.member == membership.commits_as and asked.epoch != membership.generation:
            held, begun_after = dict.fromkeys(self._held()), self._begun_after
            if any(each not in held or asked.number <= begun_after.get(each, 0) for each in asked.offsets):
                raise self._refusal(ErrorCode.ILLEGAL_GENERATION)
        return await super()._commit_once(asked, deadline_ms)
