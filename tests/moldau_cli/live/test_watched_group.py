"""Goal: ``groups describe --watch`` says why a look failed, and goes on. Method: canned looks on virtual time."""

import json
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from moldau import ErrorCode, KafkaError
from moldau_cli import output
from moldau_cli.commands.groups import consumer
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.live.group import Look, Taken, watch
from support.client.sample_admin import SampleAdmin

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
        return Look(
            found,
            {"group": "g", "state": "Stable", "partitions": [dict(ROW)]},
            [dict(ROW)],
            Taken(trio.current_time(), {}),
        )

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


EVERY_S = 5.0
LOOKS = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 4.5, 8.0]), st.booleans()), max_size=5)


@given(looks=LOOKS)
def test_each_look_has_its_rate_and_its_age(looks: list[tuple[float, bool]]) -> None:
    """A rate is over the time between two answers; the age is since the last look that had one.

    It was over the time between the begins of the looks: one that took eight seconds after one that took none showed a
    rate that was far too high.
    """
    looks = [(1.0, True), *looks]
    offsets = [number * number * 10 for number in range(len(looks))]
    begun: list[float] = []
    shown: list[tuple[float, dict[str, Any]]] = []

    async def look() -> Look:
        takes_s, answers = looks[len(begun)]
        offset = offsets[len(begun)]
        begun.append(trio.current_time())
        await trio.sleep(takes_s)
        if not answers:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "moved")
        row: dict[str, Any] = {"topic": "t", "partition": 0, "offset": offset, "log_end_offset": offset, "lag": 0}
        taken = Taken(trio.current_time(), {("t", 0): begun[-1]})
        return Look(f"at {offset}", {"group": "g"}, [{**row, "member": None}], taken)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(output, "wants_json", lambda: True)
        patched.setattr(output, "note", lambda text: None)
        patched.setattr(output, "answer", lambda document, text: shown.append((trio.current_time(), document)))
        trio.run(watch, look, EVERY_S, len(looks), clock=MockClock(autojump_threshold=0))
    last: int | None = None
    before: int | None = None
    for number, ((takes_s, answers), (at, document)) in enumerate(zip(looks, shown, strict=True)):
        if number:
            assert begun[number] == max(begun[number - 1] + EVERY_S, begun[number - 1] + looks[number - 1][0])
        if answers:
            before, last = last, number
        assert last is not None
        (row,) = document["partitions"]
        assert at == begun[number] + takes_s
        assert document["silent_s"] == (0.0 if answers else round(at - begun[last], 1))
        assert row["offset"] == offsets[last]
        if answers and before is not None:
            grown = offsets[last] - offsets[before]
            answered_s = [begun[number] + looks[number][0] for number in (before, last)]
            assert row["consumed_per_s"] == round(grown / (answered_s[1] - answered_s[0]), 1)
            assert row["produced_per_s"] == round(grown / (begun[last] - begun[before]), 1)


def test_a_watched_group_needs_no_notes_about_waits(monkeypatch):
    """While no controller led, a note said that nothing can be changed, and that the command waits: it does neither."""
    scopes = []

    def with_sample(place, work, *, looks):
        scopes.append(looks)
        trio.run(work, SampleAdmin())

    monkeypatch.setattr(consumer, "with_admin", with_sample)
    consumer._watch("idle", 1.0, 1, None)
    assert [scope.cancel_called for scope in scopes] == [True]
