"""Goal: the display of a query shows each of its last batches, ends with the query or its time, and says how it ended.

Method: queries whose reports and states are lists; the clock is one of the test.
"""

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from pyspark_moldau.terminal import figures, watch
from pyspark_moldau.terminal.figures import Batch, History, batch_of, lag_of
from pyspark_moldau.terminal.picture import draw
from pyspark_moldau.terminal.watch import SHOWN_BATCHES, summary, table_of


def report(number, rows=0, duration_ms=500, **more):
    durations = {"durationMs": {"triggerExecution": duration_ms}}
    return (
        {"batchId": number, "timestamp": f"2026-01-02T03:04:{number:02d}.5Z", "numInputRows": rows} | durations | more
    )


class Query:
    """A query that is active at some looks; each of them sees one report more."""

    id = "0123456789"

    def __init__(self, reports, failure=None, name="flights", status=None):
        self.name, self.failure, self.reports = name, failure, reports
        self.status = {"message": "at work"} if status is None else status
        self.looks = 0

    @property
    def isActive(self):
        self.looks += 1
        return self.looks < len(self.reports)

    @property
    def recentProgress(self):
        return [SimpleNamespace(json=json.dumps(each)) for each in self.reports[: self.looks]]

    def exception(self):
        return self.failure


@pytest.fixture
def watched(monkeypatch):
    """Returns a function that watches a query; it returns the history, and the states that were shown."""
    now, shown = [100.0], []
    fake = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(watch, "time", fake)
    former = watch.table_of
    monkeypatch.setattr(watch, "table_of", lambda *given: shown.append(given[0::2]) or former(*given))

    def function(query, **options):
        history = watch.watch(query, console=Console(file=io.StringIO()), **options)
        return history, shown

    return function


def test_a_query_is_watched_until_it_ends(watched):
    """The last report may come with the end."""
    query = Query([report(number, rows=5) for number in range(4)])
    history, shown = watched(query)
    assert (history.count, history.rows, history.busy_ms) == (4, 20, 2000)
    assert shown == [("flights", state) for state in ("starting", "at work", "at work", "at work", "ended")]


@pytest.mark.parametrize(
    ("failure", "state"),
    [("no such column\n at f", "failed: no such column"), ("\n  \nlate", "failed: late"), ("", "failed: ")],
)
def test_the_error_of_a_query_is_shown_and_not_raised(watched, failure, state):
    _, shown = watched(Query([report(0)], ValueError(failure)))
    assert shown[-1] == ("flights", state)


@pytest.mark.parametrize(("timeout_s", "looks"), [(0, 1), (0.5, 2), (0.6, 3), (1.0, 3), (None, 9)])
def test_a_watch_ends_with_its_time(watched, timeout_s, looks):
    """The query goes on, and what the last look has seen counts."""
    query = Query([report(number, rows=5) for number in range(9)])
    history, shown = watched(query, timeout_s=timeout_s)
    assert (query.looks, history.count) == (looks, looks)
    assert shown[-1] == ("flights", "at work" if looks < 9 else "ended")


def test_a_query_without_name_or_message_is_shown(watched):
    _, shown = watched(Query([report(0), report(1)], name=None, status={}))
    assert shown == [("01234567", "starting"), ("01234567", ""), ("01234567", "ended")]


def test_the_table_has_the_last_batches():
    history = History()
    offsets = {"sources": [{"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 1005}}}]}
    history.add([report(number, 1000 * number, 1250, processedRowsPerSecond=1234.5) for number in range(SHOWN_BATCHES)])
    history.add([report(SHOWN_BATCHES, 7, 10, **offsets), report(SHOWN_BATCHES + 1, 8)])
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table_of("flights", history, "at work"))
    rows = [line.replace("│", " ").split() for line in console.export_text().splitlines() if "03:04" in line]
    assert [row[0] for row in rows] == [str(number) for number in range(2, SHOWN_BATCHES + 2)]
    assert rows[0] == ["2", "03:04:02", "2,000", "1,234", "1.25", "s", "-"]
    assert rows[-2] == ["10", "03:04:10", "7", "0", "0.01", "s", "1,000"]
    assert summary(history) == "12 batches, 45,015 rows, 3,460 rows/s while busy"
    assert summary(History()) == "0 batches, 0 rows, 0 rows/s while busy"


def test_a_long_run_keeps_its_last_batches_and_all_sums(monkeypatch):
    monkeypatch.setattr(figures, "BATCHES_MAX", 3)
    history = History()
    for number in range(10):
        history.add([report(before, 2) for before in range(max(0, number - 2), number + 1)])
    assert [batch.number for batch in history.batches] == [7, 8, 9]
    assert (history.count, history.rows, history.busy_ms) == (10, 20, 5000)


def test_a_report_may_lack_figures():
    """That of a query which has just started has few."""
    least = {"batchId": 3, "timestamp": "2026-01-02T03:04:05Z"}
    expected = Batch(number=3, started="2026-01-02T03:04:05Z", rows=0, rows_per_second=0.0, duration_ms=0, lag=None)
    assert batch_of(least) == expected
    assert batch_of(least | {"durationMs": None, "sources": None}) == expected
    assert batch_of(least | {"durationMs": {}, "sources": [{}]}) == expected


def test_a_report_of_spark_connect_counts_by_source():
    """It has no sums; the table showed no row at all."""
    figures_of_sources = [{"numInputRows": 3, "processedRowsPerSecond": 1.5}, {"numInputRows": 4}]
    least = {"batchId": 3, "timestamp": "2026-01-02T03:04:05Z", "sources": figures_of_sources}
    found = batch_of(least)
    assert (found.rows, found.rows_per_second) == (7, 1.5)


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([({"t": {"0": 5}}, {"t": {"0": 9, "1": 3}})], 7),
        ([({"t": {"0": 9}}, {"t": {"0": 5, "1": 3}})], 3),
        ([({"t": {"0": 5}}, {"t": {"0": 9}}), ({"u": {"0": 1}}, {"u": {"0": 2}})], 5),
        ([({"t": {"0": 5}}, {"t": {"0": 9}}), (None, None)], 4),
        ([({"t": {"0": 5}}, None), (None, {"t": {"0": 9}})], None),
        ([('{"t": {"0": 5}}', '{"t": {"0": 9}}')], 4),
        ([("7", "9"), ("{", "x"), (7, 9), ([1], [2])], None),
        ([({"t": {"0": 0}}, {"t": {"0": 0}})], 0),
    ],
)
def test_the_lag_is_that_of_all_sources_which_have_one(sources, lag):
    """A partition that the query has not begun counts from its beginning; no partition makes up for another's lag."""
    found = [{"endOffset": end, "latestOffset": latest} for end, latest in sources]
    assert lag_of({"sources": found}) == lag


def test_the_picture_has_the_figures_of_each_batch(monkeypatch, tmp_path):
    """Rows per second, lag and time, each in a panel of its own; a batch whose lag is not known leaves a gap."""
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: saved.append((figure, path)))
    history = History()
    offsets = {"sources": [{"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 12}}}]}
    history.add(
        [report(0, 5, 500, processedRowsPerSecond=10.0, **offsets), report(1, 3, 1500, processedRowsPerSecond=2.0)]
    )
    history.add([report(2, 4, 250, processedRowsPerSecond=16.0, **offsets)])
    draw(history, tmp_path / "query.png", title="flights")
    ((figure, path),) = saved
    rates, lags, times = figure.axes
    assert path == str(tmp_path / "query.png")
    assert figure.get_suptitle() == "query flights: 3 batches, 12 rows"
    assert [axis.get_ylabel() for axis in figure.axes] == ["rows per second", "lag (offsets)", "time per batch (s)"]
    assert times.get_xlabel() == "batch"
    for axis, heights in ((rates, [10.0, 2.0, 16.0]), (times, [0.5, 1.5, 0.25])):
        assert [bar.get_height() for bar in axis.patches] == heights
        assert [bar.get_x() + bar.get_width() / 2 for bar in axis.patches] == [0, 1, 2]
    (line,) = lags.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0, 2], [7, 7])
    assert lags.get_ylim()[0] == 0
