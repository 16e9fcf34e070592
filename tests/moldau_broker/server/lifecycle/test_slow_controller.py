"""Goal: a change that a controller decides slowly succeeds for a client that sets no timeout.

Method: a simulated broker that is cut from its only controller for some seconds.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from support.cluster.broker_cluster import run_cluster


@pytest.mark.parametrize(
    ("timeout_ms", "expected"), [(0, ErrorCode.NONE), (20_000, ErrorCode.NONE), (2_000, ErrorCode.REQUEST_TIMED_OUT)]
)
def test_a_timeout_of_zero_waits_for_a_slow_controller(timeout_ms: int, expected: ErrorCode) -> None:
    """A timeout of 0 does not end a change before the controller has decided.

    librdkafka sends 0: on a busy machine its topics were refused when the controller took longer than a second. The
    broker's session outlasts the cut: a fenced broker can hold no replica of the new topic.
    """

    async def scenario(cluster) -> None:
        cluster.world.network.cut_between(["b1"], ["c101"])
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def heal() -> None:
                await trio.sleep(5)
                cluster.world.network.heal_all()

            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            answer = await cluster.client(1).request(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms))
            assert answer.topics[0].error_code == expected

    run_cluster(scenario, broker_session_timeout_ms="20000")
