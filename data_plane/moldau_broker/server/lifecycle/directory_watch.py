"""Ends a broker that cannot continue with its working log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.runtime.config import metadata_log_dir
from moldau_quorum.metadata.records import METADATA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Clock
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.replicas.replica_directories import ReplicaDirectories


class LogDirectoriesFailedError(OSError):
    """The broker cannot continue with its working log directories; the message names the failed ones."""


class DirectoryWatch:
    """Watches the log directories of one broker; ``run`` ends the broker if it must."""

    def __init__(
        self,
        clock: Clock,
        config: Config,
        logs: LogManager,
        directories: ReplicaDirectories,
        metadata: MetadataCache,
        broker_epoch: Callable[[], int],
    ) -> None:
        """``broker_epoch`` returns the epoch of the current registration."""
        self._clock = clock
        self._broker_id = config.get_int("node.id")
        self._timeout_ms = float(config.get_int("log.dir.failure.timeout.ms"))
        self._metadata_log_dir = metadata_log_dir(config) if "controller" in config.get_list("process.roles") else None
        self._logs = logs
        self._directories = directories
        self._metadata = metadata
        self._broker_epoch = broker_epoch
        self._changed = trio.Event()
        self._gives_up = directories.gives_up

    def notify(self) -> None:
        """Checks again, after a directory failed or the metadata of this broker or the feature levels changed."""
        self._changed.set()

    async def run(self) -> None:
        """Ends the broker when no log directory works, or when a failure cannot be reported to the controllers.

        The replicas in a failed directory are gone, and the controller must know that to elect other leaders.

        Sets ``ReplicaDirectories.gives_up`` first: a thread that hangs on a disk can hold up the end of the process.

        Raises:
            LogDirectoriesFailedError: the broker must end.
        """
        known_by_ms = float("inf")
        while True:
            with trio.move_on_after(max(0.0, known_by_ms - self._clock.monotonic_ms()) / 1000):
                await self._changed.wait()
            self._changed = trio.Event()
            reason = self.reason_to_end()
            if reason is not None:
                self._gives_up.set()
                raise LogDirectoriesFailedError(reason)
            if self._failures_are_known():
                known_by_ms = float("inf")
            elif known_by_ms == float("inf"):
                known_by_ms = self._clock.monotonic_ms() + self._timeout_ms
            elif self._clock.monotonic_ms() >= known_by_ms:
                self._gives_up.set()
                raise LogDirectoriesFailedError(
                    f"the controller did not record within {self._timeout_ms:.0f} ms that log directories have failed: "
                    f"{failure_causes(self._logs)}"
                )

    def _failures_are_known(self) -> bool:
        """Returns whether the metadata lists none of the failed directories as working."""
        broker = self._metadata.image.brokers.get(self._broker_id)
        failed = self._directories.offline_ids()
        return broker is None or not any(directory in broker.log_dirs for directory in failed)

    def reason_to_end(self) -> str | None:
        """Returns the reason why the broker cannot continue with its working directories; None if it can."""
        failed = self._logs.offline_directories
        if not failed:
            return None
        causes = failure_causes(self._logs)
        if not self._logs.online_directories:
            return f"all log directories have failed: {causes}"
        if self._metadata_log_dir in failed:
            return f"the directory of this node's metadata log has failed: {causes}"
        image = self._metadata.image
        broker = image.brokers.get(self._broker_id)
        registered = broker is not None and broker.broker_epoch == self._broker_epoch()
        if registered and not image.records_directories:
            return (
                f"a log directory has failed: {causes}; at {METADATA_VERSION} {image.metadata_level} the "
                "controllers do not record failures of single directories, so the broker ends"
            )
        return None


def failure_causes(logs: LogManager) -> str:
    """Returns the paths and errors of failed directories, as text."""
    return "; ".join(f"{directory.path}: {directory.error}" for directory in logs.directories if not directory.online)


def directories_failed(logs: LogManager) -> LogDirectoriesFailedError:
    """Returns the error of a broker whose log directories have failed; its cause is the error of the first of them."""
    error = LogDirectoriesFailedError(f"all log directories have failed: {failure_causes(logs)}")
    error.__cause__ = next((directory.error for directory in logs.directories if not directory.online), None)
    return error
