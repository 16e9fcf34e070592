"""Goal: faults of one link do not undo each other, end when all are ended, and count only when they did something.

Method: a single broker without other clients than the test, affected by several faults with times of their own.
"""

import trio

from moldau_jepsen.cluster.outside import Outside
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.world.world import run_world

BROKER = "broker-1"


def strike(world, kind, *times):
    """Strikes the links of a broker that does not run, by faults with these times."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1, brokers=1))
    world.node("client")
    injector = FaultInjector(cluster, ["client"], synced=True, fault_scope=FaultScope.BROKERS)
    faults = [PlannedFault(kind=kind, begin=begin, end=end, number=number) for number, (begin, end) in enumerate(times)]
    injector.schedule(faults, trio.current_time())
    return injector


def links(world, *names):
    """Returns the settings of the broker's links, by their ends."""
    return {
        pair: tuple(getattr(link, name) for name in names)
        for pair, link in world.network._links.items()
        if any(getattr(link, name) for name in names)
    }


async def overlapping(world, kind, *names):
    """Returns the links during one fault, during two, during the second alone, and after both."""
    strike(world, kind, (0.0, 2.0), (1.0, 3.0))
    seen = []
    for _ in range(4):
        await trio.sleep(0.5)
        seen.append(links(world, *names))
        await trio.sleep(0.5)
    return seen


async def beside_another_kind(world, kinds, *names):
    """Returns the links before, during and after a fault of the second kind, while one of the first goes on."""
    injector = strike(world, kinds[0], (0.0, 9.0))
    injector.schedule([PlannedFault(kind=kinds[1], begin=1.0, end=2.0, number=1)], trio.current_time())
    seen = []
    for _ in range(3):
        await trio.sleep(0.5)
        seen.append(links(world, *names))
        await trio.sleep(0.5)
    return seen


async def nested(world, kind, *names):
    """Returns the links before, during and after another fault strikes them too."""
    strike(world, kind, (0.0, 3.0), (1.0, 2.0))
    seen = []
    for _ in range(4):
        await trio.sleep(0.5)
        seen.append(links(world, *names))
        await trio.sleep(0.5)
    return seen


TROUBLES = ((FaultKind.SLOW, ("extra_delay", "bytes_per_second")), (FaultKind.LOSS, ("loss_probability",)))


def test_the_end_of_a_fault_leaves_what_a_newer_one_does():
    for kind, names in TROUBLES:
        first, both, second, none = run_world(lambda world, k=kind, n=names: overlapping(world, k, *n), 4)
        assert first
        assert second
        assert second.items() <= both.items(), "the newest holds"
        assert second != first, "the draws of this seed differ"
        assert none == {}


def test_a_fault_of_another_kind_leaves_what_goes_on():
    for (kind, names), (other, _) in (TROUBLES, TROUBLES[::-1]):
        seen = run_world(lambda world, k=(kind, other), n=names: beside_another_kind(world, k, *n), 4)
        assert seen[0]
        assert seen == [seen[0]] * 3, kind


def test_the_end_of_a_newer_fault_restores_an_older_one():
    """The end of a newer fault brings back the effect of an older one."""
    for kind, names in TROUBLES:
        before, during, after, none = run_world(lambda world, k=kind, n=names: nested(world, k, *n), 4)
        assert before == after
        assert before != during
        assert none == {}


async def ended_late(world):
    """Cuts and delays end after all was ended, while the broker is to stay outside."""
    injectors = [strike(world, kind, (0.0, 2.0)) for kind in (FaultKind.CUT, FaultKind.SLOW, FaultKind.LOSS)]
    await trio.sleep(1.0)
    for injector in injectors:
        injector._links.end_all([BROKER])
    hosts = world.network.host_names
    ended = links(world, "cut", "extra_delay", "loss_probability")
    await trio.sleep(2.0)
    return hosts, ended, links(world, "cut", "extra_delay", "loss_probability")


def test_a_fault_that_ends_late_connects_no_outsider():
    """A fault that ends late does not connect a node that is to stay outside."""
    hosts, ended, later = run_world(ended_late, 4)
    others = [host for host in hosts if host != BROKER]
    assert "client" in others
    assert set(ended) == {pair for other in others for pair in ((BROKER, other), (other, BROKER))}
    assert later == ended


async def affected_by_traffic(world, kind):
    """Whether a fault counts before anything is sent, and afterwards."""
    injector = strike(world, kind, (0.0, 100.0))
    await trio.sleep(1.0)
    before = injector.effective.total()
    listener = await world.node("client").environment.network.listen("client", 1)
    sender = await world.node(BROKER).environment.network.connect("client", 1)
    receiver = await listener.accept()
    for _ in range(200):
        for end in (sender, receiver):
            end.send_nowait([b"something"])
        await trio.sleep(0.1)
    return before, injector.effective.total(), world.network.segments_lost > 0


def test_links_that_slowed_and_lost_nothing_were_not_affected():
    assert run_world(lambda world: affected_by_traffic(world, FaultKind.SLOW), 4) == (0, 1, False)
    lossy = [run_world(lambda world: affected_by_traffic(world, FaultKind.LOSS), seed) for seed in range(4, 10)]
    assert set(lossy) == {(0, 0, False), (0, 1, True)}, "the broker's links to the client are drawn, or are not"


def test_the_injector_ends_link_faults_with_all_others():
    async def main(world):
        injector = strike(world, FaultKind.SLOW, (0.0, 2.0))
        await trio.sleep(1.0)
        during = links(world, "extra_delay")
        injector.end_all(Outside(nodes=(1, 101)))
        return during, links(world, "extra_delay")

    during, after = run_world(main, 4)
    assert during
    assert after == {}
