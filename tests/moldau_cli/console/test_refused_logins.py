"""Goal: a refused login is tried once, and leaves no client of the cluster behind.

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
from moldau_cli.console import identities
from moldau_cli.console.sessions import LoginError, Sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.mark.parametrize("answer", [ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None])
def test_a_refused_login_is_tried_by_one_client(answer: ErrorCode | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four clients of a user tried it, so brokers counted four refused logins for one. None: no broker answers."""
    is_open: list[str] = []
    opened: list[str] = []

    async def describe_cluster() -> None:
        if answer is None:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        raise KafkaError(answer or ErrorCode.NONE)

    @asynccontextmanager
    async def admin(settings: Any, *, environment: Any) -> AsyncIterator[Any]:
        opened.append(settings["sasl.jaas.config"])
        is_open.append("client")
        try:
            yield SimpleNamespace(describe_cluster=describe_cluster)
        finally:
            is_open.remove("client")

    monkeypatch.setattr(identities, "Admin", admin)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            of_console = Sessions(nursery, {"security.protocol": "SASL_PLAINTEXT"}, shared=None, token=None)
            with pytest.raises((LoginError, KafkaError)):
                await of_console.open(token="", user="eve", password="guess", mechanism="SCRAM-SHA-256")
            await trio.testing.wait_all_tasks_blocked()
            assert (len(opened), is_open) == (1, [])
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
