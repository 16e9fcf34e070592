"""Goal: the rules on the two high watermarks of a replica convict what they must, and nothing else.

Method: replicas and logs by hand for the rules; the observer's last look at leaders that are gone.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moldau_broker.replication.replica import Role
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants, PartitionKey
from moldau_jepsen.simulation.judge.observer import ClusterObserver
from moldau_jepsen.simulation.judge.rules.watermarks import WatermarkRules

KEY = PartitionKey("flights", 0, "id")


def compared(replicated, copied, *, start=2, end=9, failed=False):
    found = []
    log = SimpleNamespace(
        log_start_offset=start,
        log_end_offset=end,
        failed=failed,
        watermarks=SimpleNamespace(high_watermark=copied),
    )
    partition = SimpleNamespace(replica=SimpleNamespace(high_watermark=replicated), log=log)
    WatermarkRules(lambda rule, text: found.append(rule)).compare(KEY, 1, partition)
    return found


@pytest.mark.parametrize(("replicated", "copied"), [(2, 2), (5, 5), (9, 9), (0, 2), (12, 9)])
def test_the_logs_is_the_replicas_within_the_log(replicated, copied):
    assert compared(replicated, copied) == []


@pytest.mark.parametrize(("replicated", "copied"), [(5, 4), (5, 6), (5, 2), (5, 9), (0, 0), (9, 10)])
def test_any_difference_is_convicted(replicated, copied):
    assert compared(replicated, copied) == ["log-watermark"]


def test_the_log_of_a_failed_directory_is_left_out():
    assert compared(5, 4, failed=True) == []


def believed(watermark, known, last_known):
    found = []
    WatermarkRules(lambda rule, text: found.append(rule)).believed(KEY, 1, watermark, known, lambda: last_known)
    return found


def test_a_follower_believes_what_a_leader_had():
    assert believed(5, 5, 5) == []
    assert believed(4, 5, 5) == []
    assert believed(6, 5, 6) == [], "the leader died in the turn in which it advanced"


def test_a_high_watermark_that_no_leader_had_is_convicted():
    assert believed(6, 5, 5) == ["watermark-known"]


def view_of(key, *, led, is_leader, watermark):
    replica = SimpleNamespace(is_leader=is_leader, high_watermark=watermark)
    return SimpleNamespace(key=key, led=led, partition=SimpleNamespace(replica=replica))


def test_the_last_states_of_all_that_led_count():
    observer = ClusterObserver.__new__(ClusterObserver)
    observer._judge = ClusterInvariants(lambda: 1.0)
    other = PartitionKey("flights", 1, "id")
    observer._replicas = {
        (1, 0): SimpleNamespace(
            views=[
                view_of(KEY, led=False, is_leader=False, watermark=90),
                view_of(other, led=True, is_leader=True, watermark=80),
            ]
        ),
        (2, 0): SimpleNamespace(views=[view_of(KEY, led=False, is_leader=True, watermark=7)]),
        (3, 0): SimpleNamespace(views=[view_of(KEY, led=True, is_leader=False, watermark=8)]),
    }
    assert observer._last_watermark(KEY) == 8
    assert observer._judge.partition(KEY).watermark == 8


@pytest.mark.parametrize(("role", "raised"), [(Role.LEADER, True), (Role.FOLLOWER, False)])
def test_a_leader_that_died_as_it_acknowledged_counts(role, raised):
    """Seed 990005: a crash point ended the broker in the turn in which it advanced and sent the answer."""
    replica = SimpleNamespace(high_watermark=8)
    state = SimpleNamespace(leader_epoch=3)
    view = SimpleNamespace(key=KEY, seen=(role, state, 5, 9, None), partition=SimpleNamespace(replica=replica))
    observer = ClusterObserver.__new__(ClusterObserver)
    observer._judge = ClusterInvariants(lambda: 1.0)
    observer._rules = SimpleNamespace(look=lambda ran: None)
    observer._cluster = SimpleNamespace(brokers={}, controllers={}, machines={1: SimpleNamespace(incarnation=2)})
    observer._agenda, observer._node_ids = SimpleNamespace(ran={"broker-1": None}), {"broker-1": 1}
    observer._looked_at = {1: SimpleNamespace(views=[view])}
    observer.steps = 0
    before = observer._judge.partition(KEY).watermark
    observer.turn_ended()
    assert observer._judge.partition(KEY).watermark == (8 if raised else before)
    assert observer._looked_at == {}
