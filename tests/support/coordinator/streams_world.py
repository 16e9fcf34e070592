"""Members of streams groups against the pure core: one client, and a campaign of many with a checker."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.streams.core.state import (
    EMPTY_TASKS,
    MemberState,
    StreamsGroup,
    StreamsGroupState,
    TaskSets,
)
from moldau_broker.coordinator.group.streams.core.topology import by_subtopology, tasks_of
from support.coordinator.group_world import CoreDriver, code_of, commit_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau_broker.coordinator.group.streams.core.topology import InternalTopic, Task

GROUP = "g"
SESSION_MS = 45_000


class NoCreator:
    """Stands for what a broker creates topics with; the driver does the creations itself."""

    async def create(self, topics: tuple[InternalTopic, ...]) -> Mapping[str, ErrorCode]:
        raise AssertionError(f"the driver creates {topics}")


def topic(name: str, partitions: int = 0, replicas: int = 0, **configs: str) -> TopicInfo:
    entries = [KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items()]
    return TopicInfo(name=name, partitions=partitions, replication_factor=replicas, topic_configs=entries)


def word_count(epoch: int = 0, source: str = "t") -> Topology:
    """Returns the topology that reads ``t``, repartitions into ``words`` and counts with the changelog ``counts``."""
    return Topology(
        epoch=epoch,
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=[source], repartition_sink_topics=["words"]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[topic("words", cleanup_policy="delete")],
                state_changelog_topics=[topic("counts", cleanup_policy="compact")],
            ),
        ],
    )


def join_of(source: str, other: str) -> Topology:
    """Returns the topology of a join of two topics that must have equal numbers of partitions."""
    part = Subtopology(
        subtopology_id="0",
        source_topics=[source, other],
        copartition_groups=[CopartitionGroup(source_topics=[0, 1])],
    )
    return Topology(epoch=0, subtopologies=[part])


def entries(tasks: frozenset[Task]) -> list[TaskIds]:
    return [TaskIds(subtopology_id=part, partitions=numbers) for part, numbers in by_subtopology(tasks).items()]


class StreamsClient:
    """A member of a streams group that behaves as KIP-1071 asks, one step at a time."""

    def __init__(
        self,
        driver: CoreDriver,
        member_id: str,
        topology: Topology | None = None,
        *,
        process: str | None = None,
        endpoint: tuple[str, int] | None = None,
        rebalance_ms: int = 60_000,
        instance: str | None = None,
    ) -> None:
        self.driver = driver
        self.member_id = member_id
        self.topology = word_count() if topology is None else topology
        self.process = process or f"p-{member_id}"
        self.endpoint = endpoint
        self.instance = instance
        self.endpoint_epoch = -1
        self.rebalance_ms = rebalance_ms
        self.epoch = 0
        self.given = EMPTY_TASKS
        """The last assignment that the coordinator has sent."""
        self.running = EMPTY_TASKS
        self.sends_all = True
        self.last: int | None = None
        """The id of the request that is on its way."""
        self.answered: StreamsGroupHeartbeatResponse | None = None
        self.shutdown = False

    def request(self) -> StreamsGroupHeartbeatRequest:
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            endpoint_information_epoch=self.endpoint_epoch,
            instance_id=self.instance,
            shutdown_application=self.shutdown,
        )
        if self.sends_all or self.epoch == 0:
            request.rebalance_timeout_ms = self.rebalance_ms
            request.process_id = self.process
            if self.endpoint is not None:
                request.user_endpoint = Endpoint(host=self.endpoint[0], port=self.endpoint[1])
        if self.epoch == 0:
            request.topology = self.topology
        request.active_tasks, request.standby_tasks, request.warmup_tasks = map(entries, self.running.kinds)
        return request

    def send(self) -> int:
        if self.epoch == 0:
            self.running = self.given = EMPTY_TASKS
        self.last = self.driver.send(self.request(), 1)
        return self.last

    def take(self, *, lost: bool = False) -> ErrorCode | None:
        """Takes the answer to the last request in; with ``lost`` it does not arrive, and the client sends all again."""
        answer = self.driver.answers.get(-1 if self.last is None else self.last)
        if answer is None:
            return None
        assert isinstance(answer, StreamsGroupHeartbeatResponse)
        self.last = None
        code = ErrorCode(answer.error_code)
        if lost:
            self.sends_all = True
            return code
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.epoch, self.running, self.given = 0, EMPTY_TASKS, EMPTY_TASKS
        elif code is not ErrorCode.NONE:
            self.sends_all = True
        else:
            self.answered = answer
            self.epoch = answer.member_epoch
            self.endpoint_epoch = answer.endpoint_information_epoch
            self.sends_all = False
            if answer.active_tasks is not None:
                self.given = TaskSets(
                    active=tasks_of(answer.active_tasks),
                    standby=tasks_of(answer.standby_tasks or ()),
                    warmup=tasks_of(answer.warmup_tasks or ()),
                )
        return code

    def obey(self) -> None:
        """Closes tasks that were taken away, and begins with those that were given.

        It does not begin while a heartbeat is on its way that does not report the new tasks.
        """
        if self.last is None:
            self.running = self.given
        else:
            active, standby, warmup = (
                mine & given for mine, given in zip(self.running.kinds, self.given.kinds, strict=True)
            )
            self.running = TaskSets(active=active, standby=standby, warmup=warmup)

    def beat(self) -> ErrorCode:
        """Sends a heartbeat that is answered at once, and obeys the answer."""
        self.send()
        code = self.take()
        assert code is not None, "the heartbeat waits"
        self.obey()
        return code

    def leave(self, epoch: int = -1) -> ErrorCode:
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance,
            shutdown_application=self.shutdown,
        )
        answer = self.driver.ask(request, 1)
        assert isinstance(answer, StreamsGroupHeartbeatResponse)
        return ErrorCode(answer.error_code)

    def commit(self, offset: int = 1, *, topic: str = "t", partition: int = 0, epoch: int | None = None) -> ErrorCode:
        epoch = self.epoch if epoch is None else epoch
        request = commit_request(offset, self.member_id, epoch, group=GROUP, topic=topic, partition=partition)
        return code_of(self.driver.ask(request, 9))

    @property
    def statuses(self) -> list[int]:
        """The codes in the last answer of what is wrong."""
        assert self.answered is not None
        return [status.status_code for status in self.answered.status or ()]

    @property
    def active(self) -> list[str]:
        """The active tasks that the client runs."""
        return [f"{part}_{number}" for part, number in sorted(self.running.active)]

    @property
    def standby(self) -> list[str]:
        """The standby tasks that the client keeps."""
        return [f"{part}_{number}" for part, number in sorted(self.running.standby)]


def streams_driver(*, delay_ms: int = 0, standbys: int = 0, auto_commit: bool = True, **counts: int) -> CoreDriver:
    """Returns a driver with the topic ``t`` of three partitions, or with the given topics, and nothing else."""
    config = GroupConfig(streams_initial_delay_ms=delay_ms, streams_standby_replicas=standbys)
    driver = CoreDriver(config, auto_commit=auto_commit)
    driver.creator = NoCreator()
    driver.topics.ids.clear()
    driver.topics.counts.clear()
    for name, count in (counts or {"t": 3}).items():
        driver.make_topic(name)
        driver.topics.counts[name] = count
    return driver


def settle(clients: list[StreamsClient], rounds: int = 10) -> None:
    """Lets all clients send heartbeats until nothing moves any more; creates the topics that are asked for."""
    for _ in range(rounds):
        before = [(client.epoch, client.running) for client in clients]
        for client in clients:
            assert client.beat() is ErrorCode.NONE
        created = bool(clients[0].driver.creations)
        clients[0].driver.create_topics()
        if not created and [(client.epoch, client.running) for client in clients] == before:
            return
    raise AssertionError(f"no end after {rounds} rounds")


def group_of(driver: CoreDriver) -> StreamsGroup:
    group = driver.core.streams.get(GROUP)
    assert group is not None
    return group


def reloaded(driver: CoreDriver) -> StreamsGroup:
    """Returns the group as another coordinator would load it from the committed log."""
    group = driver._new_core().streams.get(GROUP)
    assert group is not None
    return group


class Campaign:
    """Random steps of several clients, with delayed and refused writes, lost answers, time, topics and failovers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.standbys = self.random.choice([0, 1, 1, 2])
        self.driver = streams_driver(
            delay_ms=self.random.choice([0, 3_000]), standbys=self.standbys, auto_commit=False, t=4
        )
        self.joined = 0
        self.clients: list[StreamsClient] = []
        self.zombies: list[StreamsClient] = []
        self.highest_epoch = 0
        for _ in range(3):
            self.add()

    def add(self) -> None:
        self.joined += 1
        process = f"p{self.random.randrange(3)}"
        client = StreamsClient(self.driver, f"m{self.joined}", process=process)
        client.rebalance_ms = self.random.choice([2_000, 60_000])
        if self.random.random() < 0.3:
            client.endpoint = (process, 80)
        self.clients.append(client)

    def members(self) -> dict[str, Any]:
        group = self.driver.core.streams.get(GROUP)
        return {} if group is None else dict(group.members)

    def step(self) -> None:
        actions = [self.beat] * 10 + [self.answer] * 8 + [self.obey] + [self.write] * 14 + [self.tick] * 2
        actions += [self.commit] * 3 + [self.create] * 4 + [self.come_or_go] * 2 + [self.late] * 2
        rare = [self.topic, self.fail_over, self.pause]
        actions += rare if self.random.random() < 0.25 else [self.beat]
        self.random.choice(actions)()
        self.check()

    def beat(self) -> None:
        ready = [client for client in self.clients if client.last is None]
        if not ready:
            return
        client = self.random.choice(ready)
        before = self.members().get(client.member_id)
        client.send()
        answer: Any = None if client.last is None else self.driver.answers.get(client.last)
        stale = before is not None and client.epoch not in (0, before.epoch, before.previous_epoch)
        if stale and answer is not None and self.driver.core.streams.latest(GROUP) is not None:
            assert answer.error_code != 0, f"{client.member_id} is accepted in epoch {client.epoch}, not {before}"
        if before is not None and client.running.overlaps(before.revoking):
            latest = self.driver.core.streams.latest(GROUP)
            now = None if latest is None else latest.members.get(client.member_id)
            kept = now is None or client.running.overlaps(now.revoking)
            assert kept, f"{client.member_id} still runs {client.running}, which others may get"

    def late(self) -> None:
        """A heartbeat arrives late, after its sender has reached later epochs."""
        client = self.random.choice(self.clients)
        member = self.members().get(client.member_id)
        if member is None or self.driver.uncommitted or client.epoch < 4:
            return
        request = client.request()
        request.member_epoch = member.epoch - 2
        if request.member_epoch != member.previous_epoch:
            answer: Any = self.driver.answers.get(self.driver.send(request, 1))
            refused = answer is not None and answer.error_code != 0
            assert refused, f"{client.member_id} is accepted in epoch {request.member_epoch}"

    def answer(self) -> None:
        waiting = [client for client in self.clients if client.last in self.driver.answers]
        if waiting:
            self.take(self.random.choice(waiting), lost=self.random.random() < 0.1)

    def take(self, client: StreamsClient, *, lost: bool = False) -> None:
        """Lets a client take its answer in: a real client ends if its request is called invalid."""
        code = client.take(lost=lost)
        assert code is not ErrorCode.INVALID_REQUEST, f"{client.member_id} is refused with {client.running}"

    def obey(self) -> None:
        behind = [client for client in self.clients if client.running != client.given]
        if behind:
            self.random.choice(behind).obey()

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

    def create(self) -> None:
        if self.random.random() < 0.2:
            names = [topic.name for creation in self.driver.creations for topic in creation.topics]
            self.driver.create_topics(dict.fromkeys(names, ErrorCode.REQUEST_TIMED_OUT))
        else:
            self.driver.create_topics()

    def commit(self) -> None:
        """Commits of members in their epoch are accepted; others only for tasks that the member has had since."""
        client = self.random.choice(self.clients + self.zombies)
        epoch = client.epoch - self.random.choice([0, 0, 1])
        partition = self.random.randrange(2)
        latest = self.driver.core.streams.latest(GROUP)
        request = commit_request(7, client.member_id, epoch, group=GROUP, partition=partition)
        request_id = self.driver.send(request, 9)
        if latest is None or (epoch < 0 and not latest.members):
            return
        answer = self.driver.answers.get(request_id)
        accepted = answer is None or code_of(answer) is ErrorCode.NONE
        member = latest.members.get(client.member_id)
        present = member is not None and member.epoch == epoch
        owned = member is not None and ("0", partition) in member.owned(0) and epoch < member.epoch
        assert not accepted or present or owned, f"the commit of {client.member_id} in epoch {epoch} is accepted"
        assert accepted or not present, f"the commit of {client.member_id} in its epoch {epoch} is refused"

    def come_or_go(self) -> None:
        choice = self.random.random()
        if choice < 0.5 and len(self.clients) < 6:
            self.add()
        elif len(self.clients) > 1:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            if client.last is None and client.epoch > 0:
                client.running = client.given = EMPTY_TASKS
                leave = StreamsGroupHeartbeatRequest(group_id=GROUP, member_id=client.member_id, member_epoch=-1)
                self.driver.send(leave, 1)
            self.zombies.append(client)

    def topic(self) -> None:
        """The source gets a partition once; then the internal topics no longer fit, unless they are made again."""
        counts = self.driver.topics.counts
        if self.random.random() < 0.3 and "counts" in self.driver.topics.ids:
            for name in ("counts", "words"):
                if name in self.driver.topics.ids:
                    self.driver.delete_topic(name)
                    counts.pop(name, None)
        elif self.random.random() < 0.2:
            counts["t"] = self.random.choice([2, 4])

    def fail_over(self) -> None:
        self.driver.fail_over()
        for client in self.clients:
            self.take(client)

    def check(self) -> None:
        group = self.driver.core.streams.get(GROUP)
        if group is None:
            return
        check_group(group)
        assert group.epoch >= self.highest_epoch or not group.members, "the group epoch goes back"
        self.highest_epoch = group.epoch
        assert reloaded(self.driver) == group, "the replayed log is another state"
        active: dict[Task, str] = {}
        for client in self.clients + self.zombies:
            if client.member_id not in group.members:
                continue  # its next heartbeat's answer fences it
            for task in sorted(client.running.active):
                assert task not in active, f"{active[task]} and {client.member_id} run {task}"
                active[task] = client.member_id

    def finish(self) -> None:
        """Ends all disturbances: the group must come to rest, with every task active once."""
        for client in self.clients:
            self.driver.commit()
            self.take(client)
        self.driver.auto_commit = True
        self.driver.commit()
        self.driver.create_topics()  # for a number of partitions that the source may have had before
        for name in ("counts", "words"):
            if name in self.driver.topics.ids:
                self.driver.delete_topic(name)
                self.driver.topics.counts.pop(name, None)
        for _ in range(2 * SESSION_MS // 5_000 + 12):
            self.driver.pass_time(5_000)
            self.driver.create_topics()
            for client in self.clients:
                self.take(client)
                before = client.running
                assert client.beat() is not ErrorCode.INVALID_REQUEST
                if client.running != before:
                    client.beat()  # real clients report closed tasks at once
            self.check()
        group = group_of(self.driver)
        alive = {client.member_id for client in self.clients}
        assert set(group.members) == alive, f"{sorted(group.members)} are members, {sorted(alive)} are alive"
        assert group.state is StreamsGroupState.STABLE, group.state
        for client in self.clients:
            owned, epoch = group.members[client.member_id].assigned, group.members[client.member_id].epoch
            assert client.running == owned, f"{client.member_id} runs {client.running} instead of {owned}"
            assert client.epoch == epoch, f"{client.member_id} is in epoch {client.epoch} instead of {epoch}"
        count = self.driver.topics.counts["t"]
        every = {(part, number) for part in ("0", "1") for number in range(count)}
        assert frozenset().union(*(client.running.active for client in self.clients)) == every, "tasks that do not run"
        processes = len({client.process for client in self.clients})
        copies = sum(len(client.running.standby) for client in self.clients)
        assert copies == count * min(self.standbys, processes - 1), "not as many standby tasks as there can be"


def check_group(group: StreamsGroup) -> None:
    """Checks what holds in every state of a group."""
    owner: dict[Task, str] = {}
    in_process: dict[tuple[str, Task], str] = {}
    assert group.assignment_epoch <= group.epoch, "the target is newer than the group"
    for member in group.members.values():
        assert not member.assigned.overlaps(member.revoking)
        assert (not member.revoking.is_empty) == (member.state is MemberState.UNREVOKED_TASKS)
        assert member.epoch <= group.epoch
        assert set(member.since) == member.owned(0)
        for task in sorted(member.owned(0)):
            assert task not in owner, f"{owner[task]} and {member.member_id} own {task}"
            owner[task] = member.member_id
        for kind in (0, 1, 2):
            for task in sorted(member.owned(kind)):
                other = in_process.setdefault((member.process_id, task), member.member_id)
                assert other == member.member_id, f"{other} and {member.member_id} of one process have {task}"
    assert owner == group.active_owners
    assert set(group.targets) <= set(group.members), "a target of no member"
    taken: set[Task] = set()
    for target in group.targets.values():
        assert not taken & target.active, "two members have an active task in their targets"
        taken |= target.active


def run_campaign(seed: int, steps: int = 350) -> None:
    campaign = Campaign(seed)
    for _ in range(steps):
        campaign.step()
    campaign.finish()


def run_campaigns(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_campaign(seed)
