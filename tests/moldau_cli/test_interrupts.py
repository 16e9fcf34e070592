"""Goal: an interrupt ends a command wherever it arrives.

Method: the signal is raised in a callback of a weak reference, whose exceptions Python ignores, as in an import's lock.
"""

import signal
import weakref

import pytest
import trio

from moldau_cli.client import run

NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _default_handler():
    """Test processes that work for others ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Gone:
    """An object whose end is noticed."""


def test_an_interrupt_within_a_callback_of_python_is_not_lost():
    async def work() -> None:
        gone = Gone()
        kept = weakref.ref(gone, lambda _: signal.raise_signal(signal.SIGINT))
        del gone
        assert kept() is None
        with trio.fail_after(5):
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        run(work, NOWHERE, probes=False)
