"""Goal: the pages of a node say what it is, and only a node whose roles all serve is ready.

Method: the pages before any role has started, and with every state of two roles.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

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


class Row(NamedTuple):
    """Stands for a problem with the object store."""

    topic: str


def test_each_role_adds_its_metrics_its_logins_and_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates and refused logins are those of the listeners of both roles; the store is the broker's."""
    registered: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        return lambda registry, *of: registered.append((name, of))

    monkeypatch.setattr("moldau_broker.server.metrics.export.register_state", note("state"))
    monkeypatch.setattr("moldau_broker.server.metrics.export.register_metrics", note("broker"))
    monkeypatch.setattr("moldau_quorum.node.metrics.register_metrics", note("controller"))
    monkeypatch.setattr(telemetry, "register_expiry", note("expiry"))
    monkeypatch.setattr(telemetry, "register_attempts", note("attempts"))
    monkeypatch.setattr(telemetry, "refused_logins", lambda attempts, servers, certificates: [Login(str(attempts))])
    node = pages("broker", "controller")
    stored: list[Row] = []
    broker: Any = SimpleNamespace(
        is_unfenced=False,
        listening=SimpleNamespace(certificates="c1", attempts="a1", servers=dict),
        context=SimpleNamespace(remote_log=SimpleNamespace(problems=lambda: stored)),
    )
    controller: Any = SimpleNamespace(
        certificates="c101",
        attempts="a101",
        servers={"x": "y"},
        log=SimpleNamespace(leadership=SimpleNamespace(leader_id=-1)),
    )
    node.broker_created(broker)
    assert registered == [("state", (broker,))]
    assert node._ready().text == "broker: starts\ncontroller: starts\n"
    node.controller_started(controller)
    node.broker_started(broker)
    assert [(name, of[0]) for name, of in registered[1:]] == [
        *(("controller", controller), ("expiry", "c101"), ("attempts", "a101")),
        *(("broker", broker), ("expiry", "c1"), ("attempts", "a1")),
    ]
    for leader, unfenced in product((-1, 0, 101), (False, True)):
        controller.log.leadership.leader_id, broker.is_unfenced = leader, unfenced
        page = node._ready()
        assert (page.status == 200) is (leader >= 0 and unfenced)
        assert ("is fenced" in page.text, "knows no quorum leader" in page.text) == (not unfenced, leader < 0)
    assert json.loads(node._login_page().text) == [{"peer": "a101"}, {"peer": "a1"}]
    stored.append(Row("t"))
    assert json.loads(node._problem_page().text) == [{"topic": "t"}]
    broker.context.remote_log = None
    pages("broker").broker_started(broker)


@dataclass(frozen=True)
class Login:
    """Stands for the refused logins of a peer."""

    peer: str
