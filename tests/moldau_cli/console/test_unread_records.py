"""Goal: the message browser shows what can be read, and takes no record for lost that only its leader hides.

Method: the question of the page, in front of a simulated cluster one of whose brokers is killed.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest
import trio

from moldau import Producer
from moldau.admin import Admin, NewTopic
from moldau_cli.console import records
from moldau_cli.console.identities import open_identity
from moldau_cli.console.records import Search, browse, whole_record
from moldau_jepsen.testing import simulate


async def scenario(sim):
    await sim.wait_healthy(60)
    environment = sim.world.node("app").environment
    config = {"bootstrap.servers": sim.bootstrap}
    seen = {}

    async def ask(name, call):
        began_s = trio.current_time()
        try:
            seen[name] = await call
        except (LookupError, trio.TooSlowError) as error:
            seen[name] = error
        seen[name, "s"] = trio.current_time() - began_s

    async with Admin(config, environment=environment) as admin:
        await admin.create_topics([NewTopic("t", assignments={0: [1], 1: [2], 2: [1]}), NewTopic("gone", 1, 1)])
        async with Producer(config | {"transactional.id": "x"}, environment=environment) as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            for number in range(6):
                await producer.send("t", b"%d" % number, partition=number % 3)
            await producer.send("gone", b"0", partition=0)
            await producer.send("gone", b"1", partition=0)
            await producer.commit_transaction()
            await write_sparsely(admin, producer)
            await admin.create_topics([NewTopic("large", assignments={0: [1]})])
            producer.begin_transaction()
            for number in range(200):
                await producer.send("large", b"%d" % number * 1000)
                await producer.flush()
            await producer.commit_transaction()
        await admin.delete_records({("gone", 0): 1})
    async with open_identity(config, environment) as identity:
        newest = Search(topic="sparse", limit=20, committed_only=True)
        await ask("newest", browse(identity, newest))
        await ask("older", browse(identity, replace(newest, origin="before", partition=0, value=30)))
        await ask("oldest", browse(identity, replace(newest, origin="before", partition=0, value=0)))
        small = patch.dict(records.READING, {"max.partition.fetch.bytes": "5000"})  # else one fetch has all of them
        with small, patch.object(records, "SCANNED_BYTES_MAX", 100_000):
            await ask("large", browse(identity, Search(topic="large", limit=200)))
            await ask("one of large", browse(identity, Search(topic="large", contains="199199")))
        await ask("found", whole_record(identity, "t", 1, 1))
        await ask("deleted", whole_record(identity, "gone", 0, 0))
        await ask("marker", whole_record(identity, "t", 0, 2))
        sim.kill(2)
        await trio.sleep(30)  # virtual; its session ends
        await ask("hidden", whole_record(identity, "t", 1, 1))
        await ask("rest", browse(identity, Search(topic="t")))
        await ask("chosen", browse(identity, Search(topic="t", partition=0)))
    return seen


async def write_sparsely(admin, producer):
    """Writes 0 to 2, aborts so many records that a page of 20 holds no other, and writes 30 and 31."""
    await admin.create_topics([NewTopic("sparse", assignments={0: [1]})])
    for numbers, commit in ((range(3), True), (range(25), False), (range(30, 32), True)):
        producer.begin_transaction()
        for number in numbers:
            await producer.send("sparse", b"%d" % number)
        await producer.flush()  # an abort would drop what was not sent
        await (producer.commit_transaction() if commit else producer.abort_transaction())


@pytest.fixture(scope="module")
def seen():
    return simulate(scenario, seed=3, brokers=2, controllers=1)


def test_a_record_whose_leader_is_down_is_not_called_lost(seen):
    """The page said that there was no record at the offset."""
    assert seen["found"]["value"]["text"] == "4"
    assert isinstance(seen["hidden"], trio.TooSlowError)


def test_an_offset_without_a_record_is_named_at_once(seen):
    """The page waited 8 s at the offset of a marker that ends the log."""
    assert str(seen["deleted"]) == "gone-0 has no record at offset 0; it was deleted"
    assert str(seen["marker"]) == "t-0 has no record at offset 2"
    assert max(seen["deleted", "s"], seen["marker", "s"]) < 5


def test_a_partition_without_a_leader_hides_no_others(seen):
    """Nothing of the topic was shown: the question waited 8 s for that leader, and failed."""
    assert sorted(record["value"]["text"] for record in seen["rest"]["records"]) == ["0", "2", "3", "5"]
    assert seen["rest"]["stopped"] == "left out without a leader: partition 1"
    assert seen["rest"]["partitions"] == {"0": [0, 3], "2": [0, 3]}
    assert seen["chosen"]["stopped"] == ""


def test_records_behind_a_gap_are_found_from_its_end(seen):
    """Offsets without a record filled the page: it said that there was no record, and Older came no further."""
    shown = {name: [one["offset"] for one in seen[name]["records"]] for name in ("newest", "older", "oldest")}
    assert shown == {"newest": [0, 1, 2, 30, 31], "older": [0, 1, 2], "oldest": []}
    assert seen["older"]["partitions"] == {"0": [0, 33]}


def test_a_search_that_stops_has_read_the_newest(seen):
    """It read forwards to the end: of large records it showed the oldest of those wanted, and not the newest."""
    offsets = [one["offset"] for one in seen["large"]["records"]]
    assert offsets == list(range(offsets[0], 200)), "nothing is missing between"
    assert len(offsets) > 20
    assert "narrow the search" in seen["large"]["stopped"]
    assert [one["offset"] for one in seen["one of large"]["records"]] == [199]
