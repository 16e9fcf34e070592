"""Restarts one node: by the launcher of a local cluster, or by a command that the user gave."""

from __future__ import annotations

import shlex
import string
import tempfile
from typing import TYPE_CHECKING, Final, Protocol

import trio

from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from moldau.runtime.net.rpc import RpcConnection
    from moldau.runtime.ports.environment import Environment
    from moldau_cli.plans.roll import RollNode
    from moldau_jepsen.launcher import LocalCluster

FIELDS: Final = ("id", "host", "port", "roles")
OPEN_TIMEOUT_MS: Final = 5_000
PING_S: Final = 0.2
OUTPUT_BYTES_MAX: Final = 2_000
"""Of the command's output, its end is shown if it fails."""


class Restarter(Protocol):
    """Restarts a node."""

    async def restart(self, node: RollNode) -> None:
        """Returns when the old process has ended and a new one was started; it may not serve yet.

        Raises:
            CommandError: the node was not restarted.
        """
        ...


class LauncherRestarter:
    """Restarts nodes of a local cluster."""

    def __init__(self, cluster: LocalCluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def restart(self, node: RollNode) -> None:
        """See ``Restarter``; a node that does not stop in order in time is killed by the launcher."""
        from moldau_jepsen.launcher import LauncherError

        def work() -> None:
            self._cluster.restart(node.node_id, ready_timeout_ms=self._timeout_s * 1000)

        try:
            await trio.to_thread.run_sync(work)
        except LauncherError as error:
            raise CommandError(f"{node} did not come back: {error}") from error


class CommandRestarter:
    """Runs a command for each node, without a shell, and waits until the old process has ended.

    A connection to the node that is opened before shows that the old process has ended: a command may return before
    that (``docker restart -t``, a job queue), and the cluster would look healthy because nothing has happened yet.
    """

    def __init__(self, template: str, environment: Environment, timeout_s: float) -> None:
        """Splits the command into words, as a shell does.

        Raises:
            UsageError: it is empty, has an open quote or an unknown field.
        """
        try:
            self._words = shlex.split(template)
            fields = [
                f"{field}{spec or ''}{conversion or ''}"  # with a form of its own it is none of the known ones
                for word in self._words
                for _, field, spec, conversion in string.Formatter().parse(word)
                if field is not None
            ]
        except ValueError as error:
            raise UsageError(f"--restart-command: {error}") from error
        unknown = [field for field in fields if field not in FIELDS]
        if unknown or not self._words:
            known = ", ".join(f"{{{field}}}" for field in FIELDS)
            raise UsageError(f"--restart-command: expected a command with {known}, not {template!r}")
        self._environment = environment
        self._timeout_s = timeout_s

    def command(self, node: RollNode) -> list[str]:
        """Returns the words of the command for a node."""
        values = {"id": node.node_id, "host": node.host, "port": node.port, "roles": "-".join(node.roles)}
        return [word.format(**values) for word in self._words]

    async def restart(self, node: RollNode) -> None:
        """See ``Restarter``."""
        witness = await self._connect(node)
        try:
            with trio.move_on_after(self._timeout_s) as limit:
                await self._run(node)
                if witness is not None:
                    await _wait_broken(witness)
        finally:
            if witness is not None:
                witness.close()
        if limit.cancelled_caught:
            called = shlex.join(self.command(node))
            raise CommandError(f"{node} was not restarted within {self._timeout_s:g} s by: {called}")

    async def _connect(self, node: RollNode) -> RpcConnection | None:
        """Returns an open connection; None if the node cannot be reached from here, as controllers often cannot."""
        from moldau.protocol.errors import KafkaError
        from moldau.runtime.net.rpc import RpcConnection

        try:
            return await RpcConnection.open(
                self._environment, node.host, node.port, "moldau-roll", timeout_ms=OPEN_TIMEOUT_MS
            )
        except (OSError, KafkaError, trio.TooSlowError):
            return None

    async def _run(self, node: RollNode) -> None:
        words = self.command(node)
        with tempfile.TemporaryFile() as written:
            try:
                done = await trio.run_process(words, stdin=b"", stdout=written, stderr=written, check=False)
            except OSError as error:
                raise CommandError(f"cannot run {words[0]}: {error.strerror or error}") from error
            written.seek(max(0, written.tell() - OUTPUT_BYTES_MAX))
            lines = written.read().decode("utf-8", "replace").split("\n")
        if done.returncode != 0:
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
            raise CommandError(f"{node}: {shlex.join(words)} exited with {done.returncode}: {last}")


async def _wait_broken(connection: RpcConnection) -> None:
    """Returns when the node on the other side has closed the connection."""
    from moldau.protocol.errors import KafkaError

    while True:
        try:
            await connection.negotiate(OPEN_TIMEOUT_MS)
        except (OSError, KafkaError):
            return
        except trio.TooSlowError:
            continue  # a node that hangs has not ended
        await trio.sleep(PING_S)
