"""Goal: the pages of a node say what it is, and only a node whose roles all serve is ready.

Method: the pages before any role has started, and with every state of two roles.
"""

from __future__ import annotations

import json
from itertools import product

import pytest
import trio

from moldau.runtime.config import parse_server_config
from moldau.runtime.ports.real import real_environment
from moldau.runtime.telemetry.metrics import Histogram
from moldau.version import VERSION
from moldau_cli.nodes import telemetry
from moldau_cli.nodes.telemetry import LAG_PERIOD_MS, NodeTelemetry, measure_lag

FILE = """process.roles={roles}
node.id=1
controller.quorum.voters={voter}@127.0.0.1:9093
controller.listener.names=CONTROLLER
listeners={listeners}
log.dirs=/nowhere
"""
LISTENERS = {"broker": "PLAINTEXT://127.0.0.1:9092", "controller": "CONTROLLER://127.0.0.1:9093"}


def pages(*roles: str) -> NodeTelemetry:
    text = FILE.format(
        roles=",".join(roles),
        voter=1 if "controller" in roles else 9,
        listeners=",".join(LISTENERS[role] for role in roles),
    )
    return NodeTelemetry(real_environment(), parse_server_config(text, "node.properties", {}))


def test_a_node_that_starts_has_the_metrics_of_its_process() -> None:
    """It may repair its logs for an hour: memory, descriptors, requests and the lag of its loop are known meanwhile."""
    page = pages("broker")._metrics()
    assert page.status == 200
    lines = page.text.splitlines()
    assert f'moldau_build_info{{version="{VERSION}"}} 1' in lines
    named = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert {
        "moldau_build_info",
        "moldau_event_loop_lag_ms",
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    } <= named
    assert {name for name in named if name.startswith("kafka_network_requestmetrics_")}, "times of requests"
    values = dict(line.split() for line in lines if line.startswith("process_"))
    assert 0 < float(values["process_open_fds"]) < float(values["process_max_fds"])
    assert float(values["process_resident_memory_bytes"]) > 1 << 20


@pytest.mark.parametrize("states", list(product(["starts", "is fenced", None], repeat=2)))
def test_a_node_is_ready_when_each_of_its_roles_is(states: tuple[str | None, ...]) -> None:
    node = pages("broker", "controller")
    for role, state in zip(("broker", "controller"), states, strict=True):
        if state != "starts":
            node._checks[role] = lambda state=state: state  # type: ignore[misc]
    page = node._ready()
    broker, controller = (state or "ready" for state in states)
    assert (page.status, page.text) == (
        200 if states == (None, None) else 503,
        f"broker: {broker}\ncontroller: {controller}\n",
    )
    assert telemetry._live().status == 200, "a node that is not ready lives"


def test_pages_of_refused_logins_and_problems_are_lists() -> None:
    node = pages("broker")
    for page in (node._login_page(), node._problem_page()):
        assert (page.status, page.content_type, json.loads(page.text)) == (200, "application/json", [])


@pytest.mark.parametrize("late_ms", [0.0, 7.0, 2500.0, -0.5])
def test_the_lag_is_what_a_sleep_takes_too_long(late_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now_ms = 50.0

        def monotonic_ms(self) -> float:
            return self.now_ms

    clock, lag = Clock(), Histogram()
    seen: list[float] = []
    monkeypatch.setattr(Histogram, "observe", lambda _, value: seen.append(value))

    async def sleep(seconds: float) -> None:
        assert seconds == LAG_PERIOD_MS / 1000
        clock.now_ms += LAG_PERIOD_MS + late_ms
        await trio.lowlevel.checkpoint()
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(telemetry.trio, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        trio.run(measure_lag, clock, lag)
    assert seen == pytest.approx([max(0.0, late_ms)] * 3)
