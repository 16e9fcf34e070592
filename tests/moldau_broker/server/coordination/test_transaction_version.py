"""Goal: the reported level of ``transaction.version`` is the one that the brokers serve.

Kafka's clients depend on it: from level 2 on they add no partitions to their transactions (KIP-890). Method: the tables
of served levels; a cluster that an earlier version gave level 2, on virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau_broker.server.handlers.apis import BASE_APIS
from moldau_quorum.controller.cluster.features import (
    INITIAL_FEATURES,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION,
    unsupported_level,
)
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import pytest

FORMER = {**SUPPORTED_FEATURES, TRANSACTION_VERSION: (0, 2)}


def test_level_2_is_supported_only_where_its_requests_are_served() -> None:
    last = {api.key: api.last_version for api in BASE_APIS}
    served = last[ApiKey.END_TXN] >= 5 and last[ApiKey.TXN_OFFSET_COMMIT] >= 5 and last[ApiKey.WRITE_TXN_MARKERS] >= 2
    assert (SUPPORTED_FEATURES[TRANSACTION_VERSION][1] >= 2) == served
    assert INITIAL_FEATURES[TRANSACTION_VERSION] == SUPPORTED_FEATURES[TRANSACTION_VERSION][1]
    assert last[ApiKey.ADD_PARTITIONS_TO_TXN] >= 4, "level 1 verifies"


def test_only_the_given_level_is_read_above_the_supported_one() -> None:
    """Above the supported levels, only the level that was given is read."""
    assert unsupported_level({TRANSACTION_VERSION: 2}, SUPPORTED_FEATURES) is None
    assert unsupported_level({TRANSACTION_VERSION: 3}, SUPPORTED_FEATURES) is not None
    assert unsupported_level({"group.version": 2}, SUPPORTED_FEATURES) is not None


async def reported(cluster, broker_id: int) -> tuple[int, int]:
    """Returns the level in force and the highest supported level, as reported to clients."""
    answer = await cluster.client(broker_id).request(ApiVersionsRequest(), 3)
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    supported = {feature.name: feature.max_version for feature in answer.supported_features}
    return finalized.get(TRANSACTION_VERSION, 0), supported[TRANSACTION_VERSION]


def test_a_new_cluster_tells_the_level_that_is_served() -> None:
    async def scenario(cluster) -> None:
        assert await reported(cluster, 1) == (1, 1)

    run_cluster(scenario)


def test_a_higher_level_of_a_cluster_goes_down_to_the_served_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that was given a higher level goes down to the served one: controllers first, then brokers."""
    monkeypatch.setitem(INITIAL_FEATURES, TRANSACTION_VERSION, 2)

    async def scenario(cluster) -> None:
        assert await reported(cluster, 1) == (2, 2)
        for node_id in (101, 102, 103):
            del cluster.features[node_id]
            cluster.world.node(f"c{node_id}").kill()
            await trio.sleep(0.5)
            cluster.start_controller(node_id)
            await trio.sleep(2)
        await cluster.until(lambda: cluster.image().features[TRANSACTION_VERSION] == 1)
        del cluster.features[1]
        await cluster.stop(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert await reported(cluster, 1) == (1, 1)

    run_cluster(scenario, controllers=3, features=dict.fromkeys((1, 101, 102, 103), FORMER))
