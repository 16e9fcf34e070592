"""A small streams group (KIP-1071): two members, one topic of two partitions, and a coordinator that may fail over.

The members are those of the random campaign (``support.coordinator.streams_world``), and so are the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, Subtopology, Topology
from moldau_broker.coordinator.group.streams.core.state import EMPTY_TASKS
from support.coordinator.group_world import code_of, commit_request
from support.coordinator.streams_world import GROUP, SESSION_MS, Campaign, StreamsClient, streams_driver

if TYPE_CHECKING:
    from support.histories.explorer import Action

FAILOVERS_MAX = 1
PAUSES_MAX = 2
BEATS_MAX = 7


class StreamsGroupHistory(Campaign):
    """The world; a campaign whose steps are named instead of drawn."""

    def __init__(self) -> None:
        self.driver = streams_driver(auto_commit=False, t=2)
        topology = Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="0", source_topics=["t"])])
        self.clients = [StreamsClient(self.driver, name, topology) for name in ("m1", "m2")]
        self.zombies: list[StreamsClient] = []
        self.highest_epoch = 0
        self.beats = self.failovers = self.pauses = 0
        self.former = [0, 0]
        """The epoch of each member before the present one."""

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = []
        for index, client in enumerate(self.clients):
            if client.last is None and self.beats < BEATS_MAX:
                found.append(("send", index))
            if client.last is not None and client.last in self.driver.answers:
                found += [("hear", index, False), ("hear", index, True)]
            if client.running != client.given:
                found.append(("follow", index))
            if self.former[index] > 0:
                found += [("late_commit", index, 0), ("late_commit", index, 1)]
            if client.last is None and client.epoch > 0:
                found.append(("depart", index))
        if self.driver.uncommitted:
            found += [("write_log",), ("refuse",)]
        if self.failovers < FAILOVERS_MAX:
            found += [("lose_coordinator", False), ("lose_coordinator", True)]
        if self.pauses < PAUSES_MAX:
            found.append(("silence",))
        return found

    def send(self, index: int) -> None:
        """A member sends a heartbeat."""
        self.beats += 1
        self.clients[index].send()

    def hear(self, index: int, lost: bool) -> None:
        """A member takes the answer to its heartbeat, or loses it."""
        client = self.clients[index]
        before = client.epoch
        client.take(lost=lost)
        if client.epoch != before and before > 0:
            self.former[index] = before

    def follow(self, index: int) -> None:
        """A member does what the last answer asked for."""
        self.clients[index].obey()

    def late_commit(self, index: int, partition: int) -> None:
        """A commit of the epoch before arrives: it is taken only if the member has had the task since then."""
        client = self.clients[index]
        latest = self.driver.core.streams.latest(GROUP)
        member = None if latest is None else latest.members.get(client.member_id)
        request = commit_request(7, client.member_id, self.former[index], group=GROUP, partition=partition)
        answer = self.driver.answers.get(self.driver.send(request, 9))
        if answer is not None and code_of(answer) is not ErrorCode.NONE:
            return
        if latest is None or not latest.members:
            return  # the id belongs to no group with members, and the sender is not checked
        assert member is not None, f"{client.member_id} commits, and is no member"
        since = member.epoch if member.epoch == self.former[index] else member.since.get(("0", partition))
        had = since is not None and since <= self.former[index]
        assert had, f"{client.member_id} commits partition {partition} in epoch {self.former[index]}"

    def depart(self, index: int) -> None:
        """A member leaves."""
        client = self.clients[index]
        client.running = client.given = EMPTY_TASKS
        self.driver.send(StreamsGroupHeartbeatRequest(group_id=GROUP, member_id=client.member_id, member_epoch=-1), 1)
        client.epoch = 0

    def write_log(self) -> None:
        """The oldest write is committed."""
        append = self.driver.uncommitted.pop(0)
        self.driver.log.append(append)
        self.driver.perform(self.driver.core.committed(append.append_id, self.driver.moment()))

    def refuse(self) -> None:
        """The log refuses the oldest write."""
        self.driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)

    def lose_coordinator(self, kept: bool) -> None:
        """Another coordinator loads the log; with ``kept`` it finds what was not known to be committed."""
        self.failovers += 1
        if kept:
            self.driver.log += self.driver.uncommitted
        self.driver.fail_over()
        for client in self.clients:
            if client.last is not None and client.last not in self.driver.answers:
                client.last, client.sends_all = None, True

    def silence(self) -> None:
        """A session passes in which no member is heard."""
        self.pauses += 1
        self.driver.pass_time(SESSION_MS)

    def settle(self) -> None:
        """All disturbances end: each task runs on one member."""
        self.driver.auto_commit = True
        self.driver.commit()
        for _ in range(2 * SESSION_MS // 5_000 + 6):
            self.driver.pass_time(5_000)
            for client in self.clients:
                client.take()
                before = client.running
                client.beat()
                if client.running != before:
                    client.beat()  # real clients report closed tasks at once
            self.check()
        tasks = sorted(task for client in self.clients for task in client.running.active)
        assert tasks == [("0", 0), ("0", 1)], f"the members run {tasks} in the end"
        assert all(len(client.running.active) == 1 for client in self.clients), "the tasks are not shared"

    # --- rules

    def key(self) -> object:
        core = self.driver.core.streams
        shapes: list[object] = []
        for group in (core.get(GROUP), core.latest(GROUP)):
            if group is None:
                shapes.append(None)
                continue
            members = tuple(
                (
                    key,
                    each.epoch,
                    each.previous_epoch,
                    each.assigned,
                    each.revoking,
                    each.state,
                    tuple(each.since.items()),
                )
                for key, each in group.members.items()
            )
            targets = tuple(sorted(group.targets.items(), key=lambda item: item[0]))
            shapes.append((group.epoch, group.assignment_epoch, members, targets))
        clients = tuple(
            (each.epoch, each.running, each.given, each.sends_all, each.last is None, each.last in self.driver.answers)
            for each in self.clients
        )
        answers = tuple(
            repr(self.driver.answers[each.last])
            for each in self.clients
            if each.last is not None and each.last in self.driver.answers
        )
        waiting = tuple(each.records for each in self.driver.uncommitted)
        return (
            *(tuple(shapes), clients, answers, waiting, tuple(self.former)),
            *(self.beats, self.failovers, self.pauses),
        )


def _begun(*beats: int) -> StreamsGroupHistory:
    """Returns a group whose members have sent heartbeats in this order."""
    world = StreamsGroupHistory()
    world.driver.auto_commit = True
    for index in beats:
        client = world.clients[index]
        before = client.epoch
        client.beat()
        if client.epoch != before and before > 0:
            world.former[index] = before
    world.driver.auto_commit = False
    return world


def stable_pair() -> StreamsGroupHistory:
    """Returns a group whose two members run a task each."""
    return _begun(0, 1, 0, 1, 0, 1)


def joining_pair() -> StreamsGroupHistory:
    """Returns a group whose first member runs both tasks, and whose second one has just joined."""
    return _begun(0, 0, 1)


def releasing_pair() -> StreamsGroupHistory:
    """Returns a group whose first member is about to hear that it must close a task for the second one."""
    world = joining_pair()
    world.driver.auto_commit = True
    world.clients[0].send()
    world.driver.auto_commit = False
    return world


SCENES = (StreamsGroupHistory, stable_pair, joining_pair, releasing_pair)
