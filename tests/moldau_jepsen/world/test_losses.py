"""Goal: a link that loses segments delays what TCP sends again, keeps its order, and breaks a connection only for good.

Method: two hosts of a virtual network, with losses of one direction.
"""

import pytest
import trio

from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.world import run_world

CALM = NetworkProfile(delay_min=0.001, delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0)
NUMBERS = b"".join(b"%04d" % number for number in range(200))


async def open_pair(world):
    """A connection from ``left`` to ``right``: both ends."""
    listener = await world.node("right").environment.network.listen("right", 9092)
    left = await world.node("left").environment.network.connect("right", 9092)
    return left, await listener.accept()


async def read_all(connection, count):
    got = bytearray()
    buffer = memoryview(bytearray(count))
    while len(got) < count:
        try:
            got += buffer[: connection.receive_into_nowait(buffer)]
        except BlockingIOError:
            await connection.wait_readable()
    return bytes(got)


def send_numbers(connection):
    for start in range(0, len(NUMBERS), 4):
        assert connection.send_nowait([NUMBERS[start : start + 4]]) == 4


def lossy_world(main, probability):
    async def run(world):
        left, right = await open_pair(world)
        world.network.lossy_link("left", "right", probability=probability)
        return await main(world, left, right)

    return run_world(run, 1, CALM)


async def there_and_back(world, left, right):
    times = []
    for sender, receiver in ((right, left), (left, right)):
        began = trio.current_time()
        send_numbers(sender)
        with trio.fail_after(600):
            assert await read_all(receiver, len(NUMBERS)) == NUMBERS
        times.append((trio.current_time() - began, world.network.segments_lost))
    return times


def test_lost_segments_are_retransmitted_in_order():
    """Lost segments are retransmitted in order; the other direction is unaffected."""
    (back_s, lost_back), (there_s, lost_there) = lossy_world(there_and_back, 0.2)
    assert (round(back_s, 6), lost_back) == (0.001, 0), "each link and direction has a rate of its own"
    assert 20 < lost_there < 80, "a fifth of two hundred, and of what is sent again"
    assert 0.2 < there_s < 20.0, "everything behind a lost segment waits for it, and no longer"


def test_no_link_loses_anything_by_default():
    assert lossy_world(there_and_back, 0.0)[1][1] == 0


async def hopeless(world, left, right):
    began = trio.current_time()
    send_numbers(left)
    await left.wait_readable()
    with pytest.raises(TimeoutError, match="does not acknowledge"):
        left.receive_into_nowait(memoryview(bytearray(1)))
    return trio.current_time() - began


def test_a_sender_that_gets_nothing_through_gives_up():
    assert lossy_world(hopeless, 0.999_999) == CALM.give_up_seconds


async def connect_through(world):
    await world.node("right").environment.network.listen("right", 9092)
    world.network.lossy_link("left", "right", probability=0.5)
    world.network.lossy_link("right", "left", probability=0.5)
    times = []
    for _ in range(20):
        began = trio.current_time()
        try:
            (await world.node("left").environment.network.connect("right", 9092)).close()
        except TimeoutError:
            times.append(None)
            continue
        times.append(trio.current_time() - began)
    return times


def test_a_connect_is_repeated_if_it_or_its_answer_is_lost():
    """A connection attempt is repeated if it or its answer is lost."""
    times = run_world(connect_through, 1, CALM)
    assert min(seconds for seconds in times if seconds is not None) < 0.01
    assert any(seconds is not None and seconds > 1.0 for seconds in times)


def test_healing_ends_all_losses():
    async def main(world, left, right):
        world.network.heal_all()
        return await there_and_back(world, left, right)

    assert lossy_world(main, 0.9)[1][1] == 0


async def drawn_rates(world):
    cluster = SimulatedCluster(world, ClusterShape())
    injector = FaultInjector(cluster, ["client"], synced=True)
    faults = [PlannedFault(kind=FaultKind.LOSS, begin=0.0, end=1.0, number=number) for number in range(8)]
    injector.schedule(faults, trio.current_time())
    await trio.sleep(0.5)
    during = {pair: link.loss_probability for pair, link in world.network._links.items()}
    await trio.sleep(1)
    return during, [link.loss_probability for link in world.network._links.values()]


def test_each_direction_of_each_link_draws_its_own_rate():
    during, after = run_world(drawn_rates, 1)
    assert len({rate for rate in during.values() if rate}) > 2
    assert any(rate != during.get((other, one), 0.0) for (one, other), rate in during.items())
    assert not any(after)


def test_a_cluster_behind_lossy_links_loses_no_record():
    faults = tuple(
        PlannedFault(kind=FaultKind.LOSS, begin=0.5 * number, end=0.5 * number + 4.0, number=number)
        for number in range(4)
    )
    result = run_seed(1, RunOptions(faults=faults, fault_seconds=6.0, pipe=False, transactions=False))
    assert result.passed, result.violations
    assert result.acknowledged > 50
    assert result.faults_by_kind == {"loss": 4}
