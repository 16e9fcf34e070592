"""Goal: a refused login leaves no clients of the cluster behind.

Method: the sessions alone, with clients of the test; virtual time.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console import sessions
from moldau_cli.console.sessions import LoginError, Sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.mark.parametrize("answer", [ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None])
def test_a_refused_login_closes_its_clients(answer: ErrorCode | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who reaches the console could fill it with clients otherwise. None: no broker answers."""
    is_open: list[str] = []

    async def describe_cluster() -> None:
        if answer is None:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        raise KafkaError(answer or ErrorCode.NONE)

    @asynccontextmanager
    async def open_identity(settings: Any, environment: Any) -> AsyncIterator[Any]:
        is_open.append("clients")
        try:
            yield SimpleNamespace(admin=SimpleNamespace(describe_cluster=describe_cluster))
        finally:
            is_open.remove("clients")

    monkeypatch.setattr(sessions, "open_identity", open_identity)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            of_console = Sessions(nursery, {"security.protocol": "SASL_PLAINTEXT"}, shared=None, token=None)
            with pytest.raises((LoginError, KafkaError)):
                await of_console.open(token="", user="eve", password="guess", mechanism="SCRAM-SHA-256")
            await trio.testing.wait_all_tasks_blocked()
            assert is_open == []
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
