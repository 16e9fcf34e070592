"""Goal: one bootstrap server that swallows what it is sent delays some clients of a list for once, and not all of them.

Method: clients of simulated brokers, the first of which is cut off without a word.
"""

from client_fake_cluster import FakeCluster
from moldau.admin import Admin
from moldau_jepsen.simulation.world import run_world

CLIENTS = 20
SETUP_TIMEOUT_S = 10


def test_clients_of_one_list_begin_at_different_servers():
    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.add_topic("t", 1)
        cluster.start()
        world.network.cut_between(["client"], ["broker1"])
        clock = world.node("client").environment.clock
        took = []
        for _ in range(CLIENTS):
            begun = clock.monotonic_ms()
            async with Admin(
                {"bootstrap.servers": cluster.bootstrap}, environment=world.node("client").environment
            ) as admin:
                assert [one.name for one in await admin.list_topics()] == ["t"]
            took.append((clock.monotonic_ms() - begun) / 1000)
        return took

    took = run_world(main, 1)
    prompt = [seconds for seconds in took if seconds < 1]
    assert CLIENTS / 4 < len(prompt) < CLIENTS
    assert max(took) < SETUP_TIMEOUT_S + 1, "the second server is asked after the first has had its time"
