"""Goal: a user reads at once what failed in a world, and where. Method: scenarios and processes that fail."""

import pytest
import trio

from moldau_jepsen.world import ProcessFailedError, run_world
from moldau_jepsen.world.world import FAILURES_SHOWN


async def ends_badly(_):
    raise ValueError("no such ticket")


async def ends_badly_in_a_task(_):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends_badly, None)


async def ends_well(_): ...


async def waits(_):
    await trio.sleep_forever()


def test_an_error_of_the_scenario_is_raised_as_itself():
    for error in (AssertionError("mine"), KeyError("mine"), ExceptionGroup("mine", [ValueError("mine")])):

        async def main(world, error=error):
            world.node("a").start(waits)
            await trio.sleep(1.0)
            raise error

        with pytest.raises(type(error)) as caught:
            run_world(main, 1)
        assert caught.value is error


@pytest.mark.parametrize("program", [ends_badly, ends_badly_in_a_task])
def test_a_failed_process_is_named_with_its_code(program):
    async def main(world):
        world.node("other").start(ends_well)
        world.node("office").start(program)
        await trio.sleep(1.0)
        world.check_failures()

    with pytest.raises(ProcessFailedError) as caught:
        run_world(main, 1)
    assert str(caught.value).startswith("office ended with ValueError: no such ticket at test_failures.py:")
    assert str(caught.value).endswith(" ends_badly")
    assert isinstance(caught.value.__cause__, ValueError | ExceptionGroup)


def test_many_failed_processes_are_counted():
    async def main(world):
        for number in range(FAILURES_SHOWN + 2):
            world.node(f"node-{number}").start(ends_badly)
        await trio.sleep(1.0)
        world.check_failures()

    with pytest.raises(ProcessFailedError, match=r"; and 2 more$") as caught:
        run_world(main, 1)
    assert str(caught.value).count(" ended with ") == FAILURES_SHOWN


def test_processes_that_did_not_fail_pass():
    async def main(world):
        world.node("office").start(ends_well)
        world.node("other").start(waits)
        await trio.sleep(1.0)
        world.node("other").kill()
        world.check_failures()
        return True

    assert run_world(main, 1)
