"""Goal: a cluster that gets well only once every node is back is convicted, and one that does without some is not.

Method: whole runs without faults whose healing begins with a core; a planted bug that only the core can notice; the
choice of who stays outside, and that it stays there.
"""

from dataclasses import replace
from uuid import UUID

import pytest
import trio

from moldau.admin import Admin
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.server.cluster_metadata.topic_creation import TopicCreation
from moldau_jepsen.cluster.outside import Outside
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.profiles import drawn_options
from moldau_jepsen.simulation.campaign.run import Run
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.inject.recovery import draw_outside, drawn_core_first
from moldau_jepsen.simulation.judge.watch import LogLines
from moldau_jepsen.simulation.mutants.mutants import planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from moldau_jepsen.workloads.phases.group_read import read_in_group
from moldau_jepsen.world.world import run_world
from moldau_quorum.metadata.image import PartitionImage, TopicImage
from moldau_quorum.metadata.internal_topics import INTERNAL_TOPICS
from moldau_quorum.metadata.persistent_map import PersistentMap
from support.kit.small_run import SMALL_RUN

CALM = RunOptions(faults=(), fault_seconds=2.0, healing_seconds=30.0, transactions=False, pipe=False)
SEED_THAT_CUTS = 7
SEED_THAT_STOPS = 3


def phases(result):
    return [line.split("phase", 1)[1].split() for line in result.timeline if "* phase" in line]


@pytest.mark.proof
@pytest.mark.parametrize(("seed", "how"), [(SEED_THAT_CUTS, "cut"), (SEED_THAT_STOPS, "down")])
def test_a_core_gets_on_by_itself_before_the_rest_is_healed(seed, how):
    result = run_seed(seed, replace(CALM, core_first=True, fault_seconds=0.5, workload=SMALL_RUN.workload))
    assert result.passed, result.violations
    names = phases(result)
    assert [phase[0] for phase in names] == [
        *("faults", "core", "healthy", "group", "healing", "healthy", "group", "final"),
    ]
    assert [phase[-1] for phase in names if phase[0] == "group"] == ["readers-in-the-core", "readers-at-the-end"]
    assert names[1][1] == "without"
    assert names[1][-1] == how
    assert result.draws["core_first"] is True
    assert result.outside is not None
    assert result.outside >= 1


@pytest.mark.proof
def test_waiting_for_a_cut_off_broker_is_convicted():
    """A client that waits for a broker that is cut off is convicted in the core alone.

    Only the session of that broker can end: controllers would notice sooner that its machine does not answer.
    """
    patient = {"broker.session.unreachable.ms": "60000", "broker.session.grace.ms": "60000"}
    calm = replace(CALM, shape=ClusterShape(settings=patient))
    with planted(MUTANTS["session-timeout-ignored"]):
        core = run_seed(SEED_THAT_CUTS, replace(calm, core_first=True))
        all_nodes = run_seed(SEED_THAT_CUTS, calm)
    (violation,) = core.violations
    assert violation.startswith("at the end: stuck: in the core, without [")
    assert all_nodes.passed, all_nodes.violations


def reads_less(group, **less):
    """A reader of groups that sees less than there is, of one group alone."""

    async def read(make, asked, partitions, recorder, seconds):
        found = await read_in_group(make, asked, partitions, recorder, seconds)
        assert found.unread == ""
        if asked != group:
            return found
        if "unread" in less:
            return replace(found, unread=less["unread"])
        for values in found.seen.values():
            values.discard(less["value"])
        return found

    return read


@pytest.mark.proof
def test_records_kept_from_a_group_are_unseen_in_the_core(monkeypatch):
    """Records that a group is not given are unseen in the core and at the end."""
    for group, core_first in (("readers-in-the-core", True), ("readers-at-the-end", False)):
        monkeypatch.setattr("moldau_jepsen.simulation.campaign.clients.read_in_group", reads_less(group, value=3))
        result = run_seed(SEED_THAT_CUTS, replace(CALM, core_first=core_first))
        assert len(result.violations) == CALM.workload.partitions, result.violations
        for violation, anomaly in zip(result.violations, result.anomalies, strict=True):
            assert violation == f"at the end: unseen: {anomaly.text}"
            assert f"value 3 was acknowledged, and group {group} read" in violation
            assert anomaly.partition is not None
            (index,) = anomaly.operations
            (send,) = result.history[index].sends
            assert (send.partition, send.value, (send.offset,)) == (anomaly.partition, 3, anomaly.offsets)
        assert not any(phase[0] == "final" for phase in phases(result)), "the run has ended"


@pytest.mark.proof
def test_a_group_that_cannot_read_all_in_the_core_is_stuck(monkeypatch):
    """A group that cannot read everything in the core is stuck."""
    monkeypatch.setattr(
        "moldau_jepsen.simulation.campaign.clients.read_in_group",
        reads_less("readers-in-the-core", unread="queue-1 at 0 of 9"),
    )
    (violation,) = run_seed(SEED_THAT_CUTS, replace(CALM, core_first=True)).violations
    assert violation.startswith("at the end: stuck: in the core, without [")
    assert violation.endswith("queue-1 at 0 of 9")


async def core_first_of(world):
    """Returns the drawn choice of a campaign's run, its report of it, and the choice of a run with fixed options."""
    drawn = Run(world, replace(CALM, core_first=None), LogLines())
    return (drawn.core_first, drawn.drawn()["core_first"]), Run(world, CALM, LogLines()).core_first


def test_a_core_too_small_for_the_offsets_topic_is_spared():
    """Found by a campaign: no group had been there before, and two brokers are too few for three replicas."""
    silent = replace(CALM, core_first=True, fault_seconds=0.5, workload=replace(SMALL_RUN.workload, group_readers=0))
    result = run_seed(SEED_THAT_STOPS, silent)
    assert result.passed, result.violations
    assert [phase[-1] for phase in phases(result) if phase[0] == "group"] == ["readers-at-the-end"]


@pytest.mark.proof
def test_a_core_is_not_asked_for_groups_it_cannot_begin(monkeypatch):
    """Found by a campaign: the brokers had never been in service all three at once before."""
    ensure, end_all = TopicCreation.ensure, FaultInjector.end_all
    healed = []

    async def refuse_until_healed(creation, names, **wanted):
        if not healed and INTERNAL_TOPICS & set(names):
            return dict.fromkeys(names, ErrorCode.INVALID_REPLICATION_FACTOR)
        return await ensure(creation, names, **wanted)

    def note(injector, *outside):
        end_all(injector, *outside)
        healed.extend([] if outside else [True])

    monkeypatch.setattr(TopicCreation, "ensure", refuse_until_healed)
    monkeypatch.setattr(FaultInjector, "end_all", note)
    for less in ({"transactions": True}, {"bank": True}, {"pipe": True}):
        healed.clear()
        result = run_seed(SEED_THAT_STOPS, replace(CALM, core_first=True, **less))
        assert result.passed, result.violations
        assert [phase[0] for phase in phases(result)] == [
            *("faults", "core", "healthy", "healing", "healthy", "group", "final"),
        ]
        assert result.figures.operations["txn ok"] > 0, "at the end they are served"


def test_campaigns_draw_a_core_for_half_of_their_seeds():
    """Campaigns draw a core for half of their seeds, and kept runs have none."""
    assert all(drawn_options(seed).core_first is None for seed in range(40))
    assert RunOptions().core_first is False
    drawn = [drawn_core_first(seed) for seed in range(2_000)]
    assert 900 < sum(drawn) < 1_100
    for seed in (drawn.index(True), drawn.index(False)):
        assert run_world(core_first_of, seed, None) == ((drawn[seed],) * 2, False), "unless the options say so"


async def outsiders(world):
    """Draws who stays outside many times, of a whole cluster and of one that has lost a broker."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=5))
    cluster.start_all()
    await cluster.wait_healthy(60)
    await cluster.create_topic(world.node("client").environment, "flights", 2, {})
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True)
    whole = [draw_outside(injector, world.random("core", number)) for number in range(30)]
    cluster.kill(2)
    short = [draw_outside(injector, world.random("core", number)) for number in range(30)]
    injector.end_all(Outside(nodes=(101, 102, 2)))
    await cluster.wait_healthy(60, Outside(nodes=(101, 102, 2)))
    await trio.sleep(5)
    running = cluster.running
    healthy = cluster.is_healthy()
    injector.end_all(Outside(nodes=(101, 102, 2), cut=True))
    network = world.network
    cut = [(one, other) for (one, other), link in network._links.items() if link.cut]
    hosts = network.host_names
    injector.end_all()
    await cluster.wait_healthy(60)
    links = [link for link in network._links.values() if link.cut]
    return whole, short, running, healthy, cut, hosts, links


def test_a_core_has_a_majority_and_every_partition_in_sync():
    """A core is a majority with an in-sync replica of every partition."""
    whole, short, running, healthy, cut, hosts, links = run_world(outsiders, 4)
    for one in whole:
        assert len([node_id for node_id in one.nodes if node_id > 100]) == 2
        assert len([node_id for node_id in one.nodes if node_id < 100]) == 1
    assert {one.nodes[-1] for one in whole} == {1, 2, 3}, "any broker can be spared"
    assert {one.cut for one in whole} == {True, False}
    assert {one.nodes[-1] for one in short} == {1, 2, 3}, "the others hold everything still"
    assert running == [103, 104, 105, 1, 3]
    assert not healthy, "as long as a node is missing"
    outside = ["controller-101", "controller-102", "broker-2"]
    inside = [host for host in hosts if host not in outside]
    assert {"client", "admin", "broker-1"} <= set(inside)
    assert set(cut) == {pair for one in outside for other in inside for pair in ((one, other), (other, one))}
    assert links == []


async def moving(world):
    """Draws who stays outside while a partition of brokers 1 and 2 moves to 1 and 3, which is down."""
    cluster = SimulatedCluster(world, ClusterShape())
    cluster.start_all()
    await cluster.wait_healthy(60)
    environment = world.node("client").environment
    await cluster.create_topic(environment, "flights", 1, {})
    injector = FaultInjector(cluster, ["client"], synced=True)
    async with Admin({"bootstrap.servers": cluster.bootstrap}, environment=environment) as admin:
        await admin.alter_partition_reassignments({("flights", 0): [1, 2]})
        await cluster.wait_healthy(60)
        await trio.sleep(5)
        before = {draw_outside(injector, world.random("core", number)).nodes[-1] for number in range(30)}
        cluster.kill(3)
        await admin.alter_partition_reassignments({("flights", 0): [1, 3]})
        await trio.sleep(1)
    partition = cluster.newest_image().topics_by_name["flights"].partitions[0]
    during = {draw_outside(injector, world.random("core", number)).nodes[-1] for number in range(30)}
    return before, partition.removing_replicas, during


def test_replicas_that_a_reassignment_removes_are_not_counted_on():
    before, removing, during = run_world(moving, 4)
    assert before == {3}, "broker 3 has nothing"
    assert removing == (2,)
    assert during == {2}, "seed 231784: without broker 1 or 3 one replica is left when the move has ended"


@pytest.mark.parametrize(
    ("leader", "isr", "elr", "last_known", "waits"),
    [
        (-1, (), (3,), (), True),
        (-1, (3,), (), (), True),
        (-1, (), (), (3,), True),
        (3, (3,), (), (), False),  # its session lasts
        (-1, (), (3, 1), (), False),
        (-1, (), (2,), (3,), False),
        (-1, (), (), (), False),
        (1, (1, 3), (), (), False),
    ],
)
def test_only_a_new_partition_without_a_leader_waits(leader, isr, elr, last_known, waits):
    """A core does without a partition only if it is new, has no leader, and brokers outside alone may lead it."""
    partition = PartitionImage(replicas=(1, 2, 3), leader=leader, isr=isr, elr=elr, last_known_elr=last_known)
    topic = TopicImage(name="late", topic_id=UUID(int=7), partitions=PersistentMap())
    new = Outside(nodes=(101, 3), earlier_topics=frozenset({UUID(int=6)}))
    assert new.alone_hold(topic, partition) is waits
    for earlier in (frozenset({UUID(int=6), UUID(int=7)}), None):
        assert not replace(new, earlier_topics=earlier).alone_hold(topic, partition)


async def created_meanwhile(world):
    """A client creates a topic while brokers 1 and 2 are fenced and broker 3, outside, is still in service.

    Returns what the core said of it, and of the topics that it must serve; and whether all nodes serve it at the end.
    """
    cluster = SimulatedCluster(world, ClusterShape())
    cluster.start_all()
    await cluster.wait_healthy(60)
    environment = world.node("client").environment
    await cluster.create_topic(environment, "flights", 1, {})
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True)
    network, fenced = world.network, ["broker-1", "broker-2"]
    network.cut_between(fenced, [host for host in network.host_names if host not in fenced])
    await trio.sleep(12)  # the session of a machine that is silent lasts nine seconds
    outside = replace(draw_outside(injector, world.random("core")), nodes=(101, 3), cut=True)
    await cluster.create_topic(environment, "late", 1, {})
    partition = cluster.newest_image().topics_by_name["late"].partitions[0]
    injector.end_all(outside)
    at_once = cluster.is_healthy(outside)
    await cluster.wait_healthy(60, outside)
    later = replace(outside, earlier_topics=frozenset(cluster.newest_image().topics_by_id))
    said = [cluster.is_healthy(each) for each in (outside, later, replace(outside, earlier_topics=None))]
    served = [cluster.can_have_topic(name, outside) for name in ("flights", "late", "unknown")]
    injector.end_all()
    await cluster.wait_healthy(60)
    return partition.isr, at_once, said, served


def test_a_new_topic_that_only_outsiders_hold_can_wait():
    """Seed 2413667: a topic was created while the broker outside was the only one in service, so it alone may lead it.

    Topics that were there when the core was chosen must have their leaders in it all the same.
    """
    isr, at_once, said, served = run_world(created_meanwhile, 4)
    assert isr == (3,)
    assert not at_once, "the session of the broker outside lasts, and the others are starting"
    assert said == [True, False, False]
    assert served == [True, False, False]


async def restarted_by_others(world):
    """Brokers are being restarted, by a fault and by an operator, when the core begins; who is outside stays down."""
    cluster = SimulatedCluster(world, ClusterShape())
    cluster.start_all()
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True)
    roll = PlannedFault(kind=FaultKind.ROLL, begin=0.0, end=5.0, number=0)
    injector.schedule([roll], trio.current_time())
    await trio.sleep(0.1)
    (rolled,) = [node_id for node_id in cluster.broker_ids if cluster.is_stopping(node_id)]
    world.nursery.start_soon(cluster.restart, 101)
    await trio.sleep(0.0)
    outside = Outside(nodes=(101, rolled))
    injector.end_all(outside)
    await cluster.wait_healthy(60, outside)
    await trio.sleep(5)
    cluster.assert_kept_down()
    running = cluster.running
    injector.end_all()
    await cluster.wait_healthy(60)
    return outside.nodes, running, cluster.running


def test_no_pending_restart_starts_a_node_outside_the_core():
    """A restart that was under way starts no node outside of the core."""
    outside, core, all_nodes = run_world(restarted_by_others, 3)
    assert sorted([*outside, *core]) == sorted(all_nodes) == [1, 2, 3, 101, 102, 103]


async def unsettled(world):
    """Draws who stays outside while votes and replicas move, and afterwards."""
    cluster = SimulatedCluster(world, ClusterShape())
    cluster.start_all()
    await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, ["client"], synced=True)
    moves = injector.moves

    async def slow(_):
        await trio.sleep(2)
        return "done"

    async def refused(_):
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "it may still take effect")

    seen, at_once = [], []
    for name, move in (("voters", slow), ("reassign", slow), ("elect", refused), ("reassign", refused)):
        moves.start(name, move)
        at_once.append(draw_outside(injector, world.random("core")).nodes)  # before the move has taken a step
        await trio.sleep(1)
        seen.append(draw_outside(injector, world.random("core")).nodes)
        await trio.sleep(2)
    return at_once, seen, draw_outside(injector, world.random("core")).nodes


def test_unfinished_moves_reduce_the_nodes_left_outside():
    at_once, seen, afterwards = run_world(unsettled, 4)
    assert [len(nodes) for nodes in at_once] == [len(nodes) for nodes in seen], "seed 200439: it moved as faults ended"
    voters, reassign, elect, unanswered = seen
    assert [node_id > 100 for node_id in voters] == [False], "a vote may go"
    assert [node_id > 100 for node_id in reassign] == [True], "a replica may go"
    assert [node_id > 100 for node_id in elect] == [True, False]
    assert [node_id > 100 for node_id in unanswered] == [True]
    assert [node_id > 100 for node_id in afterwards] == [True], "what was not answered may still take effect"
