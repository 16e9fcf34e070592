"""Goal: a table shows times as dates, and JSON as numbers. Method: the functions alone."""

import io
import json
from contextlib import redirect_stdout

import pytest

from moldau_cli import output


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_976_685_370, "2026-11-29T18:24:45.370Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (2**63 - 1, str(2**63 - 1)),
        (None, "-"),
    ],
)
def test_times_are_dates_in_a_table_and_numbers_in_json(time_ms, text, capsys):
    row = {"at": time_ms, "count": 7}
    try:
        for as_json in (False, True):
            output.use_json(as_json)
            output.answer_rows("rows", ["at", "count"], [row], times=("at",))
    finally:
        output.use_json(False)
    *table, document = capsys.readouterr().out.splitlines()
    assert table[1].split() == [text, "7"]
    assert json.loads(document) == {"rows": [row]}


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_is_written_at_once(monkeypatch, as_json):
    """A live view behind a pipe would show nothing until a buffer is full."""

    class Stream(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = len(self.getvalue())

    monkeypatch.setattr(output, "_as_json", as_json)
    for answer in (
        lambda: output.answer({"a": 1}, "a is 1"),
        lambda: output.answer_rows("rows", ["a"], [{"a": 1}]),
    ):
        with redirect_stdout(Stream()) as stream:
            answer()
        assert stream.flushed == len(stream.getvalue()) > 0
