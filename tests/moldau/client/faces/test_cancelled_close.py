"""Cancelling a client while it closes must leave the caller's cancel scopes intact."""

import pytest
import trio
import trio.testing

from moldau.cluster.background import Background


class Client:
    def __init__(self, outcome):
        self.background = Background()
        self.outcome = outcome
        self.ended = False

    async def __aenter__(self):
        nursery = await self.background.open()
        nursery.start_soon(trio.sleep_forever)
        return self

    async def finish(self):
        await trio.sleep(1)
        if self.outcome is not None:
            raise self.outcome

    def end(self):
        self.ended = True
        self.background.cancel()

    async def __aexit__(self, kind, error, traceback):
        return await self.background.close(kind, error, traceback, closing=self.finish, ended=self.end)


def run(main):
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_cancelled_while_closing():
    async def main():
        with trio.move_on_after(0.5) as scope:
            async with Client(None) as client:
                pass
        assert scope.cancelled_caught
        assert client.ended
        await trio.lowlevel.checkpoint()

    run(main)


@pytest.mark.parametrize("outcome", [None, OSError("no broker answers")])
def test_result_of_closing(outcome):
    async def main():
        client = Client(outcome)
        if outcome is None:
            async with client:
                pass
        else:
            with pytest.raises(OSError, match="no broker answers"):
                async with client:
                    pass
        assert client.ended

    run(main)


def test_an_exception_of_the_block_is_not_finished_but_ended():
    async def main():
        client = Client(OSError("never raised"))
        with pytest.raises(KeyError):
            async with client:
                raise KeyError("block")
        assert client.ended

    run(main)
