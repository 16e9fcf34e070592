"""Members of consumer groups against the pure core: one client, and a campaign of many with a checker."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup, ConsumerGroupState, MemberState
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.group_world import CoreDriver, code_of, commit_request

if TYPE_CHECKING:
    from uuid import UUID

GROUP = "g"


class ConsumerClient:
    """A member of a consumer group that behaves as KIP-848 asks, one step at a time."""

    def __init__(
        self,
        driver: CoreDriver,
        member_id: str,
        topics: tuple[str, ...] = ("t",),
        *,
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = 60_000,
    ) -> None:
        self.driver = driver
        self.member_id = member_id
        self.topics = topics
        self.instance = instance
        self.regex = regex
        self.assignor = assignor
        self.rebalance_ms = rebalance_ms
        self.epoch = 0
        self.given: frozenset[tuple[UUID, int]] = frozenset()
        """The last assignment that the coordinator has sent."""
        self.reading: frozenset[tuple[UUID, int]] = frozenset()
        self.sends_all = True
        self.sent_topics = topics
        self.last: int | None = None
        """The id of the request that is on its way."""

    def request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance
        )
        if self.sends_all or self.epoch == 0:
            request.rebalance_timeout_ms = self.rebalance_ms
            request.subscribed_topic_names = list(self.topics)
            request.subscribed_topic_regex = self.regex
            request.server_assignor = self.assignor
        request.topic_partitions = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic, partitions=numbers)
            for topic, numbers in by_topic(self.reading).items()
        ]
        return request

    def send(self) -> int:
        if self.epoch == 0:
            self.reading = self.given = frozenset()
        self.sent_topics = self.topics
        self.last = self.driver.send(self.request(), 1)
        return self.last

    def take(self, *, lost: bool = False) -> ErrorCode | None:
        """Takes the answer to the last request in; with ``lost`` it does not arrive, and the client sends all again."""
        answer = self.driver.answers.get(-1 if self.last is None else self.last)
        if answer is None:
            return None
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.last = None
        code = ErrorCode(answer.error_code)
        if lost:
            self.sends_all = True
            return code
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.epoch, self.reading, self.given = 0, frozenset(), frozenset()
        elif code is not ErrorCode.NONE:
            self.sends_all = True
        else:
            self.epoch = answer.member_epoch
            self.sends_all = self.topics != self.sent_topics
            if answer.assignment is not None:
                self.given = frozenset(
                    (topic.topic_id, number)
                    for topic in answer.assignment.topic_partitions
                    for number in topic.partitions
                )
        return code

    def obey(self) -> None:
        """Stops to read what was taken away, and begins to read what was given.

        It does not begin while a heartbeat is on its way that does not report the new partitions.
        """
        self.reading = self.given if self.last is None else self.reading & self.given

    def beat(self) -> ErrorCode:
        """Sends a heartbeat that is answered at once, and obeys the answer."""
        self.send()
        code = self.take()
        assert code is not None, "the heartbeat waits"
        self.obey()
        return code

    def leave(self, epoch: int = -1) -> ErrorCode:
        answer = self.driver.ask(
            ConsumerGroupHeartbeatRequest(
                group_id=GROUP, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance
            ),
            1,
        )
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return ErrorCode(answer.error_code)

    def commit(self, offset: int = 1, version: int = 9) -> ErrorCode:
        request = commit_request(offset, self.member_id, self.epoch, group=GROUP, instance=self.instance)
        return code_of(self.driver.ask(request, version))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the partitions that the client reads."""
        return sorted(number for _, number in self.reading)


def settle(clients: list[ConsumerClient], rounds: int = 8) -> None:
    """Lets all clients send heartbeats until nothing moves any more."""
    for _ in range(rounds):
        before = [(client.epoch, client.reading) for client in clients]
        for client in clients:
            client.beat()
        if [(client.epoch, client.reading) for client in clients] == before:
            return
    raise AssertionError(f"no end after {rounds} rounds")


def group_of(driver: CoreDriver) -> ConsumerGroup:
    group = driver.core.consumers.get(GROUP)
    assert group is not None
    return group


def reloaded(driver: CoreDriver) -> ConsumerGroup:
    """Returns the group as another coordinator would load it from the committed log."""
    core = driver._new_core()
    group = core.consumers.get(GROUP)
    assert group is not None
    return group


SESSION_MS = 45_000
PARTITIONS = 5


class Campaign:
    """Random steps of several clients, with delayed and refused writes, lost answers, time, topics and failovers.

    In a quarter of the seeds most members are static, and come and go often.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.late = random.Random(f"late-{seed}")
        self.static_share, self.instances, self.departures = (0.85, 4, 5) if seed % 4 == 3 else (0.3, 2, 1)
        self.driver = self.start_driver()
        self.driver.topics.counts = {"t": PARTITIONS, "u": 2}
        self.joined = 0
        self.clients: list[ConsumerClient] = []
        self.zombies: list[ConsumerClient] = []
        self.heard: dict[str, int] = {}
        self.highest_epoch = 0
        for _ in range(3):
            self.add()

    def start_driver(self) -> CoreDriver:
        return CoreDriver(GroupConfig(), auto_commit=False)

    def add(self) -> None:
        self.joined += 1
        instance = f"i{self.joined % self.instances}" if self.random.random() < self.static_share else None
        if any(client.instance == instance for client in self.clients):
            instance = None
        client = ConsumerClient(self.driver, f"m{self.joined}", self.random.choice([("t",), ("t",), ("t", "u")]))
        client.instance = instance
        client.rebalance_ms = self.random.choice([2_000, 60_000])
        self.clients.append(client)

    def members(self) -> dict[str, Any]:
        group = self.driver.core.consumers.get(GROUP)
        return {} if group is None else dict(group.members)

    def step(self) -> None:
        actions = [self.beat] * 10 + [self.answer] * 8 + [self.obey] * 6 + [self.write] * 8 + [self.tick] * 3
        actions += [self.commit] * 3 + [self.come_or_go] * self.departures + [self.topic, self.fail_over, self.pause]
        self.random.choice(actions)()
        if self.late.random() < 0.05:
            self.late_beat()
        self.check()

    def beat(self) -> None:
        client = self.random.choice(self.clients)
        if client.last is None:
            before = self.members().get(client.member_id)
            self.judge(before, client.epoch, client.send())

    def late_beat(self) -> None:
        """A copy of a heartbeat of an earlier epoch arrives."""
        client = self.late.choice(self.clients)
        if isinstance(client, ConsumerClient) and client.epoch > 1:
            before = self.members().get(client.member_id)
            request = client.request()
            request.member_epoch = self.late.randrange(1, client.epoch)
            self.judge(before, request.member_epoch, self.driver.send(request, 1))

    def judge(self, before: Any, epoch: int, request_id: int) -> None:
        """Checks that a heartbeat in an epoch that is over, of a member as it was before, is refused."""
        answer: Any = self.driver.answers.get(request_id)
        # Epoch 0 joins, also under the id of a member.
        stale = before is not None and epoch not in (0, before.epoch, before.previous_epoch)
        if stale and answer is not None and self.driver.core.consumers.latest(GROUP) is not None:
            assert answer.error_code != 0, f"{before.member_id} is accepted in epoch {epoch}, not {before}"

    def answer(self) -> None:
        client = self.random.choice(self.clients)
        code = client.take(lost=self.random.random() < 0.1)
        if code is ErrorCode.NONE:
            self.heard[client.member_id] = self.driver.now_ms

    def obey(self) -> None:
        self.random.choice(self.clients).obey()

    def write(self) -> None:
        if not self.driver.uncommitted:
            return
        if self.random.random() < 0.05:
            self.driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        else:
            self.driver.commit()

    def tick(self) -> None:
        self.driver.pass_time(self.random.choice([100, 900, 2_500]))

    def pause(self) -> None:
        """Lets sessions end, of clients that are not asked for a while."""
        self.driver.commit()
        self.driver.pass_time(self.random.choice([20_000, SESSION_MS]))

    def commit(self) -> None:
        client = self.random.choice(self.clients + self.zombies)
        latest = self.driver.core.consumers.latest(GROUP)
        request = commit_request(7, client.member_id, client.epoch, group=GROUP)
        request_id = self.driver.send(request, 9)
        if latest is None or (client.epoch < 0 and not latest.members):
            return
        member = latest.members.get(client.member_id)
        if member is not None and member.epoch == client.epoch:
            return
        answer = self.driver.answers.get(request_id)
        assert answer is not None, f"the commit of {client.member_id} in epoch {client.epoch} is accepted"
        assert code_of(answer) is not ErrorCode.NONE

    def come_or_go(self) -> None:
        choice = self.random.random()
        if choice < 0.4 and len(self.clients) < 6:
            self.add()
        elif choice < 0.7 and len(self.clients) > 1:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            if client.last is None and client.epoch > 0:
                epoch = -2 if client.instance is not None else -1
                client.reading = client.given = frozenset()
                self.driver.send(
                    ConsumerGroupHeartbeatRequest(
                        group_id=GROUP, member_id=client.member_id, member_epoch=epoch, instance_id=client.instance
                    ),
                    1,
                )
            self.zombies.append(client)
        elif self.clients:
            client = self.random.choice(self.clients)
            client.topics = self.random.choice([("t",), ("t", "u"), ("u",)])
            client.sends_all = True

    def topic(self) -> None:
        topics = self.driver.topics
        if topics.counts["u"] < 4:
            topics.counts["u"] += 1
        else:
            topics.counts["u"] = 1
            self.driver.delete_topic("u", made_again=True)

    def fail_over(self) -> None:
        self.driver.fail_over()
        for client in self.clients:
            client.take()

    def check(self) -> None:
        group = self.driver.core.consumers.get(GROUP)
        if group is None:
            return
        check_group(group)
        assert group.epoch >= self.highest_epoch or not group.members, "the group epoch goes back"
        self.highest_epoch = group.epoch
        assert reloaded(self.driver) == group, "the replayed log is another state"
        owner: dict[tuple[UUID, int], str] = {}
        for client in self.clients + self.zombies:
            member = group.members.get(client.member_id)
            if member is None or member.epoch < 0:
                continue  # its next heartbeat's answer fences it
            for partition in sorted(client.reading):
                assert partition not in owner, f"{owner[partition]} and {client.member_id} read {partition}"
                owner[partition] = client.member_id

    def finish(self) -> None:
        """Ends all disturbances: the group must come to rest, with every partition read once."""
        for client in self.clients:
            self.driver.commit()
            client.take()
        self.driver.auto_commit = True
        self.driver.commit()
        for _ in range(2 * SESSION_MS // 5_000 + 12):
            self.driver.pass_time(5_000)
            for client in self.clients:
                client.take()
                before = client.reading
                client.beat()
                if client.reading != before:
                    client.beat()  # real clients report released partitions at once
            self.check()
        group = group_of(self.driver)
        alive = {client.member_id for client in self.clients}
        assert set(group.members) == alive, f"{sorted(group.members)} are members, {sorted(alive)} are alive"
        assert group.state is ConsumerGroupState.STABLE
        wanted = {topic for client in self.clients for topic in client.topics}
        every = {
            (self.driver.topics.ids[topic], number)
            for topic in wanted
            for number in range(self.driver.topics.partition_count(topic))
        }
        assert frozenset().union(*(client.reading for client in self.clients)) == every, "partitions without a reader"


def check_group(group: ConsumerGroup) -> None:
    """Checks what holds in every state of a group."""
    owner: dict[tuple[UUID, int], str] = {}
    assert group.assignment_epoch <= group.epoch, "the target is newer than the group"
    for member in group.members.values():
        assert not member.assigned & member.revoking
        assert bool(member.revoking) == (member.state is MemberState.UNREVOKED_PARTITIONS)
        assert member.epoch <= group.epoch
        for partition in sorted(member.owned):
            assert partition not in owner, f"{owner[partition]} and {member.member_id} own {partition}"
            owner[partition] = member.member_id
    assert owner == group.owners
    assert set(group.targets) <= set(group.members), "a target of no member"
    taken: set[tuple[UUID, int]] = set()
    for partitions in group.targets.values():
        assert not taken & partitions, "two members have a partition in their targets"
        taken |= partitions
    assert group.static_members == {
        member.instance_id: member.member_id for member in group.members.values() if member.instance_id is not None
    }


def run_campaign(seed: int, steps: int = 250) -> None:
    campaign = Campaign(seed)
    for _ in range(steps):
        campaign.step()
    campaign.finish()
