"""Goal: a plan counts no replica that a move removes, and moves go on although a topic is deleted.

Method: an admin client of a cluster that changes between two requests.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from moldau import TopicPartition
from moldau.admin import AdminError, ResourceType
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigSource
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.operations import draining, moves
from moldau_cli.operations.restarts import CommandRestarter
from moldau_cli.operations.survey import copied_bytes, current_replicas, settled_replicas
from moldau_cli.operations.throttling import lift_throttle, throttle_moves
from moldau_cli.plans.balance.execution import RunningMove
from moldau_cli.plans.reassignment import plan_moves
from moldau_cli.plans.roll import RollNode
from moldau_cli.plans.throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS, entries_of

OLD, NEW = (1, 2), (3, 2)


class Cluster:
    """A topic whose partition 0 moves from ``OLD`` to ``NEW``; it begins and ends at requests of the given numbers."""

    def __init__(self, begins=0, ends=99, *, deleted=(), internal=()):
        self.begins, self.ends = begins, ends
        self.deleted = deleted
        self.internal = internal
        self.requests = 0

    async def asked(self):
        await trio.lowlevel.checkpoint()
        self.requests += 1
        return self.begins < self.requests <= self.ends

    async def list_topics(self, *, include_internal=False):
        await trio.lowlevel.checkpoint()
        hidden = [] if include_internal else self.internal
        return [SimpleNamespace(name=name) for name in ("t", *self.internal, *self.deleted) if name not in hidden]

    async def list_partition_reassignments(self):
        move = SimpleNamespace(replicas=(3, 2, 1), adding=(3,), removing=(1,))
        return {TopicPartition("t", 0): move} if await self.asked() else {}

    async def describe_topics(self, names):
        moves = await self.asked()
        replicas = (3, 2, 1) if moves else OLD if self.requests <= self.begins else NEW
        parts = [SimpleNamespace(partition=0, replicas=replicas), SimpleNamespace(partition=1, replicas=(1, 2))]
        found = {name: SimpleNamespace(partitions=parts) for name in ("t", *self.internal) if name in names}
        gone = [name for name in names if name not in found]
        if gone:
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise AdminError(dict.fromkeys(gone, error), found)
        return found


@pytest.mark.parametrize("topics", [(), ("t",)])
def test_a_plan_gives_a_moving_partition_no_more_replicas(topics):
    """The plan had the old and the new replicas, and gave the partition one more for good."""
    for begins in range(4):
        for ends in range(begins, 4):
            if (begins, ends) == (1, 2):
                continue  # it begins and ends around the description alone, so no answer tells of it
            found = trio.run(settled_replicas, Cluster(begins, ends), topics)
            assert found["t", 1] == [1, 2]
            assert tuple(found["t", 0]) in (OLD, NEW), (begins, ends)
            planned = {**found, **plan_moves(found, [1, 2, 3])}
            assert {len(replicas) for replicas in planned.values()} == {2}


def test_a_plan_of_all_topics_has_internal_ones_too():
    """A broker that was to lose all replicas kept those of groups and transactions, and nothing said so."""
    found = trio.run(settled_replicas, Cluster(99, internal=("__consumer_offsets",)))
    assert {topic for topic, _ in found} == {"t", "__consumer_offsets"}
    planned = plan_moves(found, [2, 3])
    assert not any(1 in replicas for replicas in {**found, **planned}.values())


def test_a_topic_that_is_deleted_meanwhile_is_left_out():
    """It was there when topics were listed, so all moves of a plan ended with an error."""
    cluster = Cluster(deleted=("gone",))
    assert set(trio.run(current_replicas, cluster, ["t", "gone"])) == {("t", 0), ("t", 1)}
    assert set(trio.run(settled_replicas, cluster)) == {("t", 0), ("t", 1)}
    with pytest.raises(AdminError):
        trio.run(settled_replicas, cluster, ["t", "gone"])


def test_a_plan_limits_what_runs_and_leaves_the_limit_of_others(monkeypatch):
    """A move of the plan runs when the command begins, and gets the new limit; another one still runs at the end."""
    own, other, limited, lifted = ("t", 0), ("u", 0), [], []
    move = RunningMove(replicas=(3, 2, 1), adding=(3,), removing=(1,))
    looks = iter([{own: move, other: move}, {other: move}])

    async def answered(value):
        await trio.lowlevel.checkpoint()
        return value

    async def throttle(_, plan, partitions, rate):
        await answered(limited.extend(partitions))

    async def lift(_, ended, *, any_moves):
        await answered(lifted.append((ended, any_moves)))

    monkeypatch.setattr(moves, "running_moves", lambda _: answered(next(looks)))
    monkeypatch.setattr(moves, "current_replicas", lambda _, topics: answered({own: NEW if limited else (3, 2, 1)}))
    monkeypatch.setattr(moves, "_copied", lambda *_: answered(0))
    monkeypatch.setattr(moves, "_throttle", throttle)
    monkeypatch.setattr(moves, "lift_throttle", lift)
    options = moves.MoveOptions(throttle=1_000, at_once_max=1, stall_s=60, elects=False)
    moved = trio.run(moves._moved, None, {own: NEW}, options, {}, clock=MockClock(autojump_threshold=0))
    assert limited == [own]
    assert lifted == [([own], True)]
    assert moved.moved == 1


def test_no_copy_is_further_than_its_source():
    """A copy may take more bytes than the source: its segments are others, and retention comes to it later."""
    where = ("t", 0)
    sizes = {1: 100, 2: 90, 3: 130, 4: 40}

    async def describe_cluster(*, include_fenced):
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=node) for node in sizes], fenced=())

    async def describe_log_dirs(brokers, *, partitions):
        await trio.lowlevel.checkpoint()
        assert partitions == [where]
        return {
            node: [
                SimpleNamespace(
                    partitions=[
                        SimpleNamespace(topic_partition=TopicPartition(*where), size_bytes=sizes[node], is_future=False)
                    ]
                )
            ]
            for node in brokers
        }

    admin = SimpleNamespace(describe_cluster=describe_cluster, describe_log_dirs=describe_log_dirs)
    move = RunningMove(replicas=(1, 2, 3, 4), adding=(3, 4), removing=(1, 2))
    assert trio.run(copied_bytes, admin, {where: move}) == {where: (100 + 40, 200)}


class Throttled(Cluster):
    """Brokers 1 to 3, and topics with throttles; those ``deleted`` go before a request, ``late`` before the change."""

    def __init__(self, *, deleted=(), late=(), code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        super().__init__(deleted=deleted)
        self.late, self.code = late, code
        self.changed = {}

    async def describe_cluster(self):
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=node) for node in (1, 2, 3)])

    async def describe_configs(self, resources):
        await trio.lowlevel.checkpoint()
        of_topic = {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:3"}
        of_broker = dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), "9")
        found = {
            each: {
                key: SimpleNamespace(value=value, source=ConfigSource.DYNAMIC_BROKER)
                for key, value in (of_topic if each.type is ResourceType.TOPIC else of_broker).items()
            }
            for each in resources
        }
        return self.answered(found, self.deleted)

    async def alter_configs(self, changes):
        await trio.lowlevel.checkpoint()
        self.changed |= self.answered(changes, (*self.deleted, *self.late), {})

    def answered(self, found, absent, results=None):
        kept = {each: value for each, value in found.items() if each.name not in absent}
        if len(kept) == len(found):
            return kept
        self.changed |= {} if results is None else kept
        error = KafkaError(self.code)
        raise AdminError({each.name: error for each in found if each not in kept}, kept if results is None else None)

    def throttles(self):
        return sorted((each.type.name, each.name) for each in self.changed)


BROKERS = [("BROKER", "1"), ("BROKER", "2"), ("BROKER", "3")]


@pytest.mark.parametrize("gone", [{"deleted": ("gone",)}, {"late": ("t",)}])
def test_a_topic_that_goes_keeps_no_throttle_of_others(gone):
    """It went between two requests: the command failed after its moves, and brokers and topics kept their limits."""
    ended = [("t", 0), ("gone", 0)]
    cluster = Throttled(**gone)
    trio.run(lambda: lift_throttle(cluster, ended, any_moves=False))
    left = "gone" if "late" in gone else "t"
    assert cluster.throttles() == [*BROKERS, ("TOPIC", left)]
    locked = Throttled(**gone, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AdminError):
        trio.run(lambda: lift_throttle(locked, ended, any_moves=False))


def test_a_topic_that_goes_ends_no_moves_of_others():
    """It went after the plan's topics were listed, and before those that begin to move were limited."""
    new = {("t", 0): [1, 3], ("gone", 0): [3]}
    cluster = Throttled(deleted=("gone",))
    trio.run(lambda: throttle_moves(cluster, new, 1_000, may_be_gone=True))
    assert cluster.throttles() == [*BROKERS, ("TOPIC", "t")]
    with pytest.raises(UsageError, match="there is no partition gone-0"):  # a plan that was just given
        trio.run(lambda: throttle_moves(cluster, new, 1_000))
    late = Throttled(late=("t",))
    trio.run(lambda: throttle_moves(late, {("t", 0): [1, 3]}, 1_000, may_be_gone=True))
    assert late.throttles() == BROKERS


def test_throttles_of_a_large_plan_are_lifted_in_one_pass():
    """Each topic read the whole plan, and each entry all its partitions: 100,000 of them took most of a minute."""
    reads = 0

    class Counted(list):
        def __iter__(self):
            nonlocal reads
            reads += 1
            return super().__iter__()

    names = [f"t{number}" for number in range(20)]
    cluster = Throttled()
    trio.run(lambda: lift_throttle(cluster, Counted((name, 0) for name in names), any_moves=True))
    assert {name for _, name in cluster.throttles()} == set(names)
    assert entries_of("0:1,0:2,1:3,2:1", Counted((0, 2))) == ["0:1", "0:2", "2:1"]
    assert reads <= 2


def test_a_partition_is_as_large_as_its_largest_replica():
    sizes = {("t", 0, 1): 5, ("t", 0, 2): 9, ("t", 0, 3): 7, ("u", 1, 1): 0}
    assert moves._largest(sizes) == {("t", 0): 9, ("u", 1): 0}


def test_a_broker_that_gets_new_replicas_is_not_drained(monkeypatch):
    """Topics that are created meanwhile choose it; the command must not say that it holds none."""
    passes = []

    async def seen(_):
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(brokers={1: None}, topics={}, moving={}, holders=lambda _: [("new", len(passes))])

    async def moved(*_):
        await trio.lowlevel.checkpoint()
        passes.append(1)
        return moves.Moved(moved=1, already=0, gone=0)

    monkeypatch.setattr(draining, "survey", seen)
    monkeypatch.setattr(draining, "carry_out_moves", moved)
    monkeypatch.setattr(draining, "_plan_of", lambda *_: {("new", 0): [2]})
    with pytest.raises(CommandError, match="broker 1 got replicas of new topics meanwhile: 1; moldau logdirs cordon 1"):
        trio.run(
            draining.drain_broker, None, 1, moves.MoveOptions(throttle=None, at_once_max=1, stall_s=1, elects=False)
        )
    assert len(passes) == draining.PASSES_MAX


@pytest.mark.parametrize(
    ("held", "copied"),
    [
        ({1: 50, 2: 40, 3: 30, 4: 60}, (30 + 50, 100)),  # a new replica may be larger for a moment
        ({1: 50, 2: 40, 3: 30}, None),  # nothing is known of broker 4
        ({1: 50, 3: 30, 4: 0}, (30, 100)),
        ({3: 30, 4: 60}, None),  # nothing is known of those that have all records
        ({}, None),
    ],
)
def test_what_a_move_has_copied_is_known_of_all_new_replicas(held, copied):
    class Sizes:
        async def describe_cluster(self, *, include_fenced):
            await trio.lowlevel.checkpoint()
            assert include_fenced
            brokers = [SimpleNamespace(node_id=node) for node in (1, 2, 3, 4)]
            return SimpleNamespace(brokers=brokers, fenced=())

        async def describe_log_dirs(self, nodes, *, partitions):
            await trio.lowlevel.checkpoint()
            (node,) = nodes
            if node not in held:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            where = TopicPartition(*partitions[0])
            part = SimpleNamespace(topic_partition=where, size_bytes=held[node], is_future=False)
            return {node: [SimpleNamespace(partitions=[part])]}

    move = RunningMove(replicas=(3, 4, 1, 2), adding=(3, 4), removing=(1, 2))
    assert trio.run(copied_bytes, Sizes(), {("t", 0): move}) == ({} if copied is None else {("t", 0): copied})


def test_a_restart_that_does_not_end_is_an_error():
    class Stuck(CommandRestarter):
        async def _connect(self, node):
            await trio.lowlevel.checkpoint()

        async def _run(self, node):
            await trio.sleep_forever()

    node = RollNode(node_id=1, roles=("broker",), host="h", port=9)
    with pytest.raises(CommandError, match=r"^broker 1 \(h:9\) was not restarted within 5 s by: ssh h restart 1$"):
        trio.run(Stuck("ssh {host} restart {id}", None, 5.0).restart, node, clock=MockClock(autojump_threshold=0))
