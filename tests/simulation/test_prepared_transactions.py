"""Another producer ends a prepared transaction once, also after its coordinator has died."""

import pytest

from moldau import Admin, Consumer, KafkaError, Producer
from moldau.consumer import CommittedOffset
from moldau.protocol.errors import ErrorCode
from moldau_jepsen.testing import simulate

MARKER = ("__consumer_offsets", 0)


async def prepare(environment, bootstrap, name, values, batch):
    config = {"bootstrap.servers": bootstrap, "transactional.id": name}
    async with Producer(config, environment=environment) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            await producer.send("t", value)
        await producer.send_offsets_to_transaction({MARKER: CommittedOffset(offset=batch, metadata="m")}, "marker")
        return await producer.prepare_transaction()


async def committed(environment, bootstrap, count):
    config = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    found = []
    async with Consumer(config, environment=environment) as consumer:
        consumer.assign([("t", 0)])
        while len(found) < count:
            for batch in await consumer.poll(5_000):
                found += [record.value for record in batch.records]
    return found


def open_admin(sim, environment):
    return Admin({"bootstrap.servers": sim.bootstrap}, environment=environment)


def test_another_process_commits_what_was_prepared():
    async def scenario(sim):
        await sim.wait_healthy(60)
        writer = sim.world.node("writer").environment
        ender = sim.world.node("ender").environment
        await sim.create_topic(writer, "t", 1, {})
        first = await prepare(writer, sim.bootstrap, "first", [b"1", b"2"], 4)
        second = await prepare(writer, sim.bootstrap, "second", [b"no"], 5)
        async with open_admin(sim, ender) as admin:
            coordinator = (await admin.describe_transactions(["first"]))["first"].coordinator
            sim.kill(coordinator)
            sim.start(coordinator)
            await admin.end_transaction(second, commit=False)
            await admin.end_transaction(first, commit=True)
            await admin.end_transaction(first, commit=True)  # a repetition changes nothing
            offsets = await admin.list_group_offsets("marker", require_stable=True)
            assert offsets[MARKER].offset == 4
            with pytest.raises(KafkaError) as caught:
                await admin.end_transaction(second, commit=True)
            assert caught.value.code is ErrorCode.INVALID_TXN_STATE
        assert await committed(ender, sim.bootstrap, 2) == [b"1", b"2"]

    simulate(scenario, seed=3)


def test_a_prepared_transaction_dies_with_its_epoch():
    """A producer that takes over the transactional id aborts what was prepared."""

    async def scenario(sim):
        await sim.wait_healthy(60)
        environment = sim.world.node("app").environment
        await sim.create_topic(environment, "t", 1, {})
        dead = await prepare(environment, sim.bootstrap, "id", [b"dead"], 1)
        alive = await prepare(environment, sim.bootstrap, "id", [b"alive"], 2)
        async with open_admin(sim, environment) as admin:
            with pytest.raises(KafkaError) as caught:
                await admin.end_transaction(dead, commit=True)
            assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
            await admin.end_transaction(alive, commit=True)
        assert await committed(environment, sim.bootstrap, 1) == [b"alive"]

    simulate(scenario, seed=4)


def test_a_failed_transaction_is_not_prepared():
    async def scenario(sim):
        await sim.wait_healthy(60)
        environment = sim.world.node("app").environment
        await sim.create_topic(environment, "t", 1, {"max.message.bytes": "1000"})
        config = {"bootstrap.servers": sim.bootstrap, "transactional.id": "id"}
        async with Producer(config, environment=environment) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"x" * 5000)
            with pytest.raises(KafkaError) as caught:
                await producer.prepare_transaction()
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
            await producer.abort_transaction()

    simulate(scenario, seed=5)


def test_preparing_waits_for_offsets_whose_call_has_timed_out():
    async def scenario(sim):
        await sim.wait_healthy(60)
        environment = sim.world.node("app").environment
        await sim.create_topic(environment, "t", 1, {})
        config = {"bootstrap.servers": sim.bootstrap, "transactional.id": "id"}
        async with Producer(config, environment=environment) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises(KafkaError) as caught:
                await producer.send_offsets_to_transaction({MARKER: 6}, "marker", timeout_ms=0)
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            prepared = await producer.prepare_transaction()
        async with open_admin(sim, environment) as admin:
            await admin.end_transaction(prepared, commit=True)
            assert (await admin.list_group_offsets("marker", require_stable=True))[MARKER].offset == 6

    simulate(scenario, seed=6)
