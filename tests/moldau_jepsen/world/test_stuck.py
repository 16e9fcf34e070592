"""Goal: a program that would never end ends its run with an error that names the waiting code.

Method: deadlocks and busy loops in a world, and time limits whose exceptions reach any code of it.
"""

import gc
import signal
import threading
import warnings
from collections import deque

import pytest
import trio

from moldau_jepsen.testing import simulate
from moldau_jepsen.testing.scenario import run_simulated
from moldau_jepsen.world import StuckError, run_world
from moldau_jepsen.world.time import scheduler
from moldau_jepsen.world.time.timeline import VirtualClock


class TimeLimit(BaseException):
    """As the exception with which a test framework ends a test."""


@pytest.fixture(autouse=True)
def prompt(monkeypatch):
    monkeypatch.setattr(scheduler, "STUCK_POLL_SECONDS", 0.0)
    monkeypatch.setattr(scheduler, "TURNS_AT_ONE_INSTANT_MAX", 2_000)


@pytest.fixture
def clean():
    """Fails the test if tasks were left to the garbage collector."""
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in found] == []


async def wait_for_nothing(_):
    await trio.Event().wait()


async def of_one_second(_):
    await trio.sleep(1.0)
    return True


async def spin(_):
    while True:
        await trio.lowlevel.checkpoint()


def test_a_deadlock_names_the_waiting_code(clean):
    async def main(world):
        world.node("office").start(wait_for_nothing)
        await trio.sleep(3.0)
        await wait_for_nothing(world)

    with pytest.raises(StuckError, match=r"deadlock at 3\.0+ s.*main:.* > wait_for_nothing.*; office: .*for_nothing"):
        run_world(main, 1)


def test_a_deadlock_of_a_paused_machine_is_found(clean):
    async def main(world):
        node = world.node("office")
        node.start(spin)
        node.pause()
        await node.wait_ended()

    with pytest.raises(StuckError, match=r"deadlock .*wait_ended"):
        run_world(main, 1)


def test_a_wait_for_a_thread_is_no_deadlock(monkeypatch, clean):
    released, waits, looks = threading.Event(), scheduler._waits_for_thread, []

    def look():
        looks.append(waits())
        if len(looks) > 2 * scheduler.STUCK_POLLS_MAX:
            released.set()
        return looks[-1]

    monkeypatch.setattr(scheduler, "_waits_for_thread", look)

    async def main(_):
        await trio.to_thread.run_sync(released.wait)

    run_world(main, 1)
    assert all(looks)


@pytest.mark.parametrize("where", ["scenario", "node"])
def test_a_busy_loop_names_the_running_code(where, clean):
    async def main(world):
        await trio.sleep(2.0)
        if where == "node":
            world.node("office").start(spin)
            await trio.sleep(1.0)
        else:
            await spin(world)

    with pytest.raises(StuckError, match=rf"busy loop at 2\.0+ s.*{'office: ' if where == 'node' else ''}.* > spin:"):
        run_world(main, 1)


def test_a_long_run_is_no_busy_loop():
    async def main(_):
        for _ in range(3 * scheduler.TURNS_AT_ONE_INSTANT_MAX):
            await trio.sleep(0.001)
        return True

    assert run_world(main, 1)


@pytest.mark.parametrize("in_group", [False, True])
def test_a_time_limit_in_a_nodes_code_ends_the_run(in_group, clean):
    async def node(_):
        await trio.sleep(1.0)
        raise TimeLimit("too slow")

    async def node_in_group(_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node, None)

    async def main(world):
        world.node("a").start(node_in_group if in_group else node)
        await trio.sleep(1_000.0)

    with pytest.raises(TimeLimit, match="too slow"):
        run_world(main, 1)


def test_a_time_limit_between_steps_ends_the_run(clean):
    ended = []

    async def main(world):
        def strikes():
            raise TimeLimit("too slow")

        world.agenda.call_after(1.0, strikes)
        world.node("a").start(wait_for_nothing)
        try:
            await trio.sleep(1_000.0)
        finally:
            ended.append(trio.current_time())

    with pytest.raises(TimeLimit, match="too slow"):
        run_world(main, 1)
    assert ended == [1.0]
    assert run_world(of_one_second, 1), "the next run is not affected"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # trio does not clean up after that
def test_a_time_limit_in_trios_own_code_is_raised(monkeypatch):
    async def main(_):
        def strikes(*_):
            raise TimeLimit("too slow")

        monkeypatch.setattr(VirtualClock, "deadline_to_sleep_time", strikes)  # trio calls it between steps
        await trio.sleep(1.0)

    with pytest.raises(TimeLimit, match="too slow"):
        run_world(main, 1)
    gc.collect()


@pytest.fixture
def alarm():
    """The handler of a time limit, which raises."""

    def strikes(*_):
        raise TimeLimit("too slow")

    former = signal.signal(signal.SIGALRM, strikes)
    yield strikes
    assert signal.getsignal(signal.SIGALRM) is strikes, "a run gives the handler back"
    signal.signal(signal.SIGALRM, former)


def strike(*_):
    """Is called in place of functions of the kit, whose results do not matter here."""
    signal.raise_signal(signal.SIGALRM)
    return 0.0


@pytest.mark.parametrize("where", ["a task", "a call", "trio's code", "the queue", "a deadlock"])
def test_an_alarm_ends_the_run_without_traces(where, alarm, clean, monkeypatch):
    reached = []

    async def main(world):
        await trio.sleep(1.0)
        world.node("a").start(wait_for_nothing)
        if where == "a task":
            strike()
            reached.append(where)
        elif where == "a call":
            world.agenda.call_after(1.0, strike)
            await trio.sleep(1.0)
        elif where == "trio's code":
            monkeypatch.setattr(VirtualClock, "deadline_to_sleep_time", strike)
        elif where == "the queue":
            world.gate.queue.append = lambda task: (strike(), deque.append(world.gate.queue, task))
        elif where == "a deadlock":
            world.node("a").kill()
            monkeypatch.setattr(scheduler, "_waits_for_thread", strike)
            await wait_for_nothing(world)
        await trio.lowlevel.checkpoint()
        await trio.sleep(1.0)
        reached.append(where)

    with pytest.raises(TimeLimit, match="too slow"):
        run_world(main, 1)
    monkeypatch.undo()
    assert reached == []
    assert run_world(of_one_second, 1), "the next run is not affected"


def test_a_run_without_an_alarm_leaves_its_handler(alarm):
    assert run_world(of_one_second, 1)


def test_a_run_in_another_thread_has_no_alarm(alarm):
    ended = []
    thread = threading.Thread(target=lambda: ended.append(run_world(of_one_second, 1)))
    thread.start()
    thread.join()
    assert ended == [True]


def test_a_time_limit_ends_a_simulated_cluster():
    async def scenario(sim):
        async def dies(_):
            raise TimeLimit("too slow")

        sim.world.node("app").start(dies)
        await trio.sleep_forever()

    with pytest.raises(TimeLimit, match="too slow"):
        simulate(scenario, seed=1, brokers=1, controllers=1)


def test_a_time_limit_leaves_the_last_events():
    async def test(cluster):
        async def dies(_):
            raise TimeLimit("too slow")

        cluster.simulated.world.node("app").start(dies)
        await trio.sleep_forever()

    timeline = []
    with pytest.raises(TimeLimit):
        run_simulated(test, seed=1, brokers=1, controllers=1, settings={}, timeline=timeline)
    assert any("start        app 2" in line for line in timeline), timeline
