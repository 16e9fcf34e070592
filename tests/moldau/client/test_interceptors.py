"""Goal: an interceptor that is written wrongly is named, and neither stops the client nor costs records."""

import pytest

from moldau import ConsumerInterceptor, ProducerInterceptor
from moldau.cluster.interceptors import checked, on_consume, on_send
from moldau.producer.core.output import OutputRecord


class AwaitedSend(ProducerInterceptor):
    async def on_send(self, record):
        return record


class AwaitedCommit(ConsumerInterceptor):
    async def on_commit(self, offsets):
        """Does nothing."""


class Forgetful(ProducerInterceptor, ConsumerInterceptor):
    def on_send(self, record):
        """Returns nothing."""

    def on_consume(self, batches):
        """Returns nothing."""


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


@pytest.mark.parametrize("wrong", [Forgetful(), None])
def test_interceptors_are_a_list(wrong):
    with pytest.raises(TypeError, match=r"^Client: interceptors must be a list of ConsumerInterceptor, not "):
        checked("Client", wrong, ConsumerInterceptor)


def test_an_interceptor_that_returns_nothing_changes_nothing(caplog):
    """The poll had taken the records: it returned None in their place, and the next commit covered them."""
    record = OutputRecord("t", b"v")
    assert on_send([Forgetful()], record) is record
    batches = [object()]
    assert on_consume([Forgetful()], batches) is batches
    failed = [each for each in caplog.messages if "Forgetful" in each]
    assert len(failed) == 2
    assert "it returned None" in caplog.text


class Lazy(ConsumerInterceptor):
    def __init__(self, *batches):
        self.batches = batches

    def on_consume(self, batches):
        for each in self.batches:
            yield each.upper()


def test_an_interceptor_may_return_an_iterator(caplog):
    """The poll had taken the records: it raised TypeError at a generator, and the next commit covered them."""
    assert on_consume([Lazy("a"), Lazy("b", "c")], ["x"]) == ["B", "C"]
    assert on_consume([Lazy(5)], ["x"]) == ["x"], "it raises at the first batch"
    assert "Lazy.on_consume" in caplog.text
