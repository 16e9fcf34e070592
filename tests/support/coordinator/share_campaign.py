"""Seeded campaigns against the share coordinator and the share groups, with the rules that they check after each step.

Both break off with AssertionError at the first broken rule.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.share.core.config import ShareConfig
from moldau_broker.coordinator.share.core.requests import Initialize, Read, Write
from support.coordinator.group_world import CoreDriver
from support.coordinator.share_group_world import GROUP, alter, beat, delete_offsets
from support.coordinator.share_world import ShareDriver, key, write

if TYPE_CHECKING:
    from moldau.protocol.schema import Request
    from moldau_broker.coordinator.share.core.requests import Ask
    from moldau_broker.coordinator.share.core.state import SharePartitionKey

STEPS = 120
KEYS = (key(0), key(1))


class StateCampaign:
    """Leaders and group coordinators of two share-partitions, which ask the share coordinator at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = ShareDriver(
            ShareConfig(updates_per_snapshot=2, prune_interval_ms=2_000, cold_interval_ms=5_000), auto_commit=False
        )
        self.open: dict[int, tuple[SharePartitionKey, Ask]] = {}
        self.done: dict[SharePartitionKey, dict[int, tuple[int, int]]] = {each: {} for each in KEYS}
        """The acknowledgement of each offset: count and state of its delivery."""
        self.leader_epochs = dict.fromkeys(KEYS, -1)
        """The highest leader epoch that has read."""
        self.state_epochs = dict.fromkeys(KEYS, -1)
        """The epoch of the last acknowledged beginning."""
        self.asked_epochs = dict.fromkeys(KEYS, -1)
        """The highest epoch of a beginning that was asked for."""

    def run(self) -> None:
        acts = (self.begin, self.begin_again, self.write, self.write, self.write, self.read, self.commit, self.commit)
        for _ in range(STEPS):
            self.random.choice((*acts, self.pass_time, self.fail_over))()
            self.take_in()
            assert self.driver._new_core().states == self.driver.core.states, "replay differs from what is served"
        self.driver.commit()
        self.take_in()
        self.fail_over()
        self.check()

    def send(self, ask: Ask, where: SharePartitionKey | None = None) -> None:
        where = where or self.random.choice(KEYS)
        if isinstance(ask, Initialize):
            self.asked_epochs[where] = max(self.asked_epochs[where], ask.state_epoch)
        self.open[self.driver.send((where, ask))] = (where, ask)

    def begin(self) -> None:
        for where in KEYS:
            state = self.driver.core.states.get(where)
            epoch = 0 if state is None else state.state_epoch
            self.send(Initialize(state_epoch=epoch, start_offset=-1), where)

    def begin_again(self) -> None:
        """An administrator sets the offset of a share-partition, under a higher epoch."""
        if self.random.random() < 0.2:
            self.driver.commit()
            self.take_in()
            where = self.random.choice(KEYS)
            self.send(Initialize(state_epoch=self.state_epochs[where] + 2, start_offset=0), where)
            self.driver.commit()

    def write(self) -> None:
        where = self.random.choice(KEYS)
        first = self.random.randrange(8)
        batch = (first, first + self.random.randrange(3), self.random.choice((0, 2, 4)), self.random.randrange(1, 4))
        state_epoch = max(0, self.state_epochs[where] - self.random.choice((0, 0, 0, 1)))
        leader_epoch = self.leader_epochs[where] - self.random.choice((0, 0, 0, 1))
        self.send(write(batch, state_epoch=state_epoch, leader_epoch=max(-1, leader_epoch)), where)

    def read(self) -> None:
        where = self.random.choice(KEYS)
        self.send(Read(leader_epoch=self.leader_epochs[where] + self.random.choice((0, 1))), where)

    def commit(self) -> None:
        self.driver.commit(self.random.randrange(1, 4))

    def pass_time(self) -> None:
        self.driver.pass_time(self.random.choice((10, 900, 2_500)))

    def fail_over(self) -> None:
        self.driver.fail_over(keeps=self.random.random() < 0.5)
        self.take_in()
        self.check()

    def take_in(self) -> None:
        for request_id in sorted(self.open.keys() & self.driver.answers.keys()):
            where, ask = self.open.pop(request_id)
            (code,) = self.driver.codes(request_id)
            if code is ErrorCode.FENCED_STATE_EPOCH and isinstance(ask, Write):
                assert ask.state_epoch < self.asked_epochs[where], "a leader may not write the state that it has read"
            if code is not ErrorCode.NONE:
                continue
            if isinstance(ask, Read):
                self.leader_epochs[where] = max(self.leader_epochs[where], ask.leader_epoch)
            elif isinstance(ask, Initialize):
                if ask.start_offset >= 0:
                    self.done[where] = {}
                self.state_epochs[where] = max(self.state_epochs[where], ask.state_epoch)
            elif isinstance(ask, Write):
                self.acknowledged(where, ask)

    def acknowledged(self, where: SharePartitionKey, ask: Write) -> None:
        assert ask.state_epoch >= self.state_epochs[where], "a write of an older state was taken"
        assert ask.leader_epoch in (-1, *range(self.leader_epochs[where], 1_000)), "a write of an old leader was taken"
        for batch in ask.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                said = (batch.delivery_count, batch.delivery_state)
                self.done[where][offset] = max(said, self.done[where].get(offset, said))

    def check(self) -> None:
        for where, offsets in self.done.items():
            state = self.driver.core.states.get(where)
            if state is None:
                assert not offsets, "an acknowledged state is gone"
                continue
            known = {
                offset: (batch.delivery_count, batch.delivery_state)
                for batch in state.batches
                for offset in range(batch.first_offset, batch.last_offset + 1)
            }
            for offset, said in offsets.items():
                assert known.get(offset, (-1, -1)) >= said, "an acknowledged delivery is forgotten"


class GroupCampaign:
    """Members and administrators of one share group, and consumers that want its id."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = CoreDriver(GroupConfig(share_session_timeout_ms=6_000), auto_commit=False)
        self.driver.topics.counts.update({"t": 3, "u": 2})
        self.epochs: dict[str, int] = {}
        self.open: dict[int, Request] = {}
        self.silent_ms: dict[str, int] = {}
        """When each member was heard last."""

    def run(self) -> None:
        acts = (self.beat, self.beat, self.beat, self.leave, self.answer, self.answer, self.commit, self.commit)
        rare = (self.administrate, self.consume, self.fail_over, self.pass_time, self.refuse, self.change_topics)
        for _ in range(STEPS):
            self.random.choice((*acts, *acts, *rare))()
            self.take_in()
            self.check()
        self.end()

    def send(self, request: Request) -> None:
        self.open[self.driver.send(request, request.__versions__.last)] = request

    def beat(self) -> None:
        name = self.random.choice("abc")
        epoch = self.epochs.get(name, 0)
        topics = self.random.choice((("t",), ("t", "u"))) if epoch == 0 or self.random.random() < 0.1 else None
        self.silent_ms[name] = self.driver.now_ms
        self.send(beat(name, epoch, topics))

    def leave(self) -> None:
        name = self.random.choice("abc")
        if self.random.random() < 0.3 and self.epochs.get(name, 0) > 0:
            self.send(beat(name, -1))

    def answer(self) -> None:
        codes = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.driver.answer_questions(self.random.choice(codes))

    def commit(self) -> None:
        self.driver.commit()

    def administrate(self) -> None:
        delete = DeleteGroupsRequest(groups_names=[GROUP])
        if self.random.random() < 0.3:
            if self.driver.core.shares.has(GROUP):
                self.send(delete)
        else:
            self.send(self.random.choice((alter(("t", 0, 5), ("u", 1, 1)), delete_offsets("t"))))

    def consume(self) -> None:
        """A member of the consumer protocol wants the id of the group."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="x",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        if self.driver.core.shares.has(GROUP):
            self.send(request)

    def fail_over(self) -> None:
        self.driver.fail_over()
        self.silent_ms = dict.fromkeys(self.silent_ms, self.driver.now_ms)
        assert not self.open.keys() - self.driver.answers.keys(), "a request was left without an answer"

    def pass_time(self) -> None:
        self.driver.pass_time(self.random.choice((10, 1_500, 4_000)))

    def refuse(self) -> None:
        if self.driver.uncommitted:
            self.driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)

    def change_topics(self) -> None:
        if self.random.random() < 0.5:
            self.driver.topics.counts["t"] = min(5, self.driver.topics.counts["t"] + 1)
        else:
            self.driver.delete_topic("u", made_again=True)

    def take_in(self) -> None:
        for request_id in sorted(self.open.keys() & self.driver.answers.keys()):
            request, answer = self.open.pop(request_id), self.driver.answers[request_id]
            member = getattr(request, "member_id", "")
            if not member or member == "x":
                continue
            code = answer.error_code  # type: ignore[attr-defined]
            if code == ErrorCode.NONE:
                self.epochs[member] = max(0, answer.member_epoch)  # type: ignore[attr-defined]
            elif code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                self.epochs[member] = 0

    def check(self) -> None:
        """Checks what holds at each moment of the committed log."""
        core = self.driver.core
        assert self.driver._new_core().shares.committed == core.shares.committed, "replay differs from what is served"
        assert not (core.shares.get(GROUP) and core.consumers.get(GROUP)), "an id belongs to two groups"
        group = core.shares.get(GROUP)
        if group is None:
            return
        begun = {(topic, n) for topic, state in group.states.initialized.items() for n in state.partitions}
        living = set(self.driver.topics.ids.values())
        assert group.targets.keys() <= group.members.keys(), "a member that has left keeps its target"
        assert group.assignment_epoch <= group.epoch
        if group.assignment_epoch == group.epoch and group.members:
            for target in group.targets.values():
                assert {each for each in target if each[0] in living} <= begun, "assigned before its state began"

    def end(self) -> None:
        """When all is quiet, members that are heard share all partitions, and silent ones are gone."""
        self.driver.auto_commit = True
        self.driver.commit()
        self.driver.answer_questions()
        self.take_in()
        for turn in range(12):
            if turn == 6:
                self.driver.topics.counts["t"] += 1  # the only change from here on
            self.driver.pass_time(2_000)
            for name in "ab":
                self.send(beat(name, self.epochs.get(name, 0), ("t", "u")))
                self.take_in()
        assert not self.open, "a request was left without an answer"
        if self.driver.core.shares.get(GROUP) is None:
            return
        group = self.driver.core.shares.committed[GROUP]
        assert set(group.members) == {"a", "b"}, "a silent member is kept"
        counts = self.driver.topics.counts
        wanted = {(self.driver.topics.ids[name], n) for name in ("t", "u") for n in range(counts.get(name, 10))}
        assert {each for member in group.members.values() for each in member.assigned} == wanted
        sizes = [len(member.assigned) for member in group.members.values()]
        assert max(sizes) - min(sizes) <= 1


def run_states(seeds: range) -> None:
    """Runs the campaign against the share coordinator with these seeds."""
    for seed in seeds:
        StateCampaign(seed).run()


def run_groups(seeds: range) -> None:
    """Runs the campaign against the share groups with these seeds."""
    for seed in seeds:
        GroupCampaign(seed).run()
