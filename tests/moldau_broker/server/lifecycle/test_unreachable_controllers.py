"""Goal: a broker that cannot reach its controllers logs that, retries rarely, and gives up its start in time.

It never gives up once it has served. Method: a broker on virtual time whose controllers are down; the test counts its
log lines and its attempts.
"""

from __future__ import annotations

import logging

import pytest
import trio

from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.tasks.exceptions import leaves
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server import BrokerStartError, run_broker
from moldau_quorum.broker_side.reachability import WARNING_INTERVAL_MS, Reachability
from support.cluster.broker_cluster import CONTROLLER_PORT, run_cluster

TIMEOUT_MS = 30_000


def lines(caplog: pytest.LogCaptureFixture, event: str, level: int) -> list[str]:
    """Returns the log lines of an event."""
    found = [record for record in caplog.records if record.getMessage().startswith(event + " ")]
    assert all(record.levelno == level for record in found)
    return [record.getMessage() for record in found]


def kill_controllers(cluster) -> None:
    for controller in cluster.controller_ids:
        cluster.world.node(f"c{controller}").kill()


def test_a_broker_finds_its_controllers_by_any_of_them() -> None:
    """Without controller.quorum.voters, as brokers of Kafka 4, no broker started, though all checks passed."""

    async def scenario(cluster) -> None:
        by_servers = {"controller_quorum_voters": "", "initial_broker_registration_timeout_ms": str(TIMEOUT_MS)}
        cluster.kill(1)
        cluster.start_broker(1, **by_servers, controller_quorum_bootstrap_servers=f"x:1,c101:{CONTROLLER_PORT}")
        await cluster.until(lambda: 1 in cluster.running)
        config = cluster.broker_config(2, **by_servers, controller_quorum_bootstrap_servers="x:1")
        with pytest.raises(BrokerStartError, match=r"none of controller\.quorum\.bootstrap\.servers answered within"):
            await run_broker(cluster.world.node("b2").environment, config, shutdown=trio.Event())

    run_cluster(scenario)


def test_a_start_without_controllers_ends_when_the_time_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    opening = RpcConnection.open

    async def counted(*arguments, **keywords):
        nonlocal attempts
        attempts += 1
        return await opening(*arguments, **keywords)

    async def scenario(cluster) -> tuple[float, list[BaseException]]:
        cluster.kill(1)
        kill_controllers(cluster)
        caplog.clear()
        monkeypatch.setattr(RpcConnection, "open", counted)
        config = cluster.broker_config(1, initial_broker_registration_timeout_ms=str(TIMEOUT_MS))
        ended: list[BaseException] = []

        async def main(environment) -> None:
            try:
                await run_broker(environment, config, shutdown=trio.Event())
            except* BrokerStartError as group:
                ended.extend(leaves(group))

        begun = trio.current_time()
        cluster.world.node("b1").start(main)
        await cluster.world.node("b1").wait_ended()
        return (trio.current_time() - begun) * 1000, ended

    with caplog.at_level(logging.INFO):
        (took_ms, ended), _ = run_cluster(scenario, controllers=3)
    assert TIMEOUT_MS <= took_ms < TIMEOUT_MS + 2_000
    (error,) = ended
    assert "initial.broker.registration.timeout.ms = 30000" in str(error)
    assert "101@c101:9093,102@c102:9093,103@c103:9093" in str(error)
    reported = lines(caplog, "controllers-unreachable", logging.WARNING)
    assert 2 <= len(reported) <= TIMEOUT_MS / WARNING_INTERVAL_MS + 1, "rarely"
    assert "controllers=101@c101:9093,102@c102:9093,103@c103:9093" in reported[0]
    assert "attempts=1 for_ms=0" in reported[0], "at once"
    assert "cause=" in reported[0]
    rounds_max = TIMEOUT_MS / 500 + 10
    assert attempts <= 3 * rounds_max, "the waits grow"


def test_the_end_of_an_outage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster) -> float:
        kill_controllers(cluster)
        caplog.clear()
        await trio.sleep(40)
        cluster.start_controller(101)
        begun = trio.current_time()
        follower = cluster.running[1].context.follower
        await cluster.until(lambda: follower.reachability.failures == 0)
        return (trio.current_time() - begun) * 1000

    with caplog.at_level(logging.INFO):
        took_ms, _ = run_cluster(scenario)
    assert took_ms < 5_000
    (reported,) = lines(caplog, "controllers-reachable", logging.INFO)
    assert "controller=101" in reported
    assert lines(caplog, "controllers-unreachable", logging.WARNING)


def test_a_broker_that_has_served_registers_again_without_end() -> None:
    async def scenario(cluster) -> float:
        session = cluster.running[1]._session
        session._registration_timeout_ms = 1_000.0
        begun = trio.current_time()
        kill_controllers(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session._register_again)
            await trio.sleep(20)
            cluster.start_controller(101)
        assert cluster.running[1].is_serving
        return trio.current_time() - begun

    took_s, _ = run_cluster(scenario)
    assert 20 < took_s < 25


class Clock:
    now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


def test_the_first_failure_is_logged_then_one_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    reachability = Reachability(clock, EventLogger("moldau.test"))
    with caplog.at_level(logging.INFO):
        for _ in range(1_000):
            reachability.failed(1, ConnectionRefusedError("no"), {1: ("h", 9), 2: ("k", 8)})
            clock.now_ms += 50
        reachability.answered(2)
        reachability.answered(2)
        reachability.failed(2, TimeoutError(), {2: ("k", 8)})
    reported = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in reported] == ["controllers-unreachable"] * 5 + [
        "controllers-reachable",
        "controllers-unreachable",
    ]
    assert 'cause="controller 1: no" controllers=1@h:9,2@k:8 attempts=1 ' in reported[0]
    assert "attempts=1000 after_ms=50000" in reported[5]
    assert "TimeoutError" in reported[6], "an error without a text is named by its type"


def test_a_start_ends_after_its_greatest_time() -> None:
    async def scenario(cluster) -> tuple[float, list[BaseException]]:
        cluster.kill(1)
        kill_controllers(cluster)
        config = cluster.broker_config(1, server_max_startup_time_ms="1500")
        ended: list[BaseException] = []

        async def main(environment) -> None:
            try:
                await run_broker(environment, config, shutdown=trio.Event())
            except* BrokerStartError as group:
                ended.extend(leaves(group))

        begun = trio.current_time()
        cluster.world.node("b1").start(main)
        await cluster.world.node("b1").wait_ended()
        return trio.current_time() - begun, ended

    (took, (error,)), _ = run_cluster(scenario)
    assert 1.5 <= took < 2
    assert str(error) == "the broker was not ready within server.max.startup.time.ms = 1500"
