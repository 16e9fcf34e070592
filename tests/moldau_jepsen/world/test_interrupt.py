"""Goal: an interrupt ends a simulated run at once and as itself, whatever code it strikes; it convicts no run.

Method: nodes and scenarios that raise ``KeyboardInterrupt``, alone and in groups, as the signal's handler does.
"""

import pytest
import trio

from moldau_broker.server.lifecycle.broker import Broker
from moldau_cli.main import main as command
from moldau_jepsen.testing import simulate
from moldau_jepsen.world.world import run_world


async def interrupted(*_: object) -> None:
    await trio.sleep(1.0)
    raise KeyboardInterrupt


async def interrupted_in_a_task(*_: object) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupted)
        await trio.sleep_forever()


@pytest.mark.parametrize("process", [interrupted, interrupted_in_a_task])
def test_an_interrupt_of_a_nodes_code_ends_the_run_at_once(process):
    ended = []

    async def main(world):
        world.node("a").start(process)
        try:
            await trio.sleep(1_000.0)
        finally:
            ended.append((trio.current_time(), world.failures))

    with pytest.raises(KeyboardInterrupt):
        run_world(main, 1)
    assert ended == [(1.0, [])]


def test_other_errors_end_only_their_node():
    async def leaves(_):
        raise SystemExit(3)

    async def main(world):
        world.node("a").start(leaves)
        await trio.sleep(1.0)
        return [(name, type(error)) for name, error in world.failures]

    assert run_world(main, 1) == [("a", SystemExit)]


@pytest.mark.parametrize("interrupting", [interrupted, interrupted_in_a_task])
def test_an_interrupted_scenario_is_no_finding(interrupting):
    async def of_a_node(sim):
        sim.world.node("broker-9").start(interrupting)
        await trio.sleep(1_000.0)

    async def broken_already(sim):
        async def dies(_):
            raise OSError("planted")

        sim.world.node("broker-9").start(dies)
        await interrupting()

    for scenario in (of_a_node, broken_already, interrupting):
        with pytest.raises(KeyboardInterrupt):
            simulate(scenario, seed=1, brokers=1, controllers=1)


def test_an_interrupted_seed_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(Broker, "run", interrupted)
    assert command(["sim", "run", "--seed", "3", "--dir", str(tmp_path / "out")]) == 130
    assert not (tmp_path / "out").exists()
