"""A small classic group: two members, the second of which may be static, and a coordinator that may fail over.

Each action is one step of a member (join, sync, commit, heartbeat, leave), the end of a session, or the fate of a write
of the coordinator. The leader gives each member a number of its own; two members with one number in one generation, a
commit of an older generation and a plan that no leader made are violations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.group_world import Consumer, CoreDriver, code_of, commit_request, leave_request

if TYPE_CHECKING:
    from support.histories.explorer import Action

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
"""Longer than a settled world takes, so that no deadline of the join phase hides a lost wake-up."""
FAILOVERS_MAX = 1
JOINS_MAX = 5


class ClassicGroup:
    """The world."""

    def __init__(self) -> None:
        self.driver = CoreDriver(GroupConfig(initial_rebalance_delay_ms=0), auto_commit=False)
        self.consumers = [Consumer(self.driver), Consumer(self.driver, instance="i")]
        self.plans: dict[tuple[int, str], dict[str, bytes]] = {}
        """The plan of each leader, by generation and member id."""
        self.joins = self.failovers = self.silences = self.offset = 0
        self.newest = 0
        self.kept: int | None = None
        """The offset that was acknowledged last."""
        self.maybe: set[int] = set()
        """Offsets whose commit has no answer yet, or failed in the log."""
        self.commits: list[tuple[int, int]] = []
        self.former: list[tuple[str, int] | None] = [None, None]
        """Member id and generation of each member before the present ones."""
        self.is_forgotten = False
        """Whether a coordinator that took over does not know the static member's present id, as in Kafka: it loads the
        members of the newest generation whose plan was committed."""

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = []
        for who, consumer in enumerate(self.consumers):
            if self.joins < JOINS_MAX:
                found.append(("join", who))
            if consumer.generation >= 0:
                found += [("sync", who), ("commit", who), ("beat", who), ("leave", who)]
            if self.former[who] is not None:
                found.append(("late_commit", who))
        if self.joins < JOINS_MAX:
            found.append(("restart",))
        if self.driver.uncommitted:
            found += [("write",), ("refuse",)]
        if self.failovers < FAILOVERS_MAX:
            found.append(("fail_over", False))
            if self.driver.uncommitted:
                found.append(("fail_over", True))
        if self.silences < 2:
            found += [("silence", 0), ("silence", 1)]
        return found

    def join(self, who: int) -> None:
        """A member joins, or joins again."""
        self.joins += 1
        consumer = self.consumers[who]
        consumer.join(session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)
        self._learn()

    def restart(self) -> None:
        """The static member's process is replaced by another one, which joins with its instance id."""
        self.joins += 1
        if self.consumers[1].generation >= 0:
            self.former[1] = (self.consumers[1].member_id, self.consumers[1].generation)
        self.consumers[1] = Consumer(self.driver, instance="i")
        self.consumers[1].join(session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)
        self._learn()

    def sync(self, who: int) -> None:
        """A member asks for its assignment; the leader brings the plan."""
        consumer = self.consumers[who]
        plan = {member: str(number).encode() for number, member in enumerate(consumer.members)}
        if consumer.members:
            self.plans[consumer.generation, consumer.member_id] = plan
        consumer.assignment = None
        consumer.sync(plan)
        self._learn()

    def commit(self, who: int) -> None:
        """A member commits the next offset."""
        consumer = self.consumers[who]
        self._commit(who, consumer.member_id, consumer.generation)

    def late_commit(self, who: int) -> None:
        """A commit arrives late: it was sent in the generation before."""
        former = self.former[who]
        assert former is not None
        self._commit(who, *former)

    def _commit(self, who: int, member_id: str, generation: int) -> None:
        self.offset += 1
        stale = generation < self.newest
        before = len(self.driver.uncommitted)
        request = commit_request(self.offset, member_id, generation, instance=self.consumers[who].instance)
        request_id = self.driver.send(request, 9)
        answer = self.driver.answers.get(request_id)
        if answer is None:  # the write is appended, and not committed yet
            self.commits.append((request_id, self.offset))
            self.maybe.add(self.offset)
        accepted = answer is None or code_of(answer) is ErrorCode.NONE
        assert not (accepted and stale), f"member {who} commits in generation {generation} of {self.newest}"
        replaced = who == 1 and member_id != self.consumers[1].member_id
        replaced = replaced and not self.is_forgotten
        assert not (accepted and replaced and self.consumers[1].member_id), "a replaced static member commits"
        assert accepted == (len(self.driver.uncommitted) > before), "a refused commit is written"
        self._learn()

    def beat(self, who: int) -> None:
        """A member sends a heartbeat, and obeys the answer."""
        consumer = self.consumers[who]
        code = consumer.heartbeat()
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            consumer.member_id, consumer.generation, consumer.assignment = "", -1, None
        self._learn()

    def leave(self, who: int) -> None:
        """A member leaves."""
        consumer = self.consumers[who]
        self.driver.send(leave_request((consumer.member_id, consumer.instance)), 4)
        consumer.member_id, consumer.generation, consumer.assignment = "", -1, None
        self._learn()

    def silence(self, who: int) -> None:
        """A session passes in which one member is silent, and the other one is not."""
        self.silences += 1
        other = self.consumers[1 - who]
        for _ in range(3):
            self.driver.pass_time(SESSION_MS // 2)
            if other.generation >= 0:
                other.heartbeat()
        self._learn()

    def write(self) -> None:
        """The oldest write is committed."""
        append = self.driver.uncommitted.pop(0)
        self.driver.log.append(append)
        self.driver.perform(self.driver.core.committed(append.append_id, self.driver.moment()))
        self._learn()

    def refuse(self) -> None:
        """The log refuses the oldest write."""
        self.driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        self._learn()

    def fail_over(self, kept: bool) -> None:
        """Another coordinator loads the log; with ``kept`` it finds what was not known to be committed."""
        self.failovers += 1
        if kept:
            self.driver.log += self.driver.uncommitted
        self.driver.fail_over()
        # A generation whose plan was not committed is forgotten, as in Kafka.
        group = self.driver.core.rebalancer.groups.get(GROUP)
        self.newest = 0 if group is None else group.generation
        self.is_forgotten = group is None or self.consumers[1].member_id not in group.members
        self._learn()

    def settle(self) -> None:
        """All disturbances end: both members join, get their parts, and can commit."""
        self.driver.auto_commit = True
        self.driver.commit()
        for _ in range(12):
            for consumer in self.consumers:
                self._learn()
                self._obey(consumer)
            self.driver.pass_time(3_000)
        self._learn()
        generations = {consumer.generation for consumer in self.consumers}
        assert len(generations) == 1, f"the members do not come together: {generations}"
        for consumer in self.consumers:
            assert consumer.heartbeat() is ErrorCode.NONE, "a member is not stable after all disturbances have ended"
            assert consumer.commit(99) is ErrorCode.NONE, "a stable member cannot commit"

    # --- what follows

    def _obey(self, consumer: Consumer) -> None:
        """A member acts like a real client that is left alone."""
        if consumer.join_id is not None or consumer.sync_id is not None:
            return
        if consumer.generation >= 0:
            code = consumer.heartbeat()
            if code is ErrorCode.NONE:
                if consumer.assignment is None:
                    consumer.sync({member: str(number).encode() for number, member in enumerate(consumer.members)})
                return
            if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                consumer.member_id = ""
        consumer.generation = -1
        consumer.join(session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)

    def _learn(self) -> None:
        """Runs the timers that are due, and lets members take their answers."""
        self.driver.pass_time(0)
        for request_id, offset in list(self.commits):
            answer = self.driver.answers.get(request_id)
            if answer is None:
                continue
            self.commits.remove((request_id, offset))
            if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:  # type: ignore[attr-defined]
                self.kept = offset
                self.maybe = {each for each in self.maybe if each > offset}
        for consumer in self.consumers:
            if consumer.join_id is not None and consumer.join_id in self.driver.answers:
                if consumer.generation >= 0:
                    self.former[self.consumers.index(consumer)] = (consumer.member_id, consumer.generation)
                answer = consumer.joined()
                assert isinstance(answer, JoinGroupResponse)
                if answer.error_code == ErrorCode.NONE:
                    assert answer.generation_id >= self.newest, "a generation goes back"
                    self.newest = max(self.newest, answer.generation_id)
                    consumer.assignment = None
                    if consumer is self.consumers[1]:
                        self.is_forgotten = False
                elif answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    consumer.member_id, consumer.generation, consumer.assignment = "", -1, None
                consumer.join_id = None
            if consumer.sync_id is not None and consumer.sync_id in self.driver.answers:
                synced = consumer.synced()
                assert synced is not None
                if synced.error_code != ErrorCode.NONE:
                    consumer.assignment = None
                else:
                    written = self.driver.core._written_groups.get(GROUP)
                    assert written is not None, "an assignment is given before any is committed"
                    assert written.generation >= consumer.generation, "an assignment is given before it is committed"
                consumer.sync_id = None

    # --- rules

    def key(self) -> object:
        group = self.driver.core.rebalancer.groups.get(GROUP)
        shape = None
        names: dict[str, int] = {}

        def name(member_id: str | None) -> int:
            return names.setdefault(member_id or "", len(names))

        if group is not None:
            shape = (
                *(group.state, group.generation, name(group.leader_id), group.assignment_append is not None),
                tuple(
                    (name(key), m.assignment, m.is_new, m.join_request is None, m.sync_request is None)
                    for key, m in group.members.items()
                ),
                tuple(map(name, group.pending_members)),
                tuple(map(name, group.pending_sync)),
            )
        return (
            shape,
            tuple(
                (name(c.member_id), c.generation, tuple(map(name, c.members)), c.assignment, c.join_id is None)
                for c in self.consumers
            ),
            tuple(c.sync_id is None for c in self.consumers),
            tuple(former and (name(former[0]), former[1]) for former in self.former),
            tuple(len(each.records) for each in self.driver.uncommitted),
            len(self.driver.log),
            *(self.joins, self.failovers, self.silences, self.newest, len(self.commits), self.kept is None),
            self.is_forgotten,
        )

    def check(self) -> None:
        first, second = self.consumers
        if first.assignment and first.generation == second.generation:
            assert first.assignment != second.assignment, f"both members own {first.assignment!r}"
        for consumer in self.consumers:
            if consumer.assignment is not None:
                plans = [plan for (generation, _), plan in self.plans.items() if generation == consumer.generation]
                # A static member that was replaced keeps the assignment of its former member id.
                given = [
                    data
                    for plan in plans
                    for member, data in plan.items()
                    if member == consumer.member_id
                    or (consumer.instance and member.startswith(f"{consumer.instance}-"))
                ]
                assert consumer.assignment in given, "an assignment that no leader made"
        if self.kept is not None:
            committed = self.driver.core.offsets.committed(GROUP).get(("t", 0))
            assert committed is not None, "an acknowledged offset is lost"
            assert committed.offset in {self.kept, *self.maybe}, "an acknowledged offset is overwritten by an older one"


def stable_pair() -> ClassicGroup:
    """Returns a group whose two members are stable."""
    world = ClassicGroup()
    world.join(0)
    world.join(1)
    world.join(0)
    world.sync(0)
    world.sync(1)
    while world.driver.uncommitted:
        world.write()
    world.joins = JOINS_MAX - 2
    return world


def syncing_pair() -> ClassicGroup:
    """Returns a group whose next plan is written, and not committed yet."""
    world = stable_pair()
    world.joins = JOINS_MAX - 4
    world.join(0)
    world.join(1)
    world.sync(0)
    return world


def twice_synced_pair() -> ClassicGroup:
    """Returns a group of which one member has left, with the plan before and the plan after in one log."""
    world = syncing_pair()
    world.leave(1)
    world.join(0)
    world.sync(0)
    return world


SCENES = (ClassicGroup, stable_pair, syncing_pair, twice_synced_pair)
