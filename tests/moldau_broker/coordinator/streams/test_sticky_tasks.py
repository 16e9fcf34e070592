"""Goal: the sticky assignor of streams groups balances tasks over processes, and keeps each task where it was.

Method: the pure assignor on a few processes whose load can be counted by hand (KIP-1071, Kafka's StickyTaskAssignor).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau_broker.coordinator.group.streams.core.assignor import Worker, sticky_assignor
from moldau_broker.coordinator.group.streams.core.internal_topics import ConfiguredSubtopology
from moldau_broker.coordinator.group.streams.core.state import EMPTY_TASKS, TaskSets
from moldau_broker.coordinator.group.streams.core.topology import InternalTopic

if TYPE_CHECKING:
    from collections.abc import Mapping


def stateful(tasks: int) -> ConfiguredSubtopology:
    """Returns a subtopology with a store."""
    return ConfiguredSubtopology(
        subtopology_id="0",
        tasks=tasks,
        sources=("t",),
        repartition_sources=(),
        repartition_sinks=(),
        changelogs=(InternalTopic(name="counts", partitions=tasks),),
    )


def assigned(members: Mapping[str, TaskSets], tasks: int, standbys: int) -> Mapping[str, TaskSets]:
    """Assigns to members with a process each; the values are their previous tasks."""
    workers = [Worker(member_id=name, process_id=f"p-{name}", previous=had) for name, had in members.items()]
    return sticky_assignor(workers, [stateful(tasks)], standbys)


@pytest.mark.parametrize("standbys", [1, 2])
def test_standby_tasks_go_to_the_least_loaded_process(standbys: int) -> None:
    found = assigned(dict.fromkeys("abc", EMPTY_TASKS), 6, standbys)
    assert [(len(each.active), len(each.standby)) for each in found.values()] == [(2, 2 * standbys)] * 3
    assert not any(each.active & each.standby for each in found.values())


def test_a_new_process_takes_standby_tasks_of_the_others() -> None:
    """Each process keeps its share; the new one gets as many tasks as the others."""
    before = assigned(dict.fromkeys("ab", EMPTY_TASKS), 6, 1)
    after = assigned({**before, "c": EMPTY_TASKS}, 6, 1)
    assert [len(each.active) + len(each.standby) for each in after.values()] == [4, 4, 4]
    for name, had in before.items():
        assert after[name].active <= had.active
        assert after[name].standby <= had.active | had.standby
