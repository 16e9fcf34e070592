"""Goal: a broker's requests are traced through its real connections, and cost no call while tracing is off.

Method: a cluster in virtual time with a recording tracer; the same run twice gives the same spans.
"""

import random
import sys

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.net.serving import request_traces
from moldau.runtime.net.serving.request_traces import RequestTraces
from support.cluster.broker_cluster import batch, run_cluster

WAITS = {19: "wait-for-controller"}


def traces_of(cluster, broker_id, found):
    environment = cluster.world.node(f"b{broker_id}").environment
    return RequestTraces(environment.clock, random.Random(1), found.append, slow_ms=1e9, sample_ratio=1.0, waits=WAITS)


async def _write(cluster, broker_id):
    client = cluster.client(broker_id)
    for number in range(5):
        assert (await client.produce("t", batch(b"%d" % number), acks=-1)).error_code == ErrorCode.NONE
    client.close()


def recorded():
    found = []

    async def scenario(cluster):
        cluster.requests[1].traces = traces_of(cluster, 1, found)
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=3)
        client.close()
        await _write(cluster, await cluster.leader("t"))
        for broker_id in cluster.broker_ids:
            cluster.requests[broker_id].traces = traces_of(cluster, broker_id, found)
        await _write(cluster, await cluster.leader("t"))
        await trio.sleep(1)

    run_cluster(scenario, brokers=3)
    return found


def test_requests_are_recorded_with_their_stages():
    found = recorded()
    by_api = {}
    for request in found:
        by_api.setdefault(request.api, []).append(request)
    (creation,) = by_api["CreateTopics"]
    assert [stage.name for stage in creation.stages if stage.name.startswith("wait")] == ["wait-for-controller"]
    produces = by_api["Produce"]
    assert len(produces) >= 5
    for request in produces:
        assert request.result == "NONE"
        assert "wait-for-in-sync-replicas" in [stage.name for stage in request.stages]
        assert request.begun_ms <= request.stages[0].begun_ms
        assert request.stages[-1].ended_ms == request.ended_ms
    assert {request.listener for request in found} == {"PLAINTEXT"}
    assert any(request.topic for request in by_api["Fetch"]), "followers fetch"
    assert {request.topic for request in produces} <= {"t", *(request.topic for request in by_api["Fetch"])}


def test_the_same_run_gives_the_same_spans():
    assert recorded() == recorded()


def test_nothing_of_the_tracer_runs_while_it_is_off():
    calls = []
    path = request_traces.__file__

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename == path:
            calls.append(frame.f_code.co_name)

    async def noted(cluster, leader):
        sys.setprofile(note)
        try:
            await _write(cluster, leader)
        finally:
            sys.setprofile(None)
        found, calls[:] = list(calls), []
        return found

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=1)
        client.close()
        leader = await cluster.leader("t")
        assert await noted(cluster, leader) == []
        cluster.requests[leader].traces = traces_of(cluster, leader, [])
        assert "begin" in await noted(cluster, leader)

    run_cluster(scenario)
