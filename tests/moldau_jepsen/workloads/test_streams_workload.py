"""Goal: campaigns draw streams groups and shift no other draw; runs with one are clean and meet rare situations.

Method: the draws of many seeds, and short runs of the profile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
import trio

from moldau.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
)
from moldau_jepsen.checkers.group.streams import History
from moldau_jepsen.coverage.situations import OF_STREAMS
from moldau_jepsen.simulation.campaign.later_profiles import STREAMING
from moldau_jepsen.simulation.campaign.options import RunOptions, drawn_sharing, drawn_streams
from moldau_jepsen.simulation.campaign.profiles import drawn_options, drawn_profile
from moldau_jepsen.simulation.campaign.runner import run_seed
from moldau_jepsen.simulation.mutants.mutants import run_trial
from moldau_jepsen.workloads.streams.member import StreamsMember
from moldau_jepsen.workloads.streams.workload import StreamsOptions, StreamsWorkload
from support.cluster.broker_cluster import Cluster, run_cluster

if TYPE_CHECKING:
    from moldau_jepsen.workloads.streams.member import Link

RULES = (
    "streams-two-at-once",
    "streams-two-in-epoch",
    "streams-offset-back",
    "streams-offset-lost",
    "streams-not-settled",
    "share-altered",
)


def test_some_seeds_of_a_campaign_have_a_streams_group() -> None:
    seeds = range(400)
    drawn = [drawn_streams(seed, drawn_options(seed)) for seed in seeds]
    assert 40 < sum(drawn) < 120
    assert 4 < sum(drawn_profile(seed) is STREAMING for seed in seeds) < 40


def test_a_written_out_run_has_no_streams_group() -> None:
    assert not any(drawn_streams(seed, RunOptions()) for seed in range(50))
    with_streams = replace(RunOptions(), streams=True, sharing=None)
    without = replace(with_streams, streams=False)
    assert [drawn_sharing(seed, with_streams) for seed in range(50)] == [
        drawn_sharing(seed, without) for seed in range(50)
    ]


def test_members_find_brokers_as_other_clients_do() -> None:
    """Kafka's clients take addresses of IPv6 in brackets, and spaces between the addresses."""
    workload = StreamsWorkload("[::1]:9092, broker-2:9093", StreamsOptions())
    assert workload._brokers == [("::1", 9092), ("broker-2", 9093)]


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2])
def test_a_streams_group_works_under_faults(seed: int) -> None:
    result = run_seed(seed, STREAMING.of_seed(seed))
    assert result.violations == ()
    met = {transition.after for transition in result.coverage.transitions}
    assert OF_STREAMS["moved"].value in met
    assert OF_STREAMS["fenced"].value in met


@pytest.mark.proof
def test_members_log_in_with_the_rights_of_an_application() -> None:
    """On a secured cluster members log in, and brokers create internal topics in the name of their user."""
    result = run_seed(1, replace(STREAMING.of_seed(1), security=True, fault_seconds=5.0))
    assert result.violations == ()
    assert OF_STREAMS["moved"].value in {transition.after for transition in result.coverage.transitions}


def test_a_cluster_says_how_long_sessions_are() -> None:
    """A workload on a cluster that it has not configured judges by the session timeout that brokers use."""
    workload = StreamsWorkload("b1:9092", StreamsOptions())

    async def scenario(cluster: Cluster) -> None:
        await workload.ask_session(cluster.client_environment)

    run_cluster(scenario, brokers=1, group_streams_session_timeout_ms="50000")
    assert workload.done.endswith("session 50000 ms")


@pytest.mark.proof
@pytest.mark.parametrize("rule", RULES)
def test_rules_convict_alone(rule: str) -> None:
    verdict = run_trial(rule, range(1, 9))
    assert verdict.found
    assert verdict.found_by == rule


class HeldLink:
    """Answers each heartbeat with both tasks, but the second one only when the member has left."""

    def __init__(self) -> None:
        self.application = StreamsOptions().application
        self.answered_by = "b1:9092"
        self.beats = 0
        self.under_way, self.has_left = trio.Event(), trio.Event()

    async def ask(
        self, response_class: type[StreamsGroupHeartbeatResponse], request: StreamsGroupHeartbeatRequest, version: int
    ) -> StreamsGroupHeartbeatResponse:
        del response_class, version
        if request.member_epoch == -1:
            self.has_left.set()
        else:
            self.beats += 1
            if self.beats == 2:
                self.under_way.set()
                await self.has_left.wait()
        tasks = [TaskIds(subtopology_id="1", partitions=[0, 1])]
        return StreamsGroupHeartbeatResponse(member_epoch=self.beats, active_tasks=tasks)


def test_a_member_that_leaves_takes_no_tasks() -> None:
    """The answer to a heartbeat that was under way comes after the leave: the coordinator has given the tasks away."""
    link, history = HeldLink(), History()
    member = StreamsMember("m1", cast("Link", link), history)

    async def main() -> None:
        await member.beat()
        assert sorted(member.acting) == [("1", 0), ("1", 1)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.beat)
            await link.under_way.wait()
            await member.leave()
        assert member.acting == {}

    trio.run(main)
    assert link.beats == 2
    assert [each.ended_ms is not None for each in history.holdings] == [True, True]
