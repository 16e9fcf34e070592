"""Goal: a node finds the voters although some of the bootstrap servers do not know them, or do not answer.

Method: the search alone, with servers that answer what the test says.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersionsResponse
from moldau.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau_quorum.broker_side import discovery

VOTERS = {101: ("c101", 9093)}
LATER_CODE = 30_000


@pytest.mark.parametrize("first", [{}, None], ids=["knows none", "is down"])
def test_the_next_server_is_asked(monkeypatch: pytest.MonkeyPatch, first: dict[int, tuple[str, int]] | None) -> None:
    """A controller that was just formatted knows no voters until it has heard of a leader."""

    async def ask(_: object, host: str, *__: object) -> dict[int, tuple[str, int]]:
        await trio.lowlevel.checkpoint()
        if host == "a" and first is None:
            raise ConnectionError
        return first or {} if host == "a" else VOTERS

    monkeypatch.setattr(discovery, "_ask", ask)
    environment: Any = None

    async def main() -> dict[int, tuple[str, int]]:
        return await discovery.discover_voters(environment, [("a", 9093), ("b", 9093)], client_id="x")

    assert trio.run(main) == VOTERS


@pytest.mark.parametrize("refused", ["ApiVersions", "DescribeCluster"])
def test_a_code_of_later_versions_is_no_answer(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """The search goes on with the next server, whichever request the first one refuses, and however."""

    class Server:
        """A connection to a server."""

        peer = "a:9093"

        def __init__(self, host: str) -> None:
            self.code = LATER_CODE if host == "a" else ErrorCode.NONE

        async def request_as(self, *_: object, **__: object) -> DescribeClusterResponse:
            await trio.lowlevel.checkpoint()
            brokers = [DescribeClusterBroker(broker_id=101, host="c101", port=9093)]
            return DescribeClusterResponse(error_code=self.code, brokers=brokers)

        async def _wait_capacity(self, _: float) -> None:
            await trio.lowlevel.checkpoint()

        async def _ask_versions(self, *_: object) -> ApiVersionsResponse:
            await trio.lowlevel.checkpoint()
            return ApiVersionsResponse(error_code=self.code)

        def learn_versions(self, _: object) -> None:
            """Takes any."""

        def close(self) -> None:
            """Has nothing to close."""

    async def connect(_: object, host: str, *__: object, **___: object) -> Server:
        server: Any = Server(host)
        if refused == "ApiVersions":
            await RpcConnection.negotiate(server)
        return server

    monkeypatch.setattr(RpcConnection, "open", connect)
    environment: Any = None

    async def main() -> dict[int, tuple[str, int]]:
        return await discovery.discover_voters(environment, [("a", 9093), ("b", 9093)], client_id="x")

    assert trio.run(main) == VOTERS


def test_a_node_without_bootstrap_servers_does_not_wait() -> None:
    """It would wait for ever."""
    environment: Any = None

    async def main() -> None:
        with trio.fail_after(60), pytest.raises(ValueError, match=r"controller\.quorum\.bootstrap\.servers is empty"):
            await discovery.discover_voters(environment, [], client_id="x")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_log_says_why_no_server_can_be_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused login or certificate lasts until an operator acts; one line says so now and then."""

    async def ask(_: object, host: str, *__: object) -> dict[int, tuple[str, int]]:
        await trio.lowlevel.checkpoint()
        if host == "a":
            raise SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, "a:9093: wrong password")
        return {}

    monkeypatch.setattr(discovery, "_ask", ask)
    environment: Any = None

    async def main() -> None:
        with trio.move_on_after(25):
            await discovery.discover_voters(environment, [("a", 9093), ("b", 9093)], client_id="x")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3, "one at once, then one each ten seconds"
    assert all("wrong password; b:9093: knows no voters yet" in line for line in lines)
