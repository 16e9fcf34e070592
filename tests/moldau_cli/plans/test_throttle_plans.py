"""Goal: a throttle names the replicas that copy, all of them and no others. Method: properties of random moves."""

from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.plans.throttle import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    entries_of,
    involved_brokers,
    states,
    throttled_replicas,
)

replicas = st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True)
plans = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 11)), st.tuples(replicas, replicas, st.booleans())
)


@given(plans)
def test_exactly_the_copying_replicas_are_throttled(plan):
    """Entries of partition 1 are not mistaken for those of partition 11."""
    current = {where: held for where, (held, _, _) in plan.items()}
    moves = {where: targets for where, (_, targets, _) in plan.items()}
    found = throttled_replicas(current, moves)
    for (topic, partition), targets in moves.items():
        new = [broker for broker in targets if broker not in current[topic, partition]]
        lists = found.get(topic, {LEADER_REPLICAS: [], FOLLOWER_REPLICAS: []})
        followers = entries_of(",".join(lists[FOLLOWER_REPLICAS]), [partition])
        assert followers == [f"{partition}:{broker}" for broker in new]
        leaders = entries_of(",".join(lists[LEADER_REPLICAS]), [partition])
        assert leaders == [f"{partition}:{broker}" for broker in current[topic, partition] if new]
        assert set(new) <= set(involved_brokers(current, moves))


@given(plans)
def test_a_plan_is_done_when_each_partition_has_its_replicas(plan):
    current = {where: held for where, (held, _, _) in plan.items()}
    moves = {where: targets for where, (_, targets, _) in plan.items()}
    moving = {where for where, (_, _, moves_now) in plan.items() if moves_now}
    for where, state in states(current, moves, moving).items():
        assert (state == "moving") == (where in moving)
        assert state != "gone"
        assert state != "done" or current[where] == moves[where]
        assert state != "different" or current[where] != moves[where]
    assert set(states({}, moves, ()).values()) <= {"gone"}
    assert entries_of("*", [0]) == entries_of("", [0]) == []
