"""Goal: a plan is carried out in bounded batches, and an interrupted one goes on where it stopped.

Method: a model of a cluster completes and cancels moves in any order; the decisions see only what it reports.
"""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau_cli.plans.balance.execution import RunningMove, next_step

BROKERS = range(1, 7)


class Model:
    """Replicas and moves, as a cluster reports them."""

    def __init__(self, replicas):
        self.replicas = dict(replicas)
        self.moves = {}

    def report(self):
        current, moving = {}, {}
        for where, replicas in self.replicas.items():
            if where in self.moves:
                wanted = self.moves[where]
                union = (*wanted, *(node for node in replicas if node not in wanted))
                current[where] = union
                moving[where] = RunningMove(
                    replicas=union,
                    adding=tuple(node for node in wanted if node not in replicas),
                    removing=tuple(node for node in replicas if node not in wanted),
                )
            else:
                current[where] = replicas
        return current, moving

    def start(self, where, wanted):
        assert where not in self.moves
        if set(wanted) <= set(self.replicas[where]):  # nothing to copy
            self.replicas[where] = tuple(wanted)
        else:
            self.moves[where] = tuple(wanted)

    def complete(self, where):
        self.replicas[where] = self.moves.pop(where)


replicas = st.permutations(list(BROKERS)).flatmap(lambda order: st.integers(1, 3).map(lambda n: tuple(order[:n])))


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(replicas, replicas), min_size=1, max_size=12),
    at_once=st.integers(1, 3),
    data=st.data(),
)
def test_every_plan_ends_within_its_bounds(pairs, at_once, data):
    """Moves complete in any order, some are cancelled by others: the plan is reached, never too much at once."""
    cluster = Model({("t", number): before for number, (before, _) in enumerate(pairs)})
    plan = {("t", number): wanted for number, (_, wanted) in enumerate(pairs)}
    for _ in range(200):
        step = next_step(plan, *cluster.report(), {}, at_once_max=at_once)
        groups = (step.done, step.running, step.elsewhere, step.waiting, step.gone)
        assert sorted(where for group in groups for where in group) == sorted(plan)
        assert set(step.start) <= set(step.waiting)
        for where in step.start:
            cluster.start(where, plan[where])
        _, moving = cluster.report()
        for node in BROKERS:
            assert sum(node in move.adding for move in moving.values()) <= at_once
            assert sum(node in move.removing for move in moving.values()) <= at_once
        if step.is_over:
            break
        assert cluster.moves or step.start, "a plan never waits for nothing"
        for where in sorted(cluster.moves):
            match data.draw(st.sampled_from(["completes", "goes on", "completes", "is cancelled"])):
                case "completes":
                    cluster.complete(where)
                case "is cancelled":
                    del cluster.moves[where]
    else:
        raise AssertionError("the plan did not end")
    assert cluster.replicas == plan


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(replicas, replicas), min_size=1, max_size=8),
    others=st.lists(st.tuples(replicas, replicas), max_size=4),
    at_once=st.integers(1, 3),
)
def test_moves_of_other_plans_count_too(pairs, others, at_once):
    """No copy is added for a broker that copies enough for others: the bound is what its disk and network bear."""
    cluster = Model({("t", number): before for number, (before, _) in enumerate(pairs)})
    cluster.replicas |= {("other", number): before for number, (before, _) in enumerate(others)}
    plan = {("t", number): wanted for number, (_, wanted) in enumerate(pairs)}
    for number, (_, wanted) in enumerate(others):
        cluster.start(("other", number), wanted)
    _, before = cluster.report()
    for where in next_step(plan, *cluster.report(), {}, at_once_max=at_once).start:
        cluster.start(where, plan[where])
    _, after = cluster.report()
    for side, node in product(("adding", "removing"), BROKERS):
        first, then = (sum(node in getattr(move, side) for move in moves.values()) for moves in (before, after))
        assert then <= max(first, at_once)


def test_the_largest_starts_first_and_orders_at_once():
    plan = {("t", 0): (2,), ("t", 1): (2,), ("t", 2): (2, 1)}
    current = {("t", 0): (1,), ("t", 1): (1,), ("t", 2): (1, 2)}
    step = next_step(plan, current, {}, {("t", 1): 100, ("t", 0): 1}, at_once_max=1)
    assert set(step.start) == {("t", 1), ("t", 2)}


def test_other_moves_are_waited_for_and_topics_may_go():
    plan = {("t", 0): (2,), ("gone", 0): (1,)}
    other = RunningMove(replicas=(3, 1), adding=(3,), removing=(1,))
    step = next_step(plan, {("t", 0): (3, 1)}, {("t", 0): other}, {}, at_once_max=1)
    assert step.elsewhere == (("t", 0),)
    assert step.gone == (("gone", 0),)
    assert not step.is_over
    assert next_step(plan, {("t", 0): (2,)}, {}, {}, at_once_max=1).is_over


def test_as_many_moves_start_as_may_run_at_once() -> None:
    """Three partitions go to one broker, or leave one, two at a time."""
    for before, wanted in (([1, 2, 3], [4, 4, 4]), ([4, 4, 4], [1, 2, 3])):
        current = {("t", number): (node,) for number, node in enumerate(before)}
        plan = {("t", number): (node,) for number, node in enumerate(wanted)}
        assert next_step(plan, current, {}, {}, at_once_max=2).start == (("t", 0), ("t", 1))
