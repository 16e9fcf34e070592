"""Goal: probes are begun while they run, and a controller that ends begins none.

Method: probes on a virtual network. Found by a story of rolling restarts: connections of brokers end together with the
controller, whose nursery was closed by then.
"""

import trio

from moldau_jepsen.simulation.world import run_world
from moldau_quorum.broker_probe import BrokerProbes


def test_no_probe_begins_once_the_probes_have_ended():
    async def main(world):
        refusals = []
        probes = BrokerProbes(world.node("controller").environment)
        world.node("broker")

        def start():
            probes.start("broker", 9092, is_silent=lambda: True, refused=lambda: refusals.append(trio.current_time()))

        start()  # not running yet
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probes.run)
            await trio.sleep(1.0)
            assert refusals == []
            start()
            await trio.sleep(1.0)
            assert len(refusals) == 1
            nursery.cancel_scope.cancel()
        start()
        return len(refusals)

    assert run_world(main, 1) == 1
