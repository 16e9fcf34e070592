"""The assignor ``sticky`` of streams groups, with the rules of Kafka's StickyTaskAssignor. Pure.

Active tasks first go back to the member that had them, then to the least loaded member that had them as standby, as far
as its share of all active tasks allows. The rest goes to the least loaded process, and there to the least loaded
member. Standby tasks of stateful subtopologies follow in the same manner, but never to a process that has the task. The
load of a process is the number of its tasks by the number of its members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.streams.core.state import EMPTY_TASKS, TaskSets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau_broker.coordinator.group.streams.core.internal_topics import ConfiguredSubtopology
    from moldau_broker.coordinator.group.streams.core.topology import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A member as the assignor sees it; ``previous`` is its last target assignment."""

    member_id: str
    process_id: str
    previous: TaskSets = EMPTY_TASKS


@dataclass(slots=True)
class _Member:
    member_id: str
    process: _Process
    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.active) + len(self.standby)


@dataclass(slots=True)
class _Process:
    process_id: str
    members: list[_Member] = field(default_factory=list)
    tasks: set[Task] = field(default_factory=set)

    @property
    def load(self) -> float:
        return len(self.tasks) / len(self.members)


@dataclass(slots=True)
class _Quota:
    """The share of tasks that a member may get; it is computed again whenever a member has reached it."""

    tasks: int
    members: int

    @property
    def share(self) -> int:
        return -(-self.tasks // self.members) if self.members else 0

    def took(self, count: int) -> None:
        """Notes that a member has ``count`` tasks now."""
        if count == self.share:
            self.tasks -= count
            self.members -= 1


class _Assignment:
    def __init__(
        self, workers: Sequence[Worker], subtopologies: Sequence[ConfiguredSubtopology], standby_replicas: int
    ) -> None:
        self._replicas = standby_replicas
        self._processes: dict[str, _Process] = {}
        self.members: dict[str, _Member] = {}
        self._had_active: dict[Task, _Member] = {}
        self._had_standby: dict[Task, list[_Member]] = {}
        for worker in sorted(workers, key=lambda each: each.member_id):
            process = self._processes.setdefault(worker.process_id, _Process(worker.process_id))
            member = self.members[worker.member_id] = _Member(worker.member_id, process)
            process.members.append(member)
            for task in sorted(worker.previous.active):
                self._had_active[task] = member
            for task in sorted(worker.previous.standby):
                self._had_standby.setdefault(task, []).append(member)
        self._active = [(part.subtopology_id, n) for part in subtopologies for n in range(part.tasks)]
        self._stateful = [
            (part.subtopology_id, n) for part in subtopologies if part.is_stateful for n in range(part.tasks)
        ]
        self._active_quota = _Quota(len(self._active), len(workers))
        self._quota = _Quota(len(self._active) + standby_replicas * len(self._stateful), len(workers))

    def run(self) -> None:
        if not self.members:
            return
        self._assign_active()
        if self._replicas:
            self._assign_standby()

    # Active tasks

    def _assign_active(self) -> None:
        rest = sorted(self._active, key=lambda task: (task[1], task[0]))
        rest = [task for task in rest if not self._returned(task, self._had_active.get(task))]
        rest = [task for task in rest if not self._returned(task, _least_loaded(self._had_standby.get(task, ())))]
        by_load = self._by_load()
        for task in sorted(rest):
            _, process_id = heappop(by_load)
            process = self._processes[process_id]
            self._give_active(min(process.members, key=lambda each: (each.count, each.member_id)), task)
            heappush(by_load, (process.load, process_id))

    def _returned(self, task: Task, member: _Member | None) -> bool:
        if member is None or member.count >= self._active_quota.share:
            return False
        self._give_active(member, task)
        return True

    def _give_active(self, member: _Member, task: Task) -> None:
        member.active.add(task)
        member.process.tasks.add(task)
        self._active_quota.took(member.count)
        self._quota.took(member.count)

    def _by_load(self) -> list[tuple[float, str]]:
        found = [(process.load, process.process_id) for process in self._processes.values()]
        heapify(found)
        return found

    # Standby tasks

    def _assign_standby(self) -> None:
        left: list[tuple[Task, int]] = []
        for task in sorted(self._stateful, key=lambda each: (each[1], each[0]), reverse=True):
            for done in range(self._replicas):
                if not self._returned_standby(task):
                    left.append((task, self._replicas - done))
                    break
        by_load = self._by_load()
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._to_least_loaded(by_load, task):
                    break  # all processes have the task: there is no use for more copies

    def _returned_standby(self, task: Task) -> bool:
        for member in (self._had_active.get(task), _least_loaded(self._had_standby.get(task, ()), task)):
            if member is not None and task not in member.process.tasks and member.count < self._quota.share:
                self._give_standby(member, task)
                return True
        return False

    def _to_least_loaded(self, by_load: list[tuple[float, str]], task: Task) -> bool:
        passed: list[tuple[float, str]] = []
        found = False
        while by_load and not found:
            load, process_id = heappop(by_load)
            process = self._processes[process_id]
            found = task not in process.tasks
            if found:
                self._give_standby(min(process.members, key=lambda each: (each.count, each.member_id)), task)
                load = process.load
            passed.append((load, process_id))
        for each in passed:
            heappush(by_load, each)
        return found

    def _give_standby(self, member: _Member, task: Task) -> None:
        member.standby.add(task)
        member.process.tasks.add(task)
        self._quota.took(member.count)


def _least_loaded(members: Iterable[_Member], task: Task | None = None) -> _Member | None:
    """Returns the least loaded member of the least loaded process, of those processes that lack the task."""
    free = [member for member in members if task is None or task not in member.process.tasks]
    return min(free, key=lambda each: (each.process.load, each.count), default=None)


def sticky_assignor(
    workers: Sequence[Worker], subtopologies: Iterable[ConfiguredSubtopology], standby_replicas: int
) -> Mapping[str, TaskSets]:
    """Returns the target assignment of each member.

    Args:
        workers: the members.
        subtopologies: the parts of the application.
        standby_replicas: the number of standby tasks for each task of a stateful subtopology.
    """
    parts = sorted(subtopologies, key=lambda part: part.subtopology_id)
    assignment = _Assignment(workers, parts, standby_replicas)
    assignment.run()
    return {
        member_id: TaskSets(active=frozenset(member.active), standby=frozenset(member.standby))
        for member_id, member in sorted(assignment.members.items())
    }
