"""Goal: a plan moves no more replicas than balance needs, and errors name a damaged plan.

Method: properties over random placements; hand-made files.
"""

import json
from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau_cli.errors import UsageError
from moldau_cli.plans.crowding import Place, Places
from moldau_cli.plans.reassignment import _level, parse_plan, plan_document, plan_moves

placements = st.integers(1, 6).flatmap(
    lambda brokers: st.lists(
        st.permutations(range(1, brokers + 1)).flatmap(
            lambda order: st.integers(1, min(3, len(order))).map(lambda count: list(order[:count]))
        ),
        max_size=12,
    )
)


@example([[1, 2, 3], [1, 2, 3], [4], [4], [4]], {1, 2, 4})
@given(placements, st.sets(st.integers(1, 9), min_size=3, max_size=6))
def test_a_plan_keeps_the_factor_and_spreads_evenly(replicas: list[list[int]], targets: set[int]) -> None:
    """A plan keeps the replication factor, spreads evenly, and uses only the given brokers."""
    current = {("t", number): found for number, found in enumerate(replicas)}
    moves = plan_moves(current, sorted(targets))
    after = {**current, **moves}
    load = dict.fromkeys(sorted(targets), 0)
    for where, chosen in after.items():
        assert len(chosen) == len(set(chosen)) == len(current[where])
        for broker in chosen:
            load[broker] += 1
    total = sum(load.values())
    assert max(load.values()) <= -(-total // len(load))
    assert min(load.values()) >= total // len(load)
    assert all(moves[where] != current[where] for where in moves)
    assert parse_plan(json.dumps(plan_document(moves)), "plan") == moves


def test_a_balanced_assignment_stays() -> None:
    current = {("t", 0): [1, 2], ("t", 1): [2, 3], ("t", 2): [3, 1]}
    assert plan_moves(current, [1, 2, 3]) == {}
    assert plan_moves({("t", 0): [1, 4]}, [1, 2, 3]) == {("t", 0): [1, 2]}


def test_a_plan_for_many_partitions_looks_at_each_a_few_times() -> None:
    """Each move looked at all of them again: 20,000 took a minute, and 100,000 would have taken half an hour."""
    looks = 0

    class Counted(dict[tuple[str, int], list[int]]):
        def __getitem__(self, where: tuple[str, int]) -> list[int]:
            nonlocal looks
            looks += 1
            return super().__getitem__(where)

        def items(self) -> Any:
            nonlocal looks
            looks += len(self)
            return super().items()

    count = 2_000
    kept = Counted({("t", number): [1, 2 + number % 2] for number in range(count)})
    load = {1: count, 2: count // 2, 3: count // 2, 4: 0}
    _level(kept, load, Places({}))
    assert max(load.values()) - min(load.values()) <= 1
    assert looks < 10 * count


def test_too_few_brokers_and_damaged_plans_are_named() -> None:
    with pytest.raises(UsageError, match="t-0 has 3 replicas, but only 2 brokers are given"):
        plan_moves({("t", 0): [1, 2, 3]}, [1, 2])
    for text, said in (
        ("{", "is not JSON"),
        ("[" * 5000, "is not JSON: maximum recursion depth"),
        ("[]", 'must hold "version": 1'),
        ('{"version": 2, "partitions": []}', 'must hold "version": 1'),
        ('{"version": 1, "partitions": [{"topic": "t"}]}', "expected topic, partition and different replicas"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "different replicas"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "different replicas"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [-1]}]}', "different replicas"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_plan(text, "plan.json")


def test_a_plan_has_nothing_that_is_left_out() -> None:
    """The last entry of a partition counted alone, and log directories of Kafka's files were ignored."""

    def plan(*entries: dict[str, object]) -> str:
        return json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, **one} for one in entries]})

    with pytest.raises(UsageError, match=r"^plan\.json: t-0 is there twice$"):
        parse_plan(plan({"replicas": [1]}, {"replicas": [2]}), "plan.json")
    with pytest.raises(UsageError, match=r"t-0 names log_dirs, .* moldau logdirs move does that"):
        parse_plan(plan({"replicas": [1], "log_dirs": ["/d1"]}), "plan.json")
    assert parse_plan(plan({"replicas": [1, 2], "log_dirs": ["any", "any"]}), "plan.json") == {("t", 0): [1, 2]}


def test_a_plan_with_any_directory_is_refused() -> None:
    """Kafka's tool would move that replica to the directory; a plan that leaves it out reports success."""
    for count in (1, 2, 3):
        for named in product(["any", "/d1"], repeat=count):
            entry = {"topic": "t", "partition": 0, "replicas": list(range(count)), "log_dirs": named}
            text = json.dumps({"version": 1, "partitions": [entry]})
            if "/d1" in named:
                with pytest.raises(UsageError, match="t-0 names log_dirs"):
                    parse_plan(text, "plan.json")
            else:
                assert parse_plan(text, "plan.json") == {("t", 0): list(range(count))}


def test_replicas_leave_a_machine_that_they_share() -> None:
    """Four brokers on two machines: a plan separates replicas of one partition, and keeps what is apart."""
    places = Places({node: Place(machine=f"m{node % 2}") for node in (1, 2, 3, 4)})
    current = {("t", 0): [1, 3], ("t", 1): [2, 4], ("t", 2): [1, 2], ("t", 3): [3, 4]}
    moves = plan_moves(current, [1, 2, 3, 4], places)
    after = {**current, **moves}
    assert all({broker % 2 for broker in replicas} == {0, 1} for replicas in after.values())
    load = Counter(broker for replicas in after.values() for broker in replicas)
    assert set(load.values()) == {2}
    assert all(len(set(current[where]) - set(after[where])) <= 1 for where in current)


@given(placements, st.integers(1, 3))
def test_a_plan_crowds_no_partition_more_than_before(replicas: list[list[int]], machines: int) -> None:
    places = Places({node: Place(machine=f"m{node % machines}", rack="r") for node in range(1, 7)})
    current = {("t", number): found for number, found in enumerate(replicas)}
    for where, chosen in plan_moves(current, list(range(1, 7)), places).items():
        assert places.crowding(chosen) <= places.crowding(current[where])
