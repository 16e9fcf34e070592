"""Goal: the meter counts every message whatever way the bytes are cut, and watching leaves no trace behind.

Method: frames by hand, cut at every place; the group's own state machine under watch; one short run.
"""

import random
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest

from moldau_broker.coordinator.group.core.group import Group, GroupState
from moldau_broker.coordinator.transaction.core.state import Transaction, TransactionStatus
from moldau_broker.replication.replica import Replica
from moldau_jepsen.coverage.coverage import (
    MACHINES,
    Coverage,
    MessageKind,
    MessageMeter,
    PartitionChange,
    Transition,
    message_name,
    partition_changes,
    reachable_messages,
    reachable_transitions,
    watched,
)
from moldau_jepsen.simulation import run_seed
from moldau_jepsen.simulation.judge.invariants import PartitionState
from moldau_quorum.log.port import QUORUM_MESSAGE_KEY
from support.kit.small_run import SMALL_RUN


def request(key, version, correlation_id, body=b""):
    content = struct.pack(">hhih", key, version, correlation_id, -1) + body
    return struct.pack(">i", len(content)) + content


def response(correlation_id, body=b""):
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def ends(client_host="client", server_host="broker-1"):
    client = SimpleNamespace(number=7, local_address=(client_host, 40_000), host=SimpleNamespace(name=client_host))
    server = SimpleNamespace(number=7, local_address=(server_host, 9092), host=SimpleNamespace(name=server_host))
    client.peer_end, server.peer_end = server, client
    return client, server


REQUESTS = [request(0, 11, 1, b"x" * 500), request(3, 13, 2), request(1, 18, 3, b"y" * 20), request(3, 12, 4)]
RESPONSES = [response(1), response(2, b"z" * 70), response(3, b"w" * 3)]
COUNTED = {
    MessageKind(0, 11, True, "client", "broker"): 1,
    MessageKind(3, 13, True, "client", "broker"): 1,
    MessageKind(1, 18, True, "client", "broker"): 1,
    MessageKind(3, 12, True, "client", "broker"): 1,
    MessageKind(0, 11, False, "broker", "client"): 1,
    MessageKind(3, 13, False, "broker", "client"): 1,
    MessageKind(1, 18, False, "broker", "client"): 1,
}


def pieces(data, draw):
    position = 0
    while position < len(data):
        size = draw.choice((1, 2, 3, 7, 11, 13, 200, 5_000))
        yield data[position : position + size]
        position += size


@pytest.mark.parametrize("seed", range(20))
def test_messages_are_counted_however_their_bytes_are_cut(seed):
    draw = random.Random(seed)
    coverage = Coverage()
    meter = MessageMeter(coverage)
    client, server = ends()
    for end, frames in ((client, REQUESTS), (server, RESPONSES)):
        for piece in pieces(b"".join(frames), draw):
            meter(end, piece)
    assert dict(coverage.messages) == COUNTED


def test_one_way_messages_and_late_answers_are_not_counted():
    """One-way messages expect no answer, and late answers are not counted."""
    coverage = Coverage()
    meter = MessageMeter(coverage)
    client, server = ends("controller-101", "controller-102")
    meter(client, request(QUORUM_MESSAGE_KEY, 1, 0) * 3)
    meter(server, response(0) + response(99))
    assert dict(coverage.messages) == {MessageKind(QUORUM_MESSAGE_KEY, 1, True, "controller", "controller"): 3}
    assert message_name(QUORUM_MESSAGE_KEY) == "quorum message"
    assert message_name(0) == "Produce"


def test_an_answer_that_is_given_twice_is_convicted():
    """A second answer to one request is convicted; one answer to each request is not."""
    found = []
    meter = MessageMeter(Coverage(), lambda rule, text: found.append((rule, text)))
    client, server = ends()
    for frame in REQUESTS:
        meter(client, frame)
    for frame in RESPONSES:
        meter(server, frame)
    assert found == []
    meter(server, RESPONSES[1])
    assert found == [
        (
            "answered-once",
            "a broker answers a client with correlation id 2, which does not wait for it (any more)",
        )
    ]


def test_watching_transitions_leaves_the_classes_unchanged():
    """Transitions are counted while watched, and the classes are restored afterwards."""
    before = [(machine.owner, machine.attribute, vars(machine.owner).get(machine.attribute)) for machine in MACHINES]
    moved = Transaction.moved
    coverage = Coverage()
    with watched(coverage):
        group = Group(group_id="g")
        group.transition(GroupState.PREPARING_REBALANCE, 1)
        group.transition(GroupState.EMPTY, 2)
        assert group.state is GroupState.EMPTY
        replica = Replica(1, high_watermark=0, log_end_offset=0, lag_time_max_ms=1.0, min_insync_replicas=1)
        assert not replica.is_leader
        transaction = Transaction(transactional_id="t", producer_id=1, producer_epoch=0, timeout_ms=1)
        assert transaction.moved(TransactionStatus.ONGOING, 5).status is TransactionStatus.ONGOING
    assert dict(coverage.transitions) == {
        Transition("consumer group", "(start)", "Empty"): 1,
        Transition("consumer group", "Empty", "PreparingRebalance"): 1,
        Transition("consumer group", "PreparingRebalance", "Empty"): 1,
        Transition("replica", "(start)", "none"): 1,
        Transition("transaction", "Empty", "Ongoing"): 1,
    }
    assert [(owner, name, vars(owner).get(name)) for owner, name, _ in before] == before
    assert Transaction.moved is moved
    group.transition(GroupState.DEAD, 3)
    assert coverage.transitions.total() == 5


def state(leader, isr, elr=(), epoch=0, replicas=(1, 2, 3)):
    return PartitionState(leader, epoch, isr, replicas, elr)


@pytest.mark.parametrize(
    ("before", "after", "last_leader", "found"),
    [
        (None, state(1, (1, 2)), -1, {PartitionChange.CREATED}),
        (state(1, (1, 2)), state(1, (1,)), 1, {PartitionChange.SHRUNK}),
        (state(1, (1,)), state(1, (1, 3)), 1, {PartitionChange.GROWN}),
        (state(1, (1, 2)), state(2, (2,), epoch=1), 1, {PartitionChange.SHRUNK, PartitionChange.ELECTED}),
        (
            state(1, (1,)),
            state(-1, (), (1,), epoch=1),
            1,
            {PartitionChange.SHRUNK, PartitionChange.ELIGIBLE_GROWS, PartitionChange.LEADERLESS},
        ),
        (
            state(-1, (), (1, 2)),
            state(2, (2,), (1,), epoch=1),
            1,
            {PartitionChange.GROWN, PartitionChange.ELIGIBLE_SHRINKS, PartitionChange.ELECTED_ELIGIBLE},
        ),
        (state(-1, ()), state(1, (1,), epoch=1), 1, {PartitionChange.GROWN, PartitionChange.ELECTED_LAST}),
        (state(-1, ()), state(2, (2,), epoch=1), 1, {PartitionChange.GROWN, PartitionChange.ELECTED_UNCLEAN}),
        (state(1, (1,)), state(1, (1,), epoch=1), 1, {PartitionChange.RENEWED}),
        (state(1, (1,)), state(1, (1,), replicas=(1, 2, 4)), 1, {PartitionChange.REPLICAS}),
    ],
)
def test_changes_of_partitions_are_classified(before, after, last_leader, found):
    assert set(partition_changes(before, after, last_leader)) == found


def test_a_run_covers_required_rows_and_no_impossible_row():
    """A run covers the rows that its clients must use, and no impossible row."""
    result = run_seed(3, replace(SMALL_RUN, fault_seconds=2.0, transactions=True))
    assert result.passed, result.violations
    seen = {(kind.api_key, kind.is_request, kind.sender) for kind in result.coverage.messages}
    for key, sender in ((0, "client"), (1, "client"), (1, "broker"), (3, "client"), (11, "client"), (62, "broker")):
        assert (key, True, sender) in seen
    served = reachable_messages()
    for kind in result.coverage.messages:
        server = kind.receiver if kind.is_request else kind.sender
        assert kind.version in served[kind.api_key, server], kind
    possible = set(reachable_transitions())
    tables = {machine.name for machine in MACHINES if machine.table is not None} | {"transaction"}
    taken = {one for one in result.coverage.transitions if one.machine in tables and one.before != "(start)"}
    assert taken
    assert taken <= possible
    assert result.figures.acknowledged == result.acknowledged
    assert result.figures.latency.counts.total() == result.acknowledged
    assert result.figures.per_second > 0
