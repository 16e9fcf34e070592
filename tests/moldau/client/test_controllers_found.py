"""Goal: a client of controllers (KIP-919) that may not describe them learns that from its first call, and at once.

Method: nodes on virtual time, which answer as controllers.
"""

import pytest
import trio

from moldau.admin import Admin
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_cluster import DescribeClusterResponse
from moldau.protocol.messages.describe_quorum import DescribeQuorumResponse
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

CALLS = {
    "cluster": lambda admin: admin.describe_cluster(),
    "quorum": lambda admin: admin.describe_quorum(),
    "features": lambda admin: admin.describe_features(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_right_is_named_at_once(call):
    """A client with DESCRIBE alone asked controllers that do not lead, for `default.api.timeout.ms`."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.handlers = {
            ApiKey.DESCRIBE_CLUSTER: lambda *_: DescribeClusterResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            ),
            ApiKey.DESCRIBE_QUORUM: lambda *_: DescribeQuorumResponse(error_code=ErrorCode.NOT_CONTROLLER),
        }
        cluster.start()
        began = trio.current_time()
        given = {"bootstrap.controllers": cluster.bootstrap}
        async with Admin(given, environment=world.node("client").environment) as admin:
            with pytest.raises(KafkaError, match="need the operation ALTER on the cluster") as caught:
                await CALLS[call](admin)
        assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert trio.current_time() - began < 1

    run_world(main, 1)
