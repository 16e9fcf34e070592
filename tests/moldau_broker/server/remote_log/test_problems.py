"""Goal: a broker says what is wrong with its object store, and only while it is.

Method: a whole broker in virtual time, whose store is away for some time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau_broker.log.files.names import LOG_SUFFIX
from moldau_broker.server.remote_log.problems import RECORDS_MISSING, STORE_FAILS
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import TIERED, copied, created, fill, log_of, patiently, store_away

if TYPE_CHECKING:
    from moldau_broker.server.remote_log.problems import StoreProblem
    from support.cluster.broker_cluster import Cluster


def problems(cluster: Cluster) -> list[StoreProblem]:
    found: list[StoreProblem] = cluster.running[1].context.remote_log.problems()
    return found


def test_a_store_that_fails_is_a_problem_until_it_answers() -> None:
    async def scenario(cluster: Cluster) -> None:
        await created(cluster, "quiet")
        client = cluster.client(await created(cluster, "t"))
        await fill(cluster, client, "t", 2)
        await cluster.until(lambda: copied(cluster, "t") == [0])
        assert problems(cluster) == []
        with store_away(cluster):
            await fill(cluster, client, "t", 2)
            await patiently(cluster, lambda: problems(cluster), timeout_ms=60_000)
            (problem,) = problems(cluster)
            assert problem.kind == STORE_FAILS
            assert problem.detail.startswith("work for 1 tiered partition fails: ")
        await patiently(cluster, lambda: not problems(cluster), timeout_ms=60_000)

    run_cluster(scenario, **TIERED)


def test_a_store_that_never_answered_is_a_problem() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.stop(1)
        with store_away(cluster):
            cluster.start_broker(1)
            await patiently(cluster, lambda: 1 in cluster.running and problems(cluster), timeout_ms=60_000)
            (problem,) = problems(cluster)
            assert problem.kind == STORE_FAILS
            assert problem.detail.startswith("the object store fails: ")
        await patiently(cluster, lambda: not problems(cluster), timeout_ms=60_000)

    run_cluster(scenario, **TIERED)


def test_a_damaged_segment_is_a_problem_of_records() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(await created(cluster, "t"))
        with store_away(cluster):
            await fill(cluster, client, "t", 3)
            cluster.world.node("b1").disk.flip_bit(log_of(cluster, 1, "t").segments[0].path(LOG_SUFFIX), 500, 3)
        await trio.sleep(60)
        assert [each.kind for each in problems(cluster)] == [RECORDS_MISSING]

    run_cluster(scenario, **TIERED)
