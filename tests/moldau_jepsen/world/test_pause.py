"""Goal: a paused machine does nothing until it is resumed, then goes on late; all others, and its kernel, go on.

Method: programs on virtual machines that tick and talk to each other, paused, resumed and killed at known times.
"""

from functools import partial

import pytest
import trio

from moldau_jepsen.world.world import run_world


async def tick(seen, environment):
    while True:
        await trio.sleep(1.0)
        seen.append(round(trio.current_time(), 3))


def test_timers_of_a_paused_machine_fire_late_and_others_on_time():
    async def main(world):
        mine, others = [], []
        world.node("a").start(lambda environment: tick(mine, environment))
        world.node("b").start(lambda environment: tick(others, environment))
        await trio.sleep(2.5)
        before = world.node("a").environment.clock.monotonic_ms()
        world.node("a").pause()
        world.node("a").pause()
        await trio.sleep(4.0)
        assert world.node("a").environment.clock.monotonic_ms() == before + 4_000
        assert mine == [1.0, 2.0]
        world.node("a").resume()
        await trio.sleep(1.2)
        return mine, others

    mine, others = run_world(main, 1)
    assert mine == [1.0, 2.0, 6.5, 7.5]
    assert others == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_a_scenario_that_fails_while_a_machine_is_paused_ends():
    """Tasks that were held back could not be cancelled: the run stood still without a message."""

    async def main(world):
        world.node("a").start(lambda environment: tick([], environment))
        await trio.sleep(1.5)
        world.node("a").pause()
        await trio.sleep(1.5)
        raise ValueError("this is why")

    with pytest.raises(ValueError, match="this is why"):
        run_world(main, 1)


def test_connections_of_a_paused_process_stay_open():
    """Connections of a paused process stay open and take bytes."""

    async def main(world):
        received = []

        async def serve(environment):
            listener = await environment.network.listen("a", 80)
            connection = await listener.accept()
            buffer = memoryview(bytearray(64))
            while True:
                await connection.wait_readable()
                count = connection.receive_into_nowait(buffer)
                received.append((bytes(buffer[:count]), trio.current_time() > 5.0))

        world.node("a").start(serve)
        await trio.sleep(0.1)
        connection = await world.node("b").environment.network.connect("a", 80)
        connection.send_nowait([b"one"])
        await trio.sleep(1.0)
        world.node("a").pause()
        connection.send_nowait([b"two"])
        await trio.sleep(5.0)
        assert received == [(b"one", False)]
        world.node("a").resume()
        await trio.sleep(1.0)
        return received

    assert run_world(main, 2) == [(b"one", False), (b"two", True)]


def test_a_paused_process_can_be_killed_and_started_again():
    async def main(world):
        seen = []
        node = world.node("a")
        node.start(lambda environment: tick(seen, environment))
        await trio.sleep(1.5)
        node.pause()
        await trio.sleep(1.0)
        node.kill()
        await node.wait_ended()
        node.start(lambda environment: tick(seen, environment))
        await trio.sleep(1.1)
        node.pause()  # and is left so: the world ends all the same
        return seen

    assert run_world(main, 3) == [1.0, 3.5]


def test_a_machine_that_goes_on_wakes_no_other_one():
    async def main(world):
        seen = {name: [] for name in "abc"}
        for name, ticks in seen.items():
            world.node(name).start(partial(tick, ticks))
        await trio.sleep(0.5)
        for name in "ab":
            world.node(name).pause()
        await trio.sleep(0.2)
        world.node("a").resume()
        await trio.sleep(1.8)
        assert seen == {"a": [1.0, 2.0], "b": [], "c": [1.0, 2.0]}
        world.node("b").resume()
        await trio.sleep(0.1)
        return seen["b"]

    assert run_world(main, 5) == [2.5]


def test_a_program_of_the_test_is_paused_with_its_machine():
    async def main(world):
        seen = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.node("client").run_program, tick, seen, None)
            await trio.sleep(1.5)
            world.node("client").pause()
            await trio.sleep(3.0)
            world.node("client").resume()
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        return seen

    assert run_world(main, 4) == [1.0, 4.5]
