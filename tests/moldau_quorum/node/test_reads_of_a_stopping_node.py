"""Goal: a read that a controller can no longer confirm is refused like one that it never could.

Method: the service over a metadata log that fails each read in one way.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau_quorum.log.port import NotLeaderError, OutcomeUnknownError
from moldau_quorum.node.request_queue import NotActiveError
from moldau_quorum.node.serving.requests import ControllerService


def service_with(read_barrier: Any) -> ControllerService:
    unused: Any = None
    active: Any = SimpleNamespace(is_active=True)
    log: Any = SimpleNamespace(read_barrier=read_barrier)
    return ControllerService(
        active=active,
        log=log,
        machine=unused,
        metadata=unused,
        quorum=unused,
        make_inputs=lambda: pytest.fail("nothing may be read"),
        node_id=1,
        quotas=unused,
    )


REQUEST = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name="t")])


def test_a_read_that_is_not_confirmed_in_time_is_refused() -> None:
    """The quorum has no majority, so another controller may have changed what this one would read."""
    answer = service_with(trio.sleep_forever).begin(REQUEST, object())
    response = trio.run(answer, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [result.error_code for result in response.results] == [ErrorCode.REQUEST_TIMED_OUT]


@pytest.mark.parametrize("failure", [NotLeaderError(-1, 3), OutcomeUnknownError("this node stops")])
def test_an_unconfirmed_read_is_for_another_controller(failure: Exception) -> None:
    """A node whose disk was full let the client's connection fail as if the request had been at fault."""

    async def read_barrier() -> int:
        await trio.lowlevel.checkpoint()
        raise failure

    answer = service_with(read_barrier).begin(REQUEST, object())
    with pytest.raises(NotActiveError):
        trio.run(answer)
