"""Goal: the timeline shows a real failover as it happens. Method: the probe in a simulated cluster, in virtual time."""

import trio

from moldau_cli.console.identities import open_identity
from moldau_cli.console.probe import UNACKNOWLEDGED_MAX, ReplicationProbe
from moldau_jepsen.launcher import LauncherError
from moldau_jepsen.testing import simulate


class SimulatedNodes:
    """The nodes of a simulated cluster, as the launcher would show them."""

    def __init__(self, sim):
        self.kinds = {1: "broker", 2: "broker", 3: "broker", 101: "controller", 102: "controller", 103: "controller"}
        self.sim = sim
        self.trouble = ""

    async def states(self):
        await trio.lowlevel.checkpoint()
        if self.trouble:
            raise LauncherError(self.trouble)
        running = set(self.sim.running)
        return {node: "running" if node in running else "stopped" for node in self.kinds}

    async def last_words(self, node_id):
        await trio.lowlevel.checkpoint()
        return f"last line of {node_id}"


async def watch(probe, seconds, until=lambda document: False):
    """Watches as an open page does; returns the document that fulfils ``until``, or the last one."""
    for _ in range(round(seconds * 4)):
        document = probe.watch()
        if until(document):
            break
        await trio.sleep(0.25)
    return document


def kinds(document):
    return [note["kind"] for note in reversed(document["notes"])]


async def scenario(sim):
    await sim.wait_healthy(60)
    environment, nodes, seen = sim.world.node("app").environment, SimulatedNodes(sim), {}
    async with (
        open_identity({"bootstrap.servers": sim.bootstrap}, environment) as identity,
        trio.open_nursery() as nursery,
    ):
        probe = ReplicationProbe(identity, nodes)
        nursery.start_soon(probe.run)
        seen["steady"] = await watch(probe, 10)
        leader = seen["steady"]["leader"]
        probe.did(f"You killed broker {leader}.")
        sim.kill(leader)
        seen["moved"] = await watch(probe, 20, lambda document: document["leader"] not in (leader, -1))
        seen["on"] = await watch(probe, 5)
        sim.start(leader)
        seen["back"] = await watch(probe, 40, lambda document: sorted(document["isr"]) == [1, 2, 3])
        nodes.trouble = "no cluster in /gone"
        seen["trouble"] = await watch(probe, 1)
        nodes.trouble = ""
        seen["over"] = await watch(probe, 1)
        nodes.trouble = "no cluster in /gone"
        await watch(probe, 1)
        await trio.sleep(20)  # no page is open
        nodes.trouble = ""
        seen["unwatched"] = probe.timeline.document(trio.current_time() * 1000)
        seen["reopened"] = probe.watch()
        seen["again"] = await watch(probe, 5)
        nursery.cancel_scope.cancel()
    return leader, seen


def test_a_failover_is_reported_from_kill_to_catching_up():
    leader, seen = simulate(scenario, seed=5)
    steady = seen["steady"]
    assert steady["acknowledged"] > 50
    assert sorted(steady["isr"]) == [1, 2, 3]
    assert {broker for _, _, broker in steady["writes"]} == {leader}
    assert steady["active_controller"] in (101, 102, 103)
    assert kinds(steady) == []

    moved = seen["on"]
    assert leader not in moved["isr"]
    assert moved["leader_epoch"] > steady["leader_epoch"]
    assert {"fault", "node", "election", "isr"} <= set(kinds(moved))
    assert moved["acknowledged"] > steady["acknowledged"]
    assert moved["writes"][-1][2] == moved["leader"]
    assert 0 <= moved["sent"] - moved["acknowledged"] - moved["failed"] <= UNACKNOWLEDGED_MAX

    # Processes and replicas are looked at by two tasks: the end may be seen before the beginning.
    assert any(f"Broker {leader} caught up" in note["text"] for note in seen["back"]["notes"][:2])
    assert "no cluster in /gone" in seen["trouble"]["trouble"]
    assert seen["over"]["trouble"] == "", "a trouble ends with the next look"
    assert seen["unwatched"]["sent"] == 0, "an unwatched probe writes nothing"
    reopened = seen["reopened"]["leader"], seen["reopened"]["trouble"]
    assert reopened == (-1, ""), "nothing old is shown as the present"
    assert seen["again"]["acknowledged"] > 0
