"""Goal: only a refusal proves a broker dead, and a node that ends starts no probes any more.

Method: probes on the simulated network, against hosts that refuse, accept or stay silent.
"""

from __future__ import annotations

import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.node.broker_probe import BrokerProbes


def test_only_a_refusing_host_is_reported_and_once() -> None:
    """A host that refuses is reported once, and a host that accepts never."""

    async def main(world) -> None:
        prober, dead, alive = (world.node(name).environment for name in ("prober", "dead", "alive"))
        listener = await alive.network.listen("alive", 9092)
        assert dead is not None
        reported: list[str] = []
        silent = {"dead": True, "alive": True}
        probes = BrokerProbes(prober)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probes.run)
            await trio.lowlevel.checkpoint()
            for host in silent:
                probes.start(
                    host,
                    9092,
                    is_silent=lambda host=host: silent[host],
                    refused=lambda host=host: reported.append(host),
                )
            await trio.sleep(0.2)
            assert reported == ["dead"]
            silent["alive"] = False
            listener.close()
            await trio.sleep(0.2)
            assert reported == ["dead"], "a broker that was heard of is not probed any more"
            nursery.cancel_scope.cancel()
        probes.start("dead", 9092, is_silent=lambda: True, refused=lambda: reported.append("late"))
        await trio.sleep(0.1)
        assert reported == ["dead"]

    run_world(main, 1)


def test_a_broker_heard_during_an_attempt_is_not_reported() -> None:
    """Its listener may start again while the broker has a session on another connection already."""

    async def main(world) -> None:
        prober = world.node("prober").environment
        assert world.node("restarting").environment is not None
        asked: list[bool] = []
        reported: list[str] = []

        def is_silent() -> bool:
            asked.append(not asked)
            return asked[-1]

        probes = BrokerProbes(prober)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probes.run)
            await trio.lowlevel.checkpoint()
            probes.start("restarting", 9092, is_silent=is_silent, refused=lambda: reported.append("restarting"))
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()
        assert (asked, reported) == ([True, False], [])

    run_world(main, 1)
