"""Goal: an expelled member does not use its old partitions, and commits nothing before its next assignment.

Method: first the pure membership core alone; then consumers against a small cluster on virtual time.
"""

from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from moldau import KafkaError, TopicPartition
from moldau.cluster.group_bytes import encode_assignment
from moldau.consumer.core.assignors import assignors_of
from moldau.consumer.core.membership import NO_MEMBERSHIP, GroupIdentity, Membership, Next
from moldau.consumer.core.positions import Positions
from moldau.consumer.group import GroupClient
from moldau.consumer.rebalance import Rebalancer, _Join
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.runtime.telemetry.log import EventLogger
from support.client.consumer_stories import fill, numbers, simulate, take

T0 = TopicPartition("t", 0)
COOPERATIVE = {"group_id": "g", "enable_auto_commit": False, "partition_assignment_strategy": "cooperative-sticky"}


def new_membership():
    identity = GroupIdentity(group_id="g", instance_id=None, session_timeout_ms=6000, rebalance_timeout_ms=60000)
    return Membership(identity, assignors_of(["cooperative-sticky"]))


def join(membership, generation, member_id):
    """One JoinGroup and SyncGroup, as the background task does them, without a callback of the application."""
    membership.join_request(["t"], [T0])
    joined = JoinGroupResponse(
        generation_id=generation, member_id=member_id, protocol_name="cooperative-sticky", leader="another"
    )
    assert membership.on_join(joined) is Next.GO_ON
    membership.sync_request(None)
    assert membership.on_sync(SyncGroupResponse(assignment=encode_assignment([T0]))) == (Next.GO_ON, [T0])


def expelled(membership):
    membership.on_heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    membership.join_request(["t"], [T0])
    assert membership.on_join(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)) is Next.JOIN_AGAIN


def test_kept_partitions_are_held_in_the_new_generation():
    """A member that keeps its partitions holds them in the new generation."""
    membership = new_membership()
    assert (membership.assigned_as, membership.commits_as) == (NO_MEMBERSHIP, NO_MEMBERSHIP)
    join(membership, 5, "M1")
    membership.take_over()
    membership.on_heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert (membership.assigned_as, membership.commits_as) == ((5, "M1"), (5, "M1")), "it works on while it joins"
    join(membership, 6, "M1")
    assert (membership.assigned_as, membership.commits_as) == ((6, "M1"), (6, "M1"))
    assert not membership.is_assignment_lost


def test_heartbeats_end_with_joingroup():
    """Its answer may be lost, and the coordinator in another generation: that would cost all partitions."""
    membership = new_membership()
    assert not membership.sends_heartbeats, "it is in no generation"
    join(membership, 5, "M1")
    assert membership.sends_heartbeats
    membership.on_heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert membership.sends_heartbeats
    membership.join_request(["t"], [T0])
    membership.rejoin("the coordinator did not answer")
    assert not membership.sends_heartbeats
    join(membership, 6, "M1")
    assert membership.sends_heartbeats


def test_background_join_does_not_restore_lost_partitions():
    """Partitions of an expelled member do not become its own again when it joins in the background."""
    membership = new_membership()
    join(membership, 5, "M1")
    membership.take_over()
    expelled(membership)
    assert (membership.assigned_as, membership.commits_as) == ((5, "M1"), None)
    join(membership, 7, "M2")
    assert (membership.assigned_as, membership.commits_as) == ((5, "M1"), None)
    assert membership.is_stable
    membership.take_over()
    assert (membership.assigned_as, membership.commits_as) == ((7, "M2"), (7, "M2"))


def test_assignment_lost_during_takeover_is_not_held():
    """The application takes over what is lost already: it commits nothing for it under the next generation."""
    membership = new_membership()
    join(membership, 5, "M1")
    membership.lose_generation("the session timed out")
    membership.take_over()
    assert membership.commits_as is None
    join(membership, 6, "M1")
    assert membership.commits_as is None
    membership.take_over()
    assert membership.commits_as == (6, "M1")


def test_assignment_lost_before_takeover_is_recognised():
    """An assignment that was lost before it was taken over differs from one that was not lost."""
    membership = new_membership()
    join(membership, 5, "M1")
    assert not membership.is_assignment_lost
    expelled(membership)
    assert membership.is_assignment_lost
    join(membership, 7, "M2")
    assert not membership.is_assignment_lost
    membership.lose_generation("the session timed out")
    assert membership.is_assignment_lost


class FormerCoordinator(GroupClient):
    """Answers a heartbeat when the member has joined again at another coordinator."""

    async def _request(self, *_arguments, **_more):
        join(self.membership, 6, "M2")
        await trio.lowlevel.checkpoint()
        return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


def test_answer_to_a_heartbeat_of_a_former_membership_is_dropped():
    """It would cost the member its new generation, and all partitions."""
    membership = new_membership()
    join(membership, 5, "M1")
    config = SimpleNamespace(get_int=lambda _: 1_000, get_str=lambda _: "")
    coordinator = FormerCoordinator(SimpleNamespace(now_ms=0.0), "g", config, membership)
    assert trio.run(coordinator._heartbeat, membership) is Next.GO_ON
    assert (membership.generation, membership.member_id, membership.losses) == (6, "M2", 0)


class Steadfast(GroupClient):
    """A coordinator that answers all heartbeats alike; None stands for no answer."""

    code = None

    async def _request(self, *_arguments, **_more):
        await trio.lowlevel.checkpoint()
        if self.code is None:
            raise ConnectionError("no answer")
        return HeartbeatResponse(error_code=self.code)


@pytest.mark.parametrize(
    ("code", "losses"),
    [
        (ErrorCode.NONE, 0),
        (ErrorCode.REBALANCE_IN_PROGRESS, 0),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1),
        (ErrorCode.NOT_COORDINATOR, 1),
        (None, 1),
    ],
)
def test_a_session_lasts_while_the_coordinator_knows_the_member(code, losses):
    """A rebalance waits for a member longer than a session lasts, and it keeps its partitions all the time."""

    async def main():
        membership = new_membership()
        join(membership, 5, "M1")
        config = SimpleNamespace(get_int=lambda _: 1_000, get_str=lambda _: "")
        coordinator = Steadfast(MockedTime(), "g", config, membership)
        coordinator.code = code
        with trio.move_on_after(4.5):
            await coordinator.heartbeat_forever(lambda: trio.current_time() * 1000, lambda: None)
        assert (membership.losses, membership.has_generation) == (losses, not losses)

    trio.run(main, clock=MockClock(autojump_threshold=0))


class MockedTime:
    """The part of a cluster client that heartbeats use."""

    logger = EventLogger("test")

    @property
    def now_ms(self):
        return trio.current_time() * 1000


class Lost:
    """Records the partitions that a consumer's callback reports as lost; the callback takes ``seconds``."""

    def __init__(self, seconds=0.0):
        self.partitions: list[TopicPartition] = []
        self.seconds = seconds

    async def __call__(self, partitions):
        self.partitions.extend(partitions)
        await trio.sleep(self.seconds)


async def holding(consumer):
    """Subscribes, and polls until one record of a partition was handed out."""
    consumer.subscribe(["t"])
    with trio.fail_after(30):
        while not await consumer.poll(500, max_records=1):
            continue


async def expelled_and_back(cluster, consumer):
    """The member hears that it was expelled only when it comes to join again, and has joined when this returns."""
    before = consumer.group_generation
    cluster.fail_next(ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
    cluster.fail_next(ApiKey.JOIN_GROUP, ErrorCode.UNKNOWN_MEMBER_ID)
    await trio.sleep(4)
    await consumer.poll(0, max_records=1)  # begins to join; what is kept may be worked on
    await trio.sleep(5)  # the cluster waits for the member that it was
    assert consumer.group_generation > before, "the story needs a member that has joined again"


def commits(cluster):
    return [
        (request.generation_id_or_member_epoch, part.partition_index, part.committed_offset)
        for _, key, request in cluster.requests
        if key == ApiKey.OFFSET_COMMIT
        for topic in request.topics
        for part in topic.partitions
    ]


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_rejoined_member_keeps_its_old_identity_until_a_poll(strategy):
    """Under its new generation it committed offsets of partitions that others owned."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        lost = Lost()
        config = COOPERATIVE | {"partition_assignment_strategy": strategy}
        async with open_consumer({"on_lost": lost}, **config) as consumer:
            await holding(consumer)
            before = consumer.group_metadata()
            await expelled_and_back(cluster, consumer)
            joined = consumer.group_generation
            assert consumer.group_metadata() == before
            if consumer.assignment:  # the eager protocol has given it up
                with pytest.raises(KafkaError, match=r"offsets were not committed \(UNKNOWN_MEMBER_ID"):
                    await consumer.commit()
            with pytest.raises(KafkaError, match=r"offsets were not committed \(UNKNOWN_MEMBER_ID"):
                await consumer.commit({T0: 10})
            assert commits(cluster) == []
            assert await take(consumer, 10) == numbers(0, 10), "nothing was committed"
            assert consumer.group_metadata().generation_id == joined, "the refusals cost it nothing"
            assert lost.partitions == ([T0] if strategy == "cooperative-sticky" else []), "the eager had given it up"
            await consumer.commit()
            assert commits(cluster) == [(joined, 0, 10)]

    simulate(scenario)


def test_an_automatic_commit_of_what_was_lost_is_dropped():
    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        config = COOPERATIVE | {"enable_auto_commit": True, "auto_commit_interval_ms": 6000}
        async with open_consumer(**config) as consumer:
            await holding(consumer)
            await expelled_and_back(cluster, consumer)
            known = commits(cluster)
            await trio.sleep(6)
            cluster.offsets["g", "t", 0] = (7, 0, "")  # of who was given the partition meanwhile
            assert await take(consumer, 3) == numbers(7, 10), "the commit was due in this poll"
            assert commits(cluster) == known
        assert cluster.offsets["g", "t", 0][0] == 10, "what it was given since is committed again"

    simulate(scenario)


def test_closed_consumer_reports_losses_and_commits_none():
    """A consumer that is closed reports its lost partitions and does not commit them."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        lost, revoked = Lost(), Lost()
        callbacks = {"on_lost": lost, "on_revoked": revoked}
        async with open_consumer(callbacks, **(COOPERATIVE | {"enable_auto_commit": True})) as consumer:
            await holding(consumer)
            await expelled_and_back(cluster, consumer)
            known = commits(cluster)
        assert (lost.partitions, revoked.partitions) == ([T0], [])
        assert commits(cluster) == known
        assert cluster.groups["g"].members == {}

    simulate(scenario)


def test_assignment_lost_before_a_poll_is_not_read():
    """Another member may have owned the partitions since, and the commits would count for the next generation."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        given = []

        async def on_assigned(partitions):
            given.append((consumer.group_generation, partitions))
            await trio.lowlevel.checkpoint()

        async with open_consumer({"on_assigned": on_assigned}, **COOPERATIVE) as consumer:
            await holding(consumer)
            await expelled_and_back(cluster, consumer)
            cluster.fail_next(ApiKey.HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID)
            await trio.sleep(4)
            assert consumer.group_generation == -1, "the story needs a member that was expelled once more"
            assert await consumer.poll(0) == []
            assert consumer.assignment == []
            assert await take(consumer, 10) == numbers(0, 10)
            assert [partitions for _, partitions in given] == [[T0], [T0]]
            assert -1 not in [generation for generation, _ in given]

    simulate(scenario)


def test_cancelled_report_of_lost_partitions_is_repeated():
    """The next poll continued with the lost partitions as if they had not been lost."""

    async def scenario(cluster, open_consumer):
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        lost = Lost(seconds=1)
        async with open_consumer({"on_lost": lost}, **COOPERATIVE) as consumer:
            await holding(consumer)
            await expelled_and_back(cluster, consumer)
            with trio.move_on_after(0.5):
                await consumer.poll(500)
            assert await take(consumer, 10) == numbers(0, 10), "from the committed offset, not from what it held"
            assert lost.partitions == [T0, T0]

    simulate(scenario)


@pytest.mark.parametrize("is_expelled", [True, False])
def test_a_member_expelled_by_its_last_commit_revokes_nothing(is_expelled):
    """Others may own them: the callback of a loss must not write what the one of a revocation would."""
    membership, called = SimpleNamespace(losses=0, end=lambda reason: None), []
    positions = Positions()
    positions.assign([T0])

    async def commit():
        await trio.lowlevel.checkpoint()
        membership.losses += is_expelled

    def noted(name):
        async def call(partitions):
            await trio.lowlevel.checkpoint()
            called.append((name, partitions))

        return call

    async def leave(reason):
        await trio.lowlevel.checkpoint()

    rebalancer = Rebalancer(
        None,
        None,
        positions,
        SimpleNamespace(leave=leave),
        membership,
        commit=commit,
        hides_internal=True,
        callbacks=SimpleNamespace(on_lost=noted("lost"), on_revoked=noted("revoked")),
    )
    trio.run(rebalancer.leave, "the consumer was closed")
    assert called == [("lost" if is_expelled else "revoked", [T0])]
    assert positions.by_partition == {}


@pytest.mark.parametrize("call", ["leave", "depart"])
def test_a_join_ends_before_its_member_leaves(call):
    """It would join again when the coordinator has removed the member, and nothing would remove that one."""
    positions, seen = Positions(), []

    async def nothing(*_):
        await trio.lowlevel.checkpoint()

    async def leave(reason):
        await trio.lowlevel.checkpoint()
        seen.append((join.scope.cancel_called, rebalancer._join))

    async def main():
        await getattr(rebalancer, call)("the consumer was closed")

    rebalancer = Rebalancer(
        None,
        None,
        positions,
        SimpleNamespace(leave=leave),
        SimpleNamespace(losses=0, end=lambda reason: None),
        commit=nothing,
        hides_internal=True,
        callbacks=SimpleNamespace(on_lost=None, on_revoked=None),
    )
    join = rebalancer._join = _Join(0.0)
    trio.run(main)
    assert seen == [(True, None)]
