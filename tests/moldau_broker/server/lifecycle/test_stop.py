"""Goal: a broker stops in order within a bound and logs its progress, however many partitions it has.

The bound also holds for slow controllers. Method: brokers on virtual time, with controllers that answer late or never,
and with a disk that does not answer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from moldau_broker.log.files.names import CLEAN_SHUTDOWN
from moldau_broker.server.lifecycle.log_tasks import CLOSE_REPORT_MS, LogTasks
from moldau_broker.server.lifecycle.shutdown import CONTROLLER_SILENCE_MS, STOP_TIMEOUT_MS
from moldau_quorum.controller.cluster import brokers as decisions
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import pytest

MARKER = f"/data/{CLEAN_SHUTDOWN}"


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the names of a broker's log events, in order."""
    return [record.getMessage().split()[0] for record in caplog.records if record.name == "moldau.broker"]


async def stop_ms(cluster, within_ms: float) -> float:
    """Stops the only broker, and returns the time that this took."""
    begun = trio.current_time()
    cluster.stops[1].set()
    with trio.fail_after(within_ms / 1000):
        await cluster.world.node("b1").wait_ended()
    cluster.running.pop(1)
    return (trio.current_time() - begun) * 1000


def test_each_phase_of_a_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster) -> float:
        await cluster.client(1).create_topic("t", partitions=20)
        await cluster.leader("t", 19)
        caplog.clear()
        return await stop_ms(cluster, 5_000)

    with caplog.at_level(logging.INFO):
        run_cluster(scenario)
    reported = [event for event in events(caplog) if event not in ("leader", "follower")]
    assert reported == [
        "stopping",
        "controlled-shutdown",
        "controlled-shutdown-done",
        "ending-connections",
        "closing-logs",
        "logs-closed",
        "stopped",
    ]
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("controlled-shutdown ") and line.endswith("leading=20") for line in lines)
    assert any(line.startswith("closing-logs ") and line.endswith("logs=20") for line in lines)


def test_a_controller_that_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leadership takes half a minute to move: the broker waits while the controller answers heartbeats."""

    async def scenario(cluster) -> tuple[float, bool]:
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        now, may_stop = trio.current_time(), decisions._may_stop
        monkeypatch.setattr(
            decisions, "_may_stop", lambda *arguments: trio.current_time() > now + 30 and may_stop(*arguments)
        )
        cluster.stops[1].set()
        await trio.sleep(25)
        assert (await client.metadata("t")).topics[0].name == "t"
        took_ms = await stop_ms(cluster, 10_000)
        return took_ms, MARKER in cluster.world.node("b1").disk.files("/data")

    (took_ms, clean), _ = run_cluster(scenario)
    assert clean
    assert 4_500 < took_ms < 6_500


def test_silent_controllers_are_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster) -> tuple[float, bool]:
        for controller in cluster.controller_ids:
            cluster.world.node(f"c{controller}").kill()
        await trio.sleep(3)
        took_ms = await stop_ms(cluster, STOP_TIMEOUT_MS)
        return took_ms, MARKER in cluster.world.node("b1").disk.files("/data")

    with caplog.at_level(logging.INFO):
        (took_ms, clean), _ = run_cluster(scenario)
    assert clean, "the logs are closed all the same"
    assert CONTROLLER_SILENCE_MS <= took_ms < CONTROLLER_SILENCE_MS + 2_000
    assert "controlled-shutdown-unanswered" in events(caplog)


def test_a_disk_that_does_not_answer_bounds_the_stop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker logs the number of closed logs every few seconds, and ends without the mark of a clean stop."""

    async def scenario(cluster) -> tuple[float, bool]:
        await cluster.client(1).create_topic("t", partitions=3)
        await cluster.leader("t", 2)

        async def never(self, work) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(LogTasks, "perform", never)
        took_ms = await stop_ms(cluster, STOP_TIMEOUT_MS + 5_000)
        return took_ms, MARKER in cluster.world.node("b1").disk.files("/data")

    with caplog.at_level(logging.INFO):
        (took_ms, clean), _ = run_cluster(scenario)
    assert not clean
    assert STOP_TIMEOUT_MS - 1 <= took_ms < STOP_TIMEOUT_MS + 1_000
    reported = events(caplog)
    assert reported.count("closing-logs") >= STOP_TIMEOUT_MS / CLOSE_REPORT_MS - 2
    assert reported[-2:] == ["logs-not-closed", "stopped-unclean"]
