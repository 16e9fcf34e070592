"""Goal: an interrupt ends a command wherever it arrives.

Method: the signal is raised in a callback of a weak reference, whose exceptions Python ignores, as in an import's lock.
"""

import signal
import sys
import weakref

import pytest
import trio

from moldau_cli import output
from moldau_cli.client.running import run
from moldau_cli.commands.topics import listing
from moldau_cli.signals import ends_at_signal
from support.commands import run_command

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


class ImpatientUser:
    """A finder of modules, during whose work Ctrl-C is pressed."""

    def find_spec(self, name, path=None, target=None):
        if name == "moldau_cli.application":
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_during_the_imports_is_no_traceback(monkeypatch):
    """A command imports for a third of a second before it does anything."""
    output.use_json(False)  # as in a new process
    monkeypatch.delitem(sys.modules, "moldau_cli.application", raising=False)
    monkeypatch.setattr(sys, "meta_path", [ImpatientUser(), *sys.meta_path])
    done = run_command("topics", "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "moldau: interrupted\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [((), "moldau: interrupted\n"), (("--json",), '{"error": "interrupted", "exit_code": 130}\n')],
)
def test_an_interrupt_of_a_command_is_one_line(monkeypatch, words, text):
    """Releases of typer that turn it into exit code 130 wrote neither the line nor the JSON document."""

    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(listing, "with_admin", interrupted)
    done = run_command("topics", "list", *words)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", text)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_ends_at_a_signal_and_says_so(number):
    async def work():
        signal.raise_signal(number)
        await trio.sleep_forever()

    async def nothing():
        await trio.lowlevel.checkpoint()

    before = signal.getsignal(number)
    assert trio.run(ends_at_signal, work) is True
    assert trio.run(ends_at_signal, nothing) is False
    assert signal.getsignal(number) == before
