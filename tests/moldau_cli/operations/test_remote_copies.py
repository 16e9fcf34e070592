"""Goal: a verdict on a cluster says when copies of tiered topics are behind, without the brokers' own pages.

Method: the arithmetic by hand; then a simulated cluster whose store is away, or keeps up.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau import TopicPartition
from moldau.admin import Admin
from moldau_cli.console.data.copies import KEPT_S
from moldau_cli.console.identities import open_identity
from moldau_cli.console.pages import QUESTIONS, Question
from moldau_cli.health import COPIES_BEHIND, STORE_FAILS
from moldau_cli.inspection import inspect_cluster
from moldau_cli.operations import remote_copies
from moldau_cli.operations.remote_copies import (
    ANSWER_S,
    GRACE_MS,
    Copied,
    LocalLimits,
    ask_for_copies,
    late_bytes,
    limits_of,
)
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import TIERED, created, fill, log_of, store_away

if TYPE_CHECKING:
    from moldau_cli.console.identities import Identity
    from moldau_cli.health import Problem
    from support.cluster.broker_cluster import Cluster

TOPIC = {"remote.storage.enable": "true", "retention.ms": "9000", "retention.bytes": "-1", "segment.bytes": "100"}
LOG = Copied(local_start=1000, pending=1200, end=2000, size_bytes=10_000)
"""Ten bytes for each record, and 800 records that are not copied."""


def entries(**more: str) -> Any:
    values = TOPIC | {key.replace("_", "."): value for key, value in more.items()}
    return {key: SimpleNamespace(value=value) for key, value in values.items()}


@pytest.mark.parametrize(
    ("more", "limits"),
    [
        ({"local_retention_ms": "-2", "local_retention_bytes": "-2"}, LocalLimits(9000, -1, 100)),
        ({"local_retention_ms": "50", "local_retention_bytes": "70"}, LocalLimits(50, 70, 100)),
        ({"local_retention_ms": "-1", "local_retention_bytes": "-2"}, None),
        ({"remote_storage_enable": "false", "local_retention_ms": "50"}, None),
        ({"remote_log_copy_disable": "true", "local_retention_ms": "-2"}, None),
    ],
)
def test_local_retention_says_what_should_leave_a_disk(more: dict[str, str], limits: LocalLimits | None) -> None:
    assert limits_of(entries(**more)) == limits


@pytest.mark.parametrize(
    ("limits", "past_retention", "late"),
    [
        (LocalLimits(50, -1, 1000), 1200, 0),
        (LocalLimits(50, -1, 1000), 1300, 0),  # the open segment may hold them
        (LocalLimits(50, -1, 1000), 1400, 1000),
        (LocalLimits(50, -1, 1000), 9000, 7000),  # the end counts
        (LocalLimits(-1, 4000, 1000), 0, 0),
        (LocalLimits(-1, 2000, 1000), 0, 2000),
        (LocalLimits(50, 2000, 1000), 1400, 2000),
    ],
)
def test_bytes_beyond_retention_and_the_open_segment_are_late(
    limits: LocalLimits, past_retention: int, late: int
) -> None:
    """Records up to offset 1,700 are older than the grace: 5,000 bytes wait."""
    assert late_bytes(limits, LOG, past_retention, 1700) == late


def test_a_log_without_records_on_the_disk_has_none_late() -> None:
    assert Copied(5, 5, 5, 0).waiting_bytes(5) == 0


def test_waiting_bytes_grow_from_none_to_all_with_the_end() -> None:
    offsets = range(5)
    for start, pending, end in product(offsets, offsets, offsets):
        if start <= end:
            log = Copied(local_start=start, pending=pending, end=end, size_bytes=100)
            found = [log.waiting_bytes(until) for until in range(7)]
            assert found == sorted(found)
            assert (found[0], found[-1]) == (0, 100 * max(0, end - pending) // (end - start) if start < end else 0)


def test_the_partition_that_is_most_behind_is_named() -> None:
    sizes = {TopicPartition("t", number): size for number, size in enumerate((5, 9, 9, 7))}
    leaders = dict.fromkeys(sizes, 2) | {TopicPartition("t", 3): 1}
    found = [(each.subject, each.detail) for each in remote_copies._behind(leaders, sizes)]
    rest = "should have left its disk by local.retention.*, and are not in the object store"
    assert found == [
        ("broker 1", f"about 7 bytes of t-3 {rest}"),
        ("broker 2", f"about 23 bytes of t-2 and 2 more partitions {rest}"),
    ]


def test_records_that_were_deleted_wait_for_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeleteRecords moved the log start offset beyond the last copied segment."""
    place = TopicPartition("t", 0)

    async def ask_offsets(*arguments: object, **options: object) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(found={place: (80, 3)})

    async def ask_log_dirs(*arguments: object, **options: object) -> Any:
        await trio.lowlevel.checkpoint()
        return {}, {}

    monkeypatch.setattr(remote_copies, "ask_offsets", ask_offsets)
    monkeypatch.setattr(remote_copies, "ask_log_dirs", ask_log_dirs)
    admin: Any = None
    logs = trio.run(remote_copies._logs, admin, {place: 1}, {place: (50, 3)}, {place: (9, 3)})
    assert logs[place].pending == 50


async def overview(identity: Identity) -> dict[str, Any]:
    return await QUESTIONS["overview"](Question(identity=identity, parameters={}, local=None, avro=None))


async def problems(cluster: Cluster) -> list[Problem]:
    servers = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
    async with Admin({"bootstrap.servers": servers}, environment=cluster.client_environment) as admin:
        now_ms = cluster.client_environment.clock.wall_ms()
        seen = await inspect_cluster(admin, ask_copies=partial(ask_for_copies, admin, now_ms=now_ms))
    return seen.problems


@pytest.mark.parametrize("limit", [{"local_retention_bytes": "1"}, {"local_retention_ms": "1000"}])
def test_copies_that_are_behind_are_a_problem_until_done(limit: dict[str, str]) -> None:
    async def scenario(cluster: Cluster) -> None:
        leader = await created(cluster, "t", replicas=1, **limit)
        client = cluster.client(leader)
        await fill(cluster, client, "t", 4)
        await cluster.until(lambda: log_of(cluster, leader, "t").local_log_start_offset >= 3)
        assert await problems(cluster) == []
        with store_away(cluster):
            await fill(cluster, client, "t", 8)
            assert await problems(cluster) == [], "they are not late yet"
            await trio.sleep(GRACE_MS / 1000 + 5)
            (problem,) = await problems(cluster)
            assert (problem.kind, problem.subject) == (COPIES_BEHIND, f"broker {leader}")
            assert problem.detail.startswith("about ")
            assert " bytes of t-0 should have left its disk" in problem.detail
        await cluster.until(lambda: log_of(cluster, leader, "t").local_log_start_offset >= 10, timeout_ms=60_000)
        assert await problems(cluster) == []

    run_cluster(scenario, **TIERED)


def test_a_leader_that_does_not_know_the_store_is_a_problem() -> None:
    """It has not reached the store since it began to lead. The overview of the console says so, as the command does."""

    async def scenario(cluster: Cluster) -> None:
        with store_away(cluster):
            leader = await created(cluster, "t", local_retention_bytes="1")
            await fill(cluster, cluster.client(leader), "t", 2)
            (problem,) = await problems(cluster)
            assert (problem.kind, problem.subject) == (STORE_FAILS, f"broker {leader}")
            assert "1 tiered partition that it leads" in problem.detail
            async with open_identity({"bootstrap.servers": f"b{leader}:9092"}, cluster.client_environment) as identity:
                assert (await overview(identity))["problems"] == [], "the leaders are asked beside the page"
                await trio.sleep(2 * ANSWER_S)
                (shown,) = (await overview(identity))["problems"]
                assert shown == {"kind": problem.kind, "subject": problem.subject, "detail": problem.detail}
                await trio.sleep(2 * KEPT_S)
                assert (await overview(identity))["problems"] == [], "an old answer says nothing about now"
                await trio.sleep(2 * ANSWER_S)
                assert (await overview(identity))["problems"] == [shown]

    run_cluster(scenario, **TIERED)


def test_a_cluster_without_a_store_is_asked_for_no_topics() -> None:
    """Its brokers are asked once for their configuration, not for their pages and for their store."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        servers = f"b{cluster.broker_ids[0]}:9092"
        async with Admin({"bootstrap.servers": servers}, environment=cluster.client_environment) as admin:
            asked: list[int] = []
            describe = admin.describe_configs

            async def counted(resources: Any, **more: Any) -> Any:
                asked.append(len(list(resources)))
                return await describe(resources, **more)

            admin.describe_configs = counted  # type: ignore[method-assign]
            ask_copies = partial(ask_for_copies, admin, now_ms=1)
            assert (await inspect_cluster(admin, ask_copies=ask_copies)).problems == []
        assert asked == [1]

    run_cluster(scenario)
