"""Changes a running cluster as an operator does: removes voters and adds them again, and cordons brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import trio

from moldau.admin import Admin
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_jepsen.chaos.nemesis.cordons import DirectoryCordons

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from moldau.runtime.ports.environment import Environment

ANSWER_TIMEOUT_MS = 5_000
RETRY_S = 0.5
NO_VOTER = (": done", f": {ErrorCode.VOTER_NOT_FOUND.name}")
"""How answers end after which a removed controller surely has no vote."""
MAY_BE_DONE = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.VOTER_NOT_FOUND)
"""Errors of a removal that may have taken the vote away: the second one, of an attempt after one without an answer."""


class Operator:
    """An administrator of one cluster, for the length of an ``async with`` block."""

    def __init__(self, environment: Environment, bootstrap: str, controllers: Mapping[int, tuple[str, int]]) -> None:
        """``controllers`` names host and port of each controller as the others reach it."""
        self._controllers = dict(controllers)
        config = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": ANSWER_TIMEOUT_MS, "client.id": "operator"}
        self._admin = Admin(config, environment=environment)
        self.cordons = DirectoryCordons(self._admin)
        """Cordons brokers."""
        self.removed: dict[int, None] = {}
        """Controllers whose vote was taken away, as far as this operator knows."""

    async def __aenter__(self) -> Self:
        """Starts the client without waiting for a node."""
        await self._admin.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Closes the client."""
        return await self._admin.__aexit__(kind, error, traceback)

    async def remove_voter(self, node_id: int) -> str:
        """Takes a controller's vote away; returns what was answered. It counts as removed unless it surely was not."""
        self.removed[node_id] = None
        try:
            await self._admin.remove_voter(node_id)
        except KafkaError as error:
            effect = "" if error.code in MAY_BE_DONE else "no effect: "
            return f"{effect}remove {node_id}: {error.code.name}"
        return f"remove {node_id}: done"

    async def surely_remove_voter(self, node_id: int, timeout_s: float) -> bool:
        """Takes a controller's vote away; returns whether the quorum has said so in time."""
        with trio.move_on_after(timeout_s):
            while not (await self.remove_voter(node_id)).endswith(NO_VOTER):  # noqa: ASYNC110 - no event reports it
                await trio.sleep(RETRY_S)
            return True
        return False

    async def add_voter(self, node_id: int) -> str:
        """Gives the vote back; returns what was answered. The controller must run."""
        host, port = self._controllers[node_id]
        try:
            await self._admin.add_voter(node_id, host, port)
        except KafkaError as error:
            if error.code is ErrorCode.DUPLICATE_VOTER:
                self.removed.pop(node_id, None)
            effect = "" if error.code is ErrorCode.REQUEST_TIMED_OUT else "no effect: "
            return f"{effect}add {node_id}: {error.code.name}"
        self.removed.pop(node_id, None)
        return f"add {node_id}: done"

    async def restore_voters(self, timeout_s: float) -> bool:
        """Gives every removed controller its vote back; returns whether that was done in time."""
        with trio.move_on_after(timeout_s):
            while self.removed:
                for node_id in sorted(self.removed):
                    await self.add_voter(node_id)
                await trio.sleep(RETRY_S)
            return True
        return not self.removed
