"""Goal: partitions at rest cost a broker nothing, so that it can hold thousands.

Method: brokers on virtual time; Python's calls are counted while nothing happens, for few and for many partitions.
"""

import sys

import pytest
import trio

from support.cluster.broker_cluster import batch, run_cluster
from support.proof import proof_beyond

REST_S = 10
CALLS_PER_SECOND = 0.5
"""For each replica: the producers whose ids expire are sought every ten minutes, and the times of two runs differ."""


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
        await trio.sleep(75)  # the first run of retention, and the checkpoints of the last change
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


@pytest.mark.parametrize("written", proof_beyond(1, [True, False]))
def test_calls_at_rest_hardly_grow_with_partitions(written):
    few, many = calls_at_rest(4, written=written), calls_at_rest(64, written=written)
    each = (many - few) / 60 / 2 / REST_S
    print(f"{few} calls with 4 partitions, {many} with 64: {each:.2f} for each replica and second")
    assert each <= CALLS_PER_SECOND
