"""Goal: a client that is cancelled at any moment of its opening ends with the cancellation, and with nothing else.

Method: another task cancels after each number of turns of the event loop that the opening may take.
"""

import pytest
import trio

from moldau.cluster.background import Background


async def forever(*, task_status):
    task_status.started()
    await trio.sleep_forever()


async def opened_and_cancelled(turns):
    """Opens with two tasks; the scope is cancelled after so many turns."""
    background, scope = Background(), trio.CancelScope()

    async def cancel():
        for _ in range(turns):
            await trio.lowlevel.cancel_shielded_checkpoint()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        with scope:
            await background.open(forever, forever)
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                await background.close(type(error), error, error.__traceback__)
                raise
    return scope.cancelled_caught


@pytest.mark.parametrize("turns", range(12))
def test_a_cancelled_opening_raises_the_cancellation(turns):
    assert all(trio.run(opened_and_cancelled, turns) for _ in range(30))
