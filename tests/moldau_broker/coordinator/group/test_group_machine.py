"""Goal: under any order of requests, time, commits and failovers the rules of a group hold.

Method: a Hypothesis state machine drives several consumers against the core. It commits, delays or refuses writes, and
replaces the core. Checked after every step: a partition has one owner per generation; generations never decrease, have
one assignment each, and a leader that has joined; acknowledged offsets are never lost; each request is answered at most
once, and in the end exactly once.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.offset_commit import OffsetCommitResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.group import GroupState
from support.coordinator.group_world import Consumer, CoreDriver, commit_request
from support.proof import examples

CONSUMERS = 4
WHO = st.integers(0, CONSUMERS - 1)


class GroupMachine(RuleBasedStateMachine):
    """Consumers 0 and 1 are dynamic, 2 and 3 static members."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = CoreDriver(GroupConfig(initial_rebalance_delay_ms=500), auto_commit=False)
        self.consumers = [Consumer(self.driver, instance=None if i < 2 else f"i{i}") for i in range(CONSUMERS)]
        self.owners: dict[bytes, str] = {}
        self.syncs: dict[int, str] = {}
        self.generation_seen = 0
        self.commits: dict[int, int] = {}
        self.acknowledged = -1
        self.next_offset = 0

    @initialize(rebalance_ms=st.sampled_from([60_000, 2_000]))
    def begin(self, rebalance_ms: int) -> None:
        self.rebalance_ms = rebalance_ms  # with the shorter one, members that are away outlive join phases
        for consumer in self.consumers[:2]:
            consumer.join(rebalance_ms=rebalance_ms)

    @rule(who=WHO, version=st.sampled_from([3, 5, 9]))
    def join(self, who: int, version: int) -> None:
        self.consumers[who].join(version, rebalance_ms=self.rebalance_ms)
        self.take_in()

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        """Restarts a client, which keeps only its instance id."""
        self.consumers[who] = Consumer(self.driver, instance=self.consumers[who].instance)

    @rule(who=WHO)
    def sync(self, who: int) -> None:
        consumer = self.consumers[who]
        given = {member: f"{consumer.generation}/{index}".encode() for index, member in enumerate(consumer.members)}
        consumer.sync(given)
        assert consumer.sync_id is not None
        self.syncs[consumer.sync_id] = consumer.instance or consumer.member_id
        self.take_in()

    @rule(who=WHO)
    def heartbeat(self, who: int) -> None:
        if self.consumers[who].heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID:
            self.consumers[who].member_id = ""

    @rule(who=WHO)
    def commit_offset(self, who: int) -> None:
        consumer = self.consumers[who]
        request = commit_request(self.next_offset, consumer.member_id, consumer.generation, instance=consumer.instance)
        self.commits[self.driver.send(request, 9)] = self.next_offset
        self.next_offset += 1
        self.take_in()

    @rule(milliseconds=st.sampled_from([1, 400, 3_000, 9_000, 70_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.driver.pass_time(milliseconds)
        self.take_in()

    @rule()
    def commit_log(self) -> None:
        self.driver.commit()
        self.take_in()

    @precondition(lambda self: self.driver.uncommitted)
    @rule(code=st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE]))
    def refuse_write(self, code: ErrorCode) -> None:
        self.driver.refuse(code)
        self.take_in()

    @rule()
    def fail_over(self) -> None:
        self.driver.fail_over()
        assert set(self.driver.answers) == set(range(self.driver.request_count))
        self.take_in()
        self.generation_seen = 0

    @rule(who=st.sets(WHO, min_size=1))
    def rebalance(self, who: set[int]) -> None:
        """Takes some consumers through a whole generation, the usual case."""
        chosen = sorted(who)
        for index in chosen:
            self.join(index, 9)
        self.pass_time(3_000)
        for index in chosen:
            self.sync(index)
        self.commit_log()

    def take_in(self) -> None:
        """Delivers the answers to the clients."""
        for consumer in self.consumers:
            joined = consumer.joined()
            if joined is not None and joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                consumer.member_id = ""
            consumer.synced()
        for request_id, owner in list(self.syncs.items()):
            answer = self.driver.answers.get(request_id)
            if isinstance(answer, SyncGroupResponse):
                del self.syncs[request_id]
                if answer.error_code == ErrorCode.NONE and answer.assignment:
                    # The leader wrote its generation and a number, which represents a partition, into each assignment.
                    assert self.owners.setdefault(bytes(answer.assignment), owner) == owner
        for request_id, offset in list(self.commits.items()):
            answer = self.driver.answers.get(request_id)
            if isinstance(answer, OffsetCommitResponse):
                del self.commits[request_id]
                if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                    self.acknowledged = max(self.acknowledged, offset)

    @invariant()
    def group_is_sound(self) -> None:
        group = self.driver.core.membership.groups.get("g")
        if group is None:
            return
        assert group.generation >= self.generation_seen or group.generation == 0
        self.generation_seen = group.generation
        assert group.leader_id is None or group.leader_id in group.members
        assert (group.leader_id is None) == (not group.members)
        assert not set(group.pending_members) & set(group.members)
        assert all(group.members[member].group_instance_id == name for name, member in group.static_members.items())
        if group.state is GroupState.STABLE:
            assert group.members
            assert all(m.join_request is None and m.sync_request is None for m in group.members.values())
        if group.state is GroupState.EMPTY:
            assert not group.members
        members = group.members.values()
        assert group.awaiting_join == sum(member.join_request is not None for member in members)
        names = [name for member in members for name, _ in member.protocols]
        assert group.supporters == {name: names.count(name) for name in names}
        for member in members:
            assert member.join_request is None or member.sync_request is None
            waits = member.join_request is not None and not member.is_new
            deadline = self.driver.core.rebalancer.deadlines.get(("member", "g", member.member_id))
            assert waits or deadline is not None, "a member without a deadline would never expire"

    @invariant()
    def a_member_that_has_joined_leads(self) -> None:
        group = self.driver.core.membership.groups.get("g")
        if group is None or group.state is not GroupState.COMPLETING_REBALANCE:
            return
        joined = {
            (answer.generation_id, answer.member_id)
            for answer in self.driver.answers.values()
            if isinstance(answer, JoinGroupResponse) and answer.error_code == ErrorCode.NONE
        }
        assert (group.generation, group.leader_id) in joined, "no member that has joined leads the generation"

    @invariant()
    def acknowledged_offsets_are_kept(self) -> None:
        answer = self.driver.core.fetch(OffsetFetchRequestGroup(group_id="g", topics=None), False)
        offsets = [part.committed_offset for topic in answer.topics for part in topic.partitions]
        assert len(offsets) <= 1
        assert (offsets[0] if offsets else -1) >= self.acknowledged

    def teardown(self) -> None:
        self.driver.commit()
        self.driver.pass_time(700_000)
        self.driver.commit()
        self.driver.pass_time(700_000)
        assert set(self.driver.answers) == set(range(self.driver.request_count))


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
