"""Goal: each kind of fault strikes exactly the nodes, links and disks that its name says.

Method: a simulated cluster; faults of one kind strike one after the other, each with chances of its own, and what they
leave of links and processes is looked at while they last. Kinds that need something to strike get a producer.
"""

from __future__ import annotations

import errno
import itertools
import json
import re
from functools import partial

import pytest
import trio

from moldau import Producer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.world.world import run_world

CONTROLLERS = [f"controller-{node_id}" for node_id in (101, 102, 103)]
BROKERS = [f"broker-{node_id}" for node_id in (1, 2, 3)]
NODES = [*CONTROLLERS, *BROKERS]
CLIENT = "client"
STRIKES = 16
LENGTH_S = 0.01
SYNCED = {"log.flush.interval.messages": "1"}
SHORT_SESSIONS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}


def between(left, right):
    return {pair for one in left for other in right for pair in ((one, other), (other, one))}


def without(hosts, *gone):
    return [host for host in hosts if host not in gone]


def cut_links(world):
    network = world.network
    hosts = network.host_names
    return {(one, other) for one in hosts for other in hosts if one != other and network._link(one, other).cut}


def groups_of(cuts):
    """Nodes that still hear each other, directly or through others."""
    left, groups = list(NODES), []
    while left:
        group, found = [], [left[0]]
        while found:
            host = found.pop()
            group.append(host)
            left.remove(host)
            found += [other for other in left if (host, other) not in cuts and other not in found]
        groups.append(sorted(group))
    return groups


async def cuts(world, kind):
    """Strikes several times with a kind of cut; returns the links that each strike cut.

    No process runs: links are cut between machines, and which of them runs something changes no shape.
    """
    cluster = SimulatedCluster(world, ClusterShape())
    world.node(CLIENT)
    injector = FaultInjector(cluster, [CLIENT], synced=True)
    seen = []
    for number in range(STRIKES):
        fault = PlannedFault(kind=kind, begin=0.0, end=LENGTH_S, number=number)
        injector.schedule([fault], trio.current_time())
        await trio.sleep(LENGTH_S / 2)
        seen.append(cut_links(world))
        await trio.sleep(LENGTH_S)
        assert cut_links(world) == set(), "the end of a cut leaves nothing"
    return seen


def shapes_of(seen, shapes):
    """Returns the names of the shapes that were seen; each cut must have one of them."""
    named = [{name for name, shape in shapes.items() if shape == links} for links in seen]
    assert all(named), [links for links, names in zip(seen, named, strict=True) if not names]
    return set().union(*named)


def test_a_cut_isolates_one_node_with_or_without_clients():
    """A cut takes one node from all others, and from clients or not."""
    shapes = {}
    for host in NODES:
        shapes[host, "nodes"] = between([host], without(NODES, host))
        shapes[host, "clients too"] = between([host], [*without(NODES, host), CLIENT])
    found = shapes_of(run_world(lambda world: cuts(world, FaultKind.CUT), 5), shapes)
    assert {reach for _, reach in found} == {"nodes", "clients too"}
    assert len({host for host, _ in found}) > 2


def test_a_cut_one_way_stops_what_a_node_sends_or_what_it_hears():
    shapes = {}
    for host in NODES:
        for reach, others in (("nodes", without(NODES, host)), ("clients too", [*without(NODES, host), CLIENT])):
            shapes["says", reach, host] = {(host, other) for other in others}
            shapes["hears", reach, host] = {(other, host) for other in others}
    found = shapes_of(run_world(lambda world: cuts(world, FaultKind.CUT_ONE_WAY), 5), shapes)
    assert {(way, reach) for way, reach, _ in found} == {
        (way, reach) for way in ("says", "hears") for reach in ("nodes", "clients too")
    }


def test_halves_are_two_groups_that_do_not_reach_each_other():
    sizes = set()
    for links in run_world(lambda world: cuts(world, FaultKind.HALVES), 5):
        one, other = groups_of(links)
        assert links == between(one, other)
        sizes.add(min(len(one), len(other)))
    assert sizes == {1, 2, 3}


def test_a_bridge_is_the_only_node_that_reaches_both_groups():
    bridges = set()
    for links in run_world(lambda world: cuts(world, FaultKind.BRIDGE), 5):
        (bridge,) = [host for host in NODES if not any(host in link for link in links)]
        beside_it = links | between([bridge], without(NODES, bridge))
        one, other = (group for group in groups_of(beside_it) if group != [bridge])
        assert links == between(one, other)
        assert sorted((len(one), len(other))) == [2, 3]
        bridges.add(bridge)
    assert len(bridges) > 2


def test_each_node_of_a_ring_hears_another_majority():
    """In a ring of nodes each hears a majority, and no two hear the same."""
    rings = run_world(lambda world: cuts(world, FaultKind.RING), 5)
    for links in rings:
        heard = {host: frozenset(other for other in NODES if (other, host) not in links) for host in NODES}
        assert {len(others) for others in heard.values()} == {len(NODES) // 2 + 1}
        assert len(set(heard.values())) == len(NODES)
        assert not any(CLIENT in link for link in links)
    assert len({frozenset(links) for links in rings}) > 2


def test_a_cut_link_is_one_pair():
    pairs = run_world(lambda world: cuts(world, FaultKind.LINK), 5)
    all_hosts = [*NODES, CLIENT]
    shapes = {
        (one, other): between([one], [other])
        for number, one in enumerate(all_hosts)
        for other in all_hosts[number + 1 :]
    }
    assert len(shapes_of(pairs, shapes)) > 4


def test_a_blind_broker_sees_no_controller_and_everybody_else():
    shapes = {host: between([host], CONTROLLERS) for host in BROKERS}
    assert len(shapes_of(run_world(lambda world: cuts(world, FaultKind.BLIND), 5), shapes)) > 1


# -- processes ---------------------------------------------------------------------------------------------------------


DEATHS = {
    FaultKind.KILL: 6,
    FaultKind.KILL_LEADER: 6,
    FaultKind.KILL_MANY: 3,
    FaultKind.POWER: 2,
    FaultKind.POWER_ALL: 1,
}
"""How often each kind strikes."""


async def deaths(world):
    """Strikes several times with each kind; returns, for each, who led before, who was down, and who had no power."""
    cluster = SimulatedCluster(world, ClusterShape(settings=SYNCED))
    cluster.start_all()
    await cluster.wait_healthy(60)
    await cluster.create_topic(world.node(CLIENT).environment, "flights", 2, {})
    injector = FaultInjector(cluster, [CLIENT], synced=True)
    seen = {kind: [] for kind in DEATHS}
    for number, kind in enumerate(kind for kind, strikes in DEATHS.items() for _ in range(strikes)):
        await cluster.wait_healthy(90)
        led = [*cluster.leaders(), cluster.active_controller()]
        injector.schedule([PlannedFault(kind=kind, begin=0.0, end=0.5, number=number)], trio.current_time())
        await trio.sleep(0.25)
        machines = cluster.machines.items()
        down = [node_id for node_id, machine in machines if not machine.is_running]
        dark = [node_id for node_id, machine in machines if not machine.has_power]
        seen[kind].append((led, down, dark))
        await trio.sleep(0.5)
        assert len(cluster.running) == len(NODES), "all were started again"
    return seen


def test_each_kind_of_death_takes_the_nodes_that_it_names():
    """One process, a leader, several, one machine's power or that of all; only the loss of power darkens machines."""
    seen = run_world(deaths, 5)
    killed = seen[FaultKind.KILL]
    assert all(len(down) == 1 and not dark for _, down, dark in killed)
    assert len({down[0] for _, down, _ in killed}) > 1
    leaders = seen[FaultKind.KILL_LEADER]
    assert all(len(down) == 1 and down[0] in led and not dark for led, down, dark in leaders)
    assert {down[0] > 100 for _, down, _ in leaders} == {True, False}, "a controller, or a broker that leads"
    many = seen[FaultKind.KILL_MANY]
    assert all(len(down) >= 2 and not dark for _, down, dark in many)
    assert len({len(down) for _, down, _ in many}) > 1
    assert all(len(down) == 1 and dark == down for _, down, dark in seen[FaultKind.POWER])
    assert all(down == dark == [101, 102, 103, 1, 2, 3] for _, down, dark in seen[FaultKind.POWER_ALL])


# -- under load --------------------------------------------------------------------------------------------------------

SAMPLE_S = 0.02
EVENTS_MAX = 600
"""More events than a cluster has between two samples."""
WRITES = ("write", "truncate", "sync", "create", "rename", "remove", "mkdir", "sync-names")


class Story:
    """The effects of one fault on brokers to which a producer wrote during it."""

    def __init__(self):
        self.events = []  # resets and notes while the fault lasted, in order
        self.later = []  # the same, after its end
        self.before_deaths = []  # the last event of the trace before each kill or loss of power
        self.failures = []  # processes that ended with an exception


async def strike_under_load(world, kind, number, seconds):
    """Strikes a broker once while a producer writes, and lets the cluster and the producer recover."""
    story = Story()
    cluster = SimulatedCluster(world, ClusterShape(controllers=1, settings=SYNCED))
    cluster.start_all()
    await cluster.wait_healthy(60)
    environment = world.node(CLIENT).environment
    await cluster.create_topic(environment, "flights", 3, {})
    acknowledged = [0.0]

    def noted_before(action):
        def do(node_id):
            story.before_deaths.append(world.trace.tail(1)[0])
            action(node_id)

        return do

    async def write():
        config = {"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": 1_000}
        async with Producer(config, environment=environment) as producer:
            for value in itertools.count():
                try:
                    await (await producer.send("flights", b"%d" % value, partition=value % 3))
                except KafkaError:
                    continue
                acknowledged.append(trio.current_time())
                await trio.sleep(SAMPLE_S)

    async def listen(until, events):
        since = trio.current_time()
        while trio.current_time() < until:
            await trio.sleep(SAMPLE_S)
            newest = world.trace.tail(EVENTS_MAX)
            assert newest[0].seconds <= since or len(newest) < EVENTS_MAX, "all events of the sample are looked at"
            news, notes = [event for event in newest if event.seconds > since], world.trace.notes()[-50:]
            events += [event for event in news if event.kind == "reset" or event in notes]
            since = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(1.0)
        cluster.kill, cluster.lose_power = noted_before(cluster.kill), noted_before(cluster.lose_power)
        injector = FaultInjector(cluster, [CLIENT], synced=True, fault_scope=FaultScope.BROKERS)
        fault = PlannedFault(kind=kind, begin=SAMPLE_S / 2, end=seconds, number=number)
        injector.schedule([fault], trio.current_time())
        await listen(trio.current_time() + seconds - SAMPLE_S, story.events)
        await listen(trio.current_time() + 1.0, story.later)
        healed = trio.current_time()
        await cluster.wait_healthy(90)
        with trio.fail_after(90):
            while acknowledged[-1] < healed:  # noqa: ASYNC110 - in virtual time, and producers notify no task
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    story.failures = list(world.failures)
    return story


def stories(kind, count, seconds=3.0):
    strike = partial(strike_under_load, kind=kind, seconds=seconds)
    return [run_world(partial(strike, number=number), 5) for number in range(count)]


def hosts_named(events, *kinds):
    return {event.text.split()[0] for event in events if event.kind in kinds}


@pytest.mark.proof
def test_a_process_ends_at_its_crash_point():
    """A process ends at its crash point and starts again when the fault is over."""
    kinds, after = set(), set()
    for story in stories(FaultKind.CRASH_POINT, 6):
        (death,) = [event for event in story.events if event.kind in ("kill", "power-off")]
        host = death.text.split()[0]
        (last,) = story.before_deaths
        assert last.kind in (*WRITES, "send"), "it ends just after a write to its disk, or after it has sent something"
        assert (last.seconds, last.text.split()[0]) == (death.seconds, host)
        assert death.seconds > story.events[0].seconds, "it lives until it does that"
        assert hosts_named(story.events, "start") == set()
        assert hosts_named(story.later, "start") == {host}
        assert story.failures == []
        kinds.add(death.kind)
        after.add(last.kind == "send")
    assert kinds == {"kill", "power-off"}
    assert after == {True, False}


def test_connections_are_reset_until_the_fault_is_over():
    """The connections of a node are reset again and again until the fault is over."""
    affected = set()
    for story in stories(FaultKind.RESET, 2, 1.5):
        resets = [event for event in story.events if event.kind == "reset"]
        assert {int(event.text.split()[-1]) for event in resets} == {errno.ECONNRESET}
        ends = [frozenset(event.text.split()[:2]) for event in resets]
        (host,) = frozenset.intersection(*ends)
        assert {*without(BROKERS, host), CLIENT} <= frozenset.union(*ends), "followers and clients lose it"
        assert len({event.seconds for event in resets}) > 2
        assert [event for event in story.later if event.kind == "reset"] == []
        affected.add(host)
    assert len(affected) > 1


@pytest.mark.proof
def test_disk_errors_end_the_process_that_writes():
    """Errors of a disk reach the process that writes to it and end it."""
    calls = set()
    for story in stories(FaultKind.DISK_ERROR, 10):
        errors = [event for event in story.events if event.kind == "disk-error"]
        if errors:  # both rates may be drawn as 0
            ((name, error),) = story.failures
            assert {event.text.split()[0] for event in errors} == {name}
            assert "Input/output error" in repr(error)
            assert hosts_named(story.events, "exit") == hosts_named(story.later, "start") == {name}
            calls |= {event.text.split()[1] for event in errors}
    assert {"write", "sync"} <= calls <= {"write", "sync", "truncate"}, "a write that fails is taken back"


# -- moves -------------------------------------------------------------------------------------------------------------

MOVES = (FaultKind.ELECT, FaultKind.VOTERS, FaultKind.MOVE_DIRECTORY, FaultKind.REASSIGN)
"""Elections come first: leadership gathers at one broker before, and the other kinds may change it."""


async def moves(world):
    """Asks for moves of each kind where there is something to move.

    Returns, by kind, what was answered, and the states before the fault, while it lasts and after it: leaders, replicas
    and log directories of partitions, and the voters.
    """
    settings = {**SYNCED, **SHORT_SESSIONS, "auto.leader.rebalance.enable": "false"}
    cluster = SimulatedCluster(world, ClusterShape(directories=2, settings=settings))
    cluster.start_all()
    await cluster.wait_healthy(60)
    await cluster.create_topic(world.node(CLIENT).environment, "flights", 3, {})
    for node_id in cluster.broker_ids[1:]:  # leadership gathers at the first broker
        cluster.kill(node_id)
        await trio.sleep(2.5)  # longer than a session
        await cluster.wait_healthy(60)
    injector = FaultInjector(cluster, [CLIENT], synced=True)

    def state():
        image = cluster.newest_image()
        partitions = image.topics_by_name["flights"].partitions
        return {
            "led": {number: partition.leader for number, partition in partitions.items()},
            "replicas": {number: list(partition.replicas) for number, partition in partitions.items()},
            "places": {
                (cluster.host(node_id), f"{key.topic}-{key.partition}"): log.parent_directory
                for node_id, broker in cluster.brokers.items()
                for key, log in broker.context.logs.logs.items()
            },
            "voters": injector.moves.voters(),
        }

    seen = {}
    for number, kind in enumerate(MOVES):
        known = len(world.trace.notes())
        states = [state()]
        injector.schedule([PlannedFault(kind=kind, begin=0.0, end=3.0, number=number)], trio.current_time())
        await trio.sleep(2.9)
        states.append(state())
        await trio.sleep(3.0)
        await cluster.wait_healthy(60)
        states.append(state())
        seen[kind] = [note.text for note in world.trace.notes()[known:] if note.kind == "move"], states
    return seen


@pytest.mark.proof
def test_each_kind_of_move_makes_the_moves_that_it_reports():
    """Voters, partitions, leaders and replicas move as was asked for, and each kind moves nothing else."""
    seen = run_world(moves, 5)
    preferred_leaders_were_elected(*seen[FaultKind.ELECT])
    a_vote_was_taken_and_given_back(*seen[FaultKind.VOTERS])
    replicas_moved_to_the_requested_directories(*seen[FaultKind.MOVE_DIRECTORY])
    partitions_moved_to_the_requested_replicas(*seen[FaultKind.REASSIGN])
    changed_by = {
        kind: {name for name, was in before.items() if not was == during[name] == after[name]}
        for kind, (_, (before, during, after)) in seen.items()
    }
    assert changed_by[FaultKind.ELECT] == {"led"}
    assert changed_by[FaultKind.VOTERS] == {"voters"}
    assert changed_by[FaultKind.MOVE_DIRECTORY] == {"places"}
    assert "voters" not in changed_by[FaultKind.REASSIGN]


def preferred_leaders_were_elected(reported, states):
    before, during, _ = states
    preferred = {number: replicas[0] for number, replicas in before["replicas"].items()}
    wrong = [number for number, leader in before["led"].items() if leader != preferred[number]]
    assert wrong, "there is something to elect"
    assert reported[0] == f"elect {len(wrong)} partitions changed their leader"
    assert during["led"] == preferred
    assert len(reported) > 2


def a_vote_was_taken_and_given_back(reported, states):
    before, during, after = states
    assert before["voters"] == after["voters"] == [101, 102, 103]
    (gone,) = set(before["voters"]) - set(during["voters"])
    assert reported == [f"voters voter {gone} was removed", f"voters voter {gone} was added"]


def replicas_moved_to_the_requested_directories(reported, states):
    before, during, after = states
    assert len(reported) == 2
    for text, now in zip(reported, (during, after), strict=True):
        host, asked, answered = re.fullmatch(r"directories of (\S+): (.+): (.+)", text).groups()
        wanted = dict(one.split(" to ") for one in asked.split(", "))
        assert sorted(answered.split(", ")) == sorted(f"{partition} NONE" for partition in wanted)
        assert {partition: now["places"][host, partition] for partition in wanted} == wanted
    assert before["places"] != during["places"]


def partitions_moved_to_the_requested_replicas(reported, states):
    before, during, after = states
    assert len(reported) == 2, "once at the beginning and once at the end"
    for text, now, then in zip(reported, (during, after), (before, during), strict=True):
        asked = {int(number): json.loads(ids) for number, ids in re.findall(r"flights-(\d+) to (\[[\d, ]+\])", text)}
        assert asked
        assert now["replicas"] == {**then["replicas"], **asked}
    assert before["replicas"] != during["replicas"]
