"""A small consumer group (KIP-848): two members, two partitions, and a coordinator that may fail over.

The members are those of the random campaign (``support.coordinator.consumer_world``), and so are the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from support.coordinator.consumer_world import GROUP, SESSION_MS, Campaign, ConsumerClient
from support.coordinator.group_world import CoreDriver, code_of, commit_request

if TYPE_CHECKING:
    from support.histories.explorer import Action

FAILOVERS_MAX = 1
PAUSES_MAX = 2
BEATS_MAX = 7


class ConsumerGroup(Campaign):
    """The world; a campaign whose steps are named instead of drawn."""

    def __init__(self) -> None:
        self.driver: CoreDriver = self.start_driver()
        self.driver.topics.counts = {"t": 2, "u": 1}
        self.clients = [ConsumerClient(self.driver, "m1"), ConsumerClient(self.driver, "m2")]
        self.zombies: list[ConsumerClient] = []
        self.heard: dict[str, int] = {}
        self.highest_epoch = self.joined = 0
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
            if client.reading != client.given:
                found.append(("follow", index))
            if self.former[index] > 0:
                found.append(("late_commit", index))
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

    def late_commit(self, index: int) -> None:
        """A commit of the epoch before arrives."""
        client = self.clients[index]
        latest = self.driver.core.consumers.latest(GROUP)
        member = None if latest is None else latest.members.get(client.member_id)
        request = commit_request(7, client.member_id, self.former[index], group=GROUP)
        answer = self.driver.answers.get(self.driver.send(request, 9))
        if member is None or member.epoch != self.former[index]:
            assert answer is not None, f"{client.member_id} commits in the former epoch {self.former[index]}"
            assert code_of(answer) is not ErrorCode.NONE, f"{client.member_id} commits in a former epoch"

    def depart(self, index: int) -> None:
        """A member leaves."""
        client = self.clients[index]
        client.reading = client.given = frozenset()
        request = client.request()
        request.member_epoch = -1
        client.last = None
        self.driver.send(request, 1)
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

    def silence(self) -> None:
        """A session passes in which no member is heard."""
        self.pauses += 1
        self.driver.pass_time(SESSION_MS)

    def settle(self) -> None:
        """All disturbances end: each partition is read by one member."""
        self.finish()

    # --- rules

    def key(self) -> object:
        core = self.driver.core.consumers
        shapes: list[object] = []
        for group in (core.get(GROUP), core.latest(GROUP)):
            if group is None:
                shapes.append(None)
                continue
            members = tuple(
                (key, each.epoch, each.previous_epoch, each.assigned, each.revoking, each.state)
                for key, each in group.members.items()
            )
            targets = tuple(sorted(group.targets.items()))
            shapes.append((group.epoch, group.assignment_epoch, members, targets))
        clients = tuple(
            (each.epoch, each.reading, each.given, each.sends_all, each.last is None, each.last in self.driver.answers)
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


def stable_pair() -> ConsumerGroup:
    """Returns a group whose two members read a partition each."""
    world = ConsumerGroup()
    world.driver.auto_commit = True
    for _ in range(3):
        for index, client in enumerate(world.clients):
            before = client.epoch
            client.beat()
            if client.epoch != before and before > 0:
                world.former[index] = before
    world.driver.auto_commit = False
    return world


def joining_pair() -> ConsumerGroup:
    """Returns a group whose first member reads both partitions, and whose second one has just joined."""
    world = ConsumerGroup()
    world.driver.auto_commit = True
    for client in (world.clients[0], world.clients[0], world.clients[1]):
        client.beat()
    world.driver.auto_commit = False
    return world


def releasing_pair() -> ConsumerGroup:
    """Returns a group whose first member is about to hear that it must release a partition for the second one."""
    world = joining_pair()
    world.driver.auto_commit = True
    world.clients[0].send()
    world.driver.auto_commit = False
    return world


SCENES = (ConsumerGroup, stable_pair, joining_pair, releasing_pair)
