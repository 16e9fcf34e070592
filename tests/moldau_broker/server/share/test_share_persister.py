"""Goal: the two persisters obey one contract, and the one that asks share coordinators survives their failures.

Method: one suite for the persister in memory and for the real one over scripted brokers; then broken connections and
moved coordinators on virtual time.
"""

from __future__ import annotations

import uuid

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.server.share.core.values import Persist, RecordState, StateBatch
from moldau_broker.server.share.persister import GIVE_UP_MS, CoordinatorPersister, ShareKey
from moldau_jepsen.world.world import run_world
from support.share.memory_persister import CoordinatorOfMemory, MemoryPersister

KEY = ShareKey("g", uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), 3)


def persist(*batches, start=0, leader_epoch=1, state_epoch=0):
    return Persist(
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start,
        delivery_complete_count=0,
        batches=batches,
    )


def run(scenario, *, real=True):
    async def main(world):
        memory = MemoryPersister()
        peers = CoordinatorOfMemory(memory)
        environment = world.node("n").environment
        persister = CoordinatorPersister(1, peers, environment.clock, environment.random) if real else memory
        await scenario(persister, peers, environment.clock)

    run_world(main, 1)


async def refused(code, call):
    with pytest.raises(KafkaError) as caught:
        await call
    assert caught.value.code is code


@pytest.mark.parametrize("real", [False, True])
def test_contract(real):
    """Writes are merged, the start offset cuts them, epochs fence, and a partition that was never read says so."""

    async def scenario(persister, peers, _clock):
        empty = await persister.read(KEY, 1)
        assert (empty.state_epoch, empty.start_offset, empty.batches) == (0, -1, ())
        await persister.write(KEY, persist(StateBatch(0, 9, RecordState.AVAILABLE, 2)))
        await persister.write(KEY, persist(StateBatch(3, 4, RecordState.ACKNOWLEDGED, 3), start=2))
        stored = await persister.read(KEY, 2)
        assert stored.start_offset == 2
        assert stored.batches == (
            StateBatch(2, 2, RecordState.AVAILABLE, 2),
            StateBatch(3, 4, RecordState.ACKNOWLEDGED, 3),
            StateBatch(5, 9, RecordState.AVAILABLE, 2),
        )
        await persister.write(KEY, persist(start=10, leader_epoch=2))
        assert (await persister.read(KEY, 2)).batches == ()
        await refused(ErrorCode.FENCED_LEADER_EPOCH, persister.write(KEY, persist(leader_epoch=1)))
        await refused(ErrorCode.FENCED_LEADER_EPOCH, persister.read(KEY, 1))
        peers.memory.state_epochs[KEY] = 4
        await refused(ErrorCode.FENCED_STATE_EPOCH, persister.write(KEY, persist(leader_epoch=2)))
        assert (await persister.read(KEY, 2)).state_epoch == 4

    run(scenario, real=real)


def test_key_of_the_coordinator():
    """Group, topic id in URL-safe base 64 without padding, and partition, as Kafka writes it."""
    assert KEY.coordinator_key == "g:ABEiM0RVZneImaq7zN3u_w:3"


def test_finds_the_coordinator_once():
    """FindCoordinator is asked once, and again when the coordinator has moved."""

    async def scenario(persister, peers, _clock):
        await persister.read(KEY, 1)
        await persister.write(KEY, persist())
        assert [name for _, name in peers.asked].count("FindCoordinatorRequest") == 1
        peers.coordinator = peers.known = 9
        await persister.write(KEY, persist())
        assert [name for _, name in peers.asked].count("FindCoordinatorRequest") == 2
        assert peers.asked[-1] == (9, "WriteShareGroupStateRequest")

    run(scenario)


def test_tries_again_after_failures():
    """Broken connections and a loading coordinator delay an operation, and do not fail it."""

    async def scenario(persister, peers, _clock):
        peers.broken = 3
        peers.memory.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
        await persister.write(KEY, persist(start=5))
        assert peers.memory.start_offsets[KEY] == 5

    run(scenario)


def test_a_coordinator_that_died_is_not_asked_again():
    """Its successor is found, although it cannot say that it coordinates no more."""

    async def scenario(persister, peers, _clock):
        await persister.read(KEY, 1)
        peers.dead = peers.coordinator
        peers.coordinator = peers.known = 9
        await persister.write(KEY, persist(start=5))
        assert peers.memory.start_offsets[KEY] == 5

    run(scenario)


def test_gives_up_in_bounded_time():
    """Without any coordinator an operation ends with COORDINATOR_NOT_AVAILABLE."""

    async def scenario(persister, peers, clock):
        peers.broken = 10_000
        begun = clock.monotonic_ms()
        await refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, persister.write(KEY, persist()))
        assert clock.monotonic_ms() - begun <= GIVE_UP_MS

    run(scenario)


def test_a_state_of_a_newer_version_is_refused():
    """A share coordinator may store a state that this broker does not know; the error ends one read, not the broker."""

    async def scenario(persister, peers, _clock):
        for state in range(-1, 9):
            peers.memory.records[KEY] = {5: (state, 1)}
            if state in list(RecordState):
                assert (await persister.read(KEY, 1)).batches == (StateBatch(5, 5, RecordState(state), 1),)
            else:
                await refused(ErrorCode.UNKNOWN_SERVER_ERROR, persister.read(KEY, 1))

    run(scenario)
