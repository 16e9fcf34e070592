"""The state of a node over HTTP: metrics of its roles and of its process, and whether it serves.

``metrics.listener`` switches it on. The endpoint starts before the roles, so a node that recovers its logs is live but
not ready. A node is ready when each of its roles is: a broker that the controller has not fenced, a controller that
knows the quorum's leader.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.net.serving.request_times import RequestTimes, register_request_times
from moldau.runtime.sasl.attempts import RefusedLogins, refused_logins, register_attempts
from moldau.runtime.telemetry.endpoint import PROMETHEUS_TYPE, Page, serve_pages
from moldau.runtime.telemetry.metrics import Histogram, Registry
from moldau.runtime.tls.expiry import register_expiry
from moldau.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config import Config
    from moldau.runtime.net.serving.request_traces import RequestTraces
    from moldau.runtime.ports.environment import Clock, Environment
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_broker.server.remote_log.problems import StoreProblem
    from moldau_quorum.node.server import ControllerNode

LAG_PERIOD_MS: Final = 100.0
"""How often the event loop's lag is measured."""


class NodeTelemetry:
    """The registry of one node and its endpoint."""

    def __init__(self, environment: Environment, config: Config, traces: RequestTraces | None = None) -> None:
        """No role runs. ``traces`` is the tracer of the node's listeners, if it has one."""
        self._environment = environment
        self._roles = config.get_list("process.roles")
        self._checks: dict[str, Callable[[], str | None]] = {}
        self._logins: list[Callable[[], list[RefusedLogins]]] = []
        self._problems: Callable[[], list[StoreProblem]] = list
        self.registry = Registry()
        self.requests = RequestTimes(traces)
        self._lag = Histogram()
        register_request_times(self.registry, self.requests)
        _register_process(self.registry, environment.clock)
        self.registry.histogram(
            "moldau_event_loop_lag_ms", "Milliseconds by which a timer of the event loop fired too late."
        ).attach(self._lag)

    async def run(
        self, host: str, port: int, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves the pages and measures the event loop until cancelled. Started with the address that was bound.

        Raises:
            OSError: the port is taken.
        """
        pages = {
            "/metrics": self._metrics,
            "/logins": self._login_page,
            "/problems": self._problem_page,
            "/health/live": _live,
            "/health/ready": self._ready,
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure_lag, self._environment.clock, self._lag)
            await serve_pages(self._environment, host, port, pages, task_status=task_status)

    def controller_started(self, node: ControllerNode) -> None:
        """Adds a controller."""
        from moldau_quorum.node.metrics import register_metrics

        register_metrics(self.registry, node)
        register_expiry(self.registry, node.certificates)
        register_attempts(self.registry, node.attempts, node.servers.items, node.certificates)
        self._logins.append(lambda: refused_logins(node.attempts, node.servers.items(), node.certificates))
        self._checks["controller"] = lambda: None if node.log.leadership.leader_id >= 0 else "knows no quorum leader"

    def broker_created(self, broker: Broker) -> None:
        """Adds the state of a broker, which is known before it has started."""
        from moldau_broker.server.metrics.export import register_state

        register_state(self.registry, broker)

    def broker_started(self, broker: Broker) -> None:
        """Adds a broker."""
        from moldau_broker.server.metrics.export import register_metrics

        register_metrics(self.registry, broker)
        register_expiry(self.registry, broker.listening.certificates)
        listening = broker.listening
        register_attempts(self.registry, listening.attempts, listening.servers, listening.certificates)
        self._logins.append(lambda: refused_logins(listening.attempts, listening.servers(), listening.certificates))
        remote_log = broker.context.remote_log
        if remote_log is not None:
            self._problems = remote_log.problems
        self._checks["broker"] = lambda: None if broker.is_unfenced else "is fenced"

    def _metrics(self) -> Page:
        return Page(200, self.registry.expose(), PROMETHEUS_TYPE)

    def _login_page(self) -> Page:
        rows = [dataclasses.asdict(each) for logins in self._logins for each in logins()]
        return Page(200, json.dumps(rows) + "\n", "application/json")

    def _problem_page(self) -> Page:
        rows = [each._asdict() for each in self._problems()]
        return Page(200, json.dumps(rows) + "\n", "application/json")

    def _ready(self) -> Page:
        reasons = {role: self._checks[role]() if role in self._checks else "starts" for role in self._roles}
        lines = [f"{role}: {'ready' if reason is None else reason}\n" for role, reason in reasons.items()]
        return Page(503 if any(reasons.values()) else 200, "".join(lines))


def _live() -> Page:
    return Page(200, "the event loop turns\n")


async def measure_lag(clock: Clock, lag: Histogram) -> None:
    """Observes by how much a short sleep takes too long, until cancelled."""
    while True:
        begun_ms = clock.monotonic_ms()
        await trio.sleep(LAG_PERIOD_MS / 1000)
        lag.observe(max(0.0, clock.monotonic_ms() - begun_ms - LAG_PERIOD_MS))


def _register_process(registry: Registry, clock: Clock) -> None:
    """Adds the metrics of every process, under the names that Prometheus recommends."""
    registry.gauge("moldau_build_info", "1; the version is a label.", "version").labels(VERSION).set(1)
    begun_ms = clock.wall_ms()
    registry.gauge("process_start_time_seconds", "Start, in seconds since 1970.").labels().set(begun_ms / 1000)
    cpu = registry.counter("process_cpu_seconds_total", "Processor time, user and system.").labels()
    memory = registry.gauge("process_resident_memory_bytes", "Resident memory.").labels()
    files = registry.gauge("process_open_fds", "Open file descriptors.").labels()
    files_max = registry.gauge("process_max_fds", "Most file descriptors that may be open.").labels()

    def update() -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu.value = usage.ru_utime + usage.ru_stime
        memory.set(_resident_bytes(usage.ru_maxrss))
        files.set(_open_files())
        files_max.set(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    registry.on_expose(update)


def _resident_bytes(most: int) -> int:
    """Returns the resident memory; the largest so far, if the kernel does not report the present one."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return most


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))
