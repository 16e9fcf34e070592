"""Goal: partitions at rest cost a broker almost nothing, so that it can hold thousands.

Method: brokers on virtual time; Python's calls are counted while nothing happens, for few and for many partitions.
"""

import sys

import pytest
import trio

from moldau_broker.replication.replica import Replica
from support.cluster.broker_cluster import batch, run_cluster

REST_S = 10
CALLS_PER_SECOND = 1.8
"""For each replica: a look every 3.75 s by the leader for each follower, checkpoints every 5 s, the ISR every 15 s."""


def calls_at_rest(partitions: int, *, written: bool) -> int:
    """Returns the calls of two brokers and a controller in ``REST_S`` seconds; ``written``: each log has a record."""

    async def scenario(cluster):
        await cluster.client(1).create_topic("t", partitions=partitions, replicas=2)
        for number in range(partitions):
            leader = await cluster.leader("t", number)
            if written:
                client = cluster.client(leader)
                assert (await client.produce("t", batch(b"x"), partition=number)).error_code == 0
                client.close()
        await trio.sleep(40)
        count = 0

        def profile(frame, event, argument):
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        await trio.sleep(REST_S)
        sys.setprofile(None)
        return count

    count, _ = run_cluster(scenario, brokers=2)
    return count


@pytest.mark.parametrize("written", [False, True])
def test_calls_at_rest_hardly_grow_with_partitions(written):
    few, many = calls_at_rest(4, written=written), calls_at_rest(64, written=written)
    each = (many - few) / 60 / 2 / REST_S
    print(f"{few} calls with 4 partitions, {many} with 64: {each:.2f} for each replica and second")
    assert each <= CALLS_PER_SECOND


def test_a_quiet_session_is_confirmed_often_enough(monkeypatch):
    """Partitions are looked at eight times within ``replica.lag.time.max.ms``, not with each of 60 fetches."""
    looked = 0
    confirmed = Replica.confirmed

    def count(replica, *arguments):
        nonlocal looked
        looked += 1
        return confirmed(replica, *arguments)

    async def scenario(cluster):
        nonlocal looked
        await cluster.client(1).create_topic("t", partitions=10, replicas=2)
        for number in range(10):
            await cluster.leader("t", number)
        await trio.sleep(10)
        monkeypatch.setattr(Replica, "confirmed", count)
        looked = 0
        await trio.sleep(30)
        assert 7 * 10 <= looked <= 10 * 10
        image = cluster.image().topics_by_name["t"]
        assert all(set(part.isr) == {1, 2} for part in image.partitions.values())

    run_cluster(scenario, brokers=2)
