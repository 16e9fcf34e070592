"""Goal: ``groups describe --watch`` says why a look failed, and goes on. Method: canned looks on virtual time."""

import json

import pytest
import trio
import trio.testing

from moldau import ErrorCode, KafkaError
from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.live.group import Look, watch

ROW = {"topic": "t", "partition": 0, "offset": 5, "log_end_offset": 7, "lag": 2, "member": None}
AWAY = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the quorum is away")


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch):
    """A command that ran in this process before may have been asked for JSON."""
    monkeypatch.setattr(output, "_as_json", False)


def watched(looks, times=None):
    """Watches a group whose looks answer, raise, or hang (None); returns the time that it took."""

    async def look():
        await trio.lowlevel.checkpoint()
        found = looks.pop(0)
        if found is None:
            await trio.sleep_forever()
        if isinstance(found, Exception):
            raise found
        return Look(found, {"group": "g", "state": "Stable", "partitions": [dict(ROW)]}, [dict(ROW)])

    async def main():
        await watch(look, 2.0, times or len(looks))
        return trio.current_time()

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_failed_look_is_named_and_the_next_one_follows(capsys):
    took_s = watched(["group g: Stable", AWAY, UsageError("there is no group 'g'"), None, "group g: Empty"])
    assert took_s == 16  # the look that hangs ends after ten seconds
    assert [line for line in capsys.readouterr().out.splitlines() if "group g" in line] == [
        "group g: Stable",
        "NO ANSWER for 2 s (the quorum is away); before: group g: Stable",
        "there is no group 'g'; 4 s before: group g: Stable",
        "NO ANSWER for 16 s (no broker answered within 10 s); before: group g: Stable",
        "group g: Empty",
    ]


def test_documents_say_how_old_they_are(capsys, monkeypatch):
    monkeypatch.setattr(output, "_as_json", True)
    watched(["group g: Stable", AWAY, "group g: Stable"])
    shown = capsys.readouterr()
    documents = [json.loads(line) for line in shown.out.splitlines()]
    assert [(each["group"], each["state"]) for each in documents] == [("g", "Stable")] * 3, "no headline"
    assert [each["silent_s"] for each in documents] == [0.0, 2.0, 0.0]
    assert "consumed_per_s" in documents[0]["partitions"][0]
    assert "consumed_per_s" not in documents[1]["partitions"][0], "rates of the past are not those of now"
    assert documents[2]["partitions"][0]["consumed_per_s"] == 0.0
    assert "the quorum is away" in shown.err


@pytest.mark.parametrize("error", [AWAY, UsageError("there is no group 'g'")])
def test_a_first_look_that_fails_ends_the_command(error):
    with pytest.raises((KafkaError, CommandError)) as caught:
        watched([error, "group g"])
    assert caught.value is error
