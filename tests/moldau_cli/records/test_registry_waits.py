"""Goal: a command says that it waits for the schema registry. Method: a registry that hangs, on virtual time."""

import httpx
import pytest
import trio
import trio.testing

from moldau.serialization import RegistryError
from moldau_cli.records.registry import WatchedRegistry


class Hanging(httpx.AsyncBaseTransport):
    """A registry that answers after a time."""

    def __init__(self, seconds):
        self.seconds = seconds

    async def handle_async_request(self, request):
        await trio.sleep(self.seconds)
        return httpx.Response(200, json=[])


def asked(seconds):
    """Asks such a registry for its subjects, with a timeout of 10 s and no second attempt."""

    async def main():
        config = {"schema.registry.url": "http://user:secret@registry:8081", "max.retries": "0"}
        await WatchedRegistry(config, transport=Hanging(seconds)).subjects()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)


def test_a_wait_for_the_registry_is_named(capsys):
    """``moldau produce`` was silent until all attempts had failed."""
    asked(8)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the schema registry does not answer yet (http://registry:8081)")


def test_an_answer_at_once_has_no_note(capsys):
    asked(0.5)
    assert capsys.readouterr().err == ""


def test_the_end_of_the_wait_is_the_registrys_error(capsys):
    with pytest.raises(RegistryError, match="does not answer within 10 s"):
        asked(11)
    assert capsys.readouterr().err.count("\n") == 1
