"""Goal: a read that a controller can no longer confirm is refused like one that it never could.

Method: the service over a metadata log that fails each read in one way.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau_quorum.log.port import NotLeaderError, OutcomeUnknownError
from moldau_quorum.node.request_queue import NotActiveError
from moldau_quorum.node.serving.requests import ControllerService


@pytest.mark.parametrize("failure", [NotLeaderError(-1, 3), OutcomeUnknownError("this node stops")])
def test_an_unconfirmed_read_is_for_another_controller(failure: Exception) -> None:
    """A node whose disk was full let the client's connection fail as if the request had been at fault."""

    async def read_barrier() -> int:
        await trio.lowlevel.checkpoint()
        raise failure

    service = ControllerService(
        active=SimpleNamespace(is_active=True),
        log=SimpleNamespace(read_barrier=read_barrier),
        machine=None,
        metadata=None,
        quorum=None,
        make_inputs=lambda: pytest.fail("nothing may be read"),
        node_id=1,
        quotas=None,
    )
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name="t")])
    answer = service.begin(request, object())
    with pytest.raises(NotActiveError):
        trio.run(answer)
