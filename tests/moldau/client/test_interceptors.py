"""Goal: an interceptor that is written wrongly is named, and neither stops the client nor costs records."""

import pytest

from moldau import ConsumerInterceptor, ProducerInterceptor
from moldau.cluster.interceptors import checked


class AwaitedSend(ProducerInterceptor):
    async def on_send(self, record):
        return record


class AwaitedCommit(ConsumerInterceptor):
    async def on_commit(self, offsets):
        """Does nothing."""


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        (AwaitedSend(), ProducerInterceptor, "AwaitedSend.on_send is a coroutine function"),
        (AwaitedCommit(), ConsumerInterceptor, "AwaitedCommit.on_commit is a coroutine function"),
        (AwaitedCommit, ConsumerInterceptor, "must be a ConsumerInterceptor"),
    ],
)
def test_an_interceptor_that_no_client_can_call_is_refused(wrong, kind, text):
    with pytest.raises(TypeError, match=text):
        checked("Client", [wrong], kind)
