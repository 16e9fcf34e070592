"""Goal: single requests and answers are held with what follows on their connection, and new connections overtake them.

Method: two hosts of a world that exchange frames of a few bytes, with a fault that looks at each; the plans of seeds.
"""

from __future__ import annotations

import contextlib
import struct
from collections import Counter

import pytest
import trio

from moldau.protocol.api import ApiKey
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.coverage.coverage import Coverage, MessageMeter
from moldau_jepsen.coverage.situations import Situation
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.simulation.campaign.options import RunOptions, planned_faults
from moldau_jepsen.simulation.inject.held_calls import HELD_SECONDS
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.inject.late_packets import PromptLinks
from moldau_jepsen.world.world import derive_random, run_world

PORT = 9_092
SHORTEST, LONGEST = HELD_SECONDS
QUICK_S = 0.05


def request(number):
    return struct.pack(">ihhi", 8, ApiKey.METADATA, 12, number)


def answer(number):
    return struct.pack(">ii", 4, number)


async def read(connection, size, seen, answers):
    """Notes the time at which each frame arrives, by its correlation id, until the stream ends."""
    buffer = memoryview(bytearray(size))
    while True:
        filled = 0
        while filled < size:
            await connection.wait_readable()
            count = connection.receive_into_nowait(buffer[filled:])
            if not count:
                return
            filled += count
        number = int.from_bytes(buffer[size - 4 :], "big")
        seen[number] = trio.current_time()
        if answers:
            await connection.send_all([answer(number)])


class Exchange:
    """A client that calls a broker, whose calls are held while a fault lasts."""

    def __init__(self, world, nursery, **options):
        self.world, self.nursery = world, nursery
        cluster = SimulatedCluster(world, ClusterShape(brokers=1, controllers=1))
        injector = FaultInjector(cluster, ["client"], synced=True, **options)
        self.held = injector.held_calls
        self.targets = injector.targets
        world.network.tap = MessageMeter(Coverage(), sent=self.held.message_sent)
        self.asked, self.answered, self.sent = {}, {}, {}

    async def listen(self):
        listener = await self.world.node("broker-1").environment.network.listen("broker-1", PORT)

        async def serve(connection):
            with contextlib.suppress(ConnectionResetError):  # by a client that has given up
                await read(connection, 12, self.asked, answers=True)

        async def accept():
            while True:
                self.nursery.start_soon(serve, await listener.accept())

        self.nursery.start_soon(accept)

    async def open(self):
        connection = await self.world.node("client").environment.network.connect("broker-1", PORT)

        async def hear():
            with contextlib.suppress(ConnectionAbortedError):  # a client that has given up
                await read(connection, 8, self.answered, answers=False)

        self.nursery.start_soon(hear)
        return connection

    async def call(self, connection, number):
        self.sent[number] = trio.current_time()
        await connection.send_all([request(number)])

    def strike(self, *, requests):
        """Sets traps of the wanted kind, each for one message that fits."""
        self.targets.begins(0)
        end = self.held.strike(derive_random(1, "held"))
        for trap in self.held._traps:
            trap.is_request, trap.left, trap.share = requests, 1, 1.0
        return end


def exchange(scenario, **options):
    async def main(world):
        async with trio.open_nursery() as nursery:
            made = Exchange(world, nursery, **options)
            await made.listen()
            await scenario(made)
            nursery.cancel_scope.cancel()

    run_world(main, 3)


@pytest.mark.parametrize("requests", [True, False], ids=["request", "answer"])
def test_what_follows_waits_and_a_new_connection_is_quick(requests):
    async def scenario(made):
        old = await made.open()
        await made.call(old, 0)
        await trio.sleep(QUICK_S)
        made.strike(requests=requests)
        await made.call(old, 1)
        await trio.sleep(0.001)
        await made.call(old, 2)
        new = await made.open()
        await made.call(new, 3)
        await trio.sleep(LONGEST + 1)
        took = {number: made.answered[number] - at for number, at in made.sent.items()}
        assert took[0] < QUICK_S
        assert took[3] < QUICK_S
        assert SHORTEST <= took[1] <= LONGEST + QUICK_S
        assert made.answered[1] <= made.answered[2], "as TCP has it"
        assert took[2] >= SHORTEST - QUICK_S
        assert (made.asked[1] - made.sent[1] < QUICK_S) is not requests
        assert made.targets.effective == {0: None}
        found = made.held.situations
        assert found == ({} if requests else {Situation.OVERTAKEN_ANSWER: 1})

    exchange(scenario)


def test_a_request_arrives_although_its_client_has_given_up():
    async def scenario(made):
        old = await made.open()
        await made.call(old, 0)
        await trio.sleep(QUICK_S)
        made.strike(requests=True)
        await made.call(old, 1)
        await trio.sleep(QUICK_S)
        old.abort()
        await trio.sleep(LONGEST + 1)
        assert made.asked[1] - made.sent[1] >= SHORTEST
        assert 1 not in made.answered
        assert made.held.situations == {Situation.GIVEN_UP_REQUEST: 1}

    exchange(scenario)


def test_nothing_is_held_outside_of_the_fault():
    async def scenario(made):
        connection = await made.open()
        assert made.strike(requests=True) is not None
        assert made.held._traps == [], "no broker was called yet"
        await made.call(connection, 1)
        await trio.sleep(QUICK_S)
        made.strike(requests=True)()
        await made.call(connection, 2)
        await trio.sleep(QUICK_S)
        made.strike(requests=True)
        made.held.end_all()
        await made.call(connection, 3)
        await trio.sleep(QUICK_S)
        assert {1, 2, 3} == set(made.answered)
        assert made.targets.effective == {}

    exchange(scenario)


def test_requests_of_prompt_clients_are_spared_alone():
    async def scenario(made):
        connection = await made.open()
        await made.call(connection, 0)
        await trio.sleep(QUICK_S)
        made.strike(requests=True)
        await made.call(connection, 1)
        await trio.sleep(QUICK_S)
        assert 1 in made.answered
        made.held.end_all()
        made.strike(requests=False)
        await made.call(connection, 2)
        await trio.sleep(QUICK_S)
        assert 2 not in made.answered

    exchange(scenario, prompt_links=PromptLinks(clients=["client"]))


def test_only_markers_are_spared_between_brokers():
    """They are sent on connections of their own, so nothing else waits with another request."""
    prompt = PromptLinks(clients=["client"], between_brokers=True)
    assert not prompt.request_may_be_late("broker-1", "broker-2", ApiKey.WRITE_TXN_MARKERS)
    assert prompt.request_may_be_late("broker-1", "broker-2", ApiKey.ADD_PARTITIONS_TO_TXN)
    assert prompt.request_may_be_late("broker-1", "controller-101", ApiKey.ALTER_PARTITION)
    assert not prompt.request_may_be_late("client", "broker-1", ApiKey.METADATA)
    assert PromptLinks().request_may_be_late("broker-1", "broker-2", ApiKey.WRITE_TXN_MARKERS)


def test_calls_are_held_in_runs_of_all_kinds():
    counts = Counter(
        FaultKind.HELD_CALL in {fault.kind for fault in planned_faults(seed, RunOptions())} for seed in range(150)
    )
    assert 35 < counts[True] < 80
