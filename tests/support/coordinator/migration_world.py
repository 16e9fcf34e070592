"""Groups whose members change from the classic to the consumer protocol and back: classic clients, and a campaign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.codec import encode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, OwnedTopicPartitions
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau_broker.coordinator.group.consumer.core.embedded import (
    assignment_bytes,
    owned_partitions,
    parse_assignment,
    parse_subscription,
)
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.consumer_world import GROUP, SESSION_MS, Campaign, ConsumerClient, check_group
from support.coordinator.group_world import (
    CoreDriver,
    code_of,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)

if TYPE_CHECKING:
    from uuid import UUID

    from moldau_broker.coordinator.group.consumer.core.state import Partitions
    from support.coordinator.group_world import Topics

EAGER, COOPERATIVE = "range", "cooperative-sticky"
JOIN, SYNC, BEAT = "join", "sync", "beat"


def subscription_bytes(
    topics: Topics, names: tuple[str, ...], owned: Partitions, generation: int, version: int
) -> bytes:
    """Returns the metadata of a member of the classic protocol."""
    subscription = ConsumerProtocolSubscription(topics=list(names))
    if version >= 1:
        subscription.owned_partitions = [
            OwnedTopicPartitions(topic=name, partitions=numbers)
            for topic_id, numbers in by_topic(owned).items()
            if (name := topics.topic_name(topic_id)) is not None
        ]
    if version >= 2:
        subscription.generation_id = generation
    return version.to_bytes(2, "big") + encode(subscription, version)


class ClassicClient:
    """A member of the classic protocol, one step at a time, with the parts of `ConsumerClient` that a campaign uses."""

    def __init__(
        self,
        driver: CoreDriver,
        protocol: str = EAGER,
        topics: tuple[str, ...] = ("t",),
        *,
        instance: str | None = None,
        version: int = 3,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = 60_000,
    ) -> None:
        self.driver = driver
        self.protocol = protocol
        self.topics = topics
        self.instance = instance
        self.version = version
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.member_id = ""
        self.epoch = -1
        """The generation."""
        self.reading: Partitions = frozenset()
        self.given: Partitions = frozenset()
        self.phase = JOIN
        self.members: list[tuple[str, bytes]] = []
        """The members to assign to, if this member leads a classic group."""
        self.last: int | None = None
        self.sends_all = False

    def _prepare_join(self) -> None:
        if self.protocol == EAGER:
            self.reading = frozenset()

    def send(self) -> int:
        if self.phase == JOIN:
            self._prepare_join()
            metadata = subscription_bytes(self.driver.topics, self.topics, self.reading, self.epoch, self.version)
            request: Any = join_request(
                self.member_id,
                protocols=(self.protocol,),
                instance=self.instance,
                session_ms=self.session_ms,
                rebalance_ms=self.rebalance_ms,
                metadata=metadata,
            )
            self.last = self.driver.send(request, 9)
        elif self.phase == SYNC:
            request = sync_request(self.member_id, self.epoch, self._assign(), instance=self.instance)
            self.last = self.driver.send(request, 5)
        else:
            request = heartbeat_request(self.member_id, self.epoch, instance=self.instance)
            self.last = self.driver.send(request, 4)
        return self.last

    def _assign(self) -> dict[str, bytes]:
        """Assigns as the leader of a classic group: in turns; cooperative leaders give nothing away that is owned."""
        if not self.members:
            return {}
        topics = self.driver.topics
        owner: dict[tuple[UUID, int], str] = {}
        wants: dict[str, tuple[str, ...]] = {}
        newest: dict[tuple[UUID, int], int] = {}
        for member_id, metadata in self.members:
            _, subscription = parse_subscription(metadata)
            wants[member_id] = tuple(subscription.topics)
            for partition in sorted(owned_partitions(subscription, topics)):
                if subscription.generation_id >= newest.get(partition, -2):
                    newest[partition] = subscription.generation_id
                    owner[partition] = member_id
        found: dict[str, set[tuple[UUID, int]]] = {member_id: set() for member_id, _ in self.members}
        for name in sorted({name for names in wants.values() for name in names}):
            readers = sorted(member_id for member_id, names in wants.items() if name in names)
            topic_id = topics.topic_id(name)
            if topic_id is None:
                continue
            for number in range(topics.partition_count(name)):
                chosen = readers[number % len(readers)]
                held = owner.get((topic_id, number))
                if self.protocol == EAGER or held in (None, chosen):
                    found[chosen].add((topic_id, number))
        return {
            member_id: assignment_bytes(frozenset(partitions), topics, self.version)
            for member_id, partitions in found.items()
        }

    def take(self, *, lost: bool = False) -> ErrorCode | None:
        answer = self.driver.answers.get(-1 if self.last is None else self.last)
        if answer is None:
            return None
        self.last = None
        code = code_of(answer)
        if lost:
            self.phase = JOIN if self.phase != BEAT else BEAT
            return code
        if isinstance(answer, JoinGroupResponse) and code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.epoch, self.reading, self.phase = "", -1, frozenset(), JOIN
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self.epoch, self.reading, self.phase = -1, frozenset(), JOIN
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.phase = JOIN
        elif code is not ErrorCode.NONE:
            assert code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR), code
            self.phase = JOIN if self.phase != BEAT else BEAT
        elif isinstance(answer, JoinGroupResponse):
            self.member_id, self.epoch, self.phase = answer.member_id, answer.generation_id, SYNC
            self.members = [(member.member_id, bytes(member.metadata)) for member in answer.members]
        elif isinstance(answer, SyncGroupResponse):
            self._take_assignment(bytes(answer.assignment))
        else:
            assert isinstance(answer, HeartbeatResponse)
        return code

    def _take_assignment(self, assignment: bytes) -> None:
        given = parse_assignment(assignment, self.driver.topics)
        revoked = self.reading - given
        self.reading = given
        self.phase = JOIN if revoked and self.protocol == COOPERATIVE else BEAT

    def obey(self) -> None:
        """Does nothing: a classic client obeys when it takes an answer in."""

    def beat(self) -> ErrorCode | None:
        """Sends requests until one waits, or a heartbeat is answered."""
        for _ in range(6):
            if self.last is None:
                self.send()
            code = self.take()
            if code is None or (self.phase == BEAT and code is ErrorCode.NONE):
                return code
        return code

    def leave(self) -> ErrorCode:
        return code_of(self.driver.ask(leave_request((self.member_id, self.instance)), 5))

    def commit(self, offset: int = 1, version: int = 8) -> ErrorCode:
        request = commit_request(offset, self.member_id, self.epoch, group=GROUP, instance=self.instance)
        return code_of(self.driver.ask(request, version))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the partitions that the client reads."""
        return sorted(number for _, number in self.reading)


class MigrationCampaign(Campaign):
    """Random steps of clients of both protocols, by which the group changes its kind again and again."""

    def __init__(self, seed: int, policy: str = "bidirectional") -> None:
        self.protocol = EAGER if seed % 3 == 0 else COOPERATIVE
        self.changes = 0
        self.was_consumer = False
        self.policy = policy
        super().__init__(seed)

    def start_driver(self) -> CoreDriver:
        config = GroupConfig(migration_policy=self.policy, initial_rebalance_delay_ms=0)
        return CoreDriver(config, auto_commit=False)

    def add(self) -> None:
        if self.random.random() < 0.35:
            super().add()
            return
        self.joined += 1
        instance = f"i{self.joined % 2}" if self.random.random() < 0.2 else None
        if any(client.instance == instance for client in self.clients):
            instance = None
        client: Any = ClassicClient(
            self.driver,
            self.protocol,
            self.random.choice([("t",), ("t",), ("t", "u")]),
            instance=instance,
            version=self.random.choice([1, 3, 3]),
            rebalance_ms=self.random.choice([20_000, 60_000]),
        )
        self.clients.append(client)

    def beat(self) -> None:
        client = self.random.choice(self.clients)
        if client.last is None:
            client.send()

    def commit(self) -> None:
        client = self.random.choice(self.clients + self.zombies)
        core = self.driver.core
        group = core.consumers.for_commits(GROUP)
        classic = core.rebalancer.groups.get(GROUP)
        request_id = self.driver.send(commit_request(7, client.member_id, client.epoch, group=GROUP), 9)
        members: Any = {} if group is None and classic is None else (group or classic).members  # type: ignore[union-attr]
        if client.epoch < 0 or client.member_id in members:
            return
        answer = self.driver.answers.get(request_id)
        assert answer is not None, f"the commit of {client.member_id}, which is no member, is accepted"
        assert code_of(answer) is not ErrorCode.NONE

    def come_or_go(self) -> None:
        choice = self.random.random()
        if choice < 0.5 and len(self.clients) < 6:
            self.add()
        elif choice < 0.9 and len(self.clients) > 1:
            client: Any = self.clients.pop(self.random.randrange(len(self.clients)))
            if client.last is None and client.epoch > 0:
                client.reading = client.given = frozenset()
                if isinstance(client, ConsumerClient):
                    client.last = self.driver.send(_leaving(client), 1)
                elif client.instance is None:
                    client.last = self.driver.send(leave_request((client.member_id, None)), 5)
            self.zombies.append(client)
        elif self.clients:
            client = self.random.choice(self.clients)
            client.topics = self.random.choice([("t",), ("t", "u"), ("u",)])
            client.sends_all = True
            if isinstance(client, ClassicClient) and client.last is None:
                client.phase = JOIN

    def check(self) -> None:
        core = self.driver.core
        group, classic = core.consumers.get(GROUP), core.rebalancer.groups.get(GROUP)
        frozen = core._classic._frozen
        self.changes += (group is not None) != self.was_consumer
        self.was_consumer = group is not None
        if group is not None:
            check_group(group)
            assert self.driver._new_core().consumers.get(GROUP) == group, "the replayed log is another state"
            assert classic is None or not (classic.members and group.members), "the group is of two kinds"
            members: Any = group.members
        else:
            members = classic.members if classic is not None else frozen[GROUP].members if GROUP in frozen else {}
        owner: dict[tuple[UUID, int], str] = {}
        for client in self.clients + self.zombies:
            member = members.get(client.member_id)
            if member is None or getattr(member, "epoch", 0) < 0:
                continue
            for partition in sorted(client.reading):
                assert partition not in owner, f"{owner[partition]} and {client.member_id} read {partition}"
                owner[partition] = client.member_id

    def finish(self) -> None:
        """Ends all disturbances: the group must come to rest, with every partition read once."""
        self.driver.auto_commit = True
        self.driver.commit()
        for client in self.clients:
            client.take()
        for turn in range(2 * SESSION_MS // 5_000 + 20):
            self.driver.pass_time(5_000)
            if turn == 20:
                for client in self.clients:
                    if isinstance(client, ClassicClient) and client.last is None:
                        client.phase = JOIN  # as leaders do when they see that topics have changed
            for client in self.clients:
                client.take()
                before = client.reading
                if client.last is None:
                    client.beat()
                if client.reading != before and client.last is None:
                    client.beat()
            self.check()
        read = sorted(partition for client in self.clients for partition in client.reading)
        wanted = sorted(
            (self.driver.topics.ids[topic], number)
            for topic in {topic for client in self.clients for topic in client.topics}
            for number in range(self.driver.topics.partition_count(topic))
        )
        assert read == wanted, f"{len(read)} partitions are read, {len(wanted)} are subscribed to"
        is_consumer = any(isinstance(client, ConsumerClient) for client in self.clients)
        if is_consumer or self.policy == "bidirectional":
            assert (self.driver.core.consumers.get(GROUP) is not None) == is_consumer, "the group is of the wrong kind"


def _leaving(client: ConsumerClient) -> Any:
    request = client.request()
    request.member_epoch = -2 if client.instance is not None else -1
    request.topic_partitions = None
    return request


def run_migrations(seed: int, steps: int = 300) -> int:
    """Runs a campaign, and returns how often the group changed its kind."""
    campaign = MigrationCampaign(seed)
    for _ in range(steps):
        campaign.step()
    campaign.finish()
    return campaign.changes
