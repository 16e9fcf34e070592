"""Two members of a classic group: the client's cores against the coordinator's, with one application each.

Answers arrive in the background; the application takes an assignment over when it polls, and commits what it holds. A
commit that the coordinator accepts must be for partitions that the committed plan gives to that member, or gave to it
last: a member that lost its partitions and has others must not move the offsets of their new owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.core.assignors import RangeAssignor
from moldau.consumer.core.membership import GroupIdentity, Membership, MemberState, Next, assign_partitions
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.group_world import CoreDriver, code_of

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.protocol.schema import Request
    from support.histories.explorer import Action

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
COUNTS = {"t": 2}
JOINS_MAX = 4
SILENCES_MAX = 2


def unexpected(event: str, **_: object) -> None:
    """Fails: no member of these histories sends bytes that the leader cannot read."""
    raise AssertionError(event)


class Application:
    """One member and its application."""

    def __init__(self, driver: CoreDriver, index: int) -> None:
        self.driver = driver
        self.index = index
        identity = GroupIdentity(
            group_id=GROUP, instance_id=None, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS
        )
        self.core = Membership(identity, [RangeAssignor()])
        self.assigned: tuple[TopicPartition, ...] = ()
        """The last assignment that has arrived."""
        self.held: tuple[TopicPartition, ...] = ()
        """The partitions that the application has taken over."""
        self.asked: tuple[str, int] | None = None

    def send(self, name: str, request: Request, version: int) -> None:
        self.asked = (name, self.driver.send(request, version))


class Members:
    """The world."""

    def __init__(self) -> None:
        self.driver = CoreDriver(GroupConfig(initial_rebalance_delay_ms=0), auto_commit=True)
        self.apps = (Application(self.driver, 0), Application(self.driver, 1))
        self.owners: dict[TopicPartition, int] = {}
        """By the plan that was committed last."""
        self.joins = self.silences = self.offset = self.failovers = 0

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = []
        for app in self.apps:
            if app.asked is None and app.core.state is MemberState.UNJOINED and self.joins < JOINS_MAX:
                found.append(("join", app.index))
            if app.asked is not None and app.asked[1] in self.driver.answers:
                found += [("answer", app.index), ("lose_answer", app.index)]
            if app.asked is None and app.core.has_generation:
                found.append(("beat", app.index))
            if app.core.is_stable:
                found.append(("poll", app.index))
            if app.held:
                found.append(("commit", app.index))
            if app.core.member_id:
                found.append(("leave", app.index))
        if self.silences < SILENCES_MAX:
            found += [("silence", 0), ("silence", 1)]
        if not self.failovers:
            found.append(("fail_over",))
        return found

    def join(self, index: int) -> None:
        """A member sends JoinGroup; the application has given its partitions up if they were not lost."""
        self.joins += 1
        app = self.apps[index]
        if app.core.commits_as is not None:
            app.held = ()
        app.send("join", app.core.join_request(["t"], app.held), 9)
        self.driver.pass_time(0)

    def answer(self, index: int) -> None:
        """The answer to the open request of a member arrives."""
        app = self.apps[index]
        assert app.asked is not None
        (name, request_id), app.asked = app.asked, None
        response = self.driver.answers[request_id]
        if name == "sync":
            step, assigned = app.core.on_sync(response)  # type: ignore[arg-type]
            if step is Next.GO_ON:
                app.assigned = tuple(assigned)
            return
        assert isinstance(response, JoinGroupResponse)
        step = app.core.on_join(response)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            app.send("join", app.core.join_request(["t"], app.held), 9)
        elif step is Next.GO_ON:
            plan = None
            if app.core.is_leader(response):
                plan = assign_partitions(app.core.assignor, COUNTS, app.core.members_of(response, unexpected))
            before = len(self.driver.log)
            app.send("sync", app.core.sync_request(plan), 5)
            if plan is not None and len(self.driver.log) > before:
                names = {each.core.member_id: each.index for each in self.apps}
                self.owners = {
                    partition: names.get(member, -1) for member, parts in plan.items() for partition in parts
                }
        self.driver.pass_time(0)

    def lose_answer(self, index: int) -> None:
        """The answer to the open request of a member is lost; the member joins again."""
        app = self.apps[index]
        app.asked = None
        app.core.rejoin("an answer was lost")

    def beat(self, index: int) -> None:
        """A member sends a heartbeat, and obeys the answer."""
        app = self.apps[index]
        app.core.on_heartbeat(code_of(self.driver.ask(app.core.heartbeat_request(), 4)))

    def poll(self, index: int) -> None:
        """The application takes over the assignment that has arrived."""
        app = self.apps[index]
        app.core.take_over()
        app.held = app.assigned

    def commit(self, index: int) -> None:
        """The application commits what it holds."""
        app = self.apps[index]
        member = app.core.commits_as
        if member is None:
            return
        self.offset += 1
        generation, member_id = app.core.commit_generation(member), member[1]
        parts = [
            OffsetCommitRequestPartition(partition_index=each.partition, committed_offset=self.offset)
            for each in app.held
        ]
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(name="t", partitions=parts)],
        )
        if code_of(self.driver.ask(request, 9)) is ErrorCode.NONE:
            for partition in app.held:
                owner = self.owners.get(partition)
                assert owner == index, f"member {index} commits for {partition}, which member {owner} owns"

    def leave(self, index: int) -> None:
        """A member leaves in order; its application has given everything up."""
        app = self.apps[index]
        request = app.core.leave_request("done")
        app.core.end("done")
        app.held, app.assigned, app.asked = (), (), None
        if request is not None:
            self.driver.send(request, 4)
            self.driver.pass_time(0)

    def silence(self, index: int) -> None:
        """A session passes in which one member is silent, and the other one is not."""
        self.silences += 1
        other = self.apps[1 - index]
        for _ in range(3):
            self.driver.pass_time(SESSION_MS // 2)
            if other.core.has_generation:
                self.driver.ask(other.core.heartbeat_request(), 4)

    def fail_over(self) -> None:
        """Another coordinator loads the log."""
        self.failovers += 1
        self.driver.fail_over()
        for app in self.apps:
            if app.asked is not None and app.asked[1] not in self.driver.answers:
                self.lose_answer(app.index)

    def settle(self) -> None:
        """All disturbances end: both members hold one partition each, and can commit."""
        for _ in range(16):
            for app in self.apps:
                if app.asked is not None:
                    if app.asked[1] in self.driver.answers:
                        self.answer(app.index)
                elif app.core.state is MemberState.UNJOINED:
                    self.join(app.index)
                elif app.core.state is not MemberState.STABLE:
                    app.core.rejoin("no answer is awaited")
                else:
                    self.poll(app.index)
                    self.beat(app.index)
            self.driver.pass_time(2_000)
        for app in self.apps:
            assert app.core.commits_as is not None, f"member {app.index} cannot commit"
            assert len(app.held) == 1, f"member {app.index} holds {app.held}"
            self.commit(app.index)
        self.check()

    # --- rules

    def key(self) -> object:
        group = self.driver.core.rebalancer.groups.get(GROUP)
        names: dict[str, int] = {}

        def name(member_id: str | None) -> int:
            return names.setdefault(member_id or "", len(names))

        shape = None
        if group is not None:
            members = tuple(
                (name(key), each.is_new, each.join_request is None, each.sync_request is None)
                for key, each in group.members.items()
            )
            shape = (group.state, group.generation, name(group.leader_id), members, len(group.pending_members))
        apps = tuple(
            (
                *(name(app.core.member_id), app.core.state, app.core.generation, app.held, app.assigned),
                *(app.asked and (app.asked[0], app.asked[1] in self.driver.answers), app.core.commits_as is None),
                *(app.core.losses - app.core._taken_losses, app.core.losses - app.core._given_losses),
            )
            for app in self.apps
        )
        owners = tuple(sorted(self.owners.items()))
        return shape, apps, owners, self.joins, self.silences, self.failovers

    def check(self) -> None:
        first, second = self.apps
        stable = all(app.core.is_stable and not app.core.is_assignment_lost for app in self.apps)
        if stable and first.core.generation == second.core.generation:
            both = set(first.assigned) & set(second.assigned)
            assert not both, f"both members have {both}"


def stable_members() -> Members:
    """Returns a group whose two members hold a partition each."""
    world = Members()
    world.settle()
    world.joins = 0
    return world


def lost_member() -> Members:
    """Returns a group whose first member lost its partitions and has others, which its application has not polled."""
    world = stable_members()
    world.silence(0)
    for index in (1, 0):
        world.beat(index)
    for _ in range(8):
        for app in world.apps:
            if app.asked is not None and app.asked[1] in world.driver.answers:
                world.answer(app.index)
            elif app.asked is None and app.core.state is MemberState.UNJOINED:
                world.join(app.index)
            elif app.core.is_stable:
                world.beat(app.index)
    world.poll(1)
    world.joins = JOINS_MAX - 2
    return world


SCENES = (Members, stable_members, lost_member)
