"""Goal: a node's log is text or JSON lines, nothing forges a line, and a fault that lasts does not flood it.

Method: the limiter against a naive model; the handler on a stream of its own, with time passed in.
"""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.telemetry.core.repeats import LeftOut, RepeatLimiter
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.telemetry.node_log import NodeLogHandler


class Journal:
    """A logger with the handler of a node, on a stream and a clock of its own."""

    def __init__(self, log_format="text", repeats_max=2, process=None):
        self.stream, self.now_ms = io.StringIO(), 0.0
        self.handler = NodeLogHandler(
            self.stream, log_format, repeats_max=repeats_max, monotonic_ms=lambda: self.now_ms, process=process
        )
        self.events = EventLogger("moldau.test.node_log", node=3)
        self.logger = logging.getLogger("moldau.test.node_log")
        self.logger.propagate = False
        self.logger.setLevel(logging.INFO)
        self.logger.handlers = [self.handler]

    def lines(self):
        return self.stream.getvalue().splitlines()

    def documents(self):
        return [json.loads(line) for line in self.lines()]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_each_line_of_a_shared_stream_names_its_process(log_format):
    """The processes of ``broker.processes`` share stderr; most lines of libraries and of the broker named no node."""
    journal = Journal(log_format, process=12)
    journal.logger.info("of a library")
    journal.events.info("moved", process="other")
    if log_format == "json":
        assert [one["process"] for one in journal.documents()] == [12, 12]
        assert journal.documents()[1]["process_"] == "other"
    else:
        assert [line.split(" ")[1:3] for line in journal.lines()] == [["[12]", "INFO"]] * 2


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("repeats_max", [0, 2])
@pytest.mark.parametrize(("text", "given"), [("%d rows", ("two",)), ("%s and %s", ("one",)), ("%(name)s", ({"x": 1},))])
def test_arguments_that_fit_no_text_end_no_caller(log_format, repeats_max, text, given, capsys):
    """The error came out of the library's call, in the midst of its work; Python's own handlers only show it."""
    journal = Journal(log_format, repeats_max)
    journal.logger.info(text, *given)
    journal.logger.info("a later line")
    assert len(journal.lines()) == 1
    assert "--- Logging error ---" in capsys.readouterr().err


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 7)), max_size=80),
    lines_max=st.integers(1, 3),
    keys_max=st.integers(1, 3),
)
def test_no_line_is_uncounted(steps, lines_max, keys_max):
    """Each line passes or is counted once, and no window of a key passes more than its limit."""
    limiter = RepeatLimiter(lines_max=lines_max, window_ms=10, keys_max=keys_max)
    now, passed, counted = 0, [], 0
    for key, wait in steps:
        now += wait
        passes, due = limiter.admit(key, now)
        counted += sum(one.count for one in due)
        assert all(one.count > 0 and 0 <= one.window_ms <= 10 for one in due)
        if passes:
            passed.append((key, now))
    counted += sum(one.count for one in limiter.finish(now))
    assert len(passed) + counted == len(steps)
    if keys_max == 3:  # no window ends early, so two windows lie at least ten milliseconds apart
        for key, at in passed:
            assert sum(other == key and at <= when < at + 10 for other, when in passed) <= 2 * lines_max
    assert limiter.finish(now) == []


def test_a_repeated_line_is_counted_after_its_window():
    journal = Journal()
    for _ in range(7):
        journal.events.warning("refused", peer="a b")
    journal.events.warning("refused", peer="another")
    assert len(journal.lines()) == 3
    journal.now_ms = 10_000
    journal.events.info("went-on")
    count, last = journal.lines()[3:]
    assert count.endswith(
        'WARNING moldau.test.node_log lines-left-out count=5 window_ms=10000 line="refused node=3 peer=\\"a b\\""'
    )
    assert last.endswith("INFO moldau.test.node_log went-on node=3")
    journal.events.warning("refused", peer="a b")
    assert len(journal.lines()) == 6


def test_one_event_with_many_fields_is_limited_too():
    """A client that reconnects has another port in each line."""
    journal = Journal(repeats_max=1)
    for port in range(250):
        journal.events.warning("refused", port=port)
    assert len(journal.lines()) == 100
    journal.handler.close()
    assert "lines-left-out count=150 window_ms=0 line=refused" in journal.lines()[-1]


@pytest.mark.parametrize(("lasted_ms", "shown_ms"), [(0, 0), (4_000, 4_000), (10_000, 10_000), (25_000, 10_000)])
def test_a_log_that_ends_says_how_long_lines_were_left_out(lasted_ms, shown_ms):
    """The window begins with its first line, and its end is that of the node, if the node ends before."""
    journal = Journal(repeats_max=1)
    journal.now_ms = 50_000
    for _ in range(3):
        journal.events.warning("refused")
    journal.now_ms += lasted_ms
    journal.handler.close()
    assert f"lines-left-out count=2 window_ms={shown_ms} " in journal.lines()[-1]
    journal.handler.close()
    assert len(journal.lines()) == 2


def test_zero_repeats_means_no_limit():
    journal = Journal(repeats_max=0)
    for _ in range(5_000):
        journal.logger.warning("again")
    assert len(journal.lines()) == 5_000


def test_a_json_line_has_the_fields_of_its_event():
    journal = Journal("json")
    journal.events.warning("slow-sync", took_ms=12.34567, of=True, path=b"x", none=None, level=7, nan=float("nan"))
    journal.logger.info("plain %s", "text")
    first, second = journal.documents()
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "moldau.test.node_log",
        "event": "slow-sync",
        "node": 3,
        "took_ms": 12.346,
        "of": True,
        "path": "b'x'",
        "none": None,
        "level_": 7,
        "nan": "nan",
    }
    assert second["event"] == "plain text"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_cannot_forge_a_line(log_format):
    journal = Journal(log_format)
    try:
        raise ValueError("bad\n2026-11-23 ERROR forged\u2028")
    except ValueError as error:
        journal.events.error("failed", exception=error, name="x\ny")
    if log_format == "json":
        (document,) = journal.documents()
        assert "ValueError: bad\n2026" in document["exception"]
        assert document["name"] == "x\ny"
    else:
        assert all(line.startswith("    ") for line in journal.lines()[1:])


@pytest.mark.parametrize("keys_max", [1, 2, 5])
def test_a_new_key_ends_the_oldest_window(keys_max):
    """The table is bounded: keys that never come again must not stay in it for their whole window."""
    limiter = RepeatLimiter(lines_max=1, window_ms=1_000, keys_max=keys_max)
    for key in range(3 * keys_max):
        passes, due = limiter.admit(key, key)
        assert passes
        gone = key - keys_max
        assert due == ([LeftOut(key=gone, count=gone + 1, window_ms=keys_max)] if gone >= 0 else [])
        for _ in range(key + 1):
            assert limiter.admit(key, key) == (False, [])
    assert [one.key for one in limiter.finish(3 * keys_max)] == list(range(2 * keys_max, 3 * keys_max))
