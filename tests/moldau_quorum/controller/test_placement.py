"""Goal: replicas of a partition stand on different machines where there are enough. Method: properties of placements.

``test_topic_decisions.py`` has the properties of racks and of balance.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.values import BrokerId
from moldau_quorum.controller.placement import UsableBroker, place_replicas
from support.proof import examples


def group(machines: int, processes: int, down: frozenset[int] = frozenset()) -> list[UsableBroker]:
    """Returns the brokers of machines with as many processes each; all of a machine that is down are fenced."""
    return [
        UsableBroker(
            broker_id=BrokerId(100 * machine + process), machine=f"m{machine}", rack=None, fenced=machine in down
        )
        for machine in range(machines)
        for process in range(processes)
    ]


def machine(broker: int) -> int:
    return broker // 100


@settings(max_examples=examples(100), deadline=None)
@given(
    machines=st.integers(1, 5),
    processes=st.integers(1, 4),
    down=st.sets(st.integers(0, 4), max_size=3),
    factor=st.integers(1, 5),
    start=st.integers(0, 30),
)
def test_machines_are_shared_only_if_there_are_too_few(
    machines: int, processes: int, down: set[int], factor: int, start: int
) -> None:
    """Machines that are down count: they come back. No replica is on a second broker while a machine is unused."""
    down = {one for one in down if one < machines - 1}
    brokers = group(machines, processes, frozenset(down))
    factor = min(factor, len(brokers))
    placed = place_replicas(brokers, partitions=2 * len(brokers), replication_factor=factor, start=start)
    for replicas in placed:
        counts = Counter(machine(replica) for replica in replicas)
        assert len(counts) == min(factor, machines)
        assert max(counts.values()) - min(counts.values()) <= 1 or len(counts) < machines
        assert machine(replicas[0]) not in down, "a broker that serves leads"
        if factor <= machines - len(down):
            assert down.isdisjoint(counts), "a broker that is down holds nothing while others can"
    held = Counter(replica for replicas in placed for replica in replicas)
    if not down:
        assert max(held.values()) - min(held.values()) <= 1


def test_a_machine_that_restarts_gets_its_replica() -> None:
    """Two machines of four serve two brokers each: the third replica goes to a broker that is down, not to a twin."""
    placed = place_replicas(group(3, 2, frozenset([2])), partitions=4, replication_factor=3, start=0)
    assert all(sorted(machine(replica) for replica in replicas) == [0, 1, 2] for replicas in placed)


def test_machines_in_racks_keep_both_apart() -> None:
    """Two racks of two machines of two brokers: replicas use both racks, and never one machine twice."""
    brokers = [
        UsableBroker(broker_id=BrokerId(100 * number + process), machine=f"m{number}", rack=f"r{number % 2}")
        for number in range(4)
        for process in range(2)
    ]
    for replicas in place_replicas(brokers, partitions=16, replication_factor=3, start=1):
        assert len({machine(replica) for replica in replicas}) == 3
        assert {machine(replica) % 2 for replica in replicas} == {0, 1}
