"""Goal: the administrator of share groups does all that it is to do, its members see it, and a wrong call is noticed.

Method: the clients against three brokers in virtual time, without faults; then calls that were never made.
"""

from __future__ import annotations

from typing import Any

import trio

from moldau_jepsen.checkers.group.share_administration import (
    RESET,
    Outcome,
    Setting,
    ShareAct,
    ShareAdministrationHistory,
    ShareCall,
)
from moldau_jepsen.coverage.situations import OF_SHARE_ADMINISTRATION
from moldau_jepsen.workloads.share import ShareOptions, settings_of
from moldau_jepsen.workloads.share_administration.topics import TOPICS, labelled
from moldau_jepsen.workloads.share_administration.workload import (
    ShareAdministrationOptions,
    ShareAdministrationWorkload,
)
from support.cluster.broker_cluster import BROKER_PORT, run_cluster

BROKERS = 3
OPTIONS = ShareAdministrationOptions(slots=1, calls_per_second=10.0)


class Nodes:
    broker_ids = tuple(range(1, BROKERS + 1))
    controller_ids = ()

    def address(self, node_id: int) -> tuple[str, int]:
        return f"b{node_id}", BROKER_PORT


def test_share_groups_are_administered_and_judged() -> None:
    async def scenario(cluster: Any) -> None:
        for name, partitions in TOPICS.items():
            await cluster.client(1).create_topic(name, partitions=partitions, replicas=BROKERS)
        environment = cluster.client_environment
        client = ShareAdministrationWorkload(Nodes(), f"b1:{BROKER_PORT}", environment, OPTIONS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            nursery.start_soon(client.live, environment)
            await trio.sleep(14)
            client.stop()
        settings = [Setting(RESET, "earliest", 1, 2, 3)]
        client.groups.append(ShareAdministrationHistory(group="without-consumers", settings=settings))
        assert client.verdict() == [], "before the final read no record is lost"
        del client.groups[-1]
        await client.final_read(10)
        assert client.stuck is None
        assert client.verdict() == []
        assert {*OF_SHARE_ADMINISTRATION} <= {*client.counts}, client.counts
        calls = [call for history in client.groups for call in history.calls]
        assert {call.outcome for call in calls} == {Outcome.OK, Outcome.REFUSED}  # no fault, so nothing is unknown
        assert any(call.has_member for call in calls)
        assert all(any(read.is_final for read in history.reads) for history in client.groups)
        assert sum(len(history.deliveries) for history in client.groups) > len(client._topics.written) > 100

        history, now_ms = client.groups[-1], client._final_ms - 1
        label = labelled("share-administered-a", client._topics.ids["share-administered-a"], 0)
        for act, start in ((ShareAct.ALTER, 777_777), (ShareAct.DELETE_GROUP, None)):
            made_up = ShareCall(
                act=act, outcome=Outcome.OK, begun_ms=now_ms - 1, answered_ms=now_ms, starts=((label, start),)
            )
            history.calls.append(made_up)
            assert any(f"after {act.value}" in text or f"set by {act.value}" in text for text in client.verdict())
            history.calls.remove(made_up)

        topics, name = client._topics, "share-administered-a"  # the run ends before a deletion is confirmed
        former = topics._deleting[name] = topics.ids.pop(name)
        topics._former.add(former)
        await client.final_read(10)
        assert client.stuck is None
        assert topics.ids[name] != former

    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in settings_of(SHARES).items()}
    run_cluster(scenario, seed=1, brokers=BROKERS, share_coordinator_state_topic_num_partitions="4", **settings)


SHARES = ShareOptions(lock_ms=3_000, session_ms=2_000)
