"""A whole mirror: all sources of one target, side by side, and the endpoint of its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.background import exits_unwrapped
from moldau.mirror.errors import MirrorStoppedError
from moldau.mirror.flow import SourceFlow
from moldau.mirror.statistics import register_metrics
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.telemetry.metrics import Registry

if TYPE_CHECKING:
    from moldau.mirror.core.settings import MirrorSettings
    from moldau.mirror.statistics import SourceStatistics
    from moldau.runtime.ports.environment import Environment


class Mirror:
    """Mirrors all sources of a file to its target."""

    def __init__(self, environment: Environment, settings: MirrorSettings) -> None:
        """Connects to nothing; ``run`` does the work."""
        self._environment = environment
        self._settings = settings
        self.stop = trio.Event()
        """Set it to end the mirror in order: it then waits for outcomes and stores its positions."""
        self._flows = [SourceFlow(environment, source, self.stop) for source in settings.sources]
        self._stopped: list[MirrorStoppedError] = []
        self._logger = EventLogger("moldau.mirror")

    @property
    def statistics(self) -> list[SourceStatistics]:
        """The numbers of each source."""
        return [flow.statistics for flow in self._flows]

    async def run(self) -> None:
        """Mirrors until ``stop`` is set. A source that ends for good does not end the others.

        Raises:
            MirrorStoppedError: no source is left that could be mirrored.
            OSError: the address of ``metrics.listener`` cannot be used.
        """
        failure: OSError | None = None
        with exits_unwrapped():
            async with trio.open_nursery() as nursery:
                try:
                    if self._settings.metrics_listener is not None:
                        await nursery.start(self._serve, *self._settings.metrics_listener)
                except OSError as error:
                    failure = error  # raised below, outside of the group that the nursery would make
                else:
                    async with trio.open_nursery() as sources:
                        for flow in self._flows:
                            sources.start_soon(self._run_source, flow)
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if self._stopped:
            raise MirrorStoppedError(
                "; ".join(str(error) for error in self._stopped), is_usage=all(each.is_usage for each in self._stopped)
            )

    async def _run_source(self, flow: SourceFlow) -> None:
        try:
            await flow.run()
        except MirrorStoppedError as error:
            flow.statistics.last_error = str(error)
            self._logger.error("source-stopped", source=flow.statistics.alias, reason=error)
            self._stopped.append(error)

    async def _serve(
        self, host: str, port: int, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        from moldau.runtime.telemetry.endpoint import PROMETHEUS_TYPE, Page, serve_pages  # needs the extra ``server``

        registry = Registry()
        register_metrics(registry, self.statistics)

        def ready() -> Page:
            lines = [f"{each.alias}: {'mirrored' if each.is_running else 'not mirrored'}\n" for each in self.statistics]
            return Page(200 if all(each.is_running for each in self.statistics) else 503, "".join(lines))

        pages = {
            "/metrics": lambda: Page(200, registry.expose(), PROMETHEUS_TYPE),
            "/health/live": lambda: Page(200, "the event loop turns\n"),
            "/health/ready": ready,
        }
        await serve_pages(self._environment, host, port, pages, task_status=task_status)


async def run_mirror(environment: Environment, settings: MirrorSettings) -> None:
    """Mirrors until cancelled; ``Mirror`` documents the errors."""
    await Mirror(environment, settings).run()
